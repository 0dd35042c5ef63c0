"""What accelerators send one another, and how long it takes."""

from __future__ import annotations

from dataclasses import dataclass

from agentroute.capacity.kv import Unknown
from agentroute.shape.accelerator import Accelerator
from agentroute.shape.sharding import Sharding

LINK_SHARE_INSIDE = 0.65
"""Part of the link's bandwidth in its tight domain that collectives reach. All-reduces of 64 MiB over 2 to 8 H200 reach
0.55-0.81, over B200 0.48-0.6 (PyPI aiconfigurator-core 0.12.0, data/*/comm/*/custom_allreduce_perf); DeepEP's combine
over 8 H200 reaches 0.48, NCCL's all-to-all 0.69 (the same, wideep_deepep_ll_perf, nccl_perf)."""

LINK_SHARE_ACROSS = 0.87
"""The same across domains: DeepEP's combine over 16, 32 and 64 H200 sends 44 of 50 GB/s (PyPI aiconfigurator-core
0.12.0, data/h200_sxm/comm/sglang/0.5.6.post2/wideep_deepep_ll_perf, 256 tokens). For all-reduces, too: assumed."""

ALL_REDUCE_S = 5e-6
"""Seconds of one all-reduce of next to nothing inside a tight domain, in a CUDA graph: 3-5 us over 2 to 8 H200, 5-7 us
over B200 (PyPI aiconfigurator-core 0.12.0, data/*/comm/*/custom_allreduce_perf, vLLM, SGLang and TensorRT-LLM)."""

ALL_TO_ALL_S = 13e-6
"""Seconds of one dispatch or combine of next to nothing inside a tight domain: 12-16 us over 8 H200 (PyPI
aiconfigurator-core 0.12.0, data/h200_sxm/comm/sglang/*/wideep_deepep_ll_perf)."""

ACROSS_S = 12e-6
"""Seconds that a collective takes longer when it leaves the tight domain: a dispatch of next to nothing over 16 H200
takes 23 us, over 64 29 us (the same table). Taken for all-reduces, too: assumed."""

HOST_S, HOST_GB_PER_S = 25e-6, 100.0
"""Seconds that a collective takes longer where accelerators have no link of their own, so that copies pass the host:
small all-reduces of NCCL over PCIe take 30 us and more (recalled; assumed). NVLink and xGMI of every shipped
accelerator carry more than ``HOST_GB_PER_S``, PCIe 5.0 x16 carries 64."""


def experts_near(sharding: Sharding, domain: int) -> int:
    """Expert ranks in the tight domain of the accelerator that has the fewest there, its own included."""
    near = max(1, domain * sharding.ep // (sharding.tp * sharding.attention_dp))
    return sharding.ep if near >= sharding.ep else sharding.ep % near or near


@dataclass(frozen=True, slots=True)
class Links:
    """What a byte costs between accelerators that fill tight domains of ``domain`` one after the other."""

    domain: int
    inside_byte_s: float
    across_byte_s: float
    host_s: float

    @classmethod
    def of(cls, accelerator: Accelerator, sharding: Sharding) -> Links | Unknown:
        domain = accelerator.tight_domain_accelerators
        inside, across = accelerator.link_gb_per_s_inside, accelerator.link_gb_per_s_across
        missing = f"the accelerator {accelerator.name!r} lacks link_gb_per_s_%s, and {sharding} needs it"
        if inside is None and min(domain, sharding.accelerators) > 1:
            return Unknown(missing % "inside")
        if across is None and sharding.accelerators > domain:
            return Unknown(missing % "across")
        return cls(
            domain,
            1 / (inside * 1e9 * LINK_SHARE_INSIDE) if inside else 0.0,
            1 / (across * 1e9 * LINK_SHARE_ACROSS) if across else 0.0,
            HOST_S if inside is not None and inside < HOST_GB_PER_S else 0.0,
        )

    def all_reduce(self, ranks: int) -> tuple[float, float]:
        """Seconds of an all-reduce of next to nothing, and of each byte.

        2 (r - 1) / r bytes leave a rank for each byte; over several domains, each first sums inside, and then every
        rank sends its part across (NCCL's rings use the network port of every rank likewise).
        """
        near = min(ranks, self.domain)
        far = -(-ranks // near)
        start_s = (ALL_REDUCE_S + self.host_s if ranks > 1 else 0.0) + (ACROSS_S if far > 1 else 0.0)
        byte_s = 2 * (near - 1) / near * self.inside_byte_s + 2 * (far - 1) / far / near * self.across_byte_s
        return start_s, byte_s

    def hops_across(self, sharding: Sharding) -> int:
        """Hops between stages where an accelerator sends to another domain."""
        ranks = sharding.tp * sharding.attention_dp
        return sum(i * ranks // self.domain != ((i + 2) * ranks - 1) // self.domain for i in range(sharding.pp - 1))
