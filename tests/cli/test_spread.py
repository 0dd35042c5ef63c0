"""``agentroute spread``."""

from __future__ import annotations

from pathlib import Path

import pytest
from console import agentroute
from fleets import PROFILE

GROUP = ("--context", "20000", "--output", "800", "--fanout", "200", "--model", "llama-3.1-70b")


@pytest.fixture(autouse=True)
def _no_config_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_splits_a_group_over_the_shipped_profiles() -> None:
    ran = agentroute("spread", *GROUP)
    assert ran.code == 0
    assert ran.out.startswith("200 siblings on ")
    for part in ("at once", "waves", "makespan", "USD", "contexts that stay hot", "taken up as the group grows:"):
        assert part in ran.out


def test_only_some_of_the_unused_are_shown_unless_all_are_asked_for() -> None:
    some, every = (agentroute("spread", *GROUP[:4], "--fanout", "2", "--top", top).out for top in ("3", "0"))
    assert "... and " in some.splitlines()[-1] and "... and " not in every
    assert len(every.splitlines()) > len(some.splitlines()) + 100


def test_the_json_carries_a_schema_version_the_split_and_everyone_else() -> None:
    answer = agentroute("spread", *GROUP, "--objective", "cost", "--deadline", "60s", "--json").json
    assert (answer["schema_version"], answer["command"], answer["objective"]) == (1, "spread", "cost")
    placements = answer["placements"]
    assert sum(placement["requests"] for placement in placements) == answer["fanout"] == 200
    assert sum(placement["at_once"] for placement in placements) == answer["at_once"]
    assert answer["cost_usd"] == pytest.approx(sum(placement["cost_usd"] for placement in placements))
    whole = answer["makespan_s"]
    assert 0 < whole["low"] < whole["mean"] <= answer["deadline_s"] == 60.0
    assert whole["mean"] == max(placement["makespan_s"]["mean"] for placement in placements)
    used = {placement["deployment"] for placement in placements}
    assert {spill["deployment"] for spill in answer["spill"]} == used
    assert answer["spill"][0]["from_fanout"] == 1
    assert not used & set(answer["rejected"]) and all(answer["rejected"].values())


def test_the_cheapest_split_by_a_deadline_is_cheaper_and_slower_than_the_quickest() -> None:
    quick = agentroute("spread", *GROUP, "--json").json
    cheap = agentroute("spread", *GROUP, "--objective", "cost", "--deadline", "60s", "--json").json
    assert cheap["cost_usd"] < quick["cost_usd"]
    assert cheap["makespan_s"]["mean"] > quick["makespan_s"]["mean"]


CONFIG = """\
[[deployments]]
name = "one"
profile = "one.toml"
base_url = "http://127.0.0.1:8001"
"""


def test_a_shared_prefix_is_held_once_where_prefix_caching_is_reported(tmp_path: Path) -> None:
    """A pool of 4,096 blocks of 16 tokens; a request has 1,024 + 128 tokens, of which 896 are shared."""
    config = tmp_path / "agentroute.toml"
    config.write_text(CONFIG)
    (tmp_path / "one.toml").write_text(PROFILE.replace("[limits]", "[limits]\nprefix_caching = true"))
    group = ("spread", "--context", "1024", "--output", "128", "--fanout", "500", "--json")
    apart, shared = agentroute(*group), agentroute(*group, "--shared-prefix", "896")
    assert [ran.json["task"]["shared_prefix_tokens"] for ran in (apart, shared)] == [0, 896]
    assert [ran.json["placements"][0]["most_at_once"] for ran in (apart, shared)] == [4_096 // 72, (4_096 - 56) // 16]
    assert "prefix caching" not in apart.err + shared.err


def test_where_no_prefix_caching_is_reported_it_is_said_that_each_holds_its_own() -> None:
    ran = agentroute("spread", *GROUP, "--shared-prefix", "16000", "--json")
    assert "no deployment reports prefix caching" in ran.err
    placements = [agentroute("spread", *GROUP, "--json").json["placements"], ran.json["placements"]]
    assert placements[0] == placements[1]


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("--context", "20000"), 2, "--fanout"),
        (("--context", "20000", "--fanout", "0"), 2, "--fanout"),
        (("--context", "20000", "--fanout", "9", "--deadline", "5"), 2, "with its unit"),
        (("--context", "20000", "--fanout", "9", "--objective", "costs"), 2, "did you mean 'cost'?"),
        (("--context", "20000", "--fanout", "9", "--shared-prefix", "-1"), 2, "--shared-prefix"),
        (
            ("--context", "20000", "--fanout", "9", "--shared-prefix", "20001"),
            2,
            "--shared-prefix must be at most the 20,000 tokens of --context, got 20,001",
        ),
        (("--context", "9000000", "--fanout", "9"), 3, "no deployment can take any of 9 siblings"),
        (("--context", "20000", "--fanout", "9", "--deadline", "1ms"), 3, "cannot be done within the hard limit"),
    ],
)
def test_a_mistake_or_a_refusal_is_said_on_stderr_with_its_exit_code(
    args: tuple[str, ...], code: int, says: str
) -> None:
    ran = agentroute("spread", *args)
    assert ran.code == code
    assert says in ran.err
    assert ran.out == ""


def test_a_refusal_is_json_too() -> None:
    ran = agentroute("spread", "--context", "9000000", "--fanout", "9", "--json")
    assert ran.code == 3
    assert ran.json["placements"] == [] and len(ran.json["rejected"]) > 100
