"""Up to which concurrency a deployment's speed holds, and what gives way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
from charged import FIELDS
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.capacity.kv import Unknown
from agentroute.capacity.weights import QUANTISATIONS
from agentroute.catalogue import shipped
from agentroute.latency.compiled import Rates, settled
from agentroute.latency.limits import told
from agentroute.latency.rates import METRICS, RATE_KINDS, Metric, RateKind, RateLimit, Workload, times
from agentroute.latency.roofline import Roofline
from agentroute.latency.search import MOST, WORTH
from agentroute.shape.sharding import Sharding

SPLITS = [
    Sharding(tp=8), Sharding(pp=4), Sharding(tp=8, ep=8), Sharding(attention_dp=8, ep=8), Sharding(tp=2, pp=2),
    Sharding(pp=3), Sharding(pp=2, attention_dp=4, ep=4),
]  # fmt: skip

SLACK = 1 + 1e-9
"""What rounding may do."""


def roofline(model: str, sharding: Sharding, accelerator: str = "h200_sxm") -> Roofline:
    made = Roofline.of(
        shipped().model(model), shipped().accelerator(accelerator), sharding, quantisation=QUANTISATIONS["fp8"]
    )
    assert not isinstance(made, Unknown), made.reason
    return made


def rate_limits(made: Roofline, workload: Workload) -> dict[RateKind, RateLimit]:
    return Rates(made).limits(workload)


def seconds(made: Roofline, workload: Workload, metric: Metric, n: int) -> float:
    return sum(part.total_s for part in times(made, workload, metric)(n))


def limited(made: Roofline, workload: Workload, metric: Metric, kind: RateKind) -> Callable[[int], float]:
    """Seconds by the concurrency, did all but one part stay as for a lone request: from the terms, part by part."""
    parts = times(made, workload, metric)
    alone = parts(1)
    return lambda n: sum(
        replace(one, **{field: getattr(now, field) for field in FIELDS[kind]}).total_s
        for one, now in zip(alone, parts(n), strict=True)
    )


@settings(max_examples=40)
@given(
    st.sampled_from(["llama-3.1-70b", "deepseek-v3", "gpt-oss-120b", "gemma-3-27b", "qwen3.5-27b"]),
    st.sampled_from(SPLITS),
    st.integers(1, 100_000),
    st.integers(2, 4_000),
    st.integers(1, 600),
    st.sampled_from([None, "TTFT", "TPOT", "E2E"]),
    st.floats(1.0, 10_000.0),
)
def test_every_limit_is_what_looking_at_every_concurrency_finds(
    model: str, split: Sharding, isl: int, osl: int, n: int, asked: Metric | None, slo_ms: float
) -> None:
    made, slos = roofline(model, split), [slo_ms if asked == metric else None for metric in METRICS]
    workload = Workload(isl, osl, n, *slos)
    limits = rate_limits(made, workload)
    metric, least = asked or "TPOT", next(iter(limits.values())).n_c
    for kind, limit in limits.items():
        assert limit.metric == metric
        if limit.n_c == least:
            continue
        alone = limited(made, workload, metric, kind)
        assert limit.demand_ms == pytest.approx(1_000 * alone(n))
        if asked is not None:
            assert limit.n_c == math.inf or alone(int(limit.n_c)) <= slo_ms / 1_000 * SLACK
            assert alone(int(min(limit.n_c, MOST - 1)) + 1) * SLACK > slo_ms / 1_000 or limit.n_c == math.inf
            continue
        worth = [2 * alone(1 << k >> 1) / alone(1 << k) for k in range(1, 17)]
        reached = 16 if limit.n_c == math.inf else int(math.log2(limit.n_c))
        assert worth[reached - 1] * SLACK >= WORTH
        assert all(ratio < WORTH * SLACK for ratio in worth[reached:])


def test_the_least_limit_alone_is_that_of_all() -> None:
    for split, slo_ms in product(SPLITS, (None, 5.0, 50.0)):
        made, workload = roofline("deepseek-v3", split), Workload(8_000, 1_000, 16, tpot_ms=slo_ms)
        found = Rates(made).least(workload)
        alone = found[1], RateLimit(found[0], found[2], *told(found, workload.n))
        assert alone == next(iter(rate_limits(made, workload).items()))


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_a_settled_step_grows_by_the_same_with_every_request(split: Sharding) -> None:
    """Every expert is hit and every stage works: but for the larger of reading and multiplying, all is a line."""
    made = roofline("deepseek-v3", split)
    start = settled(made)
    for field in ("weights_s", "kv_s", "compute_s", "all_reduce_s", "all_to_all_inside_s"):
        once, twice, thrice = (getattr(made.decode(k * start, 9_000), field) for k in (1, 2, 3))
        assert thrice - twice == pytest.approx(twice - once, abs=1e-12)
    hit = [experts.hit(start / made.pp) == experts.experts for experts in made.work.experts]
    assert hit
    assert all(hit)


def test_tpot_in_a_closed_loop_pays_for_the_prompts_of_those_who_follow() -> None:
    made = roofline("llama-3.1-70b", Sharding(tp=8))

    def share_of_decoding(osl: int) -> float:
        return made.tpot_ms(64, 32_000 + osl / 2) / 1_000 / seconds(made, Workload(32_000, osl, 1), "TPOT", 64)

    assert share_of_decoding(100) < 0.1
    assert share_of_decoding(10_000) > 0.7


@settings(max_examples=25)
@given(
    st.sampled_from(["llama-3.1-70b", "deepseek-v3", "gpt-oss-120b"]),
    st.sampled_from(SPLITS),
    st.integers(100, 100_000),
    st.integers(2, 4_000),
    st.sampled_from(["TTFT", "TPOT", "E2E"]),
    st.floats(1.0, 100_000.0),
)
def test_the_least_limit_keeps_the_slo_and_one_more_breaks_it(
    model: str, split: Sharding, isl: int, osl: int, metric: Metric, slo_ms: float
) -> None:
    made = roofline(model, split)
    slos = {name: slo_ms if name == metric else None for name in ("TTFT", "TPOT", "E2E")}
    workload = Workload(isl, osl, 1, ttft_ms=slos["TTFT"], tpot_ms=slos["TPOT"], e2e_ms=slos["E2E"])
    limits = rate_limits(made, workload)
    n_c = min(limit.n_c for limit in limits.values()) if limits else math.inf
    if n_c == math.inf:
        assert seconds(made, workload, metric, MOST) <= slo_ms / 1_000
        return
    assert n_c == 0 or seconds(made, workload, metric, int(n_c)) <= slo_ms / 1_000
    assert seconds(made, workload, metric, int(n_c) + 1) > slo_ms / 1_000


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_without_an_slo_it_is_the_last_doubling_that_is_worth_it(split: Sharding) -> None:
    made, workload = roofline("deepseek-v3", split), Workload(8_000, 1_000, 1)
    n_c = int(min(limit.n_c for limit in rate_limits(made, workload).values()))

    def throughput(n: int) -> float:
        return n / seconds(made, workload, "TPOT", n)

    assert throughput(n_c) >= 1.1 * throughput(n_c // 2) or n_c == 1
    assert throughput(2 * n_c) < 1.1 * throughput(n_c)


def test_several_slos_bind_where_the_first_of_them_breaks() -> None:
    made, loose = roofline("llama-3.1-70b", Sharding(tp=8)), Workload(8_000, 1_000, 1)
    each = [replace(loose, ttft_ms=4_000.0), replace(loose, tpot_ms=40.0)]
    least = [min(limit.n_c for limit in rate_limits(made, one).values()) for one in each]
    both = rate_limits(made, replace(loose, ttft_ms=4_000.0, tpot_ms=40.0))
    assert min(limit.n_c for limit in both.values()) == min(least)


def test_what_grows_most_is_charged() -> None:
    """Long prompts and short answers: reading prompts. Long contexts that are only written on: reading the past."""
    made = roofline("llama-3.1-70b", Sharding(tp=8))
    assert next(iter(rate_limits(made, Workload(32_000, 100, 1)))) == "compute"
    assert next(iter(rate_limits(made, Workload(60_000, 60_000, 1)))) == "kv_bandwidth"


def test_an_slo_that_one_request_alone_misses_is_charged_to_its_largest_part() -> None:
    made = roofline("llama-3.1-70b", Sharding(pp=4))
    kind, limit = next(iter(rate_limits(made, Workload(1_000, 100, 1, tpot_ms=1.0)).items()))
    assert (kind, limit.n_c) == ("weights_bandwidth", 0)


def test_no_limit_is_below_the_one_that_is_charged() -> None:
    limits = list(rate_limits(roofline("deepseek-v3", Sharding(tp=8, ep=8)), Workload(8_000, 500, 4)).values())
    assert [limit.n_c for limit in limits] == sorted(limit.n_c for limit in limits)
    assert len(limits) <= len(RATE_KINDS)


@pytest.mark.parametrize("osl", [2, 10, 500])
def test_a_lone_request_decodes_no_slower_for_its_own_prompt(osl: int) -> None:
    made = roofline("llama-3.1-70b", Sharding(tp=8))
    alone = made.tpot_ms(1, 100_000 + osl / 2) / 1_000
    assert seconds(made, Workload(100_000, osl, 1), "TPOT", 1) == pytest.approx(alone)
