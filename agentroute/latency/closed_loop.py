"""What a roofline says of a server in a closed loop: requests of one size, a new one whenever one ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentroute.latency.bounds import Bounds
from agentroute.latency.curve import Curve
from agentroute.latency.physics import FAR, Shape
from agentroute.latency.roofline import Roofline

Array = NDArray[np.float64]

DERIVED: Array = np.array(
    [
        (isl, osl, n)
        for isl in (256.0, 1_024.0, 4_096.0, 16_384.0, 131_072.0)
        for osl in (128.0, 1_024.0, 8_192.0)
        for n in (1.0, 4.0, 16.0, 64.0, 256.0, 1_024.0)
    ]
)
"""Loads (isl, osl, n) through which a curve passes that is derived from a roofline."""

OWN_PROMPTS, OTHERS_PROMPTS, STEPS = 0.92, 0.107, 10.3
"""TTFT is so many times the time to read one's own prompt alone, so much of the time to read every other one in
flight, and so many decode steps. Fitted (least absolute logarithm) to 2,607 public points of 339 deployments
(aiconfigurator-core 0.12.0, systems/silicon_sample.csv); half of them are within 39 %."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Where prompts are read and where answers are written: the same workers, or workers apart."""

    prefill: Roofline
    decode: Roofline
    bounds: Bounds
    prefill_workers: int = 1
    decode_workers: int = 1
    apart: bool = False
    """True where no prompt is read between two decode steps."""

    def shape(self) -> Shape:
        """Its times as coefficients, to lean measured points on."""
        return Shape.through(*self.times_ms(FAR), self.bounds)

    def curve(self) -> Curve:
        """Its times as a curve, where nothing is measured."""
        return Curve.derived(DERIVED, *self.times_ms(DERIVED), self.bounds)

    def times_ms(self, loads: Array) -> tuple[Array, Array]:
        """TTFT and TPOT in milliseconds at loads (isl, osl, n), shape (m, 3); ``n`` are in flight in all."""
        alone = {isl: self.prefill.prefill(isl).total_s for isl in {*loads[:, 0].tolist()}}
        more = {isl: self._prompt_s(isl) for isl in alone}
        times = []
        for isl, osl, n in loads.tolist():
            mine = n / self.decode_workers
            step_s = self.decode.decode(mine, isl + osl / 2).total_s
            others_s = n / self.prefill_workers * more[isl]
            ttft_s = OWN_PROMPTS * alone[isl] + OTHERS_PROMPTS * others_s + STEPS * step_s
            # In every step (n - 1) / OSL of the others end, and as many prompts are read before the next.
            times.append((ttft_s, step_s if self.apart else step_s + max(mine - 1.0, 0.0) / osl * more[isl]))
        ttft, tpot = 1e3 * np.array(times).T
        return ttft, tpot

    def _prompt_s(self, isl: float) -> float:
        """Seconds that one prompt more takes, where others are being read."""
        replicas = self.prefill.attention_dp
        more, fewer = (self.prefill.prefill(isl, n=k * replicas).total_s for k in (2, 1))
        return (more - fewer) / replicas
