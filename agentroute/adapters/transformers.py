"""``transformers serve``: the shared wire and ``/health``, which tells when its worker has died.

Seen on transformers 5.19; 5.20 and later list their models also where nothing was ever downloaded. It tells neither
window nor KV pool nor load, and a request that does not fit its KV pool ends its worker for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentroute.adapters.base import Conversation, Discovery, Load
from agentroute.adapters.dialect import Dialect
from agentroute.adapters.fields import CHAT_FIELDS, COMPLETION_FIELDS
from agentroute.adapters.openai import MODELS, OpenAIAdapter, listed_models, names, optional
from agentroute.adapters.reading import within
from agentroute.wire import Answer, Request

HEALTH = "/health"

_NOTE = (
    "window, slots and KV pool are unknown, for transformers serve does not tell them, and a request that does not fit "
    "its KV pool ends its worker for good: write down limits.max_model_len and limits.kv_pool"
)

DIALECT = Dialect(
    server="transformers serve",
    lacks=frozenset({"embeddings"}),
    limit="max_tokens",
    fields={
        "chat": CHAT_FIELDS | {"chat_template_kwargs", "generation_config"},
        "completions": COMPLETION_FIELDS | {"generation_config"},
    },
    ignores={
        "response_format": ({"type": "text"},),
        "tool_choice": ("auto",),
        "logprobs": (False,),
        "top_logprobs": (0,),
        "functions": ([],),
        "echo": (False,),
    },
    structured={},
    overlong="nothing there stops it",
    overfull="its worker would die for good",
    unset_output=1_024,
)
"""Seen on 5.19, and read there (``cli/serving/chat_completion.py``, ``utils.py``, ``server.py``): an unknown field is a
422, ``max_completion_tokens`` is dropped in silence as the fields under ``ignores`` are, and where no limit is set it
plans for 1,024 tokens or for what the model's own configuration says, if that is more."""


class TransformersAdapter(OpenAIAdapter):
    """A server started with ``transformers serve``."""

    name = "transformers"
    dialect = DIALECT

    def discover(self) -> Conversation[Discovery]:
        """Ask for the models, those that are loaded first; a version that cannot list them lists none."""
        answer = yield Request(MODELS)
        models = [] if answer.status == 500 else listed_models(answer, self.classify)
        models.sort(key=lambda model: within(model, "status").get("value") != "loaded")
        return Discovery(
            models=names(models),
            engine="transformers",
            wire=self.name,
            # Response formats and a required tool are ignored in silence.
            capabilities={"json_schema": False},
            notes=(_NOTE,),
        )

    def load(self) -> Conversation[Load]:
        """Ask ``/health``; of requests it tells nothing."""
        answer = yield Request(HEALTH)
        if answer.status == 503 and (reason := _reason(answer)):
            return Load(alive=False, said=f"{HEALTH} says {reason}")
        if answer.status != 200:
            raise self.classify(answer)
        return Load(alive=True)


def is_health(answer: Answer) -> bool:
    """Whether an answer to ``/health`` is one of transformers serve."""
    body = _body(answer)
    good = body == {"status": "ok"} or (body.get("status") == "unhealthy" and "reason" in body)
    return good and "x-request-id" in answer.headers


def _reason(answer: Answer) -> str:
    reason = _body(answer).get("reason")
    return reason if isinstance(reason, str) and reason.isprintable() and len(reason) < 100 else ""


def _body(answer: Answer) -> Mapping[str, Any]:
    return optional(Answer(200, answer.headers, answer.body))
