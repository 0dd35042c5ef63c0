"""A profile: the facts about one way of serving one model."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from agentroute.capacity.pool import NULL_BLOCKS, Pool
from agentroute.errors import ProfileError
from agentroute.latency.points import Measurement, Point
from agentroute.origin import (
    ORIGINS,
    Count,
    Flag,
    Frozen,
    Name,
    NonNegative,
    Origin,
    Positive,
    Provenance,
    Text,
    Tokens,
)
from agentroute.shape.model import Capability
from agentroute.shape.sharding import Disaggregated, Sharding

EngineName = Literal["vllm", "sglang", "trtllm", "llamacpp", "dynamo", "transformers", "other"]
PriorityOrder = Literal["lower", "higher"]
WeightsType = Literal["bf16", "fp16", "fp8", "fp4", "mxfp4", "nvfp4", "int8", "int4", "awq", "gptq", "gguf"]
KvType = Literal["bf16", "fp16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8", "nvfp4", "q8_0", "q5_0", "q4_0", "f32"]


class Engine(Frozen):
    """The software that serves the model."""

    name: EngineName
    """Which engine; ``other`` for one that agentroute has no rules for."""
    version: Name | None = None
    """The exact version; ``None`` when unknown, which widens every band."""


class Precision(Frozen):
    """Data types."""

    weights: WeightsType | None = None
    """Of the weights; ``None`` when unknown."""
    kv: KvType | None = None
    """Of the KV cache; ``None`` when unknown."""


class KvPool(Frozen):
    """One KV memory: of the whole deployment, or, with attention DP, of one rank; a request lives in one of them."""

    tokens: Tokens
    """Tokens that fit into it, as one engine prints them."""
    block_tokens: Tokens
    """Tokens in one block, the engine's unit of allocation; 1 where it allocates token by token."""
    provenance: Provenance | None = None
    """Where this comes from, if not from where the other limits come from."""

    @model_validator(mode="after")
    def _holds_a_block(self) -> KvPool:
        if self.tokens < self.block_tokens:
            raise ValueError(f"must hold at least one block of {self.block_tokens} tokens, got {self.tokens} tokens")
        return self

    def pool(self) -> Pool:
        """The same memory in whole blocks."""
        return Pool(self.tokens // self.block_tokens, self.block_tokens)


class Limits(Frozen):
    """What the server was started to allow. Anything absent is unknown, never zero and never unlimited."""

    max_model_len: Tokens | None = None
    """The window: prompt and answer of one request together, in tokens."""
    max_num_seqs: Count | None = None
    """Scheduler slots, requests that run at once; with attention DP, of one rank."""
    max_num_batched_tokens: Tokens | None = None
    """Tokens that one scheduler step takes."""
    kv_pool: KvPool | None = None
    """The KV memory."""
    engines: Count | None = None
    """KV memories behind one address, where the sharding does not tell: data-parallel engines, or workers behind a
    frontend. kv_pool and max_num_seqs are of one of them; default: as many as the sharding has attention replicas."""
    prefix_caching: Flag | None = None
    """Whether it keeps the KV of prompts for others that begin alike; ``None`` when unknown."""
    priority: PriorityOrder | None = None
    """Which values of a request's ``priority`` it serves first, where it was started to schedule by them; ``None``: it
    is not known to, and no call is sent with one."""
    provenance: Provenance
    """Where the limits come from."""


class Capabilities(Frozen):
    """What the deployment offers to a request."""

    offers: dict[Capability, Flag] = Field(default_factory=dict)
    """True or false by capability; one that is not listed is as the model says, or unknown."""
    provenance: Provenance
    """Where this comes from."""


class Price(Frozen):
    """What the deployment costs; without it, the table of accelerator-hour prices is used."""

    usd_per_accelerator_hour: Positive | None = None
    """US dollars for one of its accelerators for one hour."""
    usd_per_million_input_tokens: NonNegative | None = None
    """US dollars for a million prompt tokens, where tokens are what is paid for."""
    usd_per_million_output_tokens: NonNegative | None = None
    """US dollars for a million answer tokens, where tokens are what is paid for."""
    provenance: Provenance
    """Where the price comes from, and when."""

    @model_validator(mode="after")
    def _one_way_of_paying(self) -> Price:
        tokens = (self.usd_per_million_input_tokens, self.usd_per_million_output_tokens)
        by_hour = self.usd_per_accelerator_hour is not None
        if by_hour == (None not in tokens) or (by_hour and tokens != (None, None)):
            raise ValueError(
                "must give either usd_per_accelerator_hour, or both usd_per_million_input_tokens and "
                "usd_per_million_output_tokens"
            )
        return self


def _wrong(message: str, *at: str | int) -> PydanticCustomError:
    """A mistake that only the whole profile shows, and the key that it stands at."""
    return PydanticCustomError("misplaced", "{said}", {"said": message, "at": at})


class Profile(Frozen):
    """One way of serving one model; one file. Many deployments may share it."""

    format: Literal[1]
    """The version of this file format: 1. It stays readable for ever."""
    name: Name
    """The name by which deployments refer to it."""
    model: Name | None = None
    """The model file it refers to; ``None`` when the model has none."""
    accelerator: Name | None = None
    """The accelerator file it refers to; ``None`` on a laptop, or when unknown."""
    accelerator_count: Count | None = None
    """How many accelerators it takes in all; ``None`` when unknown."""
    engine: Engine
    """The software that serves it."""
    precision: Precision = Precision()
    """Data types; unknown by default."""
    sharding: Sharding | None = None
    """How an aggregated deployment is split; ``None`` when unknown or disaggregated."""
    disaggregated: Disaggregated | None = None
    """Prefill and decode workers; ``None`` when both run in one group."""
    provenance: Provenance | None = None
    """Where engine, precision, sharding and accelerators come from, if not known otherwise; default not said."""
    limits: Limits | None = None
    """Window, slots, KV pool; ``None`` when all are unknown."""
    capabilities: Capabilities | None = None
    """What it offers; ``None``: as the model says."""
    price: Price | None = None
    """What it costs; ``None``: the accelerator's hourly price."""
    measurements: tuple[Measurement, ...] = ()
    """Measured latency, one block per source; default none."""
    notes: Text | None = None
    """Anything a reader must know."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Profile:
        if self.sharding and self.disaggregated:
            raise _wrong("sharding and disaggregated exclude each other; give one of them", "disaggregated")
        split = self.sharding or self.disaggregated
        if split and self.accelerator_count is not None and split.accelerators != self.accelerator_count:
            said = f"accelerator_count is {self.accelerator_count}, but the split ({split}) takes {split.accelerators}"
            raise _wrong(said, "accelerator_count")
        seen: dict[tuple[int, int, int], Point] = {}
        for i, block in enumerate(self.measurements):
            for j, point in enumerate(block.points):
                if (before := seen.setdefault(point.load, point)) is not point:
                    isl, osl, n = point.load
                    same = "is given twice" if before == point else "holds contradicting points"
                    said = f"isl = {isl}, osl = {osl}, concurrency = {n} {same}; keep one point for each load"
                    raise _wrong(said, "measurements", i, "points", j)
        return self

    @property
    def points(self) -> tuple[Point, ...]:
        """Every measured point, of all sources."""
        return tuple(point for block in self.measurements for point in block.points)

    @property
    def latency_origin(self) -> Origin:
        """The origin of the measured points: of several blocks, the weakest."""
        origins = [block.provenance.origin for block in self.measurements]
        return max(origins, key=ORIGINS.index, default="measured")

    @property
    def measured_elsewhere(self) -> bool:
        """Whether the points may come from another engine version or KV type than the deployment's."""
        versions = {block.provenance.engine_version for block in self.measurements}
        return self.engine.version is None or self.precision.kv is None or versions != {self.engine.version}

    @property
    def accelerators(self) -> int | None:
        """How many accelerators it takes: as given, or as the split implies."""
        split = self.sharding or self.disaggregated
        return self.accelerator_count or (split.accelerators if split else None)

    @property
    def split(self) -> str | None:
        """The sharding in a few letters (``tp8 ep8``), or ``None``."""
        split = self.sharding or self.disaggregated
        return str(split) if split else None

    @property
    def kv_memories(self) -> int:
        """How many KV memories it has: as the limits say, else attention-DP ranks, on the decode side where prefill is
        apart."""
        if self.limits and self.limits.engines:
            return self.limits.engines
        if self.disaggregated:
            return self.disaggregated.decode.workers * self.disaggregated.decode.sharding.attention_dp
        return self.sharding.attention_dp if self.sharding else 1

    @property
    def pool(self) -> Pool | None:
        """One KV memory in the blocks that requests can have, or ``None`` when unknown."""
        if self.limits is None or self.limits.kv_pool is None:
            return None
        pool = self.limits.kv_pool.pool()
        kept = NULL_BLOCKS if self.engine.name == "vllm" else 0
        return pool._replace(blocks=max(1, pool.blocks - kept))

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Read a profile from a TOML or JSON file.

        Raises ``ProfileError``: one sentence with the file, the key, the line, what is wrong and what would be right.
        """
        from agentroute.files import parse, read_text, validate

        path = Path(path)
        text = read_text(path, ProfileError)
        return validate(cls, parse(text, path, ProfileError), text=text, path=path, error=ProfileError)

    def to_toml(self, *, comment: str = "") -> str:
        """The profile as the text of a TOML file, under ``comment``."""
        from agentroute.toml import dumps

        text = dumps(self.model_dump(exclude_none=True, exclude_defaults=True), inline=frozenset({"points"}))
        return "".join(f"# {line}\n" for line in comment.splitlines()) + text

    def save(self, path: str | Path, *, comment: str = "") -> None:
        """Write the profile as TOML, under ``comment``; reading it back gives an equal profile."""
        Path(path).write_text(self.to_toml(comment=comment), encoding="utf-8")
