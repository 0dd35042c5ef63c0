"""No file, however broken, gets more out of an importer than the library's own error."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentroute.bench.importers import load
from agentroute.bench.importers.assemble import assemble
from agentroute.bench.importers.deployment import Given
from agentroute.errors import FileError, UsageError
from agentroute.profile import Engine, Profile
from agentroute.toml import dumps

DATA = Path(__file__).parents[2] / "data" / "bench"
JSONS = sorted(DATA.glob("*/*.json*"))
CSVS = sorted(DATA.glob("*/*.csv"))

ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from(
        [10**400, -1, 0, 1e-320, 1e308, float("inf"), float("nan"), "", "\ud800", "\x00", "nan", "4", [], {}]
    ),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.one_of(st.integers(), st.text(max_size=3)), max_size=3),
)
JSON = st.recursive(
    ODD, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=5)
)

fuzz = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def import_all(path: Path) -> None:
    """Import a file to the end: to a profile as text. Raises only what the library raises on purpose."""
    try:
        found = assemble([load(path)], Given(), lambda said: None)
    except (FileError, UsageError) as error:
        assert str(error)
        return
    profile = Profile(format=1, name="mine", engine=Engine(name="other"), measurements=found.measurements)
    dumps(profile.model_dump(exclude_none=True)).encode()
    for word in (*found.notes, *found.left_out):
        word.encode()


@given(content=st.binary(max_size=300), suffix=st.sampled_from([".json", ".jsonl", ".csv", ".yaml", ".txt", ""]))
@fuzz
def test_any_bytes(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"result{suffix}"
    path.write_bytes(content)
    import_all(path)


@given(text=st.text(max_size=300), suffix=st.sampled_from([".json", ".jsonl", ".csv", ".yaml"]))
@fuzz
def test_any_text(text: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"result{suffix}"
    path.write_text(text, encoding="utf-8", errors="replace", newline="")
    import_all(path)


@given(value=JSON)
@fuzz
def test_any_json(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(value))
    import_all(path)


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to everything inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way for key, item in inside for way in ((*here, key), *places(item, (*here, key)))]


@pytest.mark.parametrize("good", JSONS, ids=lambda path: str(path.name))
@given(data=st.data())
@fuzz
def test_a_good_file_with_odd_values(good: Path, data: st.DataObject, tmp_path: Path) -> None:
    lines = good.suffix == ".jsonl"
    text = good.read_text()
    whole = [json.loads(line) for line in text.splitlines()] if lines else json.loads(text)
    changed = copy.deepcopy(whole)
    ways = places(whole)
    for way in data.draw(st.lists(st.sampled_from(ways), min_size=1, max_size=3, unique=True)):
        try:
            inner = changed
            for key in way[:-1]:
                inner = inner[key]
            inner[way[-1]] = copy.deepcopy(data.draw(ODD | st.sampled_from([whole, {"avg": 1.0, "unit": "s"}])))
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change has taken this place away
    path = tmp_path / good.name
    path.write_text("\n".join(json.dumps(item) for item in changed) if lines else json.dumps(changed))
    import_all(path)


@pytest.mark.parametrize("good", CSVS, ids=lambda path: str(path.name))
@given(data=st.data())
@fuzz
def test_a_good_csv_with_odd_bytes(good: Path, data: st.DataObject, tmp_path: Path) -> None:
    raw = good.read_bytes()
    start = data.draw(st.integers(0, len(raw)))
    cut = data.draw(st.integers(0, 40))
    path = tmp_path / good.name
    path.write_bytes(raw[:start] + data.draw(st.binary(max_size=10)) + raw[start + cut :])
    import_all(path)
