"""Models for pydantic-ai that route. Needs the extra ``pydantic-ai``.

::

    agent = Agent(routed_model(router), tools=[...])
    agent = Agent(tools=[...], capabilities=[routed(router)])  # ... and its steps are placed as those of a conversation
"""

from __future__ import annotations

from typing import Any

from pydantic_ai.capabilities import SelectModel
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import ModelSelectionContext
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

from agentroute.client import AsyncClient
from agentroute.integrations.openai import async_openai_client, model_name
from agentroute.router import Router


def routed_model(router: Router | AsyncClient, route: str | None = None) -> OpenAIChatModel:
    """A model whose every request is routed.

    Its client is not closed by pydantic-ai, which closes only those that it made; ``model.client.close()`` does.
    """
    provider = OpenAIProvider(openai_client=async_openai_client(router))
    return OpenAIChatModel(model_name(route), provider=provider)


def routed(router: Router | AsyncClient, route: str | None = None) -> SelectModel[Any]:
    """A capability that selects a routed model before every step, and tells which step of which conversation it is."""
    provider = OpenAIProvider(openai_client=async_openai_client(router))

    def select(context: ModelSelectionContext[Any]) -> OpenAIChatModel:
        step = 1 + sum(isinstance(message, ModelResponse) for message in context.messages)
        headers = {"x-agentroute-step": str(step), "x-agentroute-session-id": context.conversation_id}
        settings = OpenAIChatModelSettings(extra_headers=headers)
        return OpenAIChatModel(model_name(route), provider=provider, settings=settings)

    return SelectModel(select)
