"""SGLang's router (``sglang-router``, the model gateway): the shared wire, ``/readiness`` and ``/workers``.

Routes and fields are those of sglang-router 0.3.2, which was asked with two llama.cpp servers behind it. Its own
metrics stand on another port, which a base URL does not tell; what its workers are, it does not say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentroute.adapters.base import Conversation, Discovery, Load
from agentroute.adapters.dialect import Dialect
from agentroute.adapters.openai import (
    MODELS,
    OpenAIAdapter,
    engine_of,
    listed_models,
    names,
    optional,
    parents,
    window_of,
)
from agentroute.adapters.reading import count, mappings
from agentroute.wire import Answer, Request

READINESS = "/readiness"
WORKERS = "/workers"

DIALECT = Dialect(
    server="SGLang's router",
    limit="max_tokens",
    overlong="it would count the refusal against its worker",
)
"""Seen on 0.3.2: 20 prompts beyond the window opened the breakers of both workers, and everyone got 503. Fields go to
workers of any kind as they are."""


class SglangRouterAdapter(OpenAIAdapter):
    """An SGLang router, with any OpenAI-compatible servers behind it."""

    name = "sglang_router"
    dialect = DIALECT

    def discover(self) -> Conversation[Discovery]:
        """Ask for the models and the workers: there is nothing that it says of one of them but its address."""
        models = listed_models((yield Request(MODELS)), self.classify)
        workers = workers_of((yield Request(WORKERS)))
        much = f"of its {len(workers)} workers" if workers else "of its workers"
        return Discovery(
            models=names(models),
            engine=engine_of(models),
            wire=self.name,
            parents=parents(models),
            max_model_len=window_of(models),
            engines=len(workers) or None,
            notes=(
                f"a router answers here, which tells neither KV pool nor slots {much}; give each worker's address "
                "instead, and agentroute places requests itself",
            ),
        )

    def load(self) -> Conversation[Load]:
        """Ask for the workers: the requests that the router has with each. It is down when none is healthy.

        Only policies that weigh load count it: with three requests under way, ``cache_aware`` said 3 and
        ``round_robin`` 0. So 0 is what nobody counted, or nothing; it stays unknown.
        """
        answer = yield Request(WORKERS)
        workers = workers_of(answer)
        if not workers:
            if answer.status >= 500:
                raise self.classify(answer)
            return Load(hidden=True, said=f"{WORKERS} tells no worker")
        loads = [count(worker.get("load")) for worker in workers]
        known = [load for load in loads if load is not None]
        load = Load(running=sum(known) or None if len(known) == len(loads) else None)
        if any(worker.get("is_healthy") is not False for worker in workers):
            return replace(load, alive=True)
        return replace(load, alive=False, said=f"none of its {len(workers)} workers is healthy")


def workers_of(answer: Answer) -> Sequence[Mapping[str, Any]]:
    """The workers that a router lists."""
    return list(mappings(optional(answer).get("workers")))


def is_router(readiness: Answer) -> bool:
    """Whether an answer to ``/readiness`` is a router's, which counts its workers."""
    return count(optional(readiness).get("total_workers")) is not None
