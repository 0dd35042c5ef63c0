"""What of a step each rate is charged with, told apart from the code that charges it."""

from __future__ import annotations

from agentroute.latency.rates import RateKind

FIELDS: dict[RateKind, tuple[str, ...]] = {
    "weights_bandwidth": ("weights_s",),
    "kv_bandwidth": ("kv_s",),
    "compute": ("compute_s",),
    "all_reduce": ("all_reduce_s",),
    "all_to_all": ("all_to_all_inside_s", "all_to_all_across_s"),
    "pipeline": ("pipeline_s",),
}
