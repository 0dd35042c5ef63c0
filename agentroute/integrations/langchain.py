"""A chat model and an agent's middleware for LangChain that route. Needs the extra ``langchain``.

::

    agent = create_agent(routed_chat_model(router), tools=[...])
    agent = create_agent("openai:gpt-5", tools=[...], middleware=[Routed(router)])  # asked here in that one's place
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain.messages import AIMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from agentroute.hints import hint
from agentroute.integrations.openai import KEY, model_name, sdk
from agentroute.integrations.transport import BASE_URL, routing_transport
from agentroute.router import Router


def routed_chat_model(router: Router, route: str | None = None) -> ChatOpenAI:
    """A chat model whose every request is routed."""
    _, httpx = sdk()
    return ChatOpenAI(
        model=model_name(route),
        base_url=BASE_URL,
        api_key=SecretStr(KEY),
        http_client=httpx.Client(transport=routing_transport(router, httpx=httpx)),
        http_async_client=httpx.AsyncClient(transport=routing_transport(router, httpx=httpx)),
        use_responses_api=False,
    )


class Routed(AgentMiddleware[Any, Any, Any]):
    """Has every step of an agent routed, whatever model it was made with, and tells which step it is."""

    def __init__(self, router: Router, route: str | None = None) -> None:
        super().__init__()
        self.model = routed_chat_model(router, route)

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[..., ModelResponse[Any]]) -> Any:
        """Ask the routed model instead."""
        with hint(step=_step(request)):
            return handler(request.override(model=self.model))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[..., Awaitable[ModelResponse[Any]]]
    ) -> Any:
        """The same, where the agent is awaited."""
        with hint(step=_step(request)):
            return await handler(request.override(model=self.model))


def _step(request: ModelRequest[Any]) -> int:
    return 1 + sum(isinstance(message, AIMessage) for message in request.messages)
