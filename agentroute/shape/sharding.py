"""How a deployment is split over its accelerators."""

from __future__ import annotations

from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from agentroute.origin import Count, Frozen

Degree = Count


class Sharding(Frozen):
    """One worker group's split. It stands on ``tp * pp * attention_dp`` accelerators.

    ``tp`` is the tensor split of attention; ``ep`` and ``dcp`` reuse the same accelerators and multiply nothing
    (the identity that NVIDIA's configurator uses: tp * pp * attention_dp = moe_tp * moe_ep * pp).
    """

    tp: Degree = 1
    """Tensor split: attention heads and dense weights over this many ranks; default 1."""
    pp: Degree = 1
    """Layer split: stages in a pipeline; default 1."""
    ep: Degree = 1
    """Expert split: ranks over which whole experts are spread; default 1 (experts are tensor-split)."""
    attention_dp: Degree = 1
    """Attention replicas, each with its own KV pool; default 1."""
    dcp: Degree = 1
    """Decode context split: ranks of a tensor group that share one sequence's KV; default 1."""

    @model_validator(mode="after")
    def _degrees_agree(self) -> Sharding:
        group = self.tp * self.attention_dp
        if group % self.ep:
            raise ValueError(f"ep must divide tp * attention_dp = {group}, got {self.ep}")
        if self.tp % self.dcp:
            raise ValueError(f"dcp must divide tp = {self.tp}, got {self.dcp}")
        return self

    @model_serializer(mode="wrap")
    def _written(self, rest: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A file says ``tp`` always: an empty table would read as if nothing was known."""
        return {"tp": self.tp, **rest(self)}

    @property
    def accelerators(self) -> int:
        """How many accelerators one worker group takes."""
        return self.tp * self.pp * self.attention_dp

    def __str__(self) -> str:
        parts = [f"tp{self.tp}"]
        parts += [f"pp{self.pp}"] if self.pp > 1 else []
        parts += [f"ep{self.ep}"] if self.ep > 1 else []
        parts += [f"adp{self.attention_dp}"] if self.attention_dp > 1 else []
        parts += [f"dcp{self.dcp}"] if self.dcp > 1 else []
        return " ".join(parts)


class Workers(Frozen):
    """One side of a disaggregated deployment."""

    workers: Count = 1
    """How many identical worker groups; default 1."""
    sharding: Sharding
    """The split of each of them."""

    @model_serializer(mode="wrap")
    def _written(self, rest: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A file says how many always, as it does ``tp``."""
        return {"workers": self.workers, **rest(self)}

    @property
    def accelerators(self) -> int:
        """How many accelerators this side takes."""
        return self.workers * self.sharding.accelerators

    def __str__(self) -> str:
        return f"{self.workers}x({self.sharding})"


class Disaggregated(Frozen):
    """Prefill and decode on separate workers."""

    prefill: Workers
    """The side that reads prompts."""
    decode: Workers
    """The side that writes answers and holds the KV cache while it does."""

    @property
    def accelerators(self) -> int:
        """How many accelerators both sides take."""
        return self.prefill.accelerators + self.decode.accelerators

    def __str__(self) -> str:
        return f"P {self.prefill} D {self.decode}"
