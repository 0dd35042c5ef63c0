"""The simulated server keeps its books: no block too many, every call ends once, no step is idle while work waits."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.engine import Call, Engine, Server, Speed
from simulation.grounds import BIG, FAST, LONG, SMALL, STALLING, closed_loop
from simulation.prefix_cache import BLOCK, Piece

SPEED = Speed(overhead_s=1e-3, weights_s=4e-3, token_s=2e-5, kv_s=1e-8, attend_s=1e-9, request_s=1e-5)


def server(blocks: int = 64, slots: int = 8, chunk: int = 64, *, mixed: bool = True) -> Server:
    return Server(speed=SPEED, gpus=1, blocks=blocks, slots=slots, window=10**6, chunk_tokens=chunk, mixed=mixed)


@dataclass(frozen=True, slots=True)
class Sent:
    """A call to come: which of a few prefixes it begins with, its own prompt, its answer, when, and how long until its
    agent gives up."""

    prefix: int
    own: int
    output: int
    at: float
    patience: float


patience = st.sampled_from([0.05, 1.0, 1e9])
sent = st.builds(Sent, st.integers(0, 2), st.integers(1, 300), st.integers(1, 120), st.floats(0, 2), patience)
servers = st.builds(
    server, st.integers(40, 120), st.integers(1, 8), st.sampled_from([16, 64, 512]), mixed=st.booleans()
)


def call_of(i: int, one: Sent) -> Call:
    shared = 100 * one.prefix + 32
    return Call((Piece(one.prefix, shared), Piece(100 + i, shared + one.own)), one.output, -i - 1)


def play(engine: Engine, calls: list[Sent]) -> list[Call]:
    """Send them all, give up those whose patience ends, and check the books at every step, until all is done."""
    made = [call_of(i, one) for i, one in enumerate(calls)]
    todo = [(one.at, 0, i) for i, one in enumerate(calls)]
    todo += [(one.at + one.patience, 1, i) for i, one in enumerate(calls)]
    todo.sort()
    ends: list[Call] = []
    while todo or engine.wake_at is not None:
        if engine.wake_at is not None and (not todo or engine.wake_at <= todo[0][0]):
            now = engine.wake_at
            ends += [call for call, is_end in engine.boundary(now) if is_end]
        else:
            now, what, i = todo.pop(0)
            engine.abort(made[i], now) if what else engine.submit(made[i], now)
        assert 0 <= engine.used_blocks <= engine.server.blocks
        assert 0 <= engine.cache.idle_blocks <= engine.available, "idle blocks count as free"
        assert len(engine.running) <= engine.server.slots
        assert engine.wake_at is not None or not (engine.running or engine.waiting), "idle while work waits"
    assert len(ends) == len(set(map(id, ends)))
    return made


@given(servers, st.lists(sent, max_size=12))
def test_the_books_are_kept_and_every_call_ends_once(kind: Server, calls: list[Sent]) -> None:
    engine = Engine(kind)
    made = play(engine, calls)
    assert engine.used_blocks == 0
    for call in made:
        assert (call.done_at is not None) or call.aborted
        if call.done_at is not None and call.first_token_at is not None:
            assert call.sent_at < call.first_token_at <= call.done_at


@given(servers, st.lists(sent, max_size=12))
def test_equal_calls_have_equal_times(kind: Server, calls: list[Sent]) -> None:
    once, again = play(Engine(kind), calls), play(Engine(kind), calls)
    assert [(c.first_token_at, c.done_at) for c in once] == [(c.first_token_at, c.done_at) for c in again]


@given(st.integers(1, 400), st.integers(1, 100))
def test_a_lone_call_takes_its_steps(prompt: int, output: int) -> None:
    engine = Engine(server(chunk=10_000))
    call = play_one(engine, prompt, output)
    first = SPEED.step_s(prompt, 0, prompt * prompt / 2, 1)
    rest = sum(SPEED.step_s(1, prompt + i, 0.0, 1) for i in range(output - 1))
    assert call.done_at == pytest.approx(first + rest)


def play_one(engine: Engine, prompt: int, output: int) -> Call:
    call = Call((Piece(1, prompt),), output, 2)
    engine.submit(call, 0.0)
    while engine.wake_at is not None:
        engine.boundary(engine.wake_at)
    return call


def test_a_prompt_seen_before_is_not_read_again() -> None:
    engine = Engine(server())
    first = Call((Piece(1, 320),), 33, answer_key=2)
    engine.submit(first, 0.0)
    while engine.wake_at is not None:
        now = engine.wake_at
        engine.boundary(now)
    follow = Call((Piece(1, 320), Piece(2, 353), Piece(3, 400)), 5, answer_key=4)
    engine.submit(follow, now)
    while engine.wake_at is not None:
        engine.boundary(engine.wake_at)
    assert follow.cached_tokens == 352, "the prompt and the whole blocks of its answer"


def test_siblings_read_their_common_prefix_once() -> None:
    engine = Engine(server(blocks=400, chunk=64))
    siblings = [Call((Piece(1, 640), Piece(10 + i, 660)), 5, -i) for i in range(6)]
    for call in siblings:
        engine.submit(call, 0.0)
    while engine.wake_at is not None:
        engine.boundary(engine.wake_at)
    assert [call.cached_tokens for call in siblings] == [0, 640, 640, 640, 640, 640]


def test_who_decodes_is_slower_while_another_prompt_is_read() -> None:
    times = {}
    for mixed in (True, False):
        engine = Engine(server(blocks=1_000, chunk=512, mixed=mixed))
        talk = Call((Piece(1, 32),), 50, 2)
        engine.submit(talk, 0.0)
        engine.boundary(engine.wake_at or 0.0)
        alone = SPEED.step_s(1, 40, 0.0, 1) * 49
        engine.submit(Call((Piece(3, 8_192),), 1, 4), talk.first_token_at or 0.0)
        while talk.done_at is None:
            engine.boundary(engine.wake_at or 0.0)
        times[mixed] = talk.done_at
        assert talk.done_at > 1.5 * alone
    assert times[False] > times[True]


def test_without_room_the_last_to_come_is_preempted_and_still_ends() -> None:
    engine = Engine(server(blocks=12))
    calls = [Call((Piece(i, 48),), 90, 10 + i) for i in range(3)]
    for call in calls:
        engine.submit(call, 0.0)
    while engine.wake_at is not None:
        engine.boundary(engine.wake_at)
    assert all(call.done_at is not None for call in calls)
    assert engine.preemptions > 0
    assert calls[0].preemptions == 0, "who came first is never preempted"


def test_what_can_never_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="never fit"):
        Engine(server(blocks=10)).submit(Call((Piece(1, 10 * BLOCK),), 1, 2), 0.0)


@pytest.mark.parametrize("kind", [BIG, SMALL, STALLING, LONG, FAST])
def test_a_closed_loop_slows_down_with_the_load_and_the_prompt(kind: Server) -> None:
    lone, many, longer = (closed_loop(kind, *load) for load in ((2_048, 128, 1), (2_048, 128, 16), (8_192, 128, 16)))
    assert lone[0] < many[0] < longer[0]
    assert lone[1] < many[1] < longer[1]
