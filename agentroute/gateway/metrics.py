"""Counters and histograms as Prometheus reads them: times in seconds, counters end in ``_total``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
"""Upper edges of the histograms' buckets, in seconds."""
MOST_SERIES = 1_000
"""So many combinations of labels has a metric at most; what comes beyond is counted under ``other``."""
OTHER = "other"

Labels = tuple[str, ...]


class Counter:
    """Sums by labels."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self.name, self.text, self.labels = name, text, tuple(labels)
        self._values: dict[Labels, float] = {}

    def add(self, values: Labels, by: float = 1.0) -> None:
        """Count."""
        key = _capped(values, self._values)
        self._values[key] = self._values.get(key, 0.0) + by

    def lines(self) -> Iterator[str]:
        """One for each combination of labels."""
        for values, value in sorted(self._values.items()):
            yield f"{self.name}{braced(self.labels, values)} {number(value)}"


class Histogram:
    """Seconds by labels."""

    kind = "histogram"

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self.name, self.text, self.labels = name, text, tuple(labels)
        self._series: dict[Labels, tuple[list[int], list[float]]] = {}

    def add(self, values: Labels, seconds: float) -> None:
        """Count one time."""
        key = _capped(values, self._series)
        counts, total = self._series.setdefault(key, ([0] * (len(BUCKETS_S) + 1), [0.0]))
        counts[bisect_left(BUCKETS_S, seconds)] += 1
        total[0] += seconds

    def lines(self) -> Iterator[str]:
        """Buckets, each with all that is below its edge, the sum and the count."""
        for values, (counts, total) in sorted(self._series.items()):
            below = 0
            for edge, count in zip((*map(number, BUCKETS_S), "+Inf"), counts, strict=True):
                below += count
                yield f"{self.name}_bucket{braced((*self.labels, 'le'), (*values, edge))} {below}"
            yield f"{self.name}_sum{braced(self.labels, values)} {number(total[0])}"
            yield f"{self.name}_count{braced(self.labels, values)} {below}"


Gauges = Iterable[tuple[str, str, Sequence[str], Iterable[tuple[Labels, float]]]]
"""Name, text, labels, and the values by labels: of what is now."""


class Metrics:
    """What the gateway counts."""

    def __init__(self) -> None:
        by = ("route", "deployment")
        self.requests = Counter("agentroute_requests_total", "Requests that have ended.", (*by, "outcome"))
        self.took = Histogram("agentroute_request_duration_seconds", "From the request to the end of its answer.", by)
        self.ttft = Histogram("agentroute_time_to_first_token_seconds", "Of streams, waiting for room included.", by)
        self.predicted = Histogram(
            "agentroute_predicted_time_to_first_token_seconds", "What was predicted of the same streams.", by
        )
        self.output = Counter("agentroute_output_tokens_total", "Tokens of answers, as the servers counted them.", by)

    def ended(
        self,
        *,
        route: str | None,
        deployment: str | None,
        outcome: str,
        took_ms: float | None,
        ttft_ms: float | None,
        ttft_predicted_ms: float | None,
        output_tokens: int | None,
    ) -> None:
        """Count a request that has ended."""
        where = (route or "", deployment or "")
        self.requests.add((*where, outcome))
        if took_ms is not None:
            self.took.add(where, took_ms / 1_000.0)
        if ttft_ms is not None:
            self.ttft.add(where, ttft_ms / 1_000.0)
            if ttft_predicted_ms is not None:
                self.predicted.add(where, ttft_predicted_ms / 1_000.0)
        if output_tokens:
            self.output.add(where, output_tokens)

    def text(self, gauges: Gauges) -> str:
        """All of it, with the gauges of this moment; one that is no number is not known."""
        lines: list[str] = []
        for one in (self.requests, self.took, self.ttft, self.predicted, self.output):
            lines += [f"# HELP {one.name} {one.text}", f"# TYPE {one.name} {one.kind}", *one.lines()]
        for name, text, labels, values in gauges:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
            lines += [f"{name}{braced(labels, of)} {number(value)}" for of, value in values if isfinite(value)]
        return "\n".join(lines) + "\n"


def braced(labels: Sequence[str], values: Labels) -> str:
    """Labels and their values, escaped."""
    pairs = (f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True))
    return "{" + ",".join(pairs) + "}" if labels else ""


def number(value: float) -> str:
    """A number without more digits than it has."""
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else repr(float(value))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _capped(values: Labels, known: Mapping[Labels, object]) -> Labels:
    """The labels, or ``other`` where there are too many already."""
    return values if values in known or len(known) < MOST_SERIES else (OTHER,) * len(values)
