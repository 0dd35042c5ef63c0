"""SGLang's server: the shared wire, ``/server_info``, ``/model_info`` and ``/v1/loads``.

Routes and fields were read in SGLang 0.5.23 (``entrypoints/http_server.py``, ``entrypoints/v1_loads.py``,
``managers/scheduler_components/internal_state.py``, ``arg_groups/parallel_hook.py``).

``/server_info`` holds the server's keys and its command line, too. Only the facts named here are taken out of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from agentroute.adapters.base import Conversation, Discovery, Load, Served
from agentroute.adapters.dialect import Dialect, priority
from agentroute.adapters.openai import MODELS, OpenAIAdapter, json_object, listed_models, names, optional, parents
from agentroute.adapters.prometheus import METRICS, Metrics, load_of, refused
from agentroute.adapters.reading import count, first, mappings, positive, term, within
from agentroute.adapters.structured import alone, as_regex, schema
from agentroute.profile import KvPool, PriorityOrder
from agentroute.shape.model import Capability
from agentroute.shape.sharding import Sharding
from agentroute.wire import Request

LOADS = "/v1/loads?include=core"

DIALECT = Dialect(
    server="SGLang",
    limit="max_tokens",
    structured={
        "schema": schema, "regex": alone("regex"), "choice": as_regex(alone("regex")), "grammar": alone("ebnf"),
    },
    own=frozenset({"regex", "ebnf"}),
)  # fmt: skip
"""Read in 0.5.23 (``entrypoints/openai/protocol.py``, ``managers/tokenizer_manager.py``).

Prompt and limit together above the window are refused with 400 before anything runs. Unknown fields are ignored.
"""

_WINDOW_NOTE = "the pool of full attention; layers with a sliding window have a pool of their own, of {:,} tokens"
_NO_PAGE = "the server does not tell the size of a page; tokens are counted one by one"


class SglangAdapter(OpenAIAdapter):
    """An SGLang server (``sglang serve``, ``python -m sglang.launch_server``)."""

    name = "sglang"
    dialect = DIALECT

    def priority(self, urgency: int, served: Served, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """``priority``, where it schedules by it, in the direction that it was started with."""
        return priority(urgency, served)

    def discover(self) -> Conversation[Discovery]:
        """Ask for the models, the server, the model and the load; only the models must be answered.

        Versions before the routes ``/server_info`` and ``/model_info`` have them as ``/get_server_info`` and
        ``/get_model_info``. ``internal_states`` has one entry for each data-parallel rank, and each has a KV memory.
        """
        models = listed_models((yield Request(MODELS)), self.classify)
        info = optional((yield Request("/server_info"))) or optional((yield Request("/get_server_info")))
        about = optional((yield Request("/model_info"))) or optional((yield Request("/get_model_info")))
        loads = optional((yield Request(LOADS)))
        states = list(mappings(info.get("internal_states")))
        inside, replicas = _attention(info)
        sharding, split_notes = _sharding(info, inside, replicas)
        pool, pool_notes = _pool(info, states)
        device = loads.get("accelerator")
        return Discovery(
            models=names(models),
            engine="sglang",
            wire=self.name,
            parents=parents(models),
            root=_text(info.get("model_path")),
            engine_version=term(info.get("version")) or term(loads.get("version")),
            max_model_len=positive(first(models).get("max_model_len")) or positive(info.get("context_length")),
            max_num_seqs=_slots(info, states, inside),
            max_num_batched_tokens=_step(info),
            kv_pool=pool,
            sharding=sharding,
            engines=sharding.attention_dp if sharding else None,
            prefix_caching=not switched if isinstance(switched := info.get("disable_radix_cache"), bool) else None,
            priority=_priority(info),
            weights=term(info.get("quantization")),
            kv=term(info.get("kv_cache_dtype")),
            device=device if isinstance(device, str) else None,
            capabilities=_capabilities(about),
            pool_notes=pool_notes,
            notes=(*(() if pool else ("the KV pool is unknown: the server does not tell its tokens",)), *split_notes),
        )

    def load(self) -> Conversation[Load]:
        """Ask ``/v1/loads``: requests at work and waiting of all ranks together, and the mean use of their KV.

        Versions without it tell the same in ``/metrics``, which is there with ``--enable-metrics`` and has the times.
        """
        loads = yield Request(LOADS)
        shown = yield Request(METRICS)
        load = load_of(Metrics.of(shown))
        if loads.status == 404:
            why = refused(shown)
            return replace(load, hidden=bool(why), said=f"{why}; start it with --enable-metrics" if why else "")
        ranks = list(mappings(json_object(loads, self.classify).get("loads")))
        used = [value for rank in ranks if (value := _share(rank.get("token_usage"))) is not None]
        return replace(
            load,
            running=_sum(ranks, "num_running_reqs"),
            waiting=_sum(ranks, "num_waiting_reqs"),
            kv_used=sum(used) / len(used) if used and len(used) == len(ranks) else None,
        )


def _sum(ranks: Sequence[Mapping[str, Any]], name: str) -> int | None:
    counts = [count(rank.get(name)) for rank in ranks]
    known = [number for number in counts if number is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _share(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    return float(value) if known else None


def _degree(info: Mapping[str, Any], name: str) -> int:
    """A degree of the split; one that is absent is SGLang's default, 1."""
    return positive(info.get(name), most=1_000_000) or 1


def _attention(info: Mapping[str, Any]) -> tuple[int, int]:
    """Replicas of attention inside the tensor group, and whole replicas of the model.

    ``attn_dp_size`` counts the first since 0.5.23, which still says ``enable_dp_attention`` beside it; before that,
    ``dp_size`` did together with ``enable_dp_attention``. ``dp_size`` alone is whole replicas.
    """
    inside, dp = _degree(info, "attn_dp_size"), _degree(info, "dp_size")
    return (dp, 1) if inside == 1 and info.get("enable_dp_attention") is True else (inside, dp)


def _sharding(info: Mapping[str, Any], inside: int, replicas: int) -> tuple[Sharding | None, tuple[str, ...]]:
    """The split; a profile counts replicas of attention beside tp, SGLang inside it."""
    tp = positive(info.get("tp_size"), most=1_000_000)
    if tp is None:
        return None, ("the server does not tell its sharding; give it, or write it down",)
    if info.get("disaggregation_mode") in ("prefill", "decode"):
        side = info["disaggregation_mode"]
        return None, (f"the sharding is left unknown: this is the {side} side of a disaggregated deployment",)
    if _degree(info, "attn_cp_size") > 1 or _degree(info, "moe_dp_size") > 1:
        return None, ("the sharding is left unknown: attn_cp_size and moe_dp_size split it in a way no profile holds",)
    try:
        if tp % inside:
            raise ValueError(f"tp_size = {tp} is no multiple of {inside}")
        split = Sharding(
            tp=tp // inside,
            pp=_degree(info, "pp_size"),
            ep=_degree(info, "ep_size"),
            attention_dp=inside * replicas,
            dcp=_degree(info, "dcp_size"),
        )
    except (ValueError, ValidationError):
        return None, ("the sharding is unknown: the degrees that the server tells do not fit each other",)
    return split, ()


def _pool(info: Mapping[str, Any], states: Sequence[Mapping[str, Any]]) -> tuple[KvPool | None, tuple[str, ...]]:
    """The KV memory of one rank, the least of them, and what must be known of it."""
    memories = [within(state, "memory_usage") for state in states]
    told = [tokens for one in memories if (tokens := positive(one.get("token_capacity"))) is not None]
    tokens = min(told, default=None) or positive(info.get("max_total_num_tokens"))
    page = positive(info.get("page_size"))
    block = (page or 1) * _degree(info, "dcp_size")
    if tokens is None or tokens < block:
        return None, ()
    windows = [size for one in memories if (size := positive(one.get("token_capacity_swa"))) is not None]
    notes = [_WINDOW_NOTE.format(min(windows))] if windows else []
    return KvPool(tokens=tokens, block_tokens=block), (*notes, *(() if page else (_NO_PAGE,)))


def _slots(info: Mapping[str, Any], states: Sequence[Mapping[str, Any]], inside: int) -> int | None:
    """Requests that run at once on one rank: what it settled on, else its share of what it was asked for."""
    settled = [positive(state.get("effective_max_running_requests_per_dp"), most=1_000_000) for state in states]
    asked = positive(info.get("max_running_requests"), most=1_000_000)
    known = [slots for slots in settled if slots is not None]
    return min(known) if known else max(asked // inside, 1) if asked else None


def _step(info: Mapping[str, Any]) -> int | None:
    """Tokens that one step of prefill takes: a chunk, or, where chunks are off (-1), max_prefill_tokens."""
    chunk = info.get("chunked_prefill_size")
    return positive(info.get("max_prefill_tokens")) if chunk == -1 else positive(chunk)


def _priority(info: Mapping[str, Any]) -> PriorityOrder | None:
    """Which values of ``priority`` come first, where it was started with ``--enable-priority-scheduling``."""
    if info.get("enable_priority_scheduling") is not True:
        return None
    return "lower" if info.get("schedule_low_priority_values_first") is True else "higher"


def _capabilities(about: Mapping[str, Any]) -> dict[Capability, bool]:
    said: dict[Capability, Any] = {
        "vision": about.get("has_image_understanding"),
        "audio": about.get("has_audio_understanding"),
        "tools": True if term(about.get("tool_call_parser")) else None,
    }
    return {name: value for name, value in said.items() if isinstance(value, bool)}
