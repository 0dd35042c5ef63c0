"""The names by which drivers call accelerators, as the catalogue calls them."""

from __future__ import annotations

import re

DEVICE = re.compile(r"device_name=([\w.-]{1,80}?)(?:_down)?(?:,|\.json)")
"""A tuning file's name, in which vLLM and SGLang write the accelerator's, with ``_`` for spaces."""

ACCELERATORS = {
    "NVIDIA A100-SXM4-40GB": "a100_40gb_sxm",
    "NVIDIA A100-SXM4-80GB": "a100_80gb_sxm",
    "NVIDIA H100 80GB HBM3": "h100_sxm",
    "NVIDIA H100 PCIe": "h100_pcie",
    "NVIDIA H100 NVL": "h100_nvl",
    "NVIDIA H200": "h200_sxm",
    "NVIDIA B200": "b200_sxm",
    "NVIDIA B300 SXM6 AC": "b300_sxm",
    "NVIDIA GB200": "gb200",
    "NVIDIA GB300": "gb300",
    "NVIDIA L4": "l4",
    "NVIDIA L40S": "l40s",
    "NVIDIA GeForce RTX 4090": "rtx_4090",
    "NVIDIA GeForce RTX 5090": "rtx_5090",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx_pro_6000",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx_pro_6000",
    "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI325X": "mi325x",
    "AMD Instinct MI325 OAM": "mi325x",
    "AMD Instinct MI355X": "mi355x",
    "AMD Instinct MI355 OAM": "mi355x",
}
"""Only names that mean one accelerator: ``NVIDIA H100`` alone does not say which. They stand, with ``_`` for spaces, in
the names of the tuning files of vLLM 0.32.0 and SGLang 0.5.23; H100 NVL, L4 and GeForce RTX 5090 are recalled."""


def spaced(name: str) -> str:
    """A device's name out of a tuning file's."""
    return name.replace("_", " ")
