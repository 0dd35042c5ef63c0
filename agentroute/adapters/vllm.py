"""vLLM's server: the shared wire, ``/version``, ``/metrics``, and ``/server_info`` where it is open.

Routes and fields were read in vLLM 0.32.0 (``v1/engine/core_client.py``, ``v1/core/kv_cache_utils.py``,
``entrypoints/serve/dev/server_info``) and in the answers of real servers of that version.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from agentroute.adapters.base import Conversation, Discovery, Load, Served
from agentroute.adapters.dialect import Dialect, priority
from agentroute.adapters.openai import MODELS, OpenAIAdapter, listed_models, names, optional, parents, root_of
from agentroute.adapters.prometheus import METRICS, Metrics, load_of, refused
from agentroute.adapters.reading import first, positive, term, within
from agentroute.adapters.structured import inside, schema
from agentroute.profile import KvPool
from agentroute.shape.sharding import Sharding
from agentroute.wire import Answer, Request

HEALTH = "/health"
"""503 once the engine died, while the metrics stand and are still answered, for about 3 s (seen on 0.32.0)."""
SERVER_INFO = "/server_info?config_format=json"
"""The whole configuration; only a server that runs with VLLM_SERVER_DEV_MODE=1 answers it."""

_CACHE = "vllm:cache_config_info"
_RUNNING = "vllm:num_requests_running"
_SLEEP = "vllm:engine_sleep_state"
_BY_LENGTH = (
    "not all layers keep the whole of a request here, or the engines differ: the tokens are not the blocks times a "
    "block, but vLLM's own reckoning for requests of max_model_len"
)
_BY_BLOCKS = (
    "the server tells its blocks, not its tokens: this is their product, which is too much where layers with a sliding "
    "window or a state share the pool"
)

DIALECT = Dialect(
    server="vLLM",
    limit="max_tokens",
    structured={
        "schema": schema, "regex": inside("regex"), "choice": inside("choice"), "grammar": inside("grammar"),
    },
    own=frozenset({"structured_outputs"}),
    overfull="its scheduler would wait for room for ever, and everyone behind it",
)  # fmt: skip
"""Read in 0.32.0 (``renderers/params.py``, ``entrypoints/serve/utils/api_utils.py``) and seen in its answers.

A limit above the window is refused with 400; below it, vLLM cuts it to what the prompt leaves. Unknown fields are
ignored. A request that the window takes but the KV memory does not is never scheduled and stops the engine (issues
35541 and 39734, seen up to 0.24; ``--num-gpu-blocks-override``).
"""


class VllmAdapter(OpenAIAdapter):
    """A vLLM server (``vllm serve``)."""

    name = "vllm"
    dialect = DIALECT

    def priority(self, urgency: int, served: Served, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """``priority``, where it schedules by it: lower values first."""
        return priority(urgency, served)

    def discover(self) -> Conversation[Discovery]:
        """Ask for the models, the version, the metrics and the configuration; only the models must be answered.

        Metrics tell the KV pool and the data-parallel engines; split, slots and data types stand in the configuration
        alone. A KV memory belongs to one engine: ``kv_cache_size_tokens`` counts one, ``num_gpu_blocks`` all of them.
        """
        models = listed_models((yield Request(MODELS)), self.classify)
        version = term(optional((yield Request("/version"))).get("version"))
        answer = yield Request(METRICS)
        config = within(optional((yield Request(SERVER_INFO))), "vllm_config")
        metrics = Metrics.of(answer)
        caches: list[Mapping[str, Any]] = [labels for labels, _ in metrics.samples(_CACHE)]
        engines = _engines([labels for name in (_CACHE, _RUNNING) for labels, _ in metrics.samples(name)])
        model, scheduler, parallel = (within(config, f"{part}_config") for part in ("model", "scheduler", "parallel"))
        window = positive(first(models).get("max_model_len")) or positive(model.get("max_model_len"))
        sharding, split_notes = _sharding(parallel, engines)
        caches = caches or [within(config, "cache_config")]
        pool, pool_notes = _pool(
            caches, engines or _degree(parallel, "data") or 1, _degree(parallel, "decode_context"), window
        )
        weights = term(model.get("quantization")) or term(model.get("dtype"))
        kv = term(caches[0].get("cache_dtype"))
        if kv == "auto" and model and model.get("quantization") is None:
            kv = term(model.get("dtype"))  # auto is the model's own type, unless a checkpoint brings scales
        return Discovery(
            models=names(models),
            engine="vllm",
            wire=self.name,
            parents=parents(models),
            root=root_of(models),
            engine_version=version,
            max_model_len=window,
            max_num_seqs=positive(scheduler.get("max_num_seqs"), most=1_000_000),
            max_num_batched_tokens=positive(scheduler.get("max_num_batched_tokens")),
            kv_pool=pool,
            sharding=sharding,
            engines=engines or None,
            prefix_caching=_flag(caches[0].get("enable_prefix_caching")),
            priority="lower" if scheduler.get("policy") == "priority" else None,
            weights=weights,
            kv=kv,
            pool_notes=pool_notes,
            notes=(*(() if pool else (_no_pool(answer),)), *split_notes),
        )

    def load(self) -> Conversation[Load]:
        """Ask ``/metrics`` for the requests of all engines together and the mean use of their KV, and ``/health``."""
        answer = yield Request(METRICS)
        why = refused(answer)
        if answer.status != 200 and not why:
            raise self.classify(answer)
        health = yield Request(HEALTH)
        metrics = Metrics.of(answer)
        load = load_of(metrics)
        alive = health.status == 200 if health.status == 200 or health.status >= 500 else None
        if alive is False:
            return replace(load, alive=False, said=f"{HEALTH} answers {health.status}: the engine died")
        if any(state.get("sleep_state") == "awake" and not awake for state, awake in metrics.samples(_SLEEP)):
            return replace(load, alive=False, said="it was put to sleep")
        return replace(load, alive=alive, hidden=bool(why), said=why)


def _engines(samples: Sequence[Mapping[str, str]]) -> int:
    """How many engines these samples are of; not every version labels every metric. 0 when there is none."""
    return len({labels["engine"] for labels in samples if labels.get("engine")}) or min(len(samples), 1)


def _whole(value: Any, most: int = 1_000_000_000) -> int | None:
    """A count, from JSON or from a label."""
    if isinstance(value, str):
        return positive(int(value), most) if len(value) <= 12 and value.isascii() and value.isdigit() else None
    return positive(value, most)


def _flag(value: Any) -> bool | None:
    """Yes or no, from JSON or from a label."""
    if isinstance(value, str):
        return {"True": True, "False": False}.get(value)
    return value if isinstance(value, bool) else None


def _pool(
    caches: Sequence[Mapping[str, Any]], engines: int, dcp: int | None, window: int | None
) -> tuple[KvPool | None, tuple[str, ...]]:
    """The KV memory of one engine, and what must be known of it.

    ``caches`` has one entry for each engine, alike but for its label. Where all layers keep the whole of a request, the
    tokens are the requests of ``max_model_len`` that fit, times that length (``get_kv_cache_capacity``).
    """

    def least(name: str) -> int | None:
        return min((count for cache in caches if (count := _whole(cache.get(name), 10**12)) is not None), default=None)

    size, blocks, tokens = least("block_size"), least("num_gpu_blocks"), least("kv_cache_size_tokens")
    block = least("effective_attention_block_size") or (size * (dcp or 1) if size else None)
    each = blocks // engines if blocks else None
    notes: tuple[str, ...] = ()
    if tokens is None and block and each:
        tokens, notes = each * block, (_BY_BLOCKS,)
    elif tokens and block and each and window:
        alike = each * window / math.ceil(window / block)
        notes = () if abs(tokens - alike) <= 1 else (_BY_LENGTH,)
    if tokens is None or block is None or not block <= tokens <= 10**9:
        return None, ()
    return KvPool(tokens=tokens, block_tokens=block), notes


def _degree(parallel: Mapping[str, Any], kind: str) -> int | None:
    return positive(parallel.get(f"{kind}_parallel_size"), most=1_000_000)


def _sharding(parallel: Mapping[str, Any], engines: int) -> tuple[Sharding | None, tuple[str, ...]]:
    """The split, where the configuration is open; metrics tell no more than how many engines there are.

    With expert parallelism on, vLLM spreads whole experts over all of tp x dp.
    """
    tp, pp, dp = (_degree(parallel, kind) for kind in ("tensor", "pipeline", "data"))
    if tp is None or pp is None or dp is None:
        note = "vLLM does not tell its sharding outside its development mode; give it, or write it down"
        if engines > 1:
            note = f"{engines} data-parallel engines answer here, each with a KV pool of its own; {note}"
        return None, (note,)
    if (parallel.get("data_parallel_external_lb") or parallel.get("data_parallel_hybrid_lb")) and dp > 1:
        return None, (
            f"the sharding is left unknown: this is one of several addresses of {dp} data-parallel engines of tp{tp} "
            f"pp{pp}; write down what all of them are",
        )
    if (_degree(parallel, "prefill_context") or 1) > 1:
        return None, ("the sharding is left unknown: it has a split of the prompt's context, which no profile holds",)
    experts = parallel.get("enable_expert_parallel") is True and parallel.get("is_moe_model") is not False
    try:
        return Sharding(
            tp=tp,
            pp=pp,
            ep=tp * dp if experts else 1,
            attention_dp=dp,
            dcp=_degree(parallel, "decode_context") or 1,
        ), ()
    except ValidationError:
        return None, ("the sharding is unknown: the degrees that the server tells do not fit each other",)


def _no_pool(answer: Answer) -> str:
    said = f"shows no {_CACHE}" if answer.status == 200 else f"answers {answer.status}"
    return f"the KV pool is unknown: {METRICS} {said}"
