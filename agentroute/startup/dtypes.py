"""The engines' words for data types, as a profile says them."""

from __future__ import annotations

from agentroute.profile import KvType, WeightsType

_WEIGHTS: dict[str, WeightsType] = {
    "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "half": "fp16", "fp16": "fp16",
    "fp8": "fp8", "fbgemm_fp8": "fp8", "modelopt_fp4": "nvfp4", "nvfp4": "nvfp4", "mxfp4": "mxfp4",
    "awq": "awq", "awq_marlin": "awq", "gptq": "gptq", "gptq_marlin": "gptq", "gguf": "gguf",
}  # fmt: skip
_KV: dict[str, KvType] = {
    "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "half": "fp16", "fp16": "fp16", "f16": "fp16",
    "float32": "f32", "f32": "f32", "fp8": "fp8", "fp8_ds_mla": "fp8", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2",
    "float8_e4m3fn": "fp8_e4m3", "float8_e4m3fnuz": "fp8_e4m3", "float8_e5m2": "fp8_e5m2", "int8": "int8",
    "nvfp4": "nvfp4", "q8_0": "q8_0", "q5_0": "q5_0", "q4_0": "q4_0",
}  # fmt: skip


def weights_type(word: str | None) -> WeightsType | None:
    """The type of the weights; ``None`` for ``auto`` and for what names a container of several types."""
    return _WEIGHTS.get(_plain(word))


def kv_type(word: str | None) -> KvType | None:
    """The type of the KV cache; ``None`` for ``auto``, which follows the model."""
    return _KV.get(_plain(word))


def _plain(word: str | None) -> str:
    return (word or "").lower().removeprefix("torch.")
