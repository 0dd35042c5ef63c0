"""Walking over the loads of servers that behave and of servers that do not, each a small one of the test's own."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from servers import Asked, Server, answers, deployment, router

from agentroute.bench.plan import Grid, Load
from agentroute.bench.prompts import Prompts
from agentroute.bench.result import measurement, notes_of, points
from agentroute.bench.walk import BODY, Budget, Walk
from agentroute.bench.watch import Watch
from agentroute.client import Client, Retry
from agentroute.demo.run import adirect, direct
from agentroute.errors import BackendError, FailureKind, UsageError

GRID = Grid((32, 64), (5,), 1, 3)
TEMPLATE = 7
"""Tokens that the server's chat template adds; a word is two tokens."""


@dataclass
class Fake:
    """A chat server: answers after ``ttft_s``, then a chunk of two tokens each ``chunk_s``; counts what runs at once.

    It takes ``places`` requests at once and refuses more with a 429, and refuses ``refuses`` as a field.
    """

    ttft_s: float = 0.01
    chunk_s: float = 0.004
    places: int = 99
    refuses: str | None = None
    usage: bool = True
    breaks_after: int | None = None
    longest: int | None = None
    strangers: int = 0
    cuts_short: bool = False
    keeps_s: float = 0.0
    """How much longer every third request takes."""
    template: int = TEMPLATE
    per_word: int = 2
    running: int = 0
    most: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, connection: socket.socket, asked: Asked) -> None:
        if asked.target == "/metrics":
            body = f"llamacpp:requests_processing {self.running + self.strangers}\nllamacpp:requests_deferred 0\n"
            return answers(body, content_type="text/plain")(connection, asked)
        body = json.loads(asked.body)
        with self.lock:
            self.bodies.append(body)
            self.running += 1
            running, count = self.running, len(self.bodies)
            self.most = max(self.most, running)
        if self.keeps_s and count % 3 == 0:
            time.sleep(self.keeps_s)
        try:
            if self.refuses in body:
                answers('{"error":{"message":"unknown field"}}', status=400)(connection, asked)
            elif running > self.places:
                answers('{"error":{"message":"too many requests"}}', status=429)(connection, asked)
            elif self.longest is not None and prompt_tokens(body) > self.longest:
                answers('{"error":{"message":"maximum context length"}}', status=400)(connection, asked)
            elif self.breaks_after is not None and count > self.breaks_after:
                answers('{"error":{"message":"gone"}}', status=500)(connection, asked)
            else:
                self._answer(connection, asked, body)
        finally:
            with self.lock:
                self.running -= 1

    def counts(self, body: dict[str, Any]) -> int:
        """The tokens of a request's prompt."""
        return self.template + self.per_word * len(body["messages"][0]["content"].split())

    def _answer(self, connection: socket.socket, asked: Asked, body: dict[str, Any]) -> None:
        osl = 1 if self.cuts_short else body["max_tokens"]
        time.sleep(self.ttft_s)
        head = 'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        connection.sendall(head.encode())
        for _ in range((osl + 1) // 2):
            time.sleep(self.chunk_s)
            connection.sendall(b'data: {"choices":[{"delta":{"content":"a b"}}]}\n\n')
        usage = {"prompt_tokens": self.counts(body), "completion_tokens": osl}
        end: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "length"}]}
        if self.usage:
            end["usage"] = usage
        connection.sendall(f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n".encode())


def prompt_tokens(body: dict[str, Any]) -> int:
    return TEMPLATE + 2 * len(body["messages"][0]["content"].split())


@contextmanager
def walking(
    fake: Fake, grid: Grid = GRID, *, seconds: float | None = 20.0, tokens: int | None = None, noise: float = 0.5
) -> Iterator[Walk]:
    with (
        Server(fake) as server,
        Client(router(deployment(server.url)), retry=Retry(attempts=1), transport=adirect()) as client,
        Watch(server.url, "llamacpp", transport=direct()) as watch,
    ):
        yield Walk(client, "llamacpp", grid, Prompts(1), Budget(seconds, tokens), noise, watch=watch)


def test_every_anchor_becomes_a_point_of_the_length_that_was_asked_for() -> None:
    fake = Fake()
    with walking(fake) as walk:
        walk.run()
    block = measurement(walk, "http://there", engine_version="b1")
    loads = {(point.isl, point.osl, point.concurrency) for point in block.points}
    assert {n for _, _, n in loads} == {1, 2, 3}
    assert {isl for isl, _, _ in loads} == {32, 64}  # counted as 31 or 33, and 63 or 65: 7 + 2 a word
    assert {osl for _, osl, _ in loads} == {5}
    assert fake.most == 3
    assert block.loop == "closed" and block.provenance.origin == "measured"
    assert block.provenance.source == "agentroute measure of http://there"
    assert block.provenance.engine_version == "b1"
    assert block.provenance.notes and "requests a point: 32+5 x 1: 6" in block.provenance.notes
    first = block.points[0]
    assert first.ttft_ms and first.ttft_ms.mean and first.ttft_ms.mean >= 10.0
    assert first.ttft_ms.noise is not None and first.ttft_ms.p50 is not None and first.ttft_ms.p99 is None


@pytest.mark.alone
def test_ttft_ends_at_the_first_content_and_tpot_goes_by_tokens_not_chunks() -> None:
    """The stream begins with an empty delta after 10 ms, its content 40 ms later, two tokens a chunk."""
    with walking(Fake(chunk_s=0.04), Grid((32,), (9,), 1, 1)) as walk:
        walk.run()
    (point,) = points(walk)
    ttft, tpot = point.mean_ttft_ms(), point.mean_tpot_ms()
    assert ttft is not None and ttft >= 50.0
    assert tpot is not None and 20.0 <= tpot < 35.0  # four further chunks of 40 ms hold eight tokens: 20 ms each


def test_no_two_prompts_begin_alike() -> None:
    fake = Fake()
    with walking(fake) as walk:
        walk.run()
    starts = [" ".join(body["messages"][0]["content"].split()[:8]) for body in fake.bodies]
    assert len(starts) == len(set(starts)) > 20


def test_answers_are_made_exact_and_caches_kept_out_where_the_server_takes_it() -> None:
    fake = Fake()
    with walking(fake, Grid((32,), (5,), 1, 1)) as walk:
        walk.run()
    assert all(body["ignore_eos"] is True and body["cache_prompt"] is False for body in fake.bodies)
    strict = Fake(refuses="ignore_eos")
    with walking(strict, Grid((32,), (5,), 1, 1)) as walk:
        walk.run()
    assert all(set(BODY) <= set(body) and "ignore_eos" not in body for body in strict.bodies[1:])


def test_a_server_that_refuses_more_is_saturated_and_not_asked_for_more() -> None:
    with walking(Fake(places=2, ttft_s=0.05), Grid((32, 64), (5,), 1, 8)) as walk:
        walk.run()
    assert walk.most_n is not None and walk.most_n < 8
    assert {point.concurrency for point in points(walk)} == {1, 2}
    assert any("saturated: the server refused or failed requests at more than" in note for note in notes_of(walk))
    assert "32+5 x 8" in walk.missing()[0]
    assert walk.stopped is None  # nothing more could be learnt with a greater budget


def test_prompts_that_are_too_long_are_given_up_and_the_rest_goes_on() -> None:
    with walking(Fake(longest=100), Grid((32, 200), (5,), 1, 3)) as walk:
        walk.run()
    assert set(walk.rounds) == {Load(32, 5, 1), Load(32, 5, 2), Load(32, 5, 3)}
    assert set(walk.failed) == {Load(200, 5, 1)} and walk.most_n is None
    assert any("context overflow" in note for note in notes_of(walk))


def test_points_above_the_places_are_marked() -> None:
    with walking(Fake(), Grid((32,), (5,), 1, 4, slots=2)) as walk:
        walk.run()
    marked = {point.concurrency: point.saturated for point in points(walk)}
    assert marked.keys() >= {1, 2, 4}
    assert all(saturated is (True if n > 2 else None) for n, saturated in marked.items())


def test_a_server_that_fails_from_the_start_is_an_error_and_one_that_dies_leaves_what_there_was() -> None:
    with walking(Fake(breaks_after=2)) as walk, pytest.raises(BackendError) as raised:
        walk.run()
    assert raised.value.kind is FailureKind.UNAVAILABLE
    with walking(Fake(breaks_after=8)) as walk:
        walk.run()
    assert walk.rounds and walk.stopped == "3 rounds in a row failed"
    assert any(note.startswith("rounds failed at 32+5") for note in notes_of(walk))


def test_a_server_that_does_not_count_tokens_cannot_be_measured() -> None:
    with walking(Fake(usage=False)) as walk, pytest.raises(BackendError, match="does not report its token usage"):
        walk.run()


@pytest.mark.alone
def test_a_server_that_is_not_alone_is_noticed() -> None:
    with walking(Fake(strangers=2), Grid((32,), (5,), 1, 1)) as walk:
        walk.run()
    assert walk.strangers == {Load(32, 5, 1): 2}
    assert "the server was not alone: up to 2 requests of others while 32+5 x 1 ran" in notes_of(walk)
    with walking(Fake(), Grid((32,), (5,), 1, 3)) as walk:
        walk.run()
    assert not walk.strangers


def test_answers_that_end_early_are_told() -> None:
    with walking(Fake(cuts_short=True), Grid((32,), (5,), 1, 1)) as walk:
        walk.run()
    assert points(walk)[0].osl == 1 and points(walk)[0].tpot_ms is None
    assert "answers ended before the length asked for at 32+5 x 1" in notes_of(walk)


def test_a_budget_ends_it_but_not_before_the_first_load() -> None:
    with walking(Fake(), seconds=0.001) as walk:
        walk.run()
    assert list(walk.rounds) == [Load(32, 5, 1)]
    assert walk.stopped is not None
    assert walk.stopped.startswith("the budget is spent: seconds left: 0.0 of 0.001, too few for 32+5 x 2")
    assert walk.missing()[0].startswith("not measured: 32+5 x 2")


@pytest.mark.parametrize("cap", [521, 600, 700, 1_500, 3_000])
@pytest.mark.parametrize("uneven", [False, True])
def test_a_cap_on_tokens_is_never_passed_with_the_warm_up_and_what_was_cut_off_counted(cap: int, uneven: bool) -> None:
    """A server that keeps every third request lets its other clients send more than they would in step."""
    fake = Fake(keeps_s=0.1 if uneven else 0.0)
    with walking(fake, tokens=cap) as walk:
        walk.run()
    assert sum(prompt_tokens(body) + body["max_tokens"] for body in fake.bodies) <= walk.tokens <= cap
    assert Load(32, 5, 1) in walk.rounds
    assert walk.stopped is not None
    assert re.match(rf"the budget is spent: tokens left: [\d,]+ of {cap:,}, and \S+ x \d may take", walk.stopped)


def test_a_load_that_might_pass_the_cap_is_not_begun() -> None:
    fake = Fake()
    with walking(fake, Grid((32,), (5,), 1, 3), tokens=500) as walk:
        walk.run()
    assert {load.concurrency for load in walk.rounds} == {1}  # six requests of at most 56 tokens each are too many
    assert fake.most == 1


def test_a_cap_that_is_too_small_for_the_first_load_is_refused_before_anything_is_sent_with_one_that_would_do() -> None:
    fake = Fake()
    with pytest.raises(UsageError) as raised, walking(fake, tokens=520):
        pass
    assert str(raised.value) == (
        "--max-tokens must be at least 521 for the warm-up and the first load (32+5 x 1), got 520"
    )
    assert not fake.bodies


@pytest.mark.parametrize(("template", "per_word"), [(400, 2), (90, 2), (7, 6), (400, 6)])
def test_a_server_that_counts_more_than_was_reckoned_with_ends_it_within_the_cap_and_says_what_would_do(
    template: int, per_word: int
) -> None:
    fake = Fake(template=template, per_word=per_word)
    with walking(fake, tokens=521) as walk, pytest.raises(UsageError, match="--max-tokens must be at least") as raised:
        walk.run()
    assert sum(fake.counts(body) + body["max_tokens"] for body in fake.bodies) <= 521
    enough = int(re.search(r"at least ([\d,]+)", str(raised.value))[1].replace(",", ""))  # type: ignore[index]
    with walking(Fake(template=template, per_word=per_word), tokens=enough) as walk:
        walk.run()
    assert Load(32, 5, 1) in walk.rounds and walk.tokens <= enough


def test_ctrl_c_keeps_what_there_is() -> None:
    with walking(Fake()) as walk:
        walk.progress = interrupt_at(3)
        walk.run()
    assert walk.interrupted and walk.stopped == "it was interrupted"
    assert len(points(walk)) == 3
    with walking(Fake()) as walk, pytest.raises(KeyboardInterrupt):
        walk.watch = interrupting
        walk.run()


def interrupt_at(count: int) -> Any:
    rounds: list[object] = []

    def progress(walk: Walk, last: object) -> None:
        rounds.append(last)
        if len(rounds) == count:
            raise KeyboardInterrupt

    return progress


def interrupting() -> int:
    raise KeyboardInterrupt
