"""One thing that the doctor found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Severity = Literal["wrong", "warning", "note"]
"""wrong: decisions are made on something untrue, or calls fail; warning: it costs speed, room or certainty; note: good
to know, and may be meant so."""
SEVERITIES: tuple[Severity, ...] = get_args(Severity)

Kind = Literal[
    # what the profile says against what the server says
    "unreachable", "engine", "version", "model", "adapter", "window", "slots", "step_tokens", "kv_pool", "kv_block",
    "prefix_caching", "priority", "split", "weights_type", "kv_type", "accelerator", "capability",
    # how it is set up
    "experts_cross", "tensors_cross", "kv_copied", "pool_not_shared", "window_over_pool",
    # how it runs
    "drift", "breaker", "engine_dead", "load_hidden", "load_mixed", "thrash", "stale", "pipeline_idles",
]  # fmt: skip
"""What a finding is about."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a deployment, or may be: a sentence with the numbers, and what to do."""

    kind: Kind
    deployment: str
    text: str
    severity: Severity
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The numbers of the sentence, by name: ``profile`` and ``server`` where they disagree."""

    def __str__(self) -> str:
        return f"{self.deployment}: {self.severity}: {self.text}"


def worst_first(findings: list[Finding]) -> list[Finding]:
    """Those that are wrong first; otherwise in the order that they were found in."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
