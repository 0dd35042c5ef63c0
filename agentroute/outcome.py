"""What became of a call: the other half of a prediction."""

from __future__ import annotations

from dataclasses import dataclass, fields

from agentroute.errors import UsageError, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was seen of one request; ``None``: not seen. Raises ``UsageError`` for what cannot have been."""

    ttft_ms: float | None = None
    """From sending it to the first content token, in milliseconds."""
    tpot_ms: float | None = None
    """Time per output token after the first, in milliseconds."""
    e2e_ms: float | None = None
    """From sending it to the end, in milliseconds."""
    prompt_tokens: int | None = None
    """As the server counted them."""
    output_tokens: int | None = None
    """As the server counted them, reasoning included."""
    cached_tokens: int | None = None
    """Of the prompt, those that the server found in its KV cache."""
    failed: bool = False
    """Whether the server, or the way to it, failed; a caller's mistake is no failure."""

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e12:
                raise UsageError(f"{name} must be a number from 0 to 1e12 or None, got {shown(value)}")


_NUMBERS = tuple(field.name for field in fields(Outcome) if field.name != "failed")
