"""What one record says of how its model was split and quantised, and the weights that follow from it."""

from __future__ import annotations

from agentroute.capacity import kv, weights
from agentroute.capacity.kv import Unknown
from agentroute.capacity.records import Record
from agentroute.shape.model import Model, MoeMlp
from agentroute.shape.sharding import Sharding


def sharding(record: Record) -> Sharding:
    """The split of one attention replica and how many there are."""
    return Sharding(tp=record.attention_tp, pp=record.pp, attention_dp=record.dp, dcp=record.dcp)


def quantisation(record: Record, model: Model) -> weights.Quantisation | Unknown:
    """How the weights of ``record`` are kept. Of a scheme that checkpoints apply in part, the published part."""
    word = (record.weights_quant or "bf16").rstrip("?")
    moe = any(isinstance(group.mlp, MoeMlp) for group in model.layers)
    if word == "fp8" and model.name.startswith("llama-4"):
        word = "fp8-experts"
    elif word == "int4" and moe:
        word = "int4-experts"
    elif word == "nvfp4" and not moe:
        word = "nvfp4-dense"
    if word not in weights.QUANTISATIONS:
        return Unknown(f"the weights' quantisation {word!r} is not known")
    return weights.QUANTISATIONS[word]


def weights_gib(record: Record, model: Model) -> float | Unknown:
    """GiB of weights per accelerator of ``record``; a reason where they could not have fitted as it says."""
    found = quantisation(record, model)
    if isinstance(found, Unknown):
        return found
    size = weights.gib(
        model,
        sharding(record),
        found,
        stages=kv.sglang_stages if record.engine == "sglang" else kv.vllm_stages,
        dense_over_replicas=record.engine == "sglang",
        draft=record.draft_tokens > 0,
    )
    free, load = record.avail_after_load_gib, record.model_load_gib_per_gpu
    if not isinstance(size, Unknown) and free is not None and load is not None and size > free + load:
        return Unknown(
            f"at the recorded split and quantisation, weights take {size:.0f} GiB of the {free + load:.0f} GiB that "
            "were free: the log does not show one of the two"
        )
    return size
