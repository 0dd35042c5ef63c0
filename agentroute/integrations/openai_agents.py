"""A model provider for the OpenAI Agents SDK that routes. Needs the extra ``openai-agents``.

::

    await Runner.run(agent, "Hello", run_config=RunConfig(model_provider=RoutedModels(router), tracing_disabled=True))

Chats are asked for, not responses, which the SDK would ask for otherwise: more servers know them. Traces go to OpenAI
unless they are disabled.
"""

from __future__ import annotations

from agents import Model, ModelProvider, OpenAIChatCompletionsModel

from agentroute.client import AsyncClient
from agentroute.errors import UsageError
from agentroute.hints import route_of
from agentroute.integrations.openai import async_openai_client
from agentroute.router import Router


class RoutedModels(ModelProvider):
    """Gives agents the model ``auto`` (also those that name none) or ``auto:ROUTE``.

    Raises ``UsageError`` for another model's name: nobody here could ask it.
    """

    def __init__(self, router: Router | AsyncClient) -> None:
        self._client = async_openai_client(router)

    def get_model(self, model_name: str | None) -> Model:
        """The model of that name."""
        name = model_name or "auto"
        if route_of(name) is None:
            raise UsageError(f"an agent's model must be auto, auto:ROUTE or none, got {name!r}")
        return OpenAIChatCompletionsModel(model=name, openai_client=self._client)

    async def aclose(self) -> None:
        """Close the client."""
        await self._client.close()
