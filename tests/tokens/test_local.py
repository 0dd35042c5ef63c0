"""A tokenizer file on this machine: what is said when it, or the package, is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from agentroute.errors import FileError, UsageError
from agentroute.tokens import LocalTokenizer, estimate


def test_without_the_package_it_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        UsageError, match=r"needs the package tokenizers; install it with: pip install 'agentroute\[tok"
    ):
        LocalTokenizer.from_file("tokenizer.json")


def test_a_tokenizer_file_counts(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    model = {"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": model}))
    tokenizer = LocalTokenizer.from_file(path)
    assert tokenizer.count("a b a") == 3
    assert tokenizer.count("\ud800") == 1
    assert estimate([{"role": "user", "content": "a b a"}], tokenizer=tokenizer).source == "tokenizer"
    path.write_text("{}")
    with pytest.raises(FileError, match=r"is not a tokenizer.json"):
        LocalTokenizer.from_file(path)
    with pytest.raises(FileError, match="cannot be read"):
        LocalTokenizer.from_file(tmp_path / "none.json")
