"""Adapters, one small module for each runtime; found by name, loaded when asked for."""

from __future__ import annotations

from importlib import import_module

from agentroute.adapters.base import Adapter
from agentroute.errors import UnknownNameError

ADAPTERS: dict[str, str] = {
    "dynamo": "agentroute.adapters.dynamo:DynamoAdapter",
    "llamacpp": "agentroute.adapters.llamacpp:LlamaCppAdapter",
    "openai": "agentroute.adapters.openai:OpenAIAdapter",
    "sglang": "agentroute.adapters.sglang:SglangAdapter",
    "sglang_router": "agentroute.adapters.sglang_router:SglangRouterAdapter",
    "transformers": "agentroute.adapters.transformers:TransformersAdapter",
    "trtllm": "agentroute.adapters.trtllm:TrtllmAdapter",
    "vllm": "agentroute.adapters.vllm:VllmAdapter",
    "vllm_router": "agentroute.adapters.vllm_router:VllmRouterAdapter",
}
"""Where each adapter lives, by the name in a configuration file."""


def adapter(name: str) -> Adapter:
    """The adapter of that name; raises ``UnknownNameError``, which suggests the closest one."""
    if name not in ADAPTERS:
        raise UnknownNameError("adapter", name, ADAPTERS)
    module, _, attribute = ADAPTERS[name].partition(":")
    made: Adapter = getattr(import_module(module), attribute)()
    return made
