"""An accelerator: what one of them has, and what an hour of it costs."""

from __future__ import annotations

from typing import Literal

from agentroute.origin import Count, Frozen, Name, Positive, Provenance


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
    """How many of them are tightly connected in the usual box (one NVLink domain)."""
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
