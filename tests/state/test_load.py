"""Live load: what a report says of others, and how long it is believed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.errors import UsageError
from agentroute.state.load import FRESH_S, REFRESH_S, TAU_S, Foreign, Load


def observe(
    foreign: Foreign,
    load: Load,
    *,
    pool: int = 0,
    own_running: float = 0,
    own_blocks: float = 0,
    capacity: float = 1_000,
    now: float = 0.0,
) -> None:
    foreign.observe(pool, load, own_running=own_running, own_blocks=own_blocks, capacity_blocks=capacity, now=now)


# ---- a report


@pytest.mark.parametrize(
    ("fields", "right"),
    [
        ({"running": -1}, "running must be a whole number from 0"),
        ({"running": 2.5}, "running must be a whole number from 0"),
        ({"running": True}, "running must be a whole number from 0"),
        ({"waiting": math.nan}, "waiting must be a whole number from 0"),
        ({"waiting": 10**400}, "waiting must be a whole number from 0"),
        ({"kv_used": -0.01}, "kv_used must be a share from 0 to 1"),
        ({"kv_used": 1.01}, "kv_used must be a share from 0 to 1"),
        ({"kv_used": 93}, "kv_used must be a share from 0 to 1"),
        ({"kv_used": math.nan}, "kv_used must be a share from 0 to 1"),
        ({"kv_used": "0.5"}, "kv_used must be a share from 0 to 1"),
        ({"at": math.inf}, "at must be a finite number of seconds"),
    ],
)
def test_a_figure_that_cannot_be_is_refused(fields: dict[str, float], right: str) -> None:
    with pytest.raises(UsageError, match=right):
        Load(**fields)  # type: ignore[arg-type]


def test_what_a_server_does_not_say_is_unknown_and_not_zero() -> None:
    foreign = Foreign(3)
    observe(foreign, Load(running=0, kv_used=0.0), pool=0)
    observe(foreign, Load(), pool=1)
    others = foreign.current(0.0)
    assert others.counts_known.tolist() == [True, False, False]
    assert others.blocks_known.tolist() == [True, False, False]
    assert not others.in_flight.any()


def test_a_share_of_a_pool_of_unknown_size_says_nothing_of_blocks() -> None:
    foreign = Foreign(1)
    observe(foreign, Load(running=3, kv_used=0.5), capacity=math.inf)
    others = foreign.current(0.0)
    assert (others.running[0], others.blocks[0]) == (3, 0)
    assert not others.blocks_known[0]


# ---- never counted twice


@pytest.mark.parametrize(
    ("running", "waiting", "own", "others_running", "others_waiting"),
    [
        (10, 0, 0, 10, 0),  # all theirs
        (10, 0, 4, 6, 0),
        (4, 0, 10, 0, 0),  # six of ours are not in the batch yet: nobody else is there
        (4, 6, 10, 0, 0),  # ... or they wait in the engine's queue
        (4, 8, 10, 0, 2),
        (4, 8, 3, 1, 8),
        (None, 8, 3, 0, 5),  # where ours are is unknown: no more than this is surely theirs
        (4, None, 3, 1, 0),
    ],
)
def test_our_own_calls_are_taken_off_once(
    running: int | None, waiting: int | None, own: int, others_running: int, others_waiting: int
) -> None:
    foreign = Foreign(1)
    observe(foreign, Load(running, waiting), own_running=own)
    others = foreign.current(0.0)
    assert (others.running[0], others.waiting[0]) == (others_running, others_waiting)
    assert others.in_flight[0] == others_running + others_waiting


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), st.floats(0, 1), st.floats(0, 2_000))
def test_ours_and_theirs_are_what_is_there(
    running: int, waiting: int, own: int, kv_used: float, own_blocks: float
) -> None:
    foreign = Foreign(1)
    observe(foreign, Load(running, waiting, kv_used), own_running=own, own_blocks=own_blocks)
    others = foreign.current(0.0)
    assert own + others.in_flight[0] == max(own, running + waiting)
    assert others.blocks[0] == max(0.0, kv_used * 1_000 - own_blocks)


# ---- age


@pytest.mark.parametrize(
    ("age_s", "share"),
    [(0.0, 1.0), (FRESH_S, 1.0), (FRESH_S + TAU_S, math.exp(-1)), (FRESH_S + 3 * TAU_S, math.exp(-3)), (90.0, 0.0)],
)
def test_a_stale_report_fades(age_s: float, share: float) -> None:
    foreign = Foreign(1)
    observe(foreign, Load(running=20, waiting=10, kv_used=0.8), now=100.0)
    others = foreign.current(100.0 + age_s)
    assert others.running[0] == pytest.approx(20 * share)
    assert others.waiting[0] == pytest.approx(10 * share)
    assert others.blocks[0] == pytest.approx(800 * share)
    assert bool(others.counts_known[0]) is (share > 0)


def test_a_report_that_was_long_on_its_way_has_faded_on_arrival() -> None:
    foreign = Foreign(1)
    observe(foreign, Load(running=20, at=100.0 - FRESH_S - TAU_S), now=100.0)
    assert foreign.current(100.0).running[0] == pytest.approx(20 / math.e)
    assert foreign.age_s(0, 101.0) == pytest.approx(FRESH_S + TAU_S + 1.0)


def test_a_report_that_was_overtaken_is_ignored() -> None:
    foreign = Foreign(2)
    observe(foreign, Load(running=20, at=50.0), now=50.0)
    observe(foreign, Load(running=3, at=49.9), now=50.1)
    observe(foreign, Load(running=3, at=49.9), pool=1, now=50.1)
    assert foreign.current(50.1).running.tolist() == [20, 3]


def test_a_gauge_that_goes_missing_lets_the_older_figure_fade() -> None:
    foreign = Foreign(1)
    observe(foreign, Load(running=20, kv_used=0.8), now=0.0)
    for second in range(1, 13):
        observe(foreign, Load(running=20), now=float(second))
    others = foreign.current(FRESH_S + TAU_S)
    assert others.running[0] == 20
    assert others.blocks[0] == pytest.approx(800 / math.e)


def test_nobody_was_asked_has_no_age() -> None:
    assert Foreign(1).age_s(0, 5.0) is None


# ---- clocks


@pytest.mark.parametrize("jump_s", [0.5, 5.0, 3_600.0])
def test_a_clock_set_back_neither_freezes_a_pool_nor_shuts_out_new_reports(jump_s: float) -> None:
    foreign = Foreign(2)
    for pool in (0, 1):
        observe(foreign, Load(running=20), pool=pool, now=10_000.0)
    now = 10_000.0 - jump_s
    foreign.current(now)
    observe(foreign, Load(running=5), pool=1, now=now)
    assert foreign.current(now).running.tolist() == [20, 5]
    assert foreign.current(now + 90.0).running.tolist() == [0, 0]


@given(
    st.lists(
        st.tuples(
            st.floats(-1e4, 1e4),
            st.one_of(st.none(), st.integers(0, 100)),
            st.one_of(st.none(), st.floats(0, 1)),
            st.one_of(st.none(), st.floats(-1e4, 1e4)),
        ),
        max_size=20,
    )
)
def test_whatever_the_clock_does_figures_stay_between_none_and_what_was_reported(
    script: list[tuple[float, int | None, float | None, float | None]],
) -> None:
    foreign = Foreign(1)
    for now, running, kv_used, at in script:
        observe(foreign, Load(running, running, kv_used, at), now=now)
        others = foreign.current(now)
        assert 0 <= others.running[0] <= max((r or 0 for _, r, _, _ in script), default=0)
        assert 0 <= others.blocks[0] <= 1_000
        age_s = foreign.age_s(0, now)
        assert age_s is not None and age_s >= 0


# ---- what a decision reads


def test_it_is_prepared_and_reckoned_again_only_when_it_has_changed() -> None:
    foreign = Foreign(4)
    nothing = foreign.current(0.0)
    assert foreign.current(1e9) is nothing
    foreign = Foreign(4)
    observe(foreign, Load(running=3), now=0.0)
    fresh = foreign.current(0.0)
    assert foreign.current(FRESH_S - 0.01) is fresh
    fading = foreign.current(FRESH_S + 1.0)
    assert foreign.current(FRESH_S + 1.0 + 0.9 * REFRESH_S) is fading
    assert foreign.current(FRESH_S + 1.0 + 1.1 * REFRESH_S).running[0] < fading.running[0]


def test_what_was_read_stays_as_it_was_read() -> None:
    foreign = Foreign(1)
    observe(foreign, Load(running=3), now=0.0)
    before = foreign.current(0.0)
    observe(foreign, Load(running=9), now=1.0)
    assert before.running[0] == 3
    with pytest.raises(ValueError, match="read-only"):
        np.add(before.running, 1, out=before.running)
