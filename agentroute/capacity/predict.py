"""What a log should have printed, from the model's shape, the sharding and what else the same log says.

Where a log does not say which of an engine's rules it follows (its version, the tokens of one step, whether the hybrid
manager is on), every rule is evaluated, and the one that its own printed figures agree with is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agentroute.capacity.candidates import (
    Candidate,
    Figures,
    Quantity,
    candidates,
    no_model,
    with_draft,
)
from agentroute.capacity.kv import Unknown
from agentroute.capacity.loaded import weigh
from agentroute.capacity.records import Record
from agentroute.shape.model import Model

QUANTITIES: tuple[Quantity, ...] = ("kv_tokens", "kv_memory", "weights", "concurrency", "needed_kv", "max_len")

OWN = "from its own"
"""What the names of such rules hold."""

AGREES = 0.005
"""A log's figures agree with a rule when none is off by more than this fraction: memory is printed to 0.01 GiB."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One figure of one record. ``error`` is (predicted - logged) / logged, ``reason`` why there is no prediction.

    ``rule`` names the engine's rule, ``chosen`` whether it was chosen because the record's own figures agree with it.
    """

    id: str
    quantity: Quantity
    predicted: float | None
    logged: float | None
    reason: str | None = None
    rule: str | None = None
    chosen: bool = False

    @property
    def from_own_figures(self) -> bool:
        """Whether it follows from another printed figure of the same record, not from the model and the memory."""
        return self.predicted is not None and OWN in (self.rule or "")

    @property
    def error(self) -> float | None:
        """The error as a fraction of what was logged; ``None`` without a prediction."""
        if self.predicted is None or not self.logged:
            return None
        return (self.predicted - self.logged) / self.logged


def logged(record: Record) -> Figures:
    """The figures of ``record`` that can be predicted.

    llama.cpp is given its cells and asked for its memory; SGLang is asked for its memory where it logs no tokens. The
    others' KV memory is what their tokens are predicted from.
    """
    llama, tokens = record.engine.startswith("llama.cpp"), record.kv_tokens
    memory = llama or (record.engine == "sglang" and tokens is None)
    figures: Figures = {
        "kv_tokens": None if llama else tokens,
        "kv_memory": record.kv_memory_gib_per_gpu if memory else None,
        "weights": record.model_load_gib_per_gpu,
        "concurrency": record.max_concurrency,
        "needed_kv": record.needed_kv_gib,
        "max_len": record.estimated_max_len,
    }
    return {quantity: value for quantity, value in figures.items() if value is not None}


def predict(record: Record, model: Model | None) -> list[Prediction]:
    """A prediction, or the reason for none, of every figure that ``record`` logged; at least one line a record."""
    figures = logged(record)
    if not figures:
        return [_nothing_asked(record)]
    asked: Figures = {q: v for q, v in figures.items() if q != "weights"}
    found = candidates(record, model) if asked else []
    best = found if isinstance(found, Unknown) else _best(found, asked)
    if best and not isinstance(best, Unknown) and _distance(best[0], asked)[1] > AGREES:
        best = _best([best[0], *with_draft(record, model)], asked)
    predictions = []
    for quantity, value in figures.items():
        if quantity == "weights":
            known = weigh(record, model) if model else no_model(record)
            if isinstance(known, Unknown):
                predictions.append(Prediction(record.id, quantity, None, value, known.reason))
            else:
                rule = known.rule
                predictions.append(Prediction(record.id, quantity, known.gib, value, None, rule, rule is not None))
        elif isinstance(best, Unknown) or best is None:
            reason = best.reason if isinstance(best, Unknown) else "no rule applies"
            predictions.append(Prediction(record.id, quantity, None, value, reason))
        else:
            candidate, chosen = best
            number = candidate.figures.get(quantity)
            missing = None if number is not None else _missing(record, model, quantity)
            predictions.append(Prediction(record.id, quantity, number, value, missing, candidate.rule, chosen))
    return predictions


def _nothing_asked(record: Record) -> Prediction:
    if record.kv_memory_gib_per_gpu is not None:
        reason = "the log says only the KV memory, which is what is left beside activations that the engine measures"
        return Prediction(record.id, "kv_memory", None, record.kv_memory_gib_per_gpu, reason)
    block = f"only its block size of {record.block_size} tokens" if record.block_size else "nothing"
    return Prediction(record.id, "kv_tokens", None, None, f"the log says of the pool {block}")


def _best(found: Sequence[Candidate], asked: Figures) -> tuple[Candidate, bool] | None:
    """The candidate closest to the logged figures (the first of equals), and whether others are 0.1 % farther."""
    if not found:
        return None
    ranked = sorted(found, key=lambda one: _distance(one, asked))
    return ranked[0], _distance(ranked[-1], asked)[1] - _distance(ranked[0], asked)[1] > 0.001


def _distance(candidate: Candidate, asked: Figures) -> tuple[int, float]:
    """How many figures ``candidate`` lacks, and its largest error as a fraction."""
    pairs = [(candidate.figures.get(quantity), value) for quantity, value in asked.items()]
    errors = [abs(number - value) / value for number, value in pairs if number is not None and value]
    return len(asked) - len(errors), max(errors, default=0.0)


def _missing(record: Record, model: Model | None, quantity: Quantity) -> str:
    if model is None:
        return no_model(record).reason
    if record.engine == "sglang":
        return "the log says neither the KV memory nor the free memory that the pool is a share of"
    if quantity == "kv_tokens":
        return "the log does not say the KV memory"
    return f"the log does not say what {quantity} depends on"


def summary(predictions: Iterable[Prediction]) -> Mapping[Quantity, Mapping[str, float | int | None]]:
    """For each quantity: how many were predicted, and the distribution of the errors, as fractions."""
    by_quantity: dict[Quantity, list[float]] = {quantity: [] for quantity in QUANTITIES}
    for prediction in predictions:
        if prediction.error is not None:
            by_quantity[prediction.quantity].append(abs(prediction.error))
    return {quantity: _distribution(sorted(errors)) for quantity, errors in by_quantity.items()}


def _distribution(errors: Sequence[float]) -> Mapping[str, float | int | None]:
    n = len(errors)
    return {
        "n": n,
        "median": (errors[(n - 1) // 2] + errors[n // 2]) / 2 if n else None,
        "p90": errors[max(0, -(-9 * n // 10) - 1)] if n else None,
        "max": errors[-1] if n else None,
        "within_0_5pct": sum(error <= 0.005 for error in errors),
        "within_5pct": sum(error <= 0.05 for error in errors),
    }
