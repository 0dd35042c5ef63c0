"""Every sensible split of a model, ranked."""

from __future__ import annotations

import pytest

from agentroute.capacity.holding import Serving
from agentroute.catalogue import shipped
from agentroute.latency.rates import Workload
from agentroute.shape.sharding import Sharding
from agentroute.sizing import size, splits

MODEL, DENSE = shipped().model("deepseek-v3"), shipped().model("llama-3.1-70b")
H200 = shipped().accelerator("h200_sxm")
VLLM = Serving(weights="fp8")


def test_every_split_takes_all_accelerators() -> None:
    for model in (MODEL, DENSE):
        found = [*splits(model, H200, 16, VLLM)]
        assert len(found) == len({*found})
        assert all(replicas * sharding.accelerators == 16 for replicas, sharding in found)


@pytest.mark.parametrize(
    ("name", "count", "engine", "wanted", "senseless"),
    [
        # Dense models have no experts to spread and are replicated as a whole.
        ("llama-3.1-70b", 8, "vllm", [(1, Sharding(tp=8)), (2, Sharding(tp=4)), (1, Sharding(pp=8))],
         [(1, Sharding(attention_dp=8)), (1, Sharding(attention_dp=8, ep=8))]),
        ("deepseek-v3", 8, "sglang", [(1, Sharding(tp=8, ep=8)), (1, Sharding(attention_dp=8, ep=8))],
         [(1, Sharding(attention_dp=8))]),
        # 28 heads are not divided by 8, nor 4 KV heads by 3.
        ("qwen2.5-7b", 8, "vllm", [(2, Sharding(tp=4)), (1, Sharding(tp=4, pp=2))], [(1, Sharding(tp=8))]),
        ("llama-3.1-70b", 4, "llamacpp", [(1, Sharding(pp=4)), (4, Sharding())], [(1, Sharding(tp=4))]),
    ],
)  # fmt: skip
def test_only_sensible_splits_are_looked_at(
    name: str, count: int, engine: str, wanted: list[object], senseless: list[object]
) -> None:
    found = [*splits(shipped().model(name), H200, count, Serving(engine))]  # type: ignore[arg-type]
    assert all(split in found for split in wanted)
    assert not any(split in found for split in senseless)


def test_those_that_keep_the_load_come_first_and_the_fastest_of_them() -> None:
    ways = size(MODEL, H200, 16, Workload(8_000, 500, 64, tpot_ms=40.0), VLLM)
    keeping = [way.keeps for way in ways]
    assert keeping == sorted(keeping, reverse=True)
    assert 0 < sum(keeping) < len(ways)
    times = [way.e2e_ms for way in ways if way.keeps]
    assert times == sorted(times, key=lambda ms: ms or 0.0)
    held = [way.n_max or 0.0 for way in ways if not way.keeps]
    assert held == sorted(held, reverse=True)


def test_replicas_share_the_load() -> None:
    ways = {str(way): way for way in size(DENSE, H200, 8, Workload(8_000, 500, 63), VLLM)}
    assert ways["2 x (tp4)"].share.n == 32
    assert ways["tp8"].share.n == 63
    alone = size(DENSE, H200, 4, Workload(8_000, 500, 32), VLLM)
    four = next(way for way in alone if str(way) == "tp4")
    assert ways["2 x (tp4)"].tpot_ms == four.tpot_ms
    assert ways["2 x (tp4)"].n_max == 2 * (four.n_max or 0)


def test_what_only_the_high_end_of_the_band_would_hold_does_not_keep_the_load() -> None:
    way = next(w for w in size(DENSE, H200, 1, Workload(100_000, 1, 1), VLLM) if w.replicas == 1)
    held = way.ceilings.n_max
    assert held is not None
    for n in range(1, int(held.high) + 2):
        (again,) = size(DENSE, H200, 1, Workload(100_000, 1, n), VLLM)
        assert again.keeps == (n <= held.low)


def test_a_sequence_is_spread_over_copies_of_its_kv() -> None:
    found = [*splits(MODEL, H200, 8, VLLM)]
    assert (1, Sharding(tp=8, dcp=8)) in found
    assert (1, Sharding(tp=8, ep=8, dcp=8)) in found
    assert not [split for _, split in splits(DENSE, H200, 8, VLLM) if split.dcp > 1]
    assert not [split for _, split in splits(MODEL, H200, 8, Serving("sglang", weights="fp8")) if split.dcp > 1]


def test_an_unknown_speed_keeps_no_slo() -> None:
    """The data sheet of h100_pcie names no network, so what crosses its box has no time."""
    card = shipped().accelerator("h100_pcie")
    for workload in (Workload(1_000, 100, 1), Workload(1_000, 100, 1, tpot_ms=1e6)):
        unknown = [way for way in size(DENSE, card, 16, workload, VLLM) if way.tpot_ms is None]
        assert unknown
        assert any(way.keeps for way in unknown) == (workload.tpot_ms is None)


def test_an_unknown_pool_keeps_nothing() -> None:
    ways = size(shipped().model("jamba-1.5-mini"), H200, 8, Workload(1_000, 100, 1), Serving("trtllm"))
    assert ways
    assert not any(way.keeps or way.n_max for way in ways)
