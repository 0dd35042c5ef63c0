"""The winner of a fleet of which no times are known: the first with room, of these the least busy one.

The rules are those of ``Assessment`` with the objective ``fit``, as in ``quick``; a test holds them to each other.
Without times every score is NaN, so that arrays of them are reckoned for nothing. Whatever may be refused, must wait or
has a limit is left to ``Assessment``.
"""

from __future__ import annotations

from math import nan

from agentroute.compiled import CompiledFleet
from agentroute.inputs import Ask, State, There
from agentroute.latency.table import FEW


class Unmeasured:
    """Finds winners in one such fleet. Thread-safe."""

    def __init__(self, fleet: CompiledFleet) -> None:
        self._fleet = fleet
        self._blocks, self._windows = fleet.blocks.tolist(), fleet.window_tokens.tolist()
        self._ranks = fleet.pool_rank.tolist()

    @classmethod
    def of(cls, fleet: CompiledFleet) -> Unmeasured | None:
        """``None`` where some time is known, or where they are many, or replicated."""
        known = any(curve is not None for curve in fleet.curves.curves)
        return cls(fleet) if len(fleet.deployments) <= FEW and fleet.aligned and not known else None

    def best(self, ask: Ask, state: State, *, room_now: bool) -> There | None:
        """Where ``Assessment.best`` would place it by ``fit``; ``None``: that must be asked."""
        if ask.limits or ask.max_cost_usd is not None or ask.quality is not None:
            return None
        if state.shared is not None or state.factors is not None:
            return None
        fleet, to_come = self._fleet, ask.concurrency
        if state.siblings:
            to_come = max(to_come - state.siblings, 1.0)
        most, output_is_set = ask.context_tokens + ask.output_tokens, ask.output_is_set
        needed = most if output_is_set else ask.context_tokens + 1.0
        most = max(most, ask.grown_tokens)
        if max(needed, ask.grown_tokens) > fleet.least_window_tokens or most > fleet.least_request_tokens:
            return None  # it does not fit everywhere
        if state.total + to_come > fleet.least_slots:
            return None  # somebody may wait for a slot
        offered = unknown = None
        if ask.needs:
            offered, unknown = fleet.capability_mask(ask.needs)
        allowed, up, held, in_flight = ask.allowed, state.up, state.held.data, state.in_flight.data
        best = None
        for d, rank in enumerate(self._ranks):
            tokens = ask.held_tokens if output_is_set else min(ask.held_tokens, self._windows[d])
            units = fleet.block_table.units_at(d, tokens)
            if held[d] + units * ask.concurrency > self._blocks[d]:
                return None  # somebody may wait for blocks
            if (allowed is not None and not allowed[d]) or (up is not None and not up[d]):
                continue
            if offered is not None and unknown is not None:
                if not offered[d]:
                    continue
                rank += int(unknown[d])
            one = rank, in_flight[d], d, units
            if best is None or one < best:
                best = one
        if best is None:
            return None
        _, busy, d, units = best
        return There(d, d, float(units), nan, nan, nan, nan, 0.0, busy + to_come, (1.0, 1.0))
