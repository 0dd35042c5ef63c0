"""Clients of the OpenAI SDK that route, whichever httpx the installed SDK is built on. Needs the extra ``openai``.

::

    client = openai_client(Router.from_config("agentroute.toml"))
    client.chat.completions.create(model="auto", messages=[{"role": "user", "content": "Hello"}])
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from agentroute.client import AsyncClient, Client
from agentroute.errors import UsageError
from agentroute.integrations.transport import BASE_URL, routing_transport
from agentroute.router import Router

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

KEY = "agentroute"
"""The SDK asks for a key; this one reaches no server."""


def openai_client(router: Router | Client) -> OpenAI:
    """A client whose ``auto`` and ``auto:ROUTE`` are routed; raises ``UsageError`` where the SDK is not installed."""
    openai, httpx = sdk()
    http = httpx.Client(transport=routing_transport(router, httpx=httpx))
    client: OpenAI = openai.OpenAI(base_url=BASE_URL, api_key=KEY, http_client=http)
    return client


def async_openai_client(router: Router | AsyncClient) -> AsyncOpenAI:
    """The async twin of ``openai_client``."""
    openai, httpx = sdk()
    http = httpx.AsyncClient(transport=routing_transport(router, httpx=httpx))
    client: AsyncOpenAI = openai.AsyncOpenAI(base_url=BASE_URL, api_key=KEY, http_client=http)
    return client


def sdk() -> tuple[ModuleType, ModuleType]:
    """The SDK, and the httpx that it is built on: from 3.0 on httpx2."""
    try:
        openai = import_module("openai")
    except ImportError:
        raise UsageError("the OpenAI SDK is not installed; pip install 'agentroute[openai]'") from None
    major = int(openai.__version__.partition(".")[0])
    return openai, import_module("httpx2" if major >= 3 else "httpx")


def model_name(route: str | None) -> str:
    """The model's name that asks for a route."""
    return "auto" if route is None else f"auto:{route}"
