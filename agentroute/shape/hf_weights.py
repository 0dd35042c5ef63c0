"""How a checkpoint keeps its weights, from the ``quantization_config`` of its ``config.json``.

Sources: the quantisation classes of transformers 5.24 (``utils/quantization_config.py``), vLLM 0.33
(``model_executor/layers/quantization``), and the files in PyPI aiconfigurator-core 0.12.0, model_configs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agentroute.errors import shown

_ATTENTION = re.compile(r"(attn|attention)[.*\\]*$|attn\.[.*\\]*(q|k|v|o|qkv)\w*_proj|^(q|o|qkv)_proj")
"""A module that is attention as a whole or one of its large matrices, not its norms or its indexer."""

_SKIPPED = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")

_MODELOPT = {
    "FP8": ("float", 8, None), "FP8_PB_WO": ("float", 8, None), "FP8_PER_CHANNEL_PER_TOKEN": ("float", 8, None),
    "NVFP4": ("float", 4, 16), "NVFP4_AWQ": ("float", 4, 16), "W4A16_NVFP4": ("float", 4, 16),
    "W4A16_AWQ": ("awq", 4, 128), "W4A8_AWQ": ("awq", 4, 128),
}  # fmt: skip
"""ModelOpt's ``quant_algo``: kind, bits and the elements under one scale."""

_GROUPS = {"awq-int4": 128, "w4a16": 128, "int4-experts": 32, "nvfp4": 16, "nvfp4-dense": 16, "mxfp4": 32}
"""Elements under one scale, of the schemes that have one name for them."""


@dataclass(frozen=True, slots=True)
class Kept:
    """``name`` of the scheme as ``capacity.weights`` has it, ``None`` in 16 bits or without a name; a ``note`` then."""

    name: str | None = None
    note: str | None = None


def kept(quantisation: object, *, experts: bool) -> Kept:
    """How weights are kept by a ``quantization_config``; ``experts``: whether the model has routed ones."""
    if not quantisation:
        return Kept()
    if not isinstance(quantisation, Mapping):
        return _unknown(f"a quantization_config of {shown(quantisation)}")
    found = _read(quantisation)
    if isinstance(found, str):
        return _unknown(found)
    kind, bits, group, wide_attention = found
    name = _named(kind, bits, group, experts, wide_attention)
    if name is None:
        where = " outside of attention" if wide_attention else ""
        return _unknown(f"{_method(quantisation)}, {bits}-bit {kind}{where}")
    usual = _GROUPS.get(name)
    if usual and group and group > 0 and group != usual:
        return Kept(name, f"Its weights have a scale for every {group} elements; {name} is counted with {usual}.")
    return Kept(name)


def _unknown(what: str) -> Kept:
    return Kept(None, f"How its checkpoint keeps weights has no name here: {what}.")


def _method(q: Mapping[str, Any]) -> str:
    said = q.get("quant_algo") or q.get("quant_method")
    return (said if isinstance(said, str) else shown(said))[:60] if said else "no quant_method"


def _read(q: Mapping[str, Any]) -> tuple[str, int, int | None, bool] | str:
    """Kind (float, int, awq, bnb or mxfp4), bits, group and whether attention stays in 16 bits; or what is strange."""
    wide = _leaves_attention(entry for key in _SKIPPED for entry in _strings(q.get(key)))
    group = q["group_size"] if isinstance(q.get("group_size"), int) else None
    if algorithm := q.get("quant_algo"):
        if str(algorithm) not in _MODELOPT:
            return _method(q)
        kind, bits, usual = _MODELOPT[str(algorithm)]
        return kind, bits, group or usual, wide
    match q.get("quant_method"):
        case "fp8" | "fbgemm_fp8":
            return "float", 8, None, wide
        case "mxfp4":
            return "mxfp4", 4, 32, True  # Only experts, in every engine.
        case "awq" | "gptq" | "gptq_marlin" | "awq_marlin" as method:
            bits = q.get("bits", q.get("w_bit"))
            kind = "awq" if method.startswith("awq") else "int"
            return (kind, bits, group, wide) if isinstance(bits, int) else f"{method} without bits"
        case "bitsandbytes":
            return "bnb", 4 if q.get("load_in_4bit") or q.get("_load_in_4bit") else 8, None, wide
        case "compressed-tensors" | "modelopt":
            return _groups(q, wide)
    return _method(q)


def _groups(q: Mapping[str, Any], wide: bool) -> tuple[str, int, int | None, bool] | str:
    """Compressed-tensors: what its groups say of weights, which must be the same."""
    groups = q.get("config_groups")
    listed = [group for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []
    weights = [group["weights"] for group in listed if isinstance(group.get("weights"), Mapping)]
    kinds = {tuple(_word(one.get(key)) for key in ("type", "num_bits", "group_size")) for one in weights}
    if len(kinds) != 1 or len(weights) != len(listed):
        return f"{_method(q)} with {len(kinds) or 'no'} kinds of weights"
    kind, bits, group = kinds.pop()
    if not isinstance(bits, int) or kind not in ("int", "float"):
        return f"{_method(q)} with weights of {shown(bits)} bits, {shown(kind)}"
    form = str(q.get("format", "")) + "".join(str(one.get("format", "")) for one in listed)
    targets = [target for one in listed for target in _strings(one.get("targets"))]
    only = bool(targets) and all("expert" in target for target in targets)
    return "mxfp4" if "mxfp4" in form else str(kind), bits, group if isinstance(group, int) else None, wide or only


def _named(kind: str, bits: int, group: int | None, experts: bool, wide_attention: bool) -> str | None:
    part = "experts" if wide_attention and experts else "none" if wide_attention else "all"
    names = {
        ("float", 8): {"all": "fp8", "experts": "fp8-experts"},
        ("float", 4): {"all": "nvfp4-dense", "experts": "nvfp4"} if group in (None, 16) else {},
        ("mxfp4", 4): {"experts": "mxfp4"},
        ("awq", 4): {"all": "awq-int4", "experts": "int4-experts"},
        ("int", 4): {"all": "w4a16", "experts": "int4-experts"},
        ("bnb", 4): {"all": "bnb"},
    }
    return names.get((kind, bits), {}).get(part)


def _leaves_attention(skipped: Iterable[str]) -> bool:
    return any(_ATTENTION.search(entry) for entry in skipped)


def _word(value: object) -> str | int | None:
    return value if isinstance(value, str | int | None) else shown(value)


def _strings(value: object) -> list[str]:
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list | tuple) else []
