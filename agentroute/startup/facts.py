"""What a start-up log said: each fact with the line that it was read from; what it did not say is ``None``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from agentroute.origin import Provenance
from agentroute.profile import EngineName, KvPool, KvType, Limits, Precision, WeightsType
from agentroute.shape.sharding import Sharding

T = TypeVar("T")

DEFAULT_BLOCK_TOKENS: dict[EngineName, int] = {"vllm": 16, "trtllm": 32}
"""The engines' default block, where a log does not name it; elsewhere tokens are counted one by one."""


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """A fact, and the 1-based line of the log that says so."""

    value: T
    line: int


@dataclass(frozen=True, slots=True)
class Started:
    """What a start-up log or a command line said. ``None`` is what it did not say."""

    engine: EngineName
    version: Found[str] | None = None
    model: Found[str] | None = None
    """The model as the engine was given it: a hub id, a folder, a file."""
    tp: Found[int] | None = None
    """Tensor split of attention, as in ``Sharding``; engines count it in their own ways."""
    pp: Found[int] | None = None
    ep: Found[int] | None = None
    attention_dp: Found[int] | None = None
    """Replicas of attention, each with a KV pool of its own: attention DP, or plain data parallelism behind one URL."""
    dcp: Found[int] | None = None
    max_model_len: Found[int] | None = None
    """The window of one request, in tokens."""
    max_num_seqs: Found[int] | None = None
    """Slots; with attention DP, of one rank."""
    max_num_batched_tokens: Found[int] | None = None
    """Tokens that one scheduler step takes."""
    kv_tokens: Found[int] | None = None
    """Tokens in one KV memory: of the deployment, or with attention DP, of one rank."""
    block_tokens: Found[int] | None = None
    """Tokens in one block of it."""
    weights: Found[WeightsType] | None = None
    kv: Found[KvType] | None = None
    device: Found[str] | None = None
    """The accelerator's own name, such as ``NVIDIA H200``."""
    kv_gib: Found[float] | None = None
    """KV memory on one accelerator, in GiB: of several, the least; llama.cpp: on all together."""
    weights_gib: Found[float] | None = None
    """Weights on one accelerator, in GiB: of several, the most; llama.cpp: on all together."""
    commands: frozenset[int] = frozenset()
    """The lines that are a command line, not a log's."""
    pool_notes: tuple[str, ...] = ()
    """What a reader of the KV pool must know."""
    remarks: tuple[str, ...] = ()
    """What a person should be told, such as lines that contradict each other."""

    def facts(self) -> Iterator[tuple[str, Found[Any]]]:
        """Every fact that is known, by its name."""
        for name in FACTS:
            if (found := getattr(self, name)) is not None:
                yield name, found

    def unknown(self) -> list[str]:
        """The names of the facts that the log did not say."""
        return [name for name in FACTS if getattr(self, name) is None]

    @property
    def told_by(self) -> str:
        """What said all this: ``start-up log``, or ``command line`` where no line of a log did."""
        logged = any(found.line not in self.commands for _, found in self.facts())
        return "start-up log" if logged or not self.commands else "command line"

    def sharding(self) -> Sharding | None:
        """The split, when the log names a degree that takes accelerators and the degrees fit each other.

        A degree that is not said beside others is the engine's default, 1.
        """
        if self.tp is None and self.pp is None and self.attention_dp is None:
            return None
        degrees = {name: found.value for name in DEGREES if (found := getattr(self, name)) is not None}
        try:
            return Sharding(**degrees)
        except ValidationError:
            return None

    def kv_pool(self) -> tuple[int, int] | None:
        """Tokens and tokens of a block of one KV memory, or ``None`` when it is unknown or holds no block."""
        if self.kv_tokens is None:
            return None
        block = self.block_tokens.value if self.block_tokens else self.default_block
        return (self.kv_tokens.value, block) if self.kv_tokens.value >= block else None

    @property
    def default_block(self) -> int:
        """The engine's block where the log does not name it; ranks that share a sequence's KV (dcp) widen it."""
        return DEFAULT_BLOCK_TOKENS.get(self.engine, 1) * (self.dcp.value if self.dcp else 1)

    def limits(self, provenance: Provenance) -> Limits | None:
        """The limits as a profile holds them, or ``None`` when all are unknown."""
        said: dict[str, Any] = {
            name: found.value
            for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
            if (found := getattr(self, name)) is not None
        }
        if pool := self.kv_pool():
            notes = self.memory_notes(pool[1])
            own = provenance.model_copy(update={"notes": "; ".join(notes)}) if notes else None
            said["kv_pool"] = KvPool(tokens=pool[0], block_tokens=pool[1], provenance=own)
        return Limits(**said, provenance=provenance) if said else None

    def memory_notes(self, block: int) -> list[str]:
        """What a reader of the KV pool must know: its memory, and what its tokens and its ``block`` mean."""
        notes = [f"{_gib(self.kv_gib.value)} of KV memory {self._each}"] if self.kv_gib else []
        notes += self.pool_notes[:MOST_NOTES]
        if self.block_tokens is None and block > 1:
            notes.append(f"the {self.told_by} does not name the block; {block} tokens is the engine's default")
        return notes

    def notes(self) -> list[str]:
        """What else was read that a profile has no key for."""
        notes = [f"{_gib(self.weights_gib.value)} of weights {self._each}"] if self.weights_gib else []
        if self.kv_gib and self.kv_pool() is None:
            notes.append(f"{_gib(self.kv_gib.value)} of KV memory {self._each}")
        return notes

    @property
    def _each(self) -> str:
        """What an amount of memory is of."""
        return "on all devices together" if self.engine == "llamacpp" else "on one accelerator"

    def precision(self) -> Precision:
        """The data types."""
        return Precision(weights=self.weights.value if self.weights else None, kv=self.kv.value if self.kv else None)


def _gib(value: float) -> str:
    return f"{value:.2f} GiB"


MOST_NOTES = 5
"""How many notes on its KV pool a profile keeps."""

NOT_FACTS = {"engine", "commands", "pool_notes", "remarks"}
FACTS = tuple(one.name for one in fields(Started) if one.name not in NOT_FACTS)
DEGREES = ("tp", "pp", "ep", "attention_dp", "dcp")
