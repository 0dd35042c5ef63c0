"""The fields of OpenAI's own requests that every runtime with a list of its own has on it."""

from __future__ import annotations

CHAT_FIELDS = frozenset(
    {
        "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs", "max_completion_tokens",
        "max_tokens", "messages", "metadata", "modalities", "n", "parallel_tool_calls", "prediction",
        "presence_penalty", "reasoning_effort", "response_format", "seed", "service_tier", "stop", "store",
        "stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user", "web_search_options",
    }
)  # fmt: skip
COMPLETION_FIELDS = frozenset(
    {
        "best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n", "presence_penalty",
        "prompt", "seed", "stop", "stream_options", "suffix", "temperature", "top_p", "user",
    }
)  # fmt: skip
