"""Which adapter speaks a server's wire, by what the server answers to a few questions."""

from __future__ import annotations

from agentroute.adapters.base import Conversation
from agentroute.adapters.failures import failure
from agentroute.adapters.openai import MODELS, engine_of, listed_models
from agentroute.adapters.sglang_router import READINESS, is_router
from agentroute.adapters.transformers import HEALTH, is_health
from agentroute.adapters.vllm_router import ENGINES, LIST, is_stack
from agentroute.errors import BackendError
from agentroute.wire import Request


def which() -> Conversation[str]:
    """The adapter's name; ``openai`` for a server that speaks the wire and does not say what it is.

    A router passes the list of models on as its workers write it, so the routes that only routers have come first.
    Raises ``BackendError`` for a server that does not list models, unless it is one that is known not to.
    """
    answer = yield Request(MODELS)
    try:
        models = listed_models(answer, failure)
    except BackendError:
        if answer.status == 500 and is_health((yield Request(HEALTH))):
            return "transformers"
        raise
    if is_router((yield Request(READINESS))):
        listed = yield Request(LIST)
        return "vllm_router" if listed.status == 200 else "sglang_router"
    engine = engine_of(models)
    if engine == "vllm" and is_stack((yield Request(ENGINES))):
        return "vllm_router"
    if engine != "other":
        return engine
    return "transformers" if is_health((yield Request(HEALTH))) else "openai"
