"""What became of a call: the other half of a prediction."""

from __future__ import annotations

from dataclasses import dataclass, fields

from agentroute.errors import FailureKind, UsageError, shown


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
    failure: FailureKind | None = None
    """What it ended with where it was not answered. The router itself tells a server's fault from a server that is
    full, and both from a caller's mistake, which says nothing of the server."""
    retry_after_s: float | None = None
    """For how many seconds the server that was full asked to be left alone."""

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is None or ((type(value) is float or type(value) is int) and 0 <= value < 1e12):
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool)  # one of numpy's is one, too
            if not number or not 0 <= value < 1e12:
                raise UsageError(f"{name} must be a number from 0 to 1e12 or None, got {shown(value)}")
        if self.failure is not None and self.failure not in tuple(FailureKind):
            raise UsageError(f"failure must be one of {', '.join(FailureKind)} or None, got {shown(self.failure)}")


_NUMBERS = tuple(field.name for field in fields(Outcome) if field.name != "failure")
