"""Counting with a tokenizer file on this machine, by the optional package ``tokenizers``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentroute.errors import FileError, UsageError

MAX_BYTES = 64 * 1024 * 1024
"""The largest file read: one of 262,144 tokens has 33 MiB."""


class LocalTokenizer:
    """A tokenizer whose ``tokenizer.json``, as on the Hugging Face Hub, lies on this machine."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def from_file(cls, path: str | Path) -> LocalTokenizer:
        """The tokenizer of a file of at most 64 MiB.

        Raises ``UsageError`` when the package ``tokenizers`` is missing, ``FileError`` when the file is no such thing.
        """
        from agentroute.files import read_text

        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise UsageError(
                "a tokenizer file needs the package tokenizers; install it with: pip install 'agentroute[tokenizers]'"
            ) from None
        text = read_text(Path(path), FileError, max_bytes=MAX_BYTES)
        try:
            return cls(Tokenizer.from_str(text))
        # The package raises bare exceptions, whatever is wrong.
        except Exception as problem:
            raise FileError(f"is not a tokenizer.json: {str(problem)[:200]}", path=Path(path)) from None

    def count(self, text: str) -> int:
        """Tokens of a text, without a template's marks; half a character counts as a replacement mark."""
        whole = text.encode("utf-8", "replace").decode("utf-8")
        return len(self._tokenizer.encode(whole, add_special_tokens=False).ids)
