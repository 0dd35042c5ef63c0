"""A compiled roofline says what the roofline says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from charged import FIELDS
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentroute.capacity.kv import Unknown
from agentroute.capacity.weights import QUANTISATIONS
from agentroute.catalogue import shipped
from agentroute.latency.compiled import Rates, another
from agentroute.latency.limits import told
from agentroute.latency.rates import METRICS, Metric, RateKind, Workload, times
from agentroute.latency.roofline import Roofline
from agentroute.latency.search import MOST, WORTH, kept_until, worth_until
from agentroute.shape.sharding import Sharding

DEGREES = st.sampled_from([1, 1, 2, 3, 4, 8, 16])
SPLITS = st.builds(
    lambda tp, pp, dp, whole: Sharding(tp=tp, pp=pp, attention_dp=dp, ep=tp * dp if whole else 1),
    DEGREES, DEGREES, DEGREES, st.booleans(),
)  # fmt: skip
ROOFLINES = st.builds(
    lambda name, card, split, scheme: Roofline.of(
        shipped().model(name), shipped().accelerator(card), split, quantisation=QUANTISATIONS[scheme]
    ),
    st.sampled_from(shipped().model_names),
    st.sampled_from(["h100_sxm", "h200_sxm", "gb200", "mi300x", "l40s"]),
    SPLITS,
    st.sampled_from(["bf16", "fp8", "nvfp4"]),
).filter(lambda made: not isinstance(made, Unknown))
SIZES = st.integers(1, 200_000) | st.sampled_from([1, 4_096, 4_097, 8_192, 8_193])
SLOS = st.floats(0.0, 5.0).map(lambda power: 10.0**power)


JUST_WORTH_IT = Roofline.of(
    shipped().model("qwerky-72b"), shipped().accelerator("h100_sxm"), Sharding(pp=2, attention_dp=16)
)
"""Its last doubling that is looked at is worth it by 0.007 %."""


@settings(max_examples=80, deadline=None)
@given(ROOFLINES, SIZES)
def test_another_prompt_takes_what_two_take_longer_than_one(made: Roofline, isl: int) -> None:
    reading, replicas = made.prefilling(isl), made.attention_dp
    weights, kv, compute, reduce, inside, across, pipeline, fixed = (
        two - one for one, two in zip(reading(replicas), reading(2 * replicas), strict=True)
    )
    close = sum(reading(2 * replicas)) * 1e-12
    expected = weights, kv, compute, inside + across, reduce, pipeline, fixed
    assert another(made)(isl) == pytest.approx(expected, rel=1e-9, abs=close)


@settings(max_examples=150, deadline=None)
@given(ROOFLINES, SIZES, st.integers(1, 8_000), st.integers(1, 5_000), st.none() | st.sampled_from(METRICS), SLOS)
@example(JUST_WORTH_IT, 1, 24, 1, None, 1.0)
def test_limits_are_those_of_the_terms(
    made: Roofline, isl: int, osl: int, n: int, asked: Metric | None, slo_ms: float
) -> None:
    """What a limit tells at the load and at its ``n_c``; and that one more, or twice as many, is too many."""
    workload = Workload(isl, osl, n, *[slo_ms if asked == metric else None for metric in METRICS])
    parts = times(made, workload, asked or "TPOT")
    lone, found, above = parts(1), Rates(made).found(workload), 1 + 1e-9
    for place, one in enumerate(found):
        n_c, kind, metric, slo_s, *_ = one

        def seconds(n: int, place: int = place, kind: RateKind = kind) -> float:
            """Of the first, the metric; of the others, did only this part change."""
            return sum(
                (replace(then, **{field: getattr(now, field) for field in FIELDS[kind]}) if place else now).total_s
                for then, now in zip(lone, parts(n), strict=True)
            )

        now_ms, allowed_ms = told(one, n)
        assert metric == (asked or "TPOT")
        assert now_ms == pytest.approx(seconds(n) * 1_000, rel=1e-9)
        assert n_c >= found[0][0]
        top = int(min(n_c, MOST))
        if asked is not None:
            assert slo_s is not None
            assert n_c == 0 or seconds(top) <= slo_s * above
            assert n_c == math.inf or seconds(top + 1) * above > slo_s or n_c == found[0][0]
            continue
        assert allowed_ms == (math.inf if n_c == math.inf else pytest.approx(seconds(top) * 1_000, rel=1e-9))
        worth = {k: 2 * seconds(k // 2) / seconds(k) for k in (1 << power for power in range(1, 17))}
        assert n_c in (1, found[0][0]) or worth[top] * above >= WORTH
        assert all(gain < WORTH * above for k, gain in worth.items() if k > top)


SLOPES = st.just(0.0) | st.floats(1e-9, 1e-2)
LINES = st.tuples(st.floats(-1.0, 10.0), SLOPES, st.floats(-1.0, 10.0), SLOPES)


@given(LINES.filter(lambda lines: lines[1] <= lines[3] and max(lines[0] + lines[1], lines[2] + lines[3]) > 1e-3))
def test_doubling_the_larger_of_two_lines_is_worth_it_up_to_where_it_is_said_to_be(
    lines: tuple[float, float, float, float],
) -> None:
    a, b, c, d = lines
    until = worth_until(*lines)
    for n in (1 << power for power in range(1, 17)):
        half, whole = max(a + b * n / 2, c + d * n / 2), max(a + b * n, c + d * n)
        if abs(2 * half - WORTH * whole) > 1e-9 * whole:
            assert (2 * half > WORTH * whole) == (n < until)


@given(LINES.filter(lambda lines: lines[1] <= lines[3]), st.floats(0.0, 20.0), st.integers(1, MOST))
def test_the_larger_of_two_lines_keeps_an_slo_up_to_where_it_is_said_to(
    lines: tuple[float, float, float, float], slo_s: float, n: int
) -> None:
    a, b, c, d = lines
    seconds = max(a + b * n, c + d * n)
    if abs(seconds - slo_s) > 1e-9:
        assert (seconds < slo_s) == (n < kept_until(*lines, slo_s))
