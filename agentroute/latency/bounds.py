"""What a deployment's accelerators cannot beat, whatever serves on them, and how many requests their memory holds.

Work is that of ``latency.work``, over the data sheet's peaks: nothing waits, nothing is sent, no kernel starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agentroute.capacity.weights import WIDE, Quantisation
from agentroute.latency.work import Work
from agentroute.shape.accelerator import Accelerator, Dtype
from agentroute.shape.sharding import Sharding

Array = NDArray[np.float64]

USABLE: Final = 0.9
"""Part of the memory that engines take for weights and KV together: vLLM's ``gpu_memory_utilization`` and
TensorRT-LLM's ``free_gpu_memory_fraction``. Recalled; close enough to say where waiting may begin."""

_NARROW: Final[tuple[tuple[float, tuple[Dtype, ...]], ...]] = (
    (WIDE, ("bf16",)),
    (1.0, ("bf16", "fp8", "int8")),
    (0.0, ("bf16", "fp8", "int8", "fp4")),
)
"""By the bytes of a weight what it may be multiplied in: never narrower than it is kept."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds at utilisation 1; everything that does not depend on the load is multiplied out.

    ``prefill`` and ``decode`` are the work of one worker of each side, which are one and the same where nothing is
    disaggregated.
    """

    prefill: Work
    decode: Work
    prefill_pp: int
    decode_ways: int
    """Parts that the requests are spread over: workers, attention replicas, and batches in flight of a layer split."""
    memory_bytes: float
    """What weights and KV together may take, on all stages of one worker."""
    replicas: int
    """KV memories, of all workers."""
    byte_s: float
    token_s: float
    """Multiplying for one token of a prompt."""
    attention_flop_s: float
    kv_share: float
    """Part of the KV bytes of ``decode`` that is certain to be read."""

    @classmethod
    def of(
        cls,
        accelerator: Accelerator,
        quantisation: Quantisation,
        prefill: tuple[Work, Sharding],
        decode: tuple[Work, Sharding, int],
        *,
        kv_certain: bool,
    ) -> Bounds:
        """Those of a side that reads prompts and one of so many workers that writes answers.

        ``kv_certain`` is False where 16 bits of KV are no more than assumed: engines choose 8 by themselves for some
        checkpoints (recalled). Attention may be multiplied in 8 bits whatever the weights are kept in.
        """
        (reading, read_by), (writing, written_by, workers) = prefill, decode
        flops = reading.flops
        token_s = (
            flops["attention"] * _flop_s(accelerator, quantisation.attention)
            + flops["dense"] * _flop_s(accelerator, quantisation.dense)
            + flops["experts"] * _flop_s(accelerator, quantisation.experts)
        )
        return cls(
            prefill=reading,
            decode=writing,
            prefill_pp=read_by.pp,
            decode_ways=workers * written_by.pp * written_by.attention_dp,
            memory_bytes=USABLE * accelerator.memory_gib * 2**30 * written_by.pp,
            replicas=workers * written_by.attention_dp,
            byte_s=1.0 / (accelerator.memory_gb_per_s * 1e9),
            token_s=token_s,
            attention_flop_s=_flop_s(accelerator, 1.0),
            kv_share=1.0 if kv_certain else 0.5,
        )

    def ttft_ms(self, isl: Array) -> Array:
        """The least TTFT of prompts of which nothing is cached: their FLOPs, or reading the weights once.

        One token's experts are all that is certain to be read. All stages of a layer split work at once at best.
        """
        pairs = np.zeros(len(isl))
        for past in self.prefill.past:
            pairs += past.prefill_flops * np.array([past.pairs(tokens) for tokens in isl.tolist()])
        multiplying = (isl * self.token_s + pairs * self.attention_flop_s) / self.prefill_pp
        result: Array = 1e3 * np.maximum(multiplying, _weight_bytes(self.prefill) * self.byte_s)
        return result

    def tpot_ms(self, isl: Array, osl: Array, n: Array, ttft_ms: Array) -> Array:
        """The least TPOT with ``n`` in flight that wait so long for their first token: weights and KV, read once each.

        Of those in flight so many decode at once as the part of their time that they do (Little's law), so the bound
        is the P that solves P = weights + KV n D / (TTFT + D) with D = (OSL - 1) P, and never less than one's own KV.
        """
        kv_ms = 1e3 * self.kv_share * self.byte_s * self._kv_bytes(isl + osl / 2.0)
        weights_ms = 1e3 * self.byte_s * _weight_bytes(self.decode)
        steps = np.maximum(osl - 1.0, 1e-3)
        # Of a P^2 + b P + c = 0 the positive root, with a = steps > 0 > c.
        b, c = ttft_ms - steps * (weights_ms + kv_ms * n / self.decode_ways), -ttft_ms * weights_ms
        root = np.sqrt(b * b - 4.0 * steps * c)
        many = np.where(b > 0.0, -2.0 * c / np.maximum(b + root, 1e-300), (root - b) / (2.0 * steps))
        result: Array = np.maximum(many, weights_ms + kv_ms)
        return result

    def faster(self, loads: Array, ttft_ms: Array, tpot_ms: Array) -> Array:
        """By how much (logarithm) times at loads (isl, osl, n), shape (m, 3), are below the bounds, shape (2, m).

        0 where they are not. What was measured so is suspicious: another accelerator, shared prompts, a wrong count.
        """
        isl, osl, n = loads.T
        least = np.stack([self.ttft_ms(isl), self.tpot_ms(isl, osl, n, ttft_ms)])
        result: Array = np.maximum(0.0, np.log(least) - np.log(np.stack([ttft_ms, tpot_ms])))
        return result

    @property
    def free_bytes(self) -> float:
        """What weights leave of the memory."""
        held = self.decode.weight_bytes + sum(one.one_bytes * one.experts / one.ranks for one in self.decode.experts)
        return self.replicas * max(0.0, self.memory_bytes - held)

    def _kv_bytes(self, context: Array) -> Array:
        """KV of one request on one accelerator, over all layers, that every new token reads."""
        result = np.zeros_like(context)
        for past in self.decode.past:
            result += past.bytes * np.minimum(context, past.reach_tokens)
        return result


class Rooms:
    """How many requests the memory of each of d deployments holds beside the weights; where nobody knows, any."""

    def __init__(self, bounds: Sequence[Bounds | None]) -> None:
        known = [one if one and (one.decode.past or one.decode.state_bytes) else None for one in bounds]
        self._free = np.array([one.free_bytes if one else np.inf for one in known])
        self._state = np.array([one.decode.state_bytes / 2.0 if one else 1.0 for one in known])
        past = [(d, each.bytes, each.reach_tokens) for d, one in enumerate(known) if one for each in one.decode.past]
        owners, self._bytes, self._reach = np.array(past, dtype=np.float64).reshape(-1, 3).T
        self._owners = owners.astype(np.intp)

    def at(self, isl: float, osl: float) -> Array:
        """For requests with a mean context of ISL + OSL / 2, shape (d,); an estimate."""
        read = self._bytes * np.minimum(isl + osl / 2.0, self._reach)
        result: Array = self._free / (np.bincount(self._owners, read, len(self._free)) + self._state)
        return result


def _weight_bytes(work: Work) -> float:
    return work.weight_bytes + sum(one.read_bytes(1.0) for one in work.experts)


def _flop_s(accelerator: Accelerator, element_bytes: float) -> float:
    """Seconds of a FLOP in the fastest type that weights of so many bytes may be multiplied in."""
    allowed = next(dtypes for least, dtypes in _NARROW if element_bytes >= least)
    return 1e-12 / max(tflops for dtype, tflops in accelerator.dense_tflops.items() if dtype in allowed)
