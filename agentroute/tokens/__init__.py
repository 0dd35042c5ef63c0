"""How many tokens a prompt is: a value, an upper bound, and where they come from."""

from agentroute.tokens.count import Previous, Source, TokenCount, Tokenizer, estimate, of_size, of_text
from agentroute.tokens.fingerprint import GENERIC, Fingerprint, of_model
from agentroute.tokens.local import LocalTokenizer

__all__ = [
    "GENERIC",
    "Fingerprint",
    "LocalTokenizer",
    "Previous",
    "Source",
    "TokenCount",
    "Tokenizer",
    "estimate",
    "of_model",
    "of_size",
    "of_text",
]
