"""A model's shape from its ``config.json``: a table of families, and nothing guessed.

A family is a ``model_type``: what mixes tokens, what follows it, and the defaults of its class in transformers 5.24,
which a ``config.json`` leaves out. What is not understood (a model type, a kind of layer, a key that looks as if it
changed the shape) is named in a ``UsageError``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentroute.errors import ProfileError, UsageError, shown, suggest
from agentroute.origin import Provenance
from agentroute.shape import hf_attention as mix
from agentroute.shape import hf_mlp as mlp
from agentroute.shape.hf_config import Config
from agentroute.shape.model import Attention, Capability, Layers, Linear, Mla, Mlp, Model, NoAttention


@dataclass(frozen=True)
class Family:
    """How the configs of one ``model_type`` are read."""

    attention: Callable[[Config], list[Attention]]
    mlp: Callable[[Config], list[Mlp]]
    defaults: Mapping[str, Any] = field(default_factory=dict)


_TIED = {"tie_word_embeddings": True}
_GEMMA = _TIED | {"head_dim": 256}
_LATENT = Family(mix.mla, mlp.deepseek)
_JAMBA = {"attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2, "expert_layer_offset": 1}
_GEMMA3 = _GEMMA | {
    "sliding_window_pattern": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
}  # fmt: skip
_GEMMA3N = _GEMMA | {"sliding_window_pattern": 5, "num_kv_shared_layers": 15, "hidden_size_per_layer_input": 256}
_GEMMA4 = _GEMMA | {"global_head_dim": 512, "sliding_window_pattern": 6, "hidden_size_per_layer_input": 256}
_AFMOE = {"head_dim": 128, "global_attn_every_n_layers": 4, "sliding_window": 1_024}
_LLAMA4 = {
    "intermediate_size_mlp": 16_384, "no_rope_layer_interval": 4, "attention_chunk_size": 8_192,
    "interleave_moe_layer_step": 1, "head_dim": 128,
}  # fmt: skip

FAMILIES: dict[str, Family] = {
    "llama": Family(mix.full, mlp.dense),
    "mistral": Family(mix.windowed, mlp.dense),
    "phi3": Family(mix.windowed, mlp.dense),
    "starcoder2": Family(mix.windowed, mlp.plain, _TIED),
    "qwen2": Family(mix.upper_windowed, mlp.dense),
    "qwen3": Family(mix.upper_windowed, mlp.dense, {"head_dim": 128}),
    "qwen3_vl": Family(mix.upper_windowed, mlp.dense, {"head_dim": 128}),
    "mimo": Family(mix.upper_windowed, mlp.dense),
    "glm": Family(mix.full, mlp.dense, {"head_dim": 128}),
    "glm4": Family(mix.full, mlp.dense, {"head_dim": 128}),
    "granite": Family(mix.full, mlp.dense),
    "cohere": Family(mix.full, mlp.dense, _TIED),
    "cohere2": Family(mix.patterned, mlp.dense, _TIED | {"sliding_window_pattern": 4}),
    "gemma2": Family(mix.patterned, mlp.dense, _GEMMA | {"sliding_window_pattern": 2}),
    "gemma3": Family(mix.patterned, mlp.dense, _GEMMA3),
    "gemma3n": Family(mix.patterned, mlp.gemma3n, _GEMMA3N),
    "gemma4": Family(mix.gemma4, mlp.gemma4, _GEMMA4),
    "gemma4_unified": Family(mix.gemma4, mlp.gemma4, _GEMMA4 | {"hidden_size_per_layer_input": None}),
    "afmoe": Family(mix.afmoe, mlp.afmoe, _AFMOE),
    "mixtral": Family(mix.windowed, mlp.experts_everywhere),
    "minimax_m2": Family(mix.full, mlp.experts_everywhere),
    "gpt_oss": Family(mix.patterned, mlp.experts_everywhere, {"sliding_window_pattern": 2, "head_dim": 64}),
    "qwen2_moe": Family(mix.upper_windowed, mlp.qwen),
    "qwen3_moe": Family(mix.upper_windowed, mlp.qwen),
    "qwen3_vl_moe": Family(mix.upper_windowed, mlp.qwen),
    "llama4": Family(mix.chunked, mlp.llama4, _LLAMA4),
    "glm4_moe": Family(mix.full, mlp.deepseek),
    "mimo_v2_flash": Family(mix.mimo_v2, mlp.deepseek),
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v32": _LATENT,
    "kimi_k2": _LATENT,
    "kimi_k25": _LATENT,
    "glm_moe_dsa": _LATENT,
    "glm4_moe_lite": Family(mix.mla, mlp.deepseek, {"first_k_dense_replace": 1}),
    "mistral4": _LATENT,
    "qwen3_next": Family(mix.delta, mlp.qwen, {"full_attention_interval": 4, "head_dim": 256}),
    "qwen3_5": Family(mix.delta, mlp.dense, {"full_attention_interval": 4, "head_dim": 256}),
    "qwen3_5_moe": Family(mix.delta, mlp.qwen, {"full_attention_interval": 4, "head_dim": 256}),
    "nemotron_h": Family(mix.nemotron, mlp.nemotron),
    "granitemoehybrid": Family(mix.granite, mlp.granite),
    "jamba": Family(mix.jamba, mlp.jamba, _JAMBA | {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}),
    "lfm2": Family(mix.lfm2, mlp.lfm2, _TIED | {"block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0}),
}  # fmt: skip
"""Every ``model_type`` that is understood; ``X_text`` stands for ``X``."""


_GATED_ENCODERS = ("gemma4_vision", "pixtral")
_NOT_COUNTED = "Of the vision part, only the blocks are counted, and not in the size."


def model_from_config(config: Mapping[str, Any], *, name: str, provenance: Provenance) -> Model:
    """The model that the contents of a ``config.json`` describe; ``UsageError`` names what is not understood."""
    text = config.get("text_config")
    outer = {key: config[key] for key in ("tie_word_embeddings", "architectures") if key in config}
    inner = {key: value for key, value in text.items() if value is not None} if isinstance(text, Mapping) else {}
    data = outer | inner if isinstance(text, Mapping) else dict(config)
    if data.get("compress_ratios"):
        raise UsageError(f"the config of {name!r} has compress_ratios: its compressed cache has no known formula")
    family = _family(data, config, name)
    for part in ("text_config", "vision_config", "audio_config", "quantization_config", "compression_config"):
        data.pop(part, None)
    c = Config(name, data, family.defaults)
    listed = data.get("hybrid_override_pattern") or data.get("layers_block_type")
    c.count_layers(len(listed) if isinstance(listed, str | list) else None)
    try:
        layers, draft = _layers(c, family), _draft(c, family)
        hidden, vocabulary, context = c.need("hidden_size"), c.number("vocab_size"), c.number("max_position_embeddings")
        tied = c.flag("tie_embedding", c.flag("tie_word_embeddings"))
        per_layer = c.number("hidden_size_per_layer_input")
        if strange := c.not_understood():
            raise c.error(f"has what is not understood: {', '.join(strange)}")
        return Model(
            format=1,
            name=name,
            hidden_size=hidden,
            vocab_size=vocabulary or None,
            tied_embeddings=tied,
            per_layer_embedding_size=per_layer or None,
            output_layer=not _only_embeds(config),
            encoder_parameters=(_encoder(config.get("vision_config")) + _encoder(config.get("audio_config"))) or None,
            max_context_tokens=context or None,
            layers=_grouped(layers),
            draft_layers=draft,
            capabilities=_capabilities(config),
            provenance=provenance,
            notes=_NOT_COUNTED if config.get("vision_config") else None,
        )
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise c.error(f"does not make a model: {where}: {first['msg']}, got {shown(first['input'])}") from None


def from_config(config: Mapping[str, Any], *, name: str | None = None) -> Model:
    """As ``model_from_config``; without ``name`` named after the config's own ``_name_or_path`` or model type."""
    name = name or _tidy(config.get("_name_or_path")) or _tidy(config.get("model_type")) or "model"
    return model_from_config(config, name=name, provenance=Provenance(origin="reported", source="a config.json"))


def from_file(path: Path, *, name: str | None = None) -> Model:
    """As ``from_config``, for a file or the folder it is in; ``ProfileError`` names the file."""
    from agentroute.files import parse, read_text

    path = path / "config.json" if path.is_dir() else path
    config = parse(read_text(path, ProfileError), path, ProfileError)
    name = name or _tidy(config.get("_name_or_path")) or _tidy(path.absolute().parent.name) or None
    try:
        return from_config(config, name=name)
    except ProfileError:
        raise
    except UsageError as problem:
        raise ProfileError(str(problem), path=path) from None


def _only_embeds(config: Mapping[str, Any]) -> bool:
    """Whether the architecture is a bare body (``MistralModel``), as embedding models publish it."""
    names = config.get("architectures")
    return isinstance(names, list) and len(names) == 1 and str(names[0]).endswith("Model")


def _encoder(part: object) -> int:
    """Weights of an encoder's blocks: four square matrices and an MLP of two (SigLIP, CLIP, Qwen), with a gate three.

    0 where the part does not say these sizes. Patches, positions and the projector are left out: a few per cent.
    """
    if not isinstance(part, Mapping):
        return 0
    names = (("num_hidden_layers", "depth", "vt_num_hidden_layers"), ("hidden_size", "vt_hidden_size"),
             ("intermediate_size", "vt_intermediate_size"))  # fmt: skip
    found = [next((part[key] for key in keys if isinstance(part.get(key), int)), 0) for keys in names]
    blocks, width, inner = found
    matrices = 3 if part.get("model_type") in _GATED_ENCODERS else 2
    return blocks * width * (4 * width + matrices * inner) if min(found) > 0 and max(found) < 1_000_000 else 0


def _tidy(path: object) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", str(path or "").rstrip("/").rpartition("/")[2].lower()).strip("-._")[:100]


def _family(data: Mapping[str, Any], config: Mapping[str, Any], name: str) -> Family:
    """By ``model_type``, of the text part first; without one by architecture (``LlamaForCausalLM``)."""
    types = [str(part["model_type"]) for part in (data, config) if part.get("model_type")]
    for kind in types:
        if (family := FAMILIES.get(kind.removesuffix("_text"))) is not None:
            return family
    architectures = config.get("architectures") or data.get("architectures")
    if not types and isinstance(architectures, list) and architectures:
        types = [str(architectures[0])]
        stem = re.sub(r"For(CausalLM|ConditionalGeneration)$", "", types[0]).lower().replace("_", "")
        for kind, family in FAMILIES.items():
            if kind.replace("_", "") == stem:
                return family
    if not types:
        raise UsageError(f"the config of {name!r} has neither model_type nor architectures")
    raise UsageError(f"the config of {name!r} is of the unknown model type {types[0]!r}; {suggest(types[0], FAMILIES)}")


def _layers(c: Config, family: Family) -> list[Layers]:
    attention, after = family.attention(c), family.mlp(c)
    if len(attention) != c.layers or len(after) != c.layers:
        raise c.error(f"describes {len(attention)} layers and has num_hidden_layers = {c.layers}")
    own = c.layers - (c.number("num_kv_shared_layers") or 0)
    both = enumerate(zip(attention, after, strict=True))
    return [Layers(count=1, attention=one, mlp=two, shares_kv=layer >= own) for layer, (one, two) in both]


def _draft(c: Config, family: Family) -> tuple[Layers, ...]:
    """Multi-token prediction: so many layers like the last one that has attention."""
    count = c.number("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers") or 0
    c.ignore("use_mtp", "num_mtp_modules", "mtp_transformer_layers")  # MiniMax M2 names them and does not ship them.
    pattern, blocks = c.get("mtp_hybrid_override_pattern"), c.get("mtp_layers_block_type")
    if not count:
        return ()
    if pattern or blocks:
        after = mlp.nemotron(c, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
        kinds = mix.nemotron_kinds(c, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
        one: dict[str, Attention] = {"attention": mix.gqa(c), "moe": NoAttention(kind="none")}
        if strange := set(kinds) - {*one}:
            raise c.error(f"drafts with layers of {', '.join(sorted(strange))}; understood: {', '.join(one)}")
        both = zip(kinds, after, strict=True)
        return tuple(Layers(count=count, attention=one[kind], mlp=two) for kind, two in both)
    attending = [one for one in _layers(c, family) if not isinstance(one.attention, Linear | NoAttention)]
    # An indexer that later layers share is kept by the draft layer again.
    indexed = [one for one in attending if isinstance(one.attention, Mla) and one.attention.index]
    if not attending:
        raise c.error("drafts without a layer of attention to be alike")
    return ((indexed or attending)[-1].model_copy(update={"count": count, "shares_kv": False}),)


def _grouped(layers: list[Layers]) -> tuple[Layers, ...]:
    groups: list[Layers] = []
    counts: list[int] = []
    for layer in layers:
        if layer in groups:
            counts[groups.index(layer)] += 1
        else:
            groups.append(layer)
            counts.append(1)
    return tuple(one.model_copy(update={"count": count}) for one, count in zip(groups, counts, strict=True))


def _capabilities(config: Mapping[str, Any]) -> dict[Capability, bool]:
    return {"vision": bool(config.get("vision_config")), "audio": bool(config.get("audio_config"))}
