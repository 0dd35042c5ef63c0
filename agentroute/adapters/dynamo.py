"""NVIDIA Dynamo's frontend: the shared wire, ``/health`` and ``/metrics``.

Routes and names are those of Dynamo 1.6.1, whose frontend was asked with two simulated engines behind it. What a worker
is (its engine, its split, its version) the frontend does not tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentroute.adapters.base import Conversation, Discovery, Load, Served
from agentroute.adapters.dialect import Dialect
from agentroute.adapters.fields import CHAT_FIELDS, COMPLETION_FIELDS
from agentroute.adapters.openai import MODELS, OpenAIAdapter, listed_models, names, optional, window_of
from agentroute.adapters.prometheus import METRICS, Metrics, load_of, refused
from agentroute.adapters.reading import first, mappings, positive, within
from agentroute.adapters.structured import alone, schema
from agentroute.profile import KvPool
from agentroute.wire import Request

HEALTH = "/health"
"""200 and "healthy" even when the last worker has gone; only its list of instances tells (seen on 1.6.1)."""

_OF_MODEL = "dynamo_frontend_model_{}"
_BLOCKS_USED = "dynamo_frontend_worker_active_decode_blocks"

_OWN = frozenset({"guided_json", "guided_regex", "guided_choice", "guided_grammar"})
_EXTENSIONS = _OWN | {
    "allowed_token_ids", "bad_words_token_ids", "cache_salt", "detokenize", "guided_decoding_backend", "ignore_eos",
    "include_stop_str_in_output", "min_p", "min_tokens", "nvext", "repetition_penalty", "skip_special_tokens",
    "stop_token_ids", "top_k",
}  # fmt: skip
DIALECT = Dialect(
    server="Dynamo",
    limit="max_tokens",
    fields={
        "chat": CHAT_FIELDS | _EXTENSIONS | {"chat_template_args", "chat_template_kwargs", "media_io_kwargs"},
        "completions": COMPLETION_FIELDS | _EXTENSIONS,
    },
    structured={
        "schema": schema,
        "regex": alone("guided_regex"),
        "choice": alone("guided_choice"),
        "grammar": alone("guided_grammar"),
    },
    own=_OWN,
    overlong="it would answer 500 without a reason",
)
"""Seen on 1.6.1: an unknown field is a 400 ("Unsupported parameter(s)"), a limit of any size is cut, a prompt beyond
the window a bare 500, or that inside a stream of status 200. The fields were read in its source after 1.6
(``lib/llm/src/protocols/openai``)."""


class DynamoAdapter(OpenAIAdapter):
    """A Dynamo frontend (``python -m dynamo.frontend``)."""

    name = "dynamo"
    dialect = DIALECT

    def priority(self, urgency: int, served: Served, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """``nvext.agent_hints.priority``: higher values are more important, whatever engine serves them; 0 is none."""
        if urgency == 0:
            return {}
        nvext = within(payload, "nvext")
        return {"nvext": {**nvext, "agent_hints": {"priority": urgency, **within(nvext, "agent_hints")}}}

    def discover(self) -> Conversation[Discovery]:
        """Ask for the models, the metrics and the workers; KV pool, slots and step are those of one worker."""
        models = listed_models((yield Request(MODELS)), self.classify)
        metrics = Metrics.of((yield Request(METRICS)))
        workers = _workers(optional((yield Request(HEALTH))))
        model = first(models).get("id")

        def told(name: str) -> int | None:
            values = [v for labels, v in metrics.samples(_OF_MODEL.format(name)) if labels.get("model") == model]
            return positive(int(min(values))) if values and all(0 <= value < 1e9 for value in values) else None

        blocks, block = told("total_kv_blocks"), told("kv_cache_block_size")
        pool = (
            KvPool(tokens=blocks * block, block_tokens=block) if blocks and block and blocks * block <= 10**9 else None
        )
        return Discovery(
            models=names(models),
            engine="dynamo",
            wire=self.name,
            max_model_len=window_of(models) or told("context_length"),
            max_num_seqs=told("max_num_seqs"),
            max_num_batched_tokens=told("max_num_batched_tokens"),
            kv_pool=pool,
            engines=workers or None,
            notes=(
                *(() if pool else ("the KV pool is unknown: the frontend does not tell the blocks of its workers",)),
                "the frontend does not tell the split of its workers; give it, or write it down",
            ),
        )

    def load(self) -> Conversation[Load]:
        """Ask for the metrics and the workers.

        What waits is what has no first token yet, in the frontend's queue or in a worker's: with 12 requests on two
        workers that each ran 2, ``queued_requests`` was 8 and ``router_queue_pending_requests`` 0. The blocks are those
        of all requests that the router has placed, those that wait at a worker included, so that a full pool stands
        for any more.
        """
        answer = yield Request(METRICS)
        why = refused(answer)
        if answer.status != 200 and not why:
            raise self.classify(answer)
        workers = _workers(optional((yield Request(HEALTH))))
        metrics = Metrics.of(answer)
        inflight, queued = (metrics.count(f"dynamo_frontend_{name}_requests") for name in ("inflight", "queued"))
        load = replace(
            load_of(metrics),
            running=max(0, inflight - queued) if inflight is not None and queued is not None else inflight,
            waiting=queued,
            kv_used=_kv_used(metrics),
            hidden=bool(why),
            said=why,
        )
        if workers == 0:
            return replace(load, alive=False, said="the frontend has no worker")
        return replace(load, alive=workers is not None or None)


def _workers(health: Mapping[str, Any]) -> int | None:
    """Workers that answer requests; those that only read prompts have no KV memory that a request stays in."""
    if not isinstance(health.get("instances"), list):
        return None
    found: Sequence[Mapping[str, Any]] = [i for i in mappings(health["instances"]) if i.get("endpoint") == "generate"]
    answering = [i for i in found if i.get("component") != "prefill"]
    return len({str(instance.get("instance_id")) for instance in answering})


def _kv_used(metrics: Metrics) -> float | None:
    """Blocks that the router has given away over those of all workers that it knows; without its KV mode, unknown."""
    used = metrics.values(_BLOCKS_USED)
    blocks = metrics.values(_OF_MODEL.format("total_kv_blocks"))
    if not used or len(blocks) != 1 or blocks[0] <= 0 or min(used) < 0:
        return None
    return min(1.0, sum(used) / (blocks[0] * len(used)))
