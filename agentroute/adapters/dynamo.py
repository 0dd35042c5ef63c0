"""NVIDIA Dynamo's frontend: the shared wire, ``/health`` and ``/metrics``.

Routes and names are those of Dynamo 1.6.1, whose frontend was asked with two simulated engines behind it. What a worker
is (its engine, its split, its version) the frontend does not tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentroute.adapters.base import Conversation, Discovery, Load
from agentroute.adapters.openai import (
    MODELS,
    OpenAIAdapter,
    first,
    listed_models,
    mappings,
    names,
    optional,
    positive,
    window_of,
)
from agentroute.adapters.prometheus import METRICS, Metrics, load_of, refused
from agentroute.profile import KvPool
from agentroute.wire import Request

HEALTH = "/health"
"""200 and "healthy" even when the last worker has gone; only its list of instances tells (seen on 1.6.1)."""

_OF_MODEL = "dynamo_frontend_model_{}"
_BLOCKS_USED = "dynamo_frontend_worker_active_decode_blocks"


class DynamoAdapter(OpenAIAdapter):
    """A Dynamo frontend (``python -m dynamo.frontend``)."""

    name = "dynamo"

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
