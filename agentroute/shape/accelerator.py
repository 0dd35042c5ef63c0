"""An accelerator: what one of them has, and what an hour of it costs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentroute.origin import Count, Frozen, Name, Positive, Provenance

Dtype = Literal["bf16", "fp8", "fp4", "int8"]
"""What tensor cores multiply."""


class Accelerator(Frozen):
    """One kind of accelerator; one file in ``profiles/accelerators``."""

    format: Literal[1]
    """The version of this file format: 1."""
    name: Name
    """The name by which profiles refer to it; equals the file's stem."""
    vendor: Name
    """Who makes it."""
    memory_gib: Positive
    """Memory of one accelerator, in GiB (2**30 bytes)."""
    memory_gb_per_s: Positive
    """Memory bandwidth of one accelerator, in GB/s (10**9 bytes)."""
    tight_domain_accelerators: Count
    """How many of them are tightly connected in the usual box: one NVLink or xGMI domain; without one, the PCIe box."""
    dense_tflops: dict[Dtype, Positive] = Field(default_factory=dict)
    """Peak of one accelerator's tensor cores in TFLOP/s (10**12; int8: TOP/s) by dtype, dense: without sparsity, which
    data sheets often show and which doubles it. A dtype that is not listed is unknown or not supported."""
    link_gb_per_s_inside: Positive | None = None
    """What one accelerator sends to the others of its tight domain, all links together, one direction, in GB/s
    (10**9 bytes); data sheets often show both directions. ``None`` when unknown."""
    link_gb_per_s_across: Positive | None = None
    """What one accelerator sends out of its tight domain, one direction, in GB/s (10**9 bytes), with the network of the
    vendor's reference system. ``None`` when unknown."""
    provenance: Provenance
    """Where the figures come from."""


class PriceTable(Frozen):
    """The dated table of accelerator-hour prices; ``profiles/prices.toml``."""

    format: Literal[1]
    """The version of this file format: 1."""
    provenance: Provenance
    """Where and when the prices were noted; they are assumptions, to be overridden by what you pay."""
    usd_per_accelerator_hour: dict[Name, Positive]
    """US dollars for one accelerator for one hour, by accelerator name."""
