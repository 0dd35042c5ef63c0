"""One measured run as a result file tells it, before anything is made of it."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from agentroute import origin
from agentroute.latency.points import Loop, Statistic
from agentroute.profile import EngineName, KvType, WeightsType
from agentroute.shape.sharding import Disaggregated, Sharding
from agentroute.startup.devices import ACCELERATORS

Times = Mapping[Statistic, float]
"""Milliseconds by statistic; a statistic that was not taken is absent."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a file says of the deployment that it measured; ``None`` is what it does not say."""

    model: str | None = None
    """The catalogue's name of the model, once ``model_word`` was looked up."""
    model_word: str | None = None
    """The model as the tool was given it: a hub id, a path, the name under which it is served."""
    engine: EngineName | None = None
    engine_version: str | None = None
    accelerator: str | None = None
    """The catalogue's name of it, once ``accelerator_word`` was looked up."""
    accelerator_word: str | None = None
    """What the file calls it."""
    sharding: Sharding | None = None
    attention_unsaid: bool = False
    """Whether the ``tp`` of ``sharding`` may be replicas of attention in truth."""
    disaggregated: Disaggregated | None = None
    weights: WeightsType | None = None
    kv: KvType | None = None


NOTHING = Facts()


@dataclass(frozen=True, slots=True)
class Run:
    """One load, what was sent and how long it took. ``None`` is what the file does not say.

    Sizes are means over the requests. Times are in milliseconds; TPOT is (E2E - TTFT) / (OSL - 1), without the TTFT.
    """

    where: str
    """The place in the file (``line 3``), or an empty text where the file is one run."""
    isl: float | None = None
    osl: float | None = None
    clients: float | None = None
    """The most requests that the tool let be in flight; ``None`` when unlimited or unknown."""
    in_flight: float | None = None
    """The mean requests in flight, where the tool itself counted them."""
    loop: Loop | None = None
    offered_per_s: float | None = None
    """Requests a second that were meant to be sent; infinite where all were sent at once."""
    requests_per_s: float | None = None
    """Requests a second that were completed."""
    ttft_ms: Times = field(default_factory=dict)
    tpot_ms: Times = field(default_factory=dict)
    e2e_ms: Times = field(default_factory=dict)
    completed: float | None = None
    failed: float | None = None
    prefix_hit: float | None = None
    """Share of the prompt tokens that came from a prefix cache."""
    date: dt.date | None = None
    workload: str | None = None
    """What was sent, in a few words."""
    facts: Facts = NOTHING
    notes: tuple[str, ...] = ()
    """What a reader of the point must know."""
    wrong: str | None = None
    """Why the run makes no point, as soon as an importer or a check knows."""


def sharding_of(
    *, tp: int | None = None, pp: int | None = None, ep: int | None = None, attention_dp: int | None = None
) -> Sharding | None:
    """The split of which at least one degree is known, the others 1; ``None`` where they do not fit each other."""
    given = {"tp": tp, "pp": pp, "ep": ep, "attention_dp": attention_dp}
    degrees = {name: degree for name, degree in given.items() if degree is not None}
    try:
        return Sharding(**degrees) if degrees else None
    except ValidationError:
        return None


def attention_sharding(
    ranks: int, *, attention_dp: bool, pp: int | None = None, ep: int | None = None
) -> Sharding | None:
    """The split where a tool counts ``ranks`` under tp, and says apart whether attention is replicated over them."""
    tp, replicas = (1, ranks) if attention_dp else (ranks, 1)
    return sharding_of(tp=tp, pp=pp, ep=ep, attention_dp=replicas)


_CATALOGUE = {name.upper(): name for name in ACCELERATORS.values()}
_BY_WORD = {name.upper(): known for name, known in ACCELERATORS.items()} | {
    name.upper().removeprefix(maker): known
    for name, known in ACCELERATORS.items()
    for maker in ("NVIDIA GEFORCE ", "NVIDIA ", "AMD INSTINCT ")
    if name.upper().startswith(maker)
}


def accelerator_of(word: str | None) -> str | None:
    """The catalogue's accelerator that ``word`` means, or ``None``: ``H200`` is one, ``H100`` is several."""
    said = " ".join((word or "").upper().split())
    return _CATALOGUE.get(said) or _BY_WORD.get(said)


NO_WORD = frozenset({"", "nan", "none", "null", "unknown", "n/a"})
"""What tools write where they know nothing."""

_NAME = TypeAdapter(origin.Name)


def version_of(word: str | None) -> str | None:
    """A version as a profile may hold it, without a leading v; ``None`` for a word that is none, such as ``nan``."""
    if word is None or word.strip().lower() in NO_WORD:
        return None
    try:
        return _NAME.validate_python(re.sub(r"^v(?=\d)", "", word.strip()))
    except ValidationError:
        return None


def date_of(word: str | float | None) -> dt.date | None:
    """The day in ``20261129-141936``, in an ISO time or in seconds since 1970 (UTC); ``None`` for anything else."""
    try:
        if isinstance(word, int | float):
            return dt.datetime.fromtimestamp(word, dt.UTC).date()
        if found := re.match(r"(\d{4})-?(\d\d)-?(\d\d)(?!\d)", word or ""):
            return dt.date(int(found[1]), int(found[2]), int(found[3]))
    except (ValueError, OverflowError, OSError):
        pass
    return None


def engine_of(word: str | None) -> EngineName | None:
    """The engine that a word of a result file means, or ``None``."""
    return _ENGINES.get((word or "").strip().lower())


_ENGINES: dict[str, EngineName] = {
    "vllm": "vllm", "sglang": "sglang", "trt": "trtllm", "trtllm": "trtllm", "trt-llm": "trtllm",
    "tensorrt-llm": "trtllm", "tensorrt_llm": "trtllm", "llamacpp": "llamacpp", "llama.cpp": "llamacpp",
    "dynamo": "dynamo", "dynamo-trt": "dynamo", "dynamo-trtllm": "dynamo", "dynamo-sglang": "dynamo",
    "dynamo-vllm": "dynamo", "other": "other",
}  # fmt: skip
