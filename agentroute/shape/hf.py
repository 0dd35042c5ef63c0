"""A model's shape from its ``config.json``, and nothing guessed.

A family is a ``model_type``: what mixes tokens, what follows it, and the defaults of its class in transformers 5.24,
which a ``config.json`` leaves out (``hf_families``). What is not understood is named: a
model type, a kind of layer and a key that looks as if it changed the shape in a ``UsageError``, any other key in the
model's notes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentroute.errors import ProfileError, UsageError, shown, suggest
from agentroute.origin import Provenance
from agentroute.shape import hf_attention as mix
from agentroute.shape import hf_mlp as mlp
from agentroute.shape.hf_config import Config, some, unlisted
from agentroute.shape.hf_families import FAMILIES, Family
from agentroute.shape.hf_weights import kept
from agentroute.shape.model import Attention, Capability, Layers, Linear, Mla, Model, MoeMlp, NoAttention

_PARTS = ("text_config", "vision_config", "audio_config", "quantization_config", "compression_config")
_ALIASES = {"kimi_k2": "deepseek_v3", "kimi_k25": "deepseek_v3"}
"""Model types whose files may name the architecture of another."""

_GATED_ENCODERS = ("gemma4_vision", "pixtral")
_NOT_COUNTED = "Of the vision part, only the blocks are counted, and not in the size."


def model_from_config(config: Mapping[str, Any], *, name: str, provenance: Provenance) -> Model:
    """The model that the contents of a ``config.json`` describe; ``UsageError`` names what is not understood."""
    text = _part(config, "text_config", name)
    encoders = [part for key in ("vision_config", "audio_config") if (part := _part(config, key, name))]
    outer = {key: config[key] for key in ("tie_word_embeddings", "architectures") if key in config}
    data = outer | {key: value for key, value in text.items() if value is not None} if text else dict(config)
    if data.get("compress_ratios"):
        raise UsageError(f"the config of {name!r} has compress_ratios: its compressed cache has no known formula")
    family = _family(data, config, name)
    c = Config(name, {key: value for key, value in data.items() if key not in _PARTS}, family.defaults, family.harmless)
    for part in (config, text):
        _agree(part, c)
    listed = data.get("hybrid_override_pattern") or data.get("layers_block_type")
    c.count_layers(len(listed) if isinstance(listed, str | list) else None)
    try:
        layers, draft = _layers(c, family), _draft(c, family)
        hidden, vocabulary, context = c.need("hidden_size"), c.number("vocab_size"), c.number("max_position_embeddings")
        tied = c.flag("tie_embedding", c.flag("tie_word_embeddings"))
        per_layer = c.number("hidden_size_per_layer_input")
        shapes, others = c.unread()
        if shapes:
            raise c.error(f"has what is not understood: {some(shapes)}")
        others += unlisted({key: value for key, value in config.items() if key not in {*_PARTS, *data}})
        weights = kept(
            data.get("quantization_config") or config.get("quantization_config") or data.get("compression_config"),
            experts=any(isinstance(one.mlp, MoeMlp) for one in layers),
        )
        unknown = f"config.json keys not understood: {some(others)}." if others else None
        notes = (unknown, weights.note, _NOT_COUNTED if config.get("vision_config") else None)
        return Model(
            format=1,
            name=name,
            hidden_size=hidden,
            vocab_size=vocabulary or None,
            tied_embeddings=tied,
            per_layer_embedding_size=per_layer or None,
            output_layer=not _only_embeds(config),
            encoder_parameters=sum(map(_encoder, encoders)) or None,
            max_context_tokens=context or None,
            checkpoint_weights=weights.name,
            layers=_grouped(layers),
            draft_layers=draft,
            capabilities=_capabilities(config),
            provenance=provenance,
            notes=" ".join(filter(None, notes)) or None,
        )
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        what = first["msg"].removeprefix("Value error, ")
        if where:
            what = f"{where} = {shown(first['input'])} " + re.sub(r"^(Input|String|Value) should", "must", what)
        raise c.error(f"does not make a model: {what}") from None


def from_config(config: Mapping[str, Any], *, name: str | None = None) -> Model:
    """As ``model_from_config``; without ``name`` named after the config's own ``_name_or_path`` or model type."""
    name = name or _tidy(config.get("_name_or_path")) or _tidy(config.get("model_type")) or "model"
    return model_from_config(config, name=name, provenance=Provenance(origin="reported", source="a config.json"))


def from_file(path: Path, *, name: str | None = None) -> Model:
    """As ``from_config``, for a file or the folder it is in; ``ProfileError`` names the file."""
    from agentroute.files import parse, read_text

    path = path / "config.json" if path.is_dir() else path
    config = parse(read_text(path, ProfileError), path, ProfileError)
    beside = path.with_name("hf_quant_config.json")
    if not config.get("quantization_config") and beside.is_file():  # Older checkpoints of ModelOpt.
        config["quantization_config"] = parse(read_text(beside, ProfileError), beside, ProfileError).get("quantization")
    name = name or _tidy(config.get("_name_or_path")) or _tidy(path.absolute().parent.name) or None
    try:
        return from_config(config, name=name)
    except ProfileError:
        raise
    except UsageError as problem:
        raise ProfileError(str(problem), path=path) from None


def _part(config: Mapping[str, Any], key: str, name: str) -> Mapping[str, Any]:
    """A table in the config; empty without one."""
    value = config.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(f"the config of {name!r} has {key} = {shown(value)}; it must be a table (a JSON object)")
    return value or {}


def _agree(part: Mapping[str, Any], c: Config) -> None:
    """Refuse a part whose architecture is not of its model type, or that reads with an encoder of its own."""
    if part.get("is_encoder_decoder") or part.get("add_cross_attention"):
        raise c.error("has an encoder of its own beside the decoder; only decoders are understood")
    c.ignore("is_encoder_decoder")
    kind, names = str(part.get("model_type", "")).removesuffix("_text"), part.get("architectures")
    if kind not in FAMILIES or not isinstance(names, list):
        return
    for name in names:
        stem = _plain(str(name))
        # The longest known type that begins it: Qwen3MoeForCausalLM is of qwen3_moe, not of qwen3.
        found = max((one for one in FAMILIES if stem.startswith(_plain(one))), key=len, default=None)
        if found is None or found not in (kind, _ALIASES.get(kind)):
            raise c.error(f"has the model type {kind!r} and the architecture {shown(name)}, which is not of it")


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


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
