"""The winner alone, without an assessment of all the others: most are out by what a step there counts at the least.

The rules are those of ``Assessment`` with the objective ``fit``, and no others; a test holds them to each other. Here
they are reckoned in plain numbers, one deployment after the other, since a small array takes as long to call as ten of
these. What is rare (limits on percentiles, budgets, models' quality, prefixes that siblings hold, replicas) and what
the last digits would decide is left to ``Assessment``. All else about a decision is worked out when it is read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import chain
from math import exp, inf, log
from typing import Any, NamedTuple

import numpy as np

from agentroute.assessment import SHARED_BY
from agentroute.compiled import CompiledFleet, Floats
from agentroute.inputs import LOADS, Ask, Queue, State, There
from agentroute.latency.layout import N_KNOTS
from agentroute.latency.physics import THOUSAND
from agentroute.latency.table import FEW as FEW
from agentroute.latency.table import LEAST_AMONG
from agentroute.misses import MOST_EXCESS, OWN_WIDTH, ROOM_WIDTH, STALL_SHARE
from agentroute.policy import MISS_PER_GPU_SECOND, MISS_PER_MOVE, MISS_PER_POOL, MISS_PER_SECOND

MOST_N = exp(N_KNOTS[-1])
"""Where the last knot of every curve's concurrency is."""
MOST_BOUND = 64
"""Requests with a time to keep up to which they are."""
NEAR = 1e-9
"""Relative difference below which the last digits tell, which differ from those of arrays."""

_Bound = list[list[tuple[float, float, float]]]


class _Of(NamedTuple):
    """One deployment."""

    d: int
    knots: array[float]
    ttft_at: int
    slots: float
    blocks: float
    block_tokens: float
    """0: it has several kinds of layers."""
    groups: float
    """Blocks of each such stretch of tokens."""
    fixed: float
    gpu: float
    """What a millisecond of it counts."""
    window_tokens: float
    request_blocks: float
    rank: int


class _Order(NamedTuple):
    """All deployments, for prompts of similar lengths, by what a step counts at the least at any load between knots."""

    of: list[_Of]
    steps: array[float]
    reads: array[float]
    """What a prompt counts at the least."""

    @classmethod
    def of_all(cls, every: list[_Of], reads: Floats, steps: Floats) -> _Order:
        order = np.argsort(steps, kind="stable")
        return cls([every[d] for d in order.tolist()], array("d", steps[order]), array("d", reads[order]))


class Quick:
    """Finds winners in one fleet. Thread-safe."""

    def __init__(self, fleet: CompiledFleet) -> None:
        self._fleet, self._curves = fleet, fleet.curves
        table = fleet.block_table
        axes = fleet.curves.axes()
        gpu = fleet.gpu_ms * MISS_PER_GPU_SECOND
        self._of = [
            _Of(
                d,
                *axes[d],
                float(fleet.slots[d]),
                float(fleet.blocks[d]),
                kinds[0][1] if len(kinds := table.kinds[d][0]) == 1 and kinds[0][2] == inf else 0.0,
                kinds[0][0] if kinds else 0.0,
                table.kinds[d][1],
                float(gpu[d]),
                float(fleet.window_tokens[d]),
                float(fleet.request_blocks[d]),
                int(fleet.pool_rank[d]),
            )
            for d in range(len(fleet.deployments))
        ]
        self._brackets, self._rows = fleet.curves.brackets(), fleet.curves.rows()
        self._wide = 2 * self._brackets[2]
        """Places of each crossing in the rows."""
        self._among = fleet.curves.among_coefficients()
        self._bound: tuple[Any, _Bound] = None, []
        self._table = table
        self._any_pool = fleet.any_known_pool
        self._across = fleet.curves.across
        self._orders = [_Order.of_all(self._of, *cell) for cell in fleet.curves.leasts_ms() * gpu]
        self._last = 0
        """Which one was chosen last. It is tried first: the better that is, the sooner others are out."""

    @classmethod
    def of(cls, fleet: CompiledFleet) -> Quick | None:
        """``None`` where they are too many for this to be quicker than arrays, or not all alike in having a curve and
        one endpoint of their own."""
        known = all(curve is not None for curve in fleet.curves.curves)
        return cls(fleet) if len(fleet.deployments) <= FEW and fleet.aligned and known else None

    def best(self, ask: Ask, state: State, *, room_now: bool) -> There | None:
        """Where ``Assessment.best`` would place it by ``fit``; ``None``: that must be asked."""
        (
            context_tokens, isl, osl, output_tokens, held_tokens, _, output_is_set, concurrency, needs, limits, allowed,
            max_cost_usd, grown_tokens, quality,
        ) = ask  # fmt: skip
        held_all, in_flight, siblings, total, resident, own, queue, cached, up, shared, factors, _ = state
        if max_cost_usd is not None or quality is not None or shared is not None:
            return None
        by_ttft = by_tpot = by_e2e = 0.0
        hard: list[str] = []
        for limit in limits:
            if limit.stat != "mean":
                return None
            if (metric := limit.metric) == "ttft_ms":
                by_ttft = 1.0 / limit.limit_ms
            elif metric == "tpot_ms":
                by_tpot = 1.0 / limit.limit_ms
            else:
                by_e2e = 1.0 / limit.limit_ms
            if limit.hard:
                hard.append(metric)
        fleet = self._fleet
        held_by, busy_by = held_all.data, in_flight.data
        to_come = max(concurrency - siblings, 1.0) if siblings else concurrency
        own_by = resident_by = backlog_by = reading_by = turns_by = room_by = bound_by = None
        if own is not None and resident is not None:
            own_by, resident_by = own.data, resident.data
        if queue is not None:
            backlog_by = queue.backlog_ms.data
            if queue.reading is not None:
                reading_by = queue.reading.data
            if queue.turns is not None and queue.turn_room_ms is not None:
                turns_by, room_by = queue.turns.data, queue.turn_room_ms.data
            if queue.bound is not None:
                if len(queue.bound) > MOST_BOUND:
                    return None
                bound_by = self._bound_by(queue)
        factors_by = None if factors is None else factors.data
        shares = None if cached is None else self._curves.cached_share(isl, cached).data
        offered = unknown = None
        if needs:
            offered, unknown = fleet.capability_mask(needs)
        tokens = context_tokens + output_tokens
        needed = tokens if output_is_set else context_tokens + 1.0
        narrow, long = needed > fleet.least_window_tokens, tokens > fleet.least_request_tokens
        grows = grown_tokens > fleet.least_window_tokens or grown_tokens > fleet.least_request_tokens
        chosen_from = narrow or long or grows or needs or allowed is not None or up is not None
        # Indexing an array takes three times as long as a view of its memory.
        any_pool, steps, rows = self._any_pool, osl - 1.0, self._rows
        first_row, last_row, w00, w01, w10, w11 = self._curves.corners(log(isl), log(osl))
        wide, first_at, last_at = self._wide, first_row * self._wide, last_row * self._wide
        r00, r01 = rows[first_at : first_at + wide], rows[first_at + wide : first_at + 2 * wide]
        r10, r11 = rows[last_at : last_at + wide], rows[last_at + wide : last_at + 2 * wide]
        if own_by is not None:
            thousands = isl / THOUSAND
            context, read, pairs = (isl + osl / 2.0) / THOUSAND, thousands / osl, thousands * thousands / osl
        begins, per_length, to_tpot = self._brackets
        first_to_come = 1.0 if room_now else to_come
        # What counts at the least, for whoever is out by that alone; what lies beyond the knots may be less.
        inside = w00 >= 0.0 and w01 >= 0.0 and w10 >= 0.0 and w11 >= 0.0 and total + to_come < MOST_N
        least_step = least_read = 0.0
        if inside:
            least_step = steps if own is None else LEAST_AMONG * steps
            least_read = 1.0 if shares is None else 0.0
            if factors is not None:
                least_factor = float(factors.min())
                least_step, least_read = least_factor * least_step, least_factor * least_read
        most_n = to_come + max(busy_by) if total else to_come
        least_of_any = least_step / (most_n if most_n > SHARED_BY else SHARED_BY)
        order, least_steps, least_reads = self._orders[first_row // self._across]
        most, last, seen = inf, self._last, -1
        best, least, least_rank, busiest, near, chosen = None, inf, 1 << 30, inf, False, -1
        ordered = zip(order, least_steps, least_reads, strict=True)
        for of, a_step, a_read in chain(((self._of[last], 0.0, 0.0),), ordered):
            if least_of_any * a_step > most:
                break
            if (d := of[0]) == seen:
                continue
            seen = last
            busy = busy_by[d]
            n = n_run = busy + to_come
            if least_step / (n if n > SHARED_BY else SHARED_BY) * a_step + least_read * a_read > most:
                continue
            (
                _,
                knots,
                at,
                slots,
                blocks,
                block_tokens,
                groups,
                fixed,
                gpu,
                window_tokens,
                request_blocks,
                rank,
            ) = of
            moves = False
            if chosen_from:
                if narrow and window_tokens < needed:
                    continue
                if allowed is not None and not allowed[d]:
                    continue
                if up is not None and not up[d]:
                    continue
                if offered is not None and unknown is not None:
                    if not offered[d]:
                        continue
                    rank += int(unknown[d])
                if long and self._units(d, tokens, output_is_set) > request_blocks:
                    continue
                if grows and (
                    window_tokens < grown_tokens or self._units(d, grown_tokens, output_is_set) > request_blocks
                ):
                    moves = True
            if rank > least_rank:
                continue
            held = held_by[d]
            if block_tokens and output_is_set:
                units = fixed - (-held_tokens // block_tokens) * groups
            else:
                units = self._units(d, held_tokens, output_is_set)
            if room_now and any_pool and held + units > blocks:
                continue
            # At which load.
            full = held + units * concurrency
            if full > blocks or n > slots:
                room = (blocks - held) // units + busy if blocks < inf else inf
                n_run = max(min(room, n, slots), 1.0)
            first = busy + first_to_come if own_by is None else busy - own_by[d] + first_to_come
            if first > n_run:
                first = n_run
            # How fast, and what it costs: as soon as it is more than elsewhere nothing else matters.
            ln_first = log(first)
            k = at + bisect_right(knots, ln_first)
            after = k + 1
            low = w00 * r00[k] + w01 * r01[k] + w10 * r10[k] + w11 * r11[k]
            high = w00 * r00[after] + w01 * r01[after] + w10 * r10[after] + w11 * r11[after]
            prefill_ms = exp((ln_first - begins[k]) * per_length[k] * (high - low) + low)
            if shares is not None:
                prefill_ms *= shares[d]
            if factors_by is not None:
                region = bisect_right(LOADS, n_run)
                prefill_ms *= factors_by[0, d, region]
            score = prefill_ms * gpu
            if any_pool:
                score += full / blocks * MISS_PER_POOL
            if moves:
                score += MISS_PER_MOVE
            if score > most:
                continue
            ttft_ms = prefill_ms if backlog_by is None else prefill_ms + backlog_by[d]
            if first == n_run:
                ln_run = ln_first
            else:
                ln_run = log(n_run)
                k = at + bisect_right(knots, ln_run)
            after = k + to_tpot
            low = w00 * r00[after] + w01 * r01[after] + w10 * r10[after] + w11 * r11[after]
            after += 1
            high = w00 * r00[after] + w01 * r01[after] + w10 * r10[after] + w11 * r11[after]
            tpot_ms = exp((ln_run - begins[k]) * per_length[k] * (high - low) + low)
            if own_by is not None and resident_by is not None:
                if count := own_by[d]:
                    by_context, by_read, by_pairs = self._among[d]
                    more = (resident_by[d] - context * count) * by_context
                    more -= (by_read * read + by_pairs * pairs) * count
                    tpot_ms = max(more + tpot_ms, LEAST_AMONG * tpot_ms)
                if reading_by is not None:
                    tpot_ms /= 1.0 - reading_by[d]
            if factors_by is not None:
                tpot_ms *= factors_by[1, d, region]
            steps_ms = tpot_ms * steps
            wait_ms = 0.0
            if (waiting := (busy + 1.0 if room_now else n) - n_run) > 0.0:
                wait_ms = waiting * (ttft_ms + steps_ms) / n_run
            score += steps_ms / (n_run if n_run > SHARED_BY else SHARED_BY) * gpu
            if limits:
                used = of_ttft = (ttft_ms + wait_ms) * by_ttft
                if by_tpot and (of_tpot := tpot_ms * by_tpot) > used:
                    used = of_tpot
                if by_e2e and (of_e2e := (ttft_ms + steps_ms + wait_ms) * by_e2e) > used:
                    used = of_e2e
                if hard and used > 1.0 - NEAR:
                    e2e_ms = ttft_ms + steps_ms + wait_ms
                    shares_of = {"ttft_ms": of_ttft, "tpot_ms": tpot_ms * by_tpot, "e2e_ms": e2e_ms * by_e2e}
                    worst = max(shares_of[metric] for metric in hard)
                    if worst > 1.0 + NEAR:
                        continue
                    if worst > 1.0 - NEAR:
                        return None
                excess = (1.0 - used) / OWN_WIDTH
                score += 1.0 / (1.0 + exp(excess if excess < MOST_EXCESS else MOST_EXCESS))
            else:
                score += (ttft_ms + steps_ms + wait_ms) * (0.001 * MISS_PER_SECOND)
            if bound_by is not None and (bound := bound_by[d]):
                stall_ms, harm = prefill_ms * STALL_SHARE, 0.0
                for at_first, per_ms, before in bound:
                    excess = at_first - stall_ms * per_ms
                    harm += 1.0 / (1.0 + exp(excess if excess < MOST_EXCESS else MOST_EXCESS)) - before
                score += harm
            if turns_by is not None and room_by is not None and backlog_by is not None and (turns := turns_by[d]):
                over = backlog_by[d] - room_by[d]
                if (later := over + prefill_ms) > 0.0:
                    score += (later if over < 0.0 else prefill_ms) * 0.001 * turns
            # Which.
            if rank == least_rank:
                if score == least:
                    if busy > busiest or (busy == busiest and d > chosen):
                        continue
                elif abs(score - least) < NEAR * least:
                    least, near = min(least, score), True
                    continue
                elif score > least:
                    continue
            near = False if rank < least_rank or score < least else near
            least_rank, least, busiest, chosen = rank, score, busy, d
            most = inf if rank else least * (1.0 + NEAR)
            best = d, units, prefill_ms, tpot_ms, ttft_ms, steps_ms, wait_ms, n_run
        if best is None or near:
            return None
        d, units, prefill_ms, tpot_ms, ttft_ms, steps_ms, wait_ms, n_run = best
        self._last = d
        factor = (1.0, 1.0)
        if factors_by is not None:
            region = bisect_right(LOADS, n_run)
            factor = factors_by[0, d, region], factors_by[1, d, region]
        return There(d, d, units, prefill_ms, tpot_ms, ttft_ms, ttft_ms + steps_ms, wait_ms, n_run, factor)

    def _units(self, d: int, tokens: float, output_is_set: bool) -> float:
        """``Assessment.blocks_of`` at one deployment."""
        if not output_is_set:
            tokens = min(tokens, self._of[d].window_tokens)
        return self._table.units_at(d, tokens)

    def _bound_by(self, queue: Queue) -> _Bound:
        """By deployment, of every request there that has a time to keep: what is left of it over its width, what a
        millisecond takes of that, and how likely it misses it already. Prepared once for as long as it is true."""
        known, bound = self._bound
        if known is queue.bound or queue.bound is None or queue.budget_ms is None or queue.lost_ms is None:
            return bound
        bound = [[] for _ in self._of]
        left = (1.0 - queue.lost_ms / queue.budget_ms) / ROOM_WIDTH
        before = 1.0 / (1.0 + np.exp(np.minimum(left, MOST_EXCESS)))
        per_ms = 1.0 / (queue.budget_ms * ROOM_WIDTH)
        for d, *one in zip(queue.bound.tolist(), left.tolist(), per_ms.tolist(), before.tolist(), strict=True):
            bound[d].append((one[0], one[1], one[2]))
        self._bound = queue.bound, bound
        return bound
