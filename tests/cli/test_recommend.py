"""``agentroute recommend`` and ``agentroute explain``."""

from __future__ import annotations

from pathlib import Path

import pytest
from console import agentroute

TASK = ("--context", "8000", "--output", "500", "--concurrency", "16")


@pytest.fixture(autouse=True)
def _no_config_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_works_on_the_shipped_profiles_with_no_configuration() -> None:
    ran = agentroute("recommend", *TASK, "--ttft", "2s", "--objective", "cost")
    assert ran.code == 0
    winner = ran.out.split(":")[0]
    table = [line for line in ran.out.splitlines() if line.startswith("1 ")]
    assert table[0].split()[1] == winner
    for part in ("sharding", "TTFT", "TPOT", "E2E", "KV headroom", "USD/request", "measured", "assumed", "unknown"):
        assert part in ran.out
    assert "shipped profiles" in ran.err and "shipped profiles" not in ran.out


def test_the_json_carries_a_schema_version_bands_origins_and_every_deployment() -> None:
    answer = agentroute("recommend", *TASK, "--ttft", "700ms", "--json").json
    assert (answer["schema_version"], answer["command"]) == (1, "recommend")
    names = [candidate["deployment"] for candidate in answer["candidates"]] + list(answer["rejected"])
    assert len(names) == len(set(names)) >= 12
    assert answer["winner"] == names[0]
    assert answer["rejected"], "some shipped profile is slower than 700 ms here"
    for candidate in answer["candidates"]:
        for metric in ("ttft_ms", "tpot_ms", "e2e_ms"):
            estimate = candidate[metric]
            assert 0 < estimate["low"] < estimate["mean"] < estimate["high"]
            assert estimate["source"] == "measured"
        assert candidate["cost_usd"]["source"] == "assumed"
        assert candidate["kv_blocks"] is None
        assert candidate["sources"] and candidate["standing"]
    assert answer["candidates"][0]["ttft_ms"]["mean"] <= 700


@pytest.mark.parametrize("objective", ["fit", "cost", "latency"])
def test_the_first_candidate_is_the_best_by_its_objective(objective: str) -> None:
    candidates = agentroute("recommend", *TASK, "--objective", objective, "--json").json["candidates"]
    key = {"cost": "cost_usd", "latency": "e2e_ms"}.get(objective)
    if key:
        means = [candidate[key]["mean"] for candidate in candidates]
        assert means == sorted(means)


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("--context", "9000000"), 3, "do not fit its window"),
        (("--context", "8000", "--ttft", "1ms"), 3, "over the hard limit of 1.0 ms"),
        (("--context", "8000", "--ttft", "2"), 2, "with its unit"),
        (("--context", "8000", "--ttft", "0s"), 2, "above 0"),
        (("--context", "8000", "--ttft", "-2s"), 2, "above 0"),
        (("--context", "8000", "--objective", "costs"), 2, "did you mean 'cost'?"),
        (("--context", "8000", "--need", "tool"), 2, "did you mean 'tools'?"),
        (("--context", "8000", "--model", "llama-3.1-80b"), 2, "did you mean 'llama-3.1-8"),
        (("--context", "8000", "--route", "fast"), 2, "there is no route 'fast'"),
        (("--context", "0"), 2, "--context"),
        (("--context", "many"), 2, "--context"),
        ((), 2, "--context"),
        (("--context", "8000", "--config", "nowhere.toml"), 2, "nowhere.toml: cannot be read"),
    ],
)
def test_a_mistake_or_a_refusal_is_said_on_stderr_with_its_exit_code(
    args: tuple[str, ...], code: int, says: str
) -> None:
    ran = agentroute("recommend", *args)
    assert ran.code == code
    assert says in ran.err
    assert ran.out == ""


def test_nothing_feasible_is_json_too() -> None:
    ran = agentroute("recommend", "--context", "9000000", "--json")
    assert ran.code == 3
    assert ran.json["winner"] is None and len(ran.json["rejected"]) >= 12


def test_soft_limits_rank_instead_of_refusing() -> None:
    ran = agentroute("recommend", "--context", "8000", "--ttft", "1ms", "--soft", "--json")
    assert ran.code == 0
    assert ran.json["rejected"] == {}
    assert "misses TTFT of 1.0 ms" in ran.json["candidates"][0]["standing"]


def test_only_the_models_asked_for_are_considered() -> None:
    answer = agentroute("recommend", "--context", "2000", "--model", "qwen3-32b", "--json").json
    assert {candidate["model"] for candidate in answer["candidates"]} == {"qwen3-32b"}


def test_no_colour_and_no_padding_reach_a_pipe() -> None:
    out = agentroute("recommend", *TASK).out
    assert "\x1b" not in out
    assert all(line == line.rstrip() for line in out.splitlines())


def test_explain_names_every_deployment_once_and_says_why() -> None:
    answer = agentroute("explain", *TASK, "--ttft", "700ms", "--json").json
    text = agentroute("explain", *TASK, "--ttft", "700ms").out
    assert text.strip() == answer["text"].strip()
    for name, reason in answer["rejected"].items():
        assert f"{name}: {reason}" in text
    for candidate in answer["candidates"]:
        assert f"{candidate['deployment']}: {candidate['standing']}" in text


def test_what_you_pay_is_what_it_costs() -> None:
    def usd(*price: str) -> float:
        args = ("--context", "2000", "--output", "100", "--model", "qwen3-32b", *price, "--json")
        by_name = {one["deployment"]: one for one in agentroute("recommend", *args).json["candidates"]}
        cost: float = by_name["qwen3-32b/vllm-h100-tp4"]["cost_usd"]["mean"]
        return cost

    assert usd("--price", "h100_sxm=5") == pytest.approx(2 * usd("--price", "h100_sxm=2.5"))


@pytest.mark.parametrize("price", ["h100_sxm", "h100_sxm=free", "h100_sxm=-1", "h100_sxm=0"])
def test_a_price_is_an_accelerator_and_a_number(price: str) -> None:
    ran = agentroute("recommend", "--context", "2000", "--price", price)
    assert ran.code == 2
    assert "such as h200_sxm=2.9" in ran.err


def test_explain_says_as_json_that_nothing_is_feasible() -> None:
    ran = agentroute("explain", "--context", "9000000", "--json")
    assert ran.code == 3
    assert ran.json["winner"] is None
