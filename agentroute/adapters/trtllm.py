"""TensorRT-LLM's server, ``trtllm-serve``: the shared wire, ``/prometheus/metrics`` and ``/metrics``.

Routes and names were read in TensorRT-LLM 1.3 (``serve/openai_server.py``, ``metrics/collector.py``) and in the
documentation of ``trtllm-serve``; no such server has been asked.

``/metrics`` holds what every step of the engine reported, as JSON, and forgets it once it was told: it is only asked
where there is no ``/prometheus/metrics``, which comes with ``return_perf_metrics: true``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from agentroute.adapters.base import Conversation, Discovery, Load, Served
from agentroute.adapters.dialect import Dialect
from agentroute.adapters.openai import MODELS, OpenAIAdapter, items, listed_models, names, optional, window_of
from agentroute.adapters.prometheus import METRICS, Metrics, load_of, refused
from agentroute.adapters.reading import count, positive, term, within
from agentroute.adapters.structured import as_regex, schema, typed
from agentroute.profile import KvPool
from agentroute.shape.sharding import Sharding
from agentroute.wire import Answer, Request

PROMETHEUS = "/prometheus/metrics"
HEALTH = "/health"

_MODEL, _SPLIT, _KV = "trtllm_model_config_info", "trtllm_parallel_config_info", "trtllm_kv_cache_config_info"
_SILENT = (
    "the server tells its KV pool only once it has answered a request, and with return_perf_metrics or "
    "enable_iter_perf_stats"
)

_SAMPLING = frozenset(
    {
        "add_special_tokens", "best_of", "disaggregated_params", "early_stopping", "echo", "frequency_penalty",
        "ignore_eos", "include_stop_str_in_output", "length_penalty", "logit_bias", "logprobs", "lora_request",
        "max_tokens", "min_p", "min_tokens", "n", "presence_penalty", "prompt_ignore_length", "repetition_penalty",
        "response_format", "seed", "skip_special_tokens", "spaces_between_special_tokens", "stop", "stop_token_ids",
        "stream_options", "temperature", "top_k", "top_p", "top_p_min", "truncate_prompt_tokens", "use_beam_search",
        "user",
    }
)  # fmt: skip
_CHAT = frozenset(
    {
        "add_generation_prompt", "cache_salt", "chat_template", "chat_template_kwargs", "documents",
        "max_completion_tokens", "messages", "mm_processor_kwargs", "reasoning_effort", "tool_choice", "tools",
        "top_logprobs",
    }
)  # fmt: skip
DIALECT = Dialect(
    server="TensorRT-LLM",
    lacks=frozenset({"embeddings"}),
    limit="max_tokens",
    fields={
        "chat": _SAMPLING | _CHAT,
        "completions": _SAMPLING | {"detokenize", "prompt", "return_context_logits"},
    },
    structured={
        "schema": schema, "regex": typed("regex"), "choice": as_regex(typed("regex")), "grammar": typed("ebnf"),
    },
    own=frozenset({"response_format"}),
    drops=frozenset({"parallel_tool_calls"}),
    says_auto=True,
)  # fmt: skip
"""Read in its source after 1.3 (``serve/openai_protocol.py``, ``serve/openai_server.py``): a field that it does not
know is a 400, ``tool_choice`` is ``none`` where it is not set, and calls may be parallel whatever
``parallel_tool_calls`` says, which older versions refuse."""


class TrtllmAdapter(OpenAIAdapter):
    """A TensorRT-LLM server (``trtllm-serve``)."""

    name = "trtllm"
    dialect = DIALECT

    def priority(self, urgency: int, served: Served, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """``priority`` from 0 to 1, higher ones first, none is 0.5; older versions refuse it, so where it counts."""
        return {"priority": min(max(0.5 + urgency / 4, 0.0), 1.0)} if served.priority is not None else {}

    def discover(self) -> Conversation[Discovery]:
        """Ask for the models, the version and the metrics; only the models must be answered."""
        models = listed_models((yield Request(MODELS)), self.classify)
        version = term(optional((yield Request("/version"))).get("version"))
        metrics = Metrics.of((yield Request(PROMETHEUS)))
        steps = {} if metrics.samples("trtllm_kv_cache_max_blocks") else _last_step((yield Request(METRICS)))
        model, split, kv = (_labels(metrics, name) for name in (_MODEL, _SPLIT, _KV))
        pool = _pool(metrics, steps)
        slots = _gauge(metrics, "trtllm_max_batch_size_static") or positive(steps.get("maxBatchSizeStatic"), 1_000_000)
        return Discovery(
            models=names(models),
            engine="trtllm",
            wire=self.name,
            root=model.get("model"),
            engine_version=version,
            max_model_len=window_of(models) or _whole(model.get("max_model_len")),
            max_num_seqs=slots,
            max_num_batched_tokens=_gauge(metrics, "trtllm_max_num_tokens_runtime"),
            kv_pool=pool,
            sharding=_sharding(split),
            prefix_caching={"True": True, "False": False}.get(kv.get("enable_block_reuse", "")),
            weights=term(model.get("quantization"))
            if model.get("quantization") != "none"
            else term(model.get("dtype")),
            kv=term(kv.get("cache_dtype")),
            device=model.get("gpu_type"),
            notes=() if pool else (f"the KV pool is unknown: {_SILENT}",),
        )

    def load(self) -> Conversation[Load]:
        """Ask for the metrics, in either form, and for ``/health``, which is 503 once the engine died."""
        answer = yield Request(PROMETHEUS)
        if refused(answer):
            answer = yield Request(METRICS)
        why = refused(answer)
        if answer.status != 200 and not why:
            raise self.classify(answer)
        health = yield Request(HEALTH)
        step = _last_step(answer)
        load = _load_of_step(step) if step else load_of(Metrics.of(answer))
        if health.status >= 500:
            return replace(load, alive=False, said=f"{HEALTH} answers {health.status}: the engine died")
        return replace(load, alive=True if health.status == 200 else None, hidden=bool(why), said=why)


def _last_step(answer: Answer) -> Mapping[str, Any]:
    """What the engine's last step reported, of those that nobody has asked for yet; empty when there is none."""
    steps = items(answer) if answer.body[:1] == b"[" else []
    return steps[-1] if steps else {}


def _load_of_step(step: Mapping[str, Any]) -> Load:
    kv = within(step, "kvCacheStats")
    used, most = count(kv.get("usedNumBlocks")), positive(kv.get("maxNumBlocks"))
    return Load(
        running=count(step.get("numActiveRequests")),
        waiting=count(step.get("numQueuedRequests")),
        kv_used=used / most if used is not None and most and used <= most else None,
    )


def _pool(metrics: Metrics, step: Mapping[str, Any]) -> KvPool | None:
    kv = within(step, "kvCacheStats")
    blocks = _gauge(metrics, "trtllm_kv_cache_max_blocks") or positive(kv.get("maxNumBlocks"))
    block = _gauge(metrics, "trtllm_kv_cache_tokens_per_block") or positive(kv.get("tokensPerBlock"))
    if blocks is None or block is None or blocks * block > 10**9:
        return None
    return KvPool(tokens=blocks * block, block_tokens=block)


def _gauge(metrics: Metrics, name: str) -> int | None:
    """The least of a gauge that every rank tells."""
    values = metrics.values(name)
    return positive(int(min(values))) if values and all(0 <= value < 1e9 for value in values) else None


def _labels(metrics: Metrics, name: str) -> Mapping[str, str]:
    return next((labels for labels, _ in metrics.samples(name)), {})


def _whole(value: str | None) -> int | None:
    return positive(int(value)) if value and len(value) <= 12 and value.isascii() and value.isdigit() else None


def _sharding(split: Mapping[str, str]) -> Sharding | None:
    """The split where it can be no other: the labels tell the ranks, but not how attention or experts use them.

    With one rank in each stage there is nothing to be used in two ways.
    """
    tp, pp = (_whole(split.get(f"{kind}_parallel_size")) for kind in ("tensor", "pipeline"))
    try:
        return Sharding(tp=1, pp=pp) if tp == 1 and pp else None
    except ValidationError:
        return None
