"""What a row of readings of one endpoint says: up or down, dead behind its front, several behind one address."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replayed import DATA

from agentroute.adapters.base import Load, Total
from agentroute.errors import BackendError, FailureKind
from agentroute.pulse import GONE, HIDDEN_S, MIXED_S, MOST_S, STALLED_S, WINDOW_S, Pulse, Vital, wait_s
from agentroute.state.load import Load as Report

REFUSED = BackendError(FailureKind.UNAVAILABLE, "cannot be reached: refused")
SILENT = BackendError(FailureKind.TIMEOUT, "did not answer within 5 s")
BUSY = Load(running=2, waiting=1, kv_used=0.5, counted=100.0, steps=10.0, process="1")


def after(*readings: Load | BackendError, every_s: float = 1.0) -> Pulse:
    """A pulse with these readings, one every so many seconds."""
    pulse = Pulse()
    for turn, reading in enumerate(readings):
        if isinstance(reading, Load):
            pulse.read(reading, turn * every_s)
        else:
            pulse.missed(reading, turn * every_s)
    return pulse


# ---- what the router is told


def test_a_reading_is_passed_on_with_the_time_it_was_asked_for() -> None:
    assert Pulse().read(BUSY, 7.0) == Report(2, 1, 0.5, 7.0)


def test_what_is_not_said_stays_unknown() -> None:
    assert Pulse().read(Load(running=0), 0.0) == Report(running=0, at=0.0)


def test_before_the_first_reading_nothing_is_known() -> None:
    assert Pulse().vital == Vital()
    assert Pulse().vital.up is None


def test_a_server_that_shows_nothing_is_up_and_hidden() -> None:
    pulse = Pulse()
    assert pulse.read(Load(hidden=True, said="403"), 0.0) == Report(at=0.0, trouble="hidden", said="403")
    assert pulse.vital.up is True


# ---- who does not answer


@pytest.mark.parametrize(
    ("readings", "up", "trouble"),
    [
        ([REFUSED], None, None),
        ([REFUSED] * GONE, False, "unreachable"),
        ([BUSY] + [REFUSED] * GONE, False, "unreachable"),
        ([SILENT] * 10, None, None),  # it may be busy
        ([REFUSED, SILENT, REFUSED], None, None),
        ([REFUSED, BUSY, REFUSED], None, None),
        ([BackendError(FailureKind.UNAVAILABLE, "500", status=500)] * 10, None, None),  # it may still serve
        ([BackendError(FailureKind.ENGINE_DEAD, "EngineCore encountered an issue", status=500)], False, "dead"),
        ([REFUSED] * 5 + [BUSY], True, None),
    ],
)
def test_only_refused_connections_in_a_row_and_its_own_word_say_that_it_is_down(
    readings: list[Load | BackendError], up: bool | None, trouble: str | None
) -> None:
    vital = after(*readings).vital
    assert (vital.up, vital.trouble) == (up, trouble)


def test_a_server_that_is_down_is_reported_again_and_again_and_one_that_is_silent_is_not() -> None:
    pulse = after(*[REFUSED] * GONE)
    assert pulse.missed(REFUSED, 9.0) == Report(at=9.0, trouble="unreachable", said="cannot be reached: refused")
    assert Pulse().missed(SILENT, 0.0) is None


# ---- an engine that died behind its front


def test_an_engine_that_says_it_died_is_dead() -> None:
    told = Pulse().read(replace(BUSY, alive=False, said="/health answers 503"), 0.0)
    assert (told.trouble, told.said) == ("dead", "/health answers 503")


@pytest.mark.parametrize(
    ("moves", "dead"),
    [
        ({}, True),
        ({"steps": 1.0}, False),
        ({"kv_used": 0.001}, False),  # a long prompt is read in pieces: no step is counted before it is done
        ({"running": 1}, False),
        ({"waiting": 1}, False),
    ],
)
def test_an_engine_in_which_nothing_moves_while_requests_run_is_dead(moves: dict[str, float], dead: bool) -> None:
    pulse = Pulse()
    for second in range(int(STALLED_S) + 1):
        moved = {name: getattr(BUSY, name) + step * second for name, step in moves.items()}
        pulse.read(replace(BUSY, **moved), float(second))
    assert (pulse.vital.trouble == "dead") is dead
    if dead:
        assert pulse.vital.said == "for 60 s nothing has moved, though 3 requests run or wait"
        pulse.read(replace(BUSY, steps=11.0), STALLED_S + 1.0)
        assert pulse.vital.up is True


@pytest.mark.parametrize(
    "load", [replace(BUSY, running=0, waiting=0), replace(BUSY, steps=None), replace(BUSY, running=None, waiting=None)]
)
def test_an_idle_engine_and_one_that_counts_no_steps_may_stand(load: Load) -> None:
    assert after(load, load, load, every_s=STALLED_S).vital.up is True


def test_an_engine_is_not_dead_before_its_time() -> None:
    assert after(BUSY, BUSY, every_s=STALLED_S - 1.0).vital.up is True


# ---- several servers at one address

A, B = replace(BUSY, process="1", counted=100.0), replace(BUSY, process="2", counted=900.0)


@pytest.mark.parametrize(
    ("readings", "mixed"),
    [
        ([A, A, A], False),
        ([A, B, B], False),  # a restart
        ([A, B, A], True),
        ([A, A, B, B, B, A], True),
        ([replace(A, process=None), replace(B, process=None)] * 2, False),  # back once: a restart, too
        ([replace(A, process=None), replace(B, process=None)] * 3, True),
        ([replace(B, process=None), REFUSED, replace(A, process=None)] * 3, False),  # restarts: nobody answered between
        ([replace(A, process=None, counted=None)] * 3, False),
    ],
)
def test_a_process_that_comes_back_or_counters_that_go_back_twice_are_several_servers(
    readings: list[Load | BackendError], mixed: bool
) -> None:
    assert (after(*readings).vital.trouble == "mixed") is mixed


def test_the_load_of_one_of_several_is_not_passed_on() -> None:
    pulse = after(A, B)
    assert pulse.read(A, 2.0) == Report(at=2.0, trouble="mixed", said="2 processes seen")
    assert pulse.vital.up is True
    assert pulse.vital.load is A


def test_an_address_that_has_become_one_server_is_believed_again() -> None:
    pulse = after(A, B, A)
    assert pulse.read(A, 2.0 + MIXED_S).trouble == "mixed"
    assert pulse.read(A, 2.1 + MIXED_S).trouble is None


def test_two_restarts_far_apart_are_not_several_servers() -> None:
    idle = replace(BUSY, running=0, waiting=0, process=None)
    readings = [replace(idle, counted=counted) for counted in (9.0, 1.0, 9.0, 1.0)]
    assert after(*readings, every_s=MIXED_S).vital.trouble is None


# ---- the times


def test_one_reading_tells_the_mean_since_the_start_and_two_the_mean_between_them() -> None:
    first = replace(BUSY, ttft_s=Total(1.0, 10.0), isl=Total(1_000.0, 10.0), osl=Total(500.0, 10.0))
    then = replace(BUSY, ttft_s=Total(3.0, 14.0), isl=Total(3_000.0, 14.0), osl=Total(900.0, 14.0))
    vital = after(first).vital
    assert (vital.ttft_ms, vital.ttft_s, vital.isl, vital.osl) == (100.0, None, 100.0, 50.0)
    vital = after(first, then).vital
    assert (vital.ttft_ms, vital.ttft_s, vital.isl, vital.osl) == (500.0, 1.0, 500.0, 100.0)


def test_with_nothing_answered_in_between_there_is_no_mean() -> None:
    load = replace(BUSY, ttft_s=Total(1.0, 10.0))
    assert after(load, load).vital.ttft_ms is None


def test_the_mean_is_of_the_last_minute() -> None:
    loads = [replace(BUSY, steps=float(i), ttft_s=Total(float(i), float(i + 1))) for i in range(100)]
    vital = after(*loads).vital
    assert vital.ttft_ms == pytest.approx(1_000.0)
    assert vital.ttft_s is not None and WINDOW_S <= vital.ttft_s < WINDOW_S + 1.0


def test_a_restart_begins_anew() -> None:
    before, restarted = replace(A, ttft_s=Total(9.0, 10.0)), replace(B, ttft_s=Total(0.2, 2.0))
    vital = after(before, restarted).vital
    assert (vital.ttft_ms, vital.ttft_s) == (100.0, None)


def test_of_several_servers_no_time_is_told() -> None:
    loads = [replace(load, ttft_s=Total(1.0, 10.0)) for load in (A, B, A)]
    assert after(*loads).vital.ttft_ms is None


# ---- when it is asked again


@pytest.mark.parametrize(
    ("vital", "wait"),
    [
        (Vital(at=0.0), 1.0),
        (Vital(failures=1), 2.0),
        (Vital(failures=3), 8.0),
        (Vital(failures=10**6), MOST_S),
        (Vital(at=0.0, trouble="hidden"), HIDDEN_S),
        (Vital(Load(alive=True), 0.0, "hidden"), 1.0),  # its health can be seen
        (Vital(at=0.0, trouble="dead"), 1.0),
    ],
)
def test_a_server_that_does_not_answer_or_shows_nothing_is_asked_less_often(vital: Vital, wait: float) -> None:
    assert wait_s(vital, 1.0, 0.5) == wait
    assert wait_s(vital, 1.0, 0.0) == pytest.approx(0.8 * wait)
    assert wait_s(vital, 1.0, 1.0) == pytest.approx(1.2 * wait)


def test_an_interval_that_is_longer_than_any_wait_is_kept() -> None:
    assert wait_s(Vital(failures=1), 300.0, 0.5) == 300.0
    assert wait_s(Vital(at=0.0, trouble="hidden"), 300.0, 0.5) == 300.0


# ---- all in all

NUMBER = st.none() | st.integers(0, 5)
LOADS = st.builds(
    Load,
    running=NUMBER,
    waiting=NUMBER,
    kv_used=st.none() | st.floats(0.0, 1.0),
    alive=st.none() | st.booleans(),
    hidden=st.booleans(),
    process=st.none() | st.sampled_from("ab"),
    counted=st.none() | st.floats(0.0, 9.0),
    steps=st.none() | st.floats(0.0, 9.0),
    ttft_s=st.none() | st.builds(Total, st.floats(0.0, 9.0), st.integers(0, 9).map(float)),
)


@given(st.lists(st.tuples(LOADS | st.sampled_from([REFUSED, SILENT]), st.floats(0.0, 200.0))))
def test_no_row_of_readings_makes_a_figure_up(row: list[tuple[Load | BackendError, float]]) -> None:
    pulse, now = Pulse(), 0.0
    for reading, wait in row:
        now += wait
        if isinstance(reading, BackendError):
            report = pulse.missed(reading, now)
            assert report is None or (report.trouble is not None and report.running is None)
            continue
        told = pulse.read(reading, now)
        assert told.at == now
        assert told.running in (None, reading.running)
        assert told.kv_used in (None, reading.kv_used)
        if reading.alive is False:
            assert told.trouble == "dead"
        assert pulse.vital.ttft_ms is None or math.isfinite(pulse.vital.ttft_ms)


def test_a_real_router_that_passes_on_its_workers_metrics_is_noticed() -> None:
    """Two llama.cpp servers behind vllm-router 0.1.17, whose ``/metrics`` is either one's: what was seen, in turn."""
    from agentroute.adapters.llamacpp import LlamaCppAdapter
    from agentroute.wire import Answer

    row = json.loads((DATA / "vllm-router-0.1.17-metrics.json").read_text())
    readings = []
    for headers, lines in row:
        talk = LlamaCppAdapter().load()
        next(talk)
        with pytest.raises(StopIteration) as told:
            talk.send(Answer(200, headers, "\n".join(lines).encode()))
        readings.append(told.value.value)
    assert after(*readings).vital.trouble == "mixed"
