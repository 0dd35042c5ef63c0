"""Sending one load to a running server: a closed loop of workers, and what every request of it took."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from agentroute.bench.plan import Load
from agentroute.client import Client, Reply
from agentroute.errors import BackendError, FailureKind
from agentroute.task import Task

FAILING = 0.10
"""A round with a larger share of failed requests than this is not used."""

REFUSALS = frozenset(
    {
        FailureKind.OVERLOADED,
        FailureKind.CONTEXT_OVERFLOW,
        FailureKind.BAD_REQUEST,
        FailureKind.AUTH,
        FailureKind.NOT_FOUND,
    }
)
"""Failures of requests that a server did not take up: they take no tokens. Of the others nobody knows how many."""

WATCH_S = 1.0
"""How often the server is asked what it is doing while a round runs."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: tokens as the server counted them, and times in milliseconds."""

    isl: int
    osl: int
    ttft_ms: float
    e2e_ms: float

    @property
    def tpot_ms(self) -> float | None:
        """(E2E - TTFT) / (OSL - 1); ``None`` where the answer had a single token, or came at once."""
        rest = self.e2e_ms - self.ttft_ms
        return rest / (self.osl - 1) if self.osl > 1 and rest > 0 else None


@dataclass(slots=True)
class Round:
    """What one round of a load brought."""

    load: Load
    samples: list[Sample] = field(default_factory=list)
    """The requests that count: sent after the first of each worker, and answered while all workers were at work."""
    failures: list[BackendError] = field(default_factory=list)
    sent: int = 0
    tokens: int = 0
    """Sent and received by all requests, those that do not count included; of one that was not answered, at most."""
    seconds: float = 0.0
    requests_per_s: float | None = None
    """Requests that were counted, over the time in which they were."""

    @property
    def is_refused(self) -> bool:
        """Whether the server said that it takes no more."""
        return any(failure.kind is FailureKind.OVERLOADED for failure in self.failures)

    @property
    def is_overloaded(self) -> bool:
        """Whether the server refused, or failed more than ``FAILING`` of the requests."""
        return self.is_refused or len(self.failures) > FAILING * max(1, self.sent)


def ask(
    client: Client,
    prompt: str,
    load: Load,
    *,
    osl: int,
    body: Mapping[str, Any],
    is_over: Callable[[], bool] = lambda: False,
) -> Reply | None:
    """One request of a load, for ``osl`` tokens; ``None`` when it was cut off because ``is_over`` said so.

    Raises ``BackendError`` when it fails.
    """
    task = Task(context_tokens=load.isl, max_output_tokens=osl)
    with client.stream([{"role": "user", "content": prompt}], task=task, body=body) as events:
        for _ in events:
            if is_over():
                return None
        return events.reply


def sample_of(reply: Reply) -> Sample:
    """The figures of a reply; raises ``BackendError`` when the server does not count its tokens.

    Tokens are those of its usage: one chunk of a stream may hold several.
    """
    prompt, answer = reply.usage.prompt_tokens, reply.usage.completion_tokens
    if prompt is None or answer is None:
        detail = "it does not report its token usage, so nothing can be measured"
        raise BackendError(FailureKind.BAD_REQUEST, detail, deployment=reply.decision.deployment)
    ttft_s = reply.seen.ttft_s if reply.seen.ttft_s is not None else reply.seen.e2e_s
    return Sample(prompt, answer, ttft_s * 1_000, reply.seen.e2e_s * 1_000)


class Loop:
    """A closed loop: ``load.concurrency`` workers, each of which asks again as soon as it was answered.

    The first request of every worker is not counted, unless there is only one, and asks for a share of the answer that
    is its own, so that the workers do not go on in step. Once ``count`` requests were counted nothing more is sent,
    and those still at work are cut off, uncounted. So it is when the next request, whose prompt is of at most
    ``most_prompt`` tokens, might pass ``most_tokens`` in all.
    """

    def __init__(
        self,
        client: Client,
        load: Load,
        make: Callable[[], str],
        *,
        count: int,
        body: Mapping[str, Any],
        most_prompt: int,
        most_tokens: int | None = None,
    ) -> None:
        self._client, self._load, self._make, self._count, self._body = client, load, make, count, body
        self._most_prompt, self._most_tokens = most_prompt, most_tokens
        self._on_their_way = 0
        """The most tokens of the requests that are not answered yet."""
        self._round = Round(load)
        self._ramping = load.concurrency if load.concurrency > 1 else 0
        self._counting_since: float | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()

    def run(self, *, deadline: float | None = None, watch: Callable[[], None] = lambda: None) -> Round:
        """Run it until enough was counted, a request failed, or ``deadline`` (of ``time.monotonic``) has passed.

        ``watch`` is called about every ``WATCH_S`` while it runs.
        """
        started = time.monotonic()
        threads = ThreadPoolExecutor(self._load.concurrency)
        try:
            workers: set[Future[None]] = {threads.submit(self._work, i) for i in range(self._load.concurrency)}
            while workers:
                done, workers = wait(workers, WATCH_S, FIRST_COMPLETED)
                for worker in done:
                    worker.result()
                if deadline is not None and time.monotonic() > deadline:
                    self._over.set()
                if not done and workers:
                    watch()
        finally:
            # After Ctrl-C nobody waits for answers; closing the client ends them.
            self._over.set()
            threads.shutdown(wait=False, cancel_futures=True)
        self._round.seconds = time.monotonic() - started
        return self._round

    def _work(self, worker: int) -> None:
        load = self._load
        is_first = load.concurrency > 1
        osl = max(1, load.osl * (worker + 1) // load.concurrency)
        while not self._over.is_set():
            asked = osl if is_first else load.osl
            most = self._most_prompt + asked
            with self._lock:
                taken = self._round.tokens + self._on_their_way
                if self._most_tokens is not None and taken + most > self._most_tokens:
                    self._over.set()
                    return
                self._on_their_way += most
                self._round.sent += 1
                if not self._ramping and self._counting_since is None:
                    self._counting_since = time.monotonic()
            try:
                reply = ask(self._client, self._make(), load, osl=asked, body=self._body, is_over=self._over.is_set)
                sample = sample_of(reply) if reply else None
            except BackendError as error:
                with self._lock:
                    self._on_their_way -= most
                    self._round.tokens += 0 if error.kind in REFUSALS else most
                    if not self._over.is_set():
                        self._round.failures.append(error)
                        self._over.set()
                return
            if sample is None:
                with self._lock:
                    self._on_their_way -= most
                    self._round.tokens += most  # a request that was cut off has no usage
                return
            self._answered(sample, is_first, most)
            is_first = False

    def _answered(self, sample: Sample, is_first: bool, most: int) -> None:
        with self._lock:
            found = self._round
            self._on_their_way -= most
            found.tokens += sample.isl + sample.osl
            if is_first:
                self._ramping -= 1
                if not self._ramping:
                    self._counting_since = time.monotonic()
            elif not self._ramping and not self._over.is_set():
                found.samples.append(sample)
                if self._counting_since is not None:
                    found.requests_per_s = len(found.samples) / (time.monotonic() - self._counting_since)
                if len(found.samples) >= self._count:
                    self._over.set()
