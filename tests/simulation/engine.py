"""A discrete-event model of one LLM server: continuous batching over a KV memory, step by step.

Every step reads the weights once, the KV of all who decode, and a chunk of somebody's prompt, which everybody waits
for. Where nobody's prompt is being read, the steps to the next end are one jump: their sum is known. The rules are
those of vLLM's V1 scheduler: first come first served, a request starts when its whole prompt has room, and when decode
runs out of blocks the one that came last is preempted and read again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from simulation.prefix_cache import BLOCK, Piece, PrefixCache, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What one step costs, in seconds."""

    overhead_s: float
    """Of every step: launches, scheduling, communication."""
    weights_s: float
    """Reading all weights once."""
    touched: float = 1.0
    """Share of the weights that one token needs; less than 1 for experts, of which a batch touches more."""
    token_s: float
    """Computing one token; the weights are read meanwhile."""
    kv_s: float
    """Reading one resident token's KV."""
    attend_s: float
    """Attention of one prompt token over one token before it."""
    request_s: float
    """Sampling and bookkeeping for one request."""

    def step_s(self, tokens: int, resident: int, attended: float, requests: int) -> float:
        """A step over ``tokens`` new tokens of which prompts attend to ``attended`` pairs."""
        read = self.weights_s * (1.0 - (1.0 - self.touched) ** tokens if self.touched < 1.0 else 1.0)
        computed = max(read, tokens * self.token_s)
        return self.overhead_s + computed + resident * self.kv_s + attended * self.attend_s + requests * self.request_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How a server was started."""

    speed: Speed
    gpus: int
    blocks: int
    slots: int
    window: int
    chunk_tokens: int
    """Tokens that one step takes."""
    mixed: bool = True
    """Whether prompts are read beside decode (chunked prefill); if not, decode stands still while they are."""


@dataclass(slots=True, eq=False)
class Call:
    """One request, and what became of it."""

    pieces: Sequence[Piece]
    output_tokens: int
    answer_key: int
    """Names the prompt with its answer."""
    sent_at: float = 0.0
    first_token_at: float | None = None
    done_at: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    aborted: bool = False
    # The engine's own.
    serial: int = -1
    generated: int = 0
    """Tokens that were written when ``joined`` was taken."""
    computed: int = 0
    reading: int = 0
    """Tokens to read before it decodes: the prompt, and what was written before a preemption."""
    decoding: bool = False
    joined: int = 0
    """The engine's count of decode steps when it began to decode."""
    held: list[Segment] = field(default_factory=list)

    @property
    def prompt_tokens(self) -> int:
        return self.pieces[-1].end


class Jump(NamedTuple):
    """Steps under way: ``steps`` from ``start`` on, and the prompt tokens that are read in the only one."""

    start: float
    steps: int
    first_s: float
    more_s: float
    """What each step takes longer than the one before, since everybody has one more token to read."""
    read: tuple[tuple[Call, int], ...]
    decodes: bool

    def end(self, steps: int) -> float:
        return self.start + steps * self.first_s + self.more_s * (steps * (steps - 1) / 2)


class Event(NamedTuple):
    """Something that a caller sees: a first token, or the end."""

    call: Call
    is_end: bool


class Engine:
    """One server at work. The owner calls ``submit``, ``abort``, and ``boundary`` when ``wake_at`` has come."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.cache = PrefixCache()
        self.waiting: deque[Call] = deque()
        self.running: dict[int, Call] = {}
        """By serial, in the order of admission."""
        self.wake_at: float | None = None
        self.busy_s = 0.0
        self.preemptions = 0
        self._private = 0
        self._decoding = 0
        self._resident = 0
        self._steps = 0
        self._phases = [0] * BLOCK
        """Requests in decode by (KV tokens - steps) mod block: who fills a block at the same step."""
        self._ends: list[tuple[int, int, Call]] = []
        self._serials = count()
        self._jump: Jump | None = None
        self._reading: Call | None = None
        self._to_abort: list[Call] = []

    @property
    def used_blocks(self) -> int:
        """Blocks that running requests stand on."""
        return self.cache.blocks - self.cache.idle_blocks + self._private

    @property
    def available(self) -> int:
        """Blocks that are free or can be evicted."""
        return self.server.blocks - self.used_blocks

    def submit(self, call: Call, now: float) -> None:
        """Queue a call; one that could never run is a mistake of the caller."""
        if blocks(call.prompt_tokens + call.output_tokens) > self.server.blocks:
            raise ValueError("the call can never fit")
        call.sent_at, call.reading = now, call.prompt_tokens
        self.waiting.append(call)
        if self._jump is None:
            self._plan(now)
        elif len(self.waiting) == 1:
            self._cut(now)

    def abort(self, call: Call, now: float) -> None:
        """Drop a call; one that runs leaves at the end of the step."""
        if call.done_at is not None or call.aborted:
            return
        call.aborted = True
        if call.serial in self.running:
            self._to_abort.append(call)
        else:
            self.waiting.remove(call)
        self._cut(now)

    def boundary(self, now: float) -> list[Event]:
        """What the steps that end now have brought."""
        jump, self._jump = self._jump, None
        if jump is None or now != self.wake_at:
            raise ValueError("no step ends now")
        self.busy_s += now - jump.start
        events: list[Event] = []
        if jump.decodes:
            self._decode(jump.steps, now, events)
        for call, tokens in jump.read:
            self._read(call, tokens, now, events)
        for call in self._to_abort:
            if call.serial in self.running:
                self._leave(call)
        self._to_abort.clear()
        self._plan(now)
        return events

    # ---- what the steps have done

    def _decode(self, steps: int, now: float, events: list[Event]) -> None:
        self._private += self._needed(steps)
        self._evict()
        self._steps += steps
        self._resident += steps * self._decoding
        while self._ends and self._ends[0][0] <= self._steps:
            _, serial, call = heappop(self._ends)
            if self.running.get(serial) is call:
                self._end(call, now, events)

    def _read(self, call: Call, tokens: int, now: float, events: list[Event]) -> None:
        call.computed += tokens
        if call.computed < call.reading:
            return
        call.generated += 1
        if call.first_token_at is None:
            call.first_token_at = now
            events.append(Event(call, False))
        call.decoding, call.joined = True, self._steps
        self._decoding += 1
        self._resident += call.reading
        self._phases[(call.reading - self._steps) % BLOCK] += 1
        if call.generated >= call.output_tokens:
            self._end(call, now, events)
        else:
            heappush(self._ends, (self._steps + call.output_tokens - call.generated, call.serial, call))

    def _end(self, call: Call, now: float, events: list[Event]) -> None:
        prompt, written = call.prompt_tokens, self._length(call)
        whole = (prompt + call.output_tokens) // BLOCK - prompt // BLOCK
        # Before the prompt's own segments are let go, so that the answer is the first of them to be evicted.
        self.cache.add(call.answer_key, whole, written // BLOCK - prompt // BLOCK)
        self._leave(call)
        self._evict()
        call.done_at = now
        events.append(Event(call, True))

    # ---- what the next will be

    def _plan(self, now: float) -> None:
        self.wake_at = None
        server = self.server
        while self._decoding and self._needed(1) > self.available:
            self._preempt()
        budget = server.chunk_tokens - (self._decoding if server.mixed else 0)
        pieces, attended, read = [], 0.0, 0
        while budget > 0:
            call = self._reading or self._admit()
            if call is None:
                break
            tokens = min(budget, call.reading - call.computed)
            attended += tokens * (call.computed + tokens / 2)
            pieces.append((call, tokens))
            budget -= tokens
            read += tokens
            self._reading = call if call.computed + tokens < call.reading else None
        decodes = bool(self._decoding) and (server.mixed or not pieces)
        if not pieces and not decodes:
            return
        n, resident = (self._decoding, self._resident) if decodes else (0, 0)
        first_s = server.speed.step_s(n + read, resident, attended, n + len(pieces))
        steps = 1 if pieces else self._most_steps()
        self._jump = Jump(now, steps, first_s, n * server.speed.kv_s, tuple(pieces), decodes)
        self.wake_at = self._jump.end(steps)

    def _admit(self) -> Call | None:
        """The first in the queue, if it may start: a slot, and blocks for all that it is to read."""
        if not self.waiting or len(self.running) >= self.server.slots:
            return None
        call = self.waiting[0]
        cached, idle = self.cache.hit(call.pieces)
        whole = call.prompt_tokens // BLOCK
        private = blocks(call.reading) - whole
        if whole - cached + private + idle + self._needed(1) > self.available:
            return None
        self.waiting.popleft()
        call.held = self.cache.hold(call.pieces)
        self._private += private
        self._evict()
        # One token at least is computed, for there must be something to sample from.
        call.computed = min(cached * BLOCK, call.reading - 1)
        if not call.preemptions:
            call.cached_tokens = call.computed
        call.serial = next(self._serials)
        self.running[call.serial] = call
        return call

    def _most_steps(self) -> int:
        """Decode steps until somebody ends or the memory does."""
        while self.running.get(self._ends[0][1]) is not self._ends[0][2]:
            heappop(self._ends)
        steps, room = self._ends[0][0] - self._steps, self.available
        if self._needed(steps) <= room:
            return steps
        least, most = 1, steps
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (middle, most) if self._needed(middle) <= room else (least, middle)
        return least

    def _needed(self, steps: int) -> int:
        """New blocks that ``steps`` more decode steps of everybody take."""
        rounds, rest = divmod(steps, BLOCK)
        return rounds * self._decoding + sum(self._phases[-(self._steps + i) % BLOCK] for i in range(rest))

    def _evict(self) -> None:
        self.cache.evict(self.cache.blocks + self._private - self.server.blocks)

    def _cut(self, now: float) -> None:
        """End the steps under way at the first that ends at ``now`` or later."""
        jump = self._jump
        if jump is None or jump.steps == 1:
            return
        least, most = 1, jump.steps
        while least < most:
            middle = (least + most) // 2
            least, most = (middle + 1, most) if jump.end(middle) < now else (least, middle)
        self._jump = jump._replace(steps=least)
        self.wake_at = jump.end(least)

    # ---- leaving the batch

    def _length(self, call: Call) -> int:
        """Tokens whose KV a call in the batch has room for."""
        return call.reading + (self._steps - call.joined if call.decoding else 0)

    def _preempt(self) -> None:
        """The one that came last goes back to the head of the queue; what it has written is read again."""
        call = next(reversed(self.running.values()))
        if call.decoding:
            call.generated += self._steps - call.joined
        self._leave(call)
        call.computed, call.reading = 0, call.prompt_tokens + call.generated
        call.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(call)

    def _leave(self, call: Call) -> None:
        length = self._length(call)
        del self.running[call.serial]
        self._private -= blocks(length) - call.prompt_tokens // BLOCK
        self.cache.let_go(call.held, min(call.computed, call.prompt_tokens) // BLOCK)
        call.held = []
        if call.decoding:
            self._decoding -= 1
            self._resident -= length
            self._phases[(call.reading - call.joined) % BLOCK] -= 1
            call.decoding = False
        if self._reading is call:
            self._reading = None


def blocks(tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // BLOCK)
