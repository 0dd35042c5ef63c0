"""The fingerprints of a corpus, written into the shipped model files and into ``tokens/generic.py``.

    python -m agentroute.bench.fingerprint tests/data/tokens/counts.csv

The same corpus gives the same files, byte for byte. Counts come from ``tests/tools/count_tokens.py``.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import agentroute.tokens.generic
from agentroute.bench.corpus import GENERIC_MARGIN, MARGIN, Corpus, fingerprints, generic
from agentroute.catalogue import FOLDER
from agentroute.shape.fingerprint import FEATURES

_TABLE = re.compile(r"^\[tokens\]\n.*?(?=^\[(?!tokens\.))", re.MULTILINE | re.DOTALL)
_LINE = 120


def tables(corpus: Corpus) -> dict[str, str]:
    """The text of the ``tokens`` table of every model that a tokenizer is of."""
    made = {}
    for name, weights in fingerprints(corpus).items():
        about = corpus.about.get(name, {})
        lines = ["[tokens]", f'tokenizer = "{name}"', f"margin = {MARGIN}"]
        lines += [f"{key} = {about[key]}" for key in ("message_tokens", "template_tokens") if key in about]
        lines += ["", "[tokens.weights]"]
        lines += [f"{feature} = {weight}" for feature, weight in zip(FEATURES, weights, strict=True)]
        lines += ["", "[tokens.provenance]", 'origin = "measured"', f'source = "{_source(corpus, about)}"']
        lines += [f'notes = "{about["notes"]}"'] if "notes" in about else []
        made.update({model: "\n".join(lines) + "\n\n" for model in about.get("models", ())})
    return made


def _source(corpus: Corpus, about: object) -> str:
    assert isinstance(about, dict)
    where = f"{about['package']}, {about['file']}" if "package" in about else "a tokenizer"
    return f"{where}: its counts of the {len(corpus.samples)} texts of tests/data/tokens"


def with_table(text: str, table: str | None) -> str:
    """A model file with another ``tokens`` table, or without one."""
    text = _TABLE.sub("", text)
    return (
        text if table is None else re.sub(r"^\[provenance\]$", lambda found: table + found[0], text, flags=re.MULTILINE)
    )


def generic_module(corpus: Corpus) -> str:
    """The source of ``tokens/generic.py``."""
    value, most = generic(corpus)
    old = Path(agentroute.tokens.generic.__file__).read_text()
    for name, weights in (("WEIGHTS", value), ("AT_MOST", most)):
        old = re.sub(rf"^{name}: .*?^\).*?$", _assigned(name, weights), old, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^MARGIN = .*$", f"MARGIN = {GENERIC_MARGIN}", old, flags=re.MULTILINE)


def _assigned(name: str, weights: Sequence[float]) -> str:
    lines, line = [f"{name}: tuple[float, ...] = ("], "   "
    for weight in weights:
        if len(line) + len(f" {weight},") > _LINE:
            lines, line = [*lines, line], "   "
        line += f" {weight},"
    return "\n".join([*lines, line, ")  # fmt: skip"])


def main() -> None:
    """Write the fingerprints of the corpus given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts", type=Path, help="the corpus's table")
    corpus = Corpus.read(parser.parse_args().counts)
    made = tables(corpus)
    for path in sorted((FOLDER / "models").glob("*.toml")):
        text = path.read_text()
        new = with_table(text, made.pop(path.stem, None))
        if new != text:
            path.write_text(new)
    assert not made, f"there are no models {', '.join(made)}"
    Path(agentroute.tokens.generic.__file__).write_text(generic_module(corpus))


if __name__ == "__main__":
    main()
