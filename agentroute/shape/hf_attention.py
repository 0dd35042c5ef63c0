"""What mixes tokens in each layer, from a ``config.json``: one list per model, an entry for each layer.

The sizes follow the model classes of transformers 5.24. State sizes are those that engines keep for one sequence: a
convolution of kernel k keeps its k - 1 latest inputs.
"""

from __future__ import annotations

from itertools import cycle, islice

from agentroute.errors import shown
from agentroute.shape.hf_config import Config, changed
from agentroute.shape.model import Attention, Gqa, Index, Linear, Mla, NoAttention

FULL, SLIDING, CHUNKED, LINEAR, NONE = "full", "sliding", "chunked", "linear", "none"

_LAYER_TYPES = {"full_attention": FULL, "sliding_attention": SLIDING, "chunked_attention": CHUNKED}
_DELTA_TYPES = {"full_attention": FULL, "linear_attention": LINEAR}
_LATENT_TYPES = {"full_attention": FULL, "deepseek_sparse_attention": FULL}
_CONV_TYPES = {"full_attention": FULL, "conv": LINEAR}
_MAMBA_TYPES = {"attention": FULL, "mamba": LINEAR}
_NEMOTRON_TYPES = {"attention": FULL, "mamba": LINEAR, "moe": NONE, "mlp": NONE}
_NEMOTRON_LETTERS = {"*": "attention", "M": "mamba", "E": "moe", "-": "mlp"}


def gqa(c: Config, window: int | None = None, chunk: int | None = None) -> Gqa:
    """One layer of plain attention. Without ``head_dim`` it is hidden_size / heads, as transformers has it."""
    heads, head_dim = c.need("num_attention_heads"), c.positive("head_dim", "attention_head_dim")
    if head_dim is None:
        c.multiple("hidden_size", "num_attention_heads")
    if c.positive("num_key_value_heads"):
        c.multiple("num_attention_heads", "num_key_value_heads")
    return Gqa(
        kind="gqa",
        heads=heads,
        kv_heads=c.number("num_key_value_heads") or heads,
        head_dim=head_dim or c.need("hidden_size") // heads,
        v_head_dim=c.positive("v_head_dim"),
        window_tokens=window,
        chunk_tokens=chunk,
        output_gate=c.flag("attn_output_gate"),
    )


def full(c: Config) -> list[Attention]:
    """Every layer sees everything."""
    c.kinds("layer_types", {"full_attention": FULL})
    if any(kind != 1 for kind in c.listed("attn_type_list") or ()):  # MiniMax: 1 is full attention.
        raise c.error("has attn_type_list with other kinds than 1; understood: 1")
    return [gqa(c)] * c.layers


def windowed(c: Config) -> list[Attention]:
    """Every layer slides when a window is given (Mistral 7B, Phi-3, StarCoder2)."""
    kinds, window = c.kinds("layer_types", _LAYER_TYPES), c.number("sliding_window", "sliding_window_size")
    return _by_kind(c, kinds or [SLIDING if window else FULL] * c.layers)


def upper_windowed(c: Config) -> list[Attention]:
    """The layers from ``max_window_layers`` on slide, if ``use_sliding_window`` says so (Qwen 2 and 3)."""
    kinds, upper = c.kinds("layer_types", _LAYER_TYPES), c.number("max_window_layers") or 0
    first = upper if c.flag("use_sliding_window") else c.layers
    return _by_kind(c, kinds or [SLIDING if layer >= first else FULL for layer in range(c.layers)])


def patterned(c: Config) -> list[Attention]:
    """Of every ``sliding_window_pattern`` layers the last sees everything (Gemma 2 and 3, Command R7B, gpt-oss)."""
    kinds, period = c.kinds("layer_types", _LAYER_TYPES), c.number("sliding_window_pattern")
    return _by_kind(c, kinds or _every(c.layers, period or c.need("layer_types"), SLIDING))


def chunked(c: Config) -> list[Attention]:
    """Every fourth layer (the one without rotation) sees everything, the others a chunk (Llama 4)."""
    kinds, rotated = (
        c.kinds("layer_types", _LAYER_TYPES),
        c.listed("no_rope_layers") if c.get("no_rope_layers") else None,
    )
    if rotated:  # 1 is a layer with rotation.
        kinds = kinds or [CHUNKED if one else FULL for one in rotated]
    return _by_kind(c, kinds or _every(c.layers, c.need("no_rope_layer_interval"), CHUNKED))


def gemma4(c: Config) -> list[Attention]:
    """Full layers have wider heads, with ``attention_k_eq_v`` a number of KV heads of their own and no value matrix."""
    sliding, k_eq_v = gqa(c, window=c.need("sliding_window")), c.flag("attention_k_eq_v")
    wide = {"head_dim": c.number("global_head_dim") or sliding.head_dim, "window_tokens": None}
    kv_heads = c.positive("num_global_key_value_heads")
    if k_eq_v:
        if kv_heads:
            c.multiple("num_attention_heads", "num_global_key_value_heads")
        wide |= {"kv_heads": kv_heads or sliding.kv_heads, "k_eq_v": True}
    everything = changed(sliding, wide)
    kinds = c.kinds("layer_types", _LAYER_TYPES) or _every(c.layers, c.need("sliding_window_pattern"), SLIDING)
    return [everything if kind == FULL else sliding for kind in kinds]


def afmoe(c: Config) -> list[Attention]:
    """Of every ``global_attn_every_n_layers`` layers the last sees everything; outputs have a gate (Trinity)."""
    kinds, period = c.kinds("layer_types", _LAYER_TYPES), c.need("global_attn_every_n_layers")
    mixers = _by_kind(c, kinds or _every(c.layers, period, SLIDING))
    return [changed(one, {"output_gate": True}) if isinstance(one, Gqa) else one for one in mixers]


def mimo_v2(c: Config) -> list[Attention]:
    """Sliding layers (1 in ``hybrid_layer_pattern``) have heads of their own."""
    everything = gqa(c)
    c.multiple("swa_num_attention_heads", "swa_num_key_value_heads")
    sliding = Gqa(
        kind="gqa",
        heads=c.need("swa_num_attention_heads"),
        kv_heads=c.need("swa_num_key_value_heads"),
        head_dim=c.need("swa_head_dim"),
        v_head_dim=c.need("swa_v_head_dim"),
        window_tokens=c.need("sliding_window", "sliding_window_size"),
    )
    c.ignore("attention_chunk_size")
    pattern = c.listed("hybrid_layer_pattern")
    if pattern is None or any(entry not in (0, 1) for entry in pattern):
        raise c.error("must have a hybrid_layer_pattern of 0 (full) and 1 (sliding)")
    return [sliding if entry else everything for entry in pattern]


def mla(c: Config) -> list[Attention]:
    """Latent attention; a layer whose indexer is shared keeps no rows of its own (GLM-5.3)."""
    c.kinds("layer_types", _LATENT_TYPES)
    c.ignore("num_key_value_heads", "head_dim", "qk_head_dim")  # A latent has neither, whatever a file says.
    plain = Mla(
        kind="mla",
        heads=c.need("num_attention_heads"),
        q_lora_rank=c.positive("q_lora_rank"),
        kv_lora_rank=c.need("kv_lora_rank"),
        qk_nope_head_dim=c.need("qk_nope_head_dim"),
        qk_rope_head_dim=c.need("qk_rope_head_dim"),
        v_head_dim=c.need("v_head_dim"),
    )
    if not (width := c.number("index_head_dim")):
        return [plain] * c.layers
    index = Index(heads=c.need("index_n_heads"), head_dim=width, top_k=c.need("index_topk"))
    kinds = c.kinds("indexer_types", {"full": FULL, "shared": NONE})
    # vLLM 0.33: a layer keeps an indexer when max(layer - offset + 1, 0) is a multiple of the frequency.
    every = c.number("index_topk_freq") or 1
    offset = c.number("index_skip_topk_offset") if kinds or every == 1 else c.need("index_skip_topk_offset")
    kinds = kinds or [NONE if max(layer - (offset or 0) + 1, 0) % every else FULL for layer in range(c.layers)]
    indexed = changed(plain, {"index": index})
    return [indexed if kind == FULL else plain for kind in kinds]


def delta(c: Config) -> list[Attention]:
    """Gated delta net, and full attention with a gated output every ``full_attention_interval`` layers (Qwen3-Next)."""
    c.multiple("linear_num_value_heads", "linear_num_key_heads")
    keys = c.need("linear_num_key_heads") * c.need("linear_key_head_dim")
    value_heads = c.need("linear_num_value_heads")
    values, kernel = value_heads * c.need("linear_value_head_dim"), c.need("linear_conv_kernel_dim")
    channels, hidden = 2 * keys + values, c.need("hidden_size")
    mixer = Linear(
        kind="linear",
        conv_elements=channels * (kernel - 1),
        ssm_elements=values * c.need("linear_key_head_dim"),
        parameters=hidden * (channels + 2 * values + 2 * value_heads) + channels * kernel,
    )
    interval = c.number("full_attention_interval")
    kinds = c.kinds("layer_types", _DELTA_TYPES) or _every(c.layers, interval or c.need("layer_types"), LINEAR)
    everything = changed(gqa(c), {"output_gate": c.flag("attn_output_gate", True)})
    return [everything if kind == FULL else mixer for kind in kinds]


def nemotron_kinds(c: Config, pattern: str, blocks: str) -> list[str]:
    """What each layer is (attention, mamba, moe or mlp), from the letters of a pattern or from a list of blocks."""
    letters, listed = c.get(pattern), c.get(blocks)
    if listed is None:
        listed = [_NEMOTRON_LETTERS.get(letter, letter) for letter in str(letters or "")]
    if not isinstance(listed, list) or any(str(kind) not in _NEMOTRON_TYPES for kind in listed):
        strange = sorted({str(kind) for kind in listed} - {*_NEMOTRON_TYPES}) if isinstance(listed, list) else listed
        raise c.error(f"has {pattern} or {blocks} with {strange}; understood: {', '.join(_NEMOTRON_TYPES)} and M * E -")
    return listed


def nemotron(c: Config) -> list[Attention]:
    """A layer is Mamba 2, attention, or only an MLP (Nemotron-H, Nemotron 3)."""
    heads, state = c.need("mamba_num_heads"), c.need("ssm_state_size")
    mixer = _mamba2(c, heads, heads * c.need("mamba_head_dim"), state, c.need("n_groups"), c.need("conv_kernel"))
    one: dict[str, Attention] = {FULL: gqa(c), LINEAR: mixer, NONE: NoAttention(kind="none")}
    kinds = nemotron_kinds(c, "hybrid_override_pattern", "layers_block_type")
    return [one[_NEMOTRON_TYPES[kind]] for kind in kinds]


def granite(c: Config) -> list[Attention]:
    """Mamba 2 with a few layers of attention (Granite 4)."""
    heads, inner = c.need("mamba_n_heads"), c.need("mamba_expand") * c.need("hidden_size")
    if c.get("mamba_d_head") not in (None, "auto") and heads * c.need("mamba_d_head") != inner:
        raise c.error(
            f"has mamba_n_heads = {heads} of mamba_d_head = {shown(c.get('mamba_d_head'))}, together not mamba_expand "
            f"x hidden_size = {inner}"
        )
    mixer = _mamba2(c, heads, inner, c.need("mamba_d_state"), c.need("mamba_n_groups"), c.need("mamba_d_conv"))
    kinds = c.kinds("layer_types", _MAMBA_TYPES)
    if kinds is None:
        raise c.error("does not say layer_types; its shape is unknown without it")
    return [gqa(c) if kind == FULL else mixer for kind in kinds]


def jamba(c: Config) -> list[Attention]:
    """Mamba 1, and attention once in ``attn_layer_period`` layers (Jamba)."""
    hidden, state, kernel = c.need("hidden_size"), c.need("mamba_d_state"), c.need("mamba_d_conv")
    inner = c.need("mamba_expand") * hidden
    rank = -(-hidden // 16) if c.get("mamba_dt_rank") in (None, "auto") else c.need("mamba_dt_rank")
    mixer = Linear(
        kind="linear",
        conv_elements=inner * (kernel - 1),
        ssm_elements=inner * state,
        parameters=inner * (3 * hidden + kernel + 2 * rank + 3 * state + 3),
    )
    period, offset = c.need("attn_layer_period"), c.number("attn_layer_offset")
    return [gqa(c) if layer % period == offset else mixer for layer in range(c.layers)]


def lfm2(c: Config) -> list[Attention]:
    """Short convolutions, and attention in the layers that are named (LFM2)."""
    hidden, kernel = c.need("hidden_size"), c.need("conv_L_cache")
    mixer = Linear(
        kind="linear",
        conv_elements=hidden * (kernel - 1),
        ssm_elements=0,
        parameters=hidden * (4 * hidden + kernel),
    )
    kinds, named = c.kinds("layer_types", _CONV_TYPES), c.get("full_attn_idxs")
    if kinds is None and not isinstance(named, list):
        raise c.error("does not say layer_types or full_attn_idxs; its shape is unknown without it")
    kinds = kinds or [FULL if layer in named else LINEAR for layer in range(c.layers)]
    return [gqa(c) if kind == FULL else mixer for kind in kinds]


def _mamba2(c: Config, heads: int, inner: int, state: int, groups: int, kernel: int) -> Linear:
    channels, hidden = inner + 2 * groups * state, c.need("hidden_size")
    return Linear(
        kind="linear",
        conv_elements=channels * (kernel - 1),
        ssm_elements=inner * state,
        parameters=hidden * (2 * inner + channels + heads) + channels * (kernel + 1) + 3 * heads + inner,
    )


def _every(layers: int, period: int, other: str) -> list[str]:
    return list(islice(cycle([*[other] * (period - 1), FULL]), layers))


def _by_kind(c: Config, kinds: list[str]) -> list[Attention]:
    made: dict[str, Attention] = {}
    for kind in kinds:
        if kind not in made:
            window = c.need("sliding_window", "sliding_window_size") if kind == SLIDING else None
            chunk = c.need("attention_chunk_size") if kind == CHUNKED else None
            made[kind] = gqa(c, window, chunk)
    c.ignore("sliding_window", "sliding_window_size", "attention_chunk_size")
    return [made[kind] for kind in kinds]
