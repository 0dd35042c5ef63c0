"""Up to which concurrency a deployment's speed holds, and what gives way."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.capacity.kv import Unknown
from agentroute.capacity.weights import QUANTISATIONS
from agentroute.catalogue import shipped
from agentroute.latency.rates import MOST, RATE_KINDS, Metric, Parts, Workload, rate_limits, times
from agentroute.latency.roofline import Roofline
from agentroute.shape.sharding import Sharding

SPLITS = [Sharding(tp=8), Sharding(pp=4), Sharding(tp=8, ep=8), Sharding(attention_dp=8, ep=8), Sharding(tp=2, pp=2)]


def roofline(model: str, sharding: Sharding, accelerator: str = "h200_sxm") -> Roofline:
    made = Roofline.of(
        shipped().model(model), shipped().accelerator(accelerator), sharding, quantisation=QUANTISATIONS["fp8"]
    )
    assert not isinstance(made, Unknown), made.reason
    return made


def seconds(made: Roofline, workload: Workload, metric: Metric, n: int) -> float:
    return sum(part.total_s for part in times(made, workload, metric)(n))


def test_parts_add_up_as_the_roofline_says() -> None:
    made = roofline("qwen3-235b-a22b", Sharding(tp=4, pp=2, ep=4))
    for n in (1, 7, 300):
        for terms in (made.decode(n, 9_000), made.prefill(9_000, n=n)):
            assert Parts.of(terms).total_s == pytest.approx(terms.total_s)


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
