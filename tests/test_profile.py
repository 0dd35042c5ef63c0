"""Profile format 1: the same in TOML and JSON, documented key by key, and what it implies."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleets import PROFILE, SOURCE, profile, written
from pydantic import BaseModel, ValidationError

from agentroute.capacity.pool import Pool
from agentroute.catalogue import shipped
from agentroute.config import Config
from agentroute.profile import KvPool, Price, Profile
from agentroute.shape.accelerator import Accelerator, PriceTable
from agentroute.shape.model import Model


def test_toml_and_json_read_the_same(tmp_path: Path) -> None:
    as_json = written(tmp_path, json.dumps(tomllib.loads(PROFILE)), "file.json")
    assert Profile.load(as_json) == Profile.load(written(tmp_path, PROFILE))


@pytest.mark.parametrize("name", shipped().profile_names)
def test_a_shipped_profile_survives_the_way_through_json(tmp_path: Path, name: str) -> None:
    whole = shipped().profile(name)
    text = json.dumps(whole.model_dump(mode="json", exclude_none=True))
    assert Profile.load(written(tmp_path, text, "file.json")) == whole


def test_a_path_may_be_a_string(tmp_path: Path) -> None:
    assert Profile.load(str(written(tmp_path, PROFILE))).name == "mine"


# ---- every key is documented

KINDS: tuple[type[BaseModel], ...] = (Profile, Model, Accelerator, PriceTable, Config)


def fields(kind: type[BaseModel]) -> Iterator[tuple[str, bool, dict[str, Any]]]:
    schema = kind.model_json_schema()
    for owner, table in {kind.__name__: schema, **schema.get("$defs", {})}.items():
        for name, field in table.get("properties", {}).items():
            yield f"{owner}.{name}", name in table.get("required", ()), field


FIELDS = {name: (required, field) for kind in KINDS for name, required, field in fields(kind)}


@pytest.mark.parametrize("name", FIELDS)
def test_every_key_is_described_in_a_sentence(name: str) -> None:
    _, field = FIELDS[name]
    assert field.get("description", "").endswith(".")


@pytest.mark.parametrize("name", [name for name, (required, _) in FIELDS.items() if not required])
def test_every_optional_key_says_what_it_is_without(name: str) -> None:
    _, field = FIELDS[name]
    described = field.get("description", "").lower()
    assert "default" in field or "default" in described or "unknown" in described


NUMBERS = [
    name
    for name, (_, field) in FIELDS.items()
    if {"integer", "number"} & {part.get("type") for part in (field, *field.get("anyOf", ()))}
]
UNITS: tuple[str, ...] = (
    "_ms",
    "_s",
    "_gib",
    "_gb_per_s",
    "tokens",
    "_b",
    "usd",
    "billion",
    "milliseconds",
    "how many",
    "how far",
)
UNITS += (
    "concurrency",
    "requests",
    "stages",
    "ranks",
    "replicas",
    "heads",
    "elements",
    "layers",
    "experts",
    "percentile",
)
UNITS += ("mean", "median", "unit of the key", "version of this file format", "tcp port", "kv_", "dim", "split")


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_its_unit_in_its_name_or_description(name: str) -> None:
    _, field = FIELDS[name]
    text = f"{name} {field.get('description', '')}".lower()
    assert any(unit in text for unit in UNITS)


def test_the_schema_can_be_written_as_json() -> None:
    assert json.loads(json.dumps(Profile.model_json_schema()))["additionalProperties"] is False


# ---- what it implies


def test_a_profile_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        profile().name = "other"


@pytest.mark.parametrize(
    ("tokens", "block_tokens", "pool"),
    [(160, 16, Pool(10, 16)), (161, 16, Pool(10, 16)), (175, 16, Pool(10, 16)), (7, 1, Pool(7, 1))],
)
def test_a_pool_counts_whole_blocks_only(tokens: int, block_tokens: int, pool: Pool) -> None:
    assert KvPool(tokens=tokens, block_tokens=block_tokens).pool() == pool


def test_what_is_not_given_is_unknown() -> None:
    bare = Profile.model_validate({"format": 1, "name": "a", "engine": {"name": "other"}})
    assert (bare.pool, bare.split, bare.accelerators, bare.points, bare.price) == (None, None, None, (), None)


def test_where_the_split_comes_from_may_be_said(tmp_path: Path) -> None:
    said = profile().model_copy(update={"provenance": SOURCE})
    said.save(tmp_path / "mine.toml")
    assert Profile.load(tmp_path / "mine.toml").provenance == SOURCE
    assert profile().provenance is None


def test_the_split_implies_the_accelerators() -> None:
    one = {"format": 1, "name": "a", "engine": {"name": "other"}}
    assert Profile.model_validate(one | {"sharding": {"tp": 4, "pp": 2}}).accelerators == 8
    both = {"prefill": {"sharding": {"tp": 2}}, "decode": {"workers": 2, "sharding": {"tp": 4}}}
    split = Profile.model_validate(one | {"disaggregated": both})
    assert (split.accelerators, split.split) == (10, "P 1x(tp2) D 2x(tp4)")


@pytest.mark.parametrize(
    "good",
    [
        {"usd_per_accelerator_hour": 2.0},
        {"usd_per_million_input_tokens": 0.5, "usd_per_million_output_tokens": 1.5},
        {"usd_per_million_input_tokens": 0.0, "usd_per_million_output_tokens": 0.0},
    ],
)
def test_a_price_is_by_the_hour_or_by_the_token(good: dict[str, float]) -> None:
    Price.model_validate({"provenance": SOURCE, **good})


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"usd_per_million_input_tokens": 0.5},
        {"usd_per_million_output_tokens": 0.5},
        {"usd_per_accelerator_hour": 2.0, "usd_per_million_input_tokens": 0.5},
        {
            "usd_per_accelerator_hour": 2.0,
            "usd_per_million_input_tokens": 0.5,
            "usd_per_million_output_tokens": 0.5,
        },
        {"usd_per_accelerator_hour": 0.0},
        {"usd_per_accelerator_hour": -2.0},
        {"usd_per_million_input_tokens": -0.5, "usd_per_million_output_tokens": 0.5},
    ],
)
def test_any_other_price_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Price.model_validate({"provenance": SOURCE, **bad})


@pytest.mark.parametrize("date", [0, 86_400, 1.0])
def test_a_number_is_not_a_date(date: float) -> None:
    with pytest.raises(ValidationError):
        type(SOURCE).model_validate({"origin": "measured", "source": "a", "date": date})
