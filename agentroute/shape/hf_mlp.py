"""What follows the mixer in each layer, from a ``config.json``: one list per model, an entry for each layer."""

from __future__ import annotations

from functools import partial

from agentroute.errors import shown
from agentroute.shape.hf_attention import nemotron_kinds
from agentroute.shape.hf_config import Config, changed
from agentroute.shape.model import DenseMlp, Mlp, MoeMlp, NoMlp

ROUTED = ("n_routed_experts", "num_experts")
_MLP_TYPES = {"dense": "dense", "sparse": "moe"}


def dense(c: Config, *, gated: bool = True) -> list[Mlp]:
    """Every layer has one MLP of ``intermediate_size``."""
    width = c.get("intermediate_size")
    if isinstance(width, list):  # Gemma 3n lists one width for each layer.
        return [
            DenseMlp(kind="dense", intermediate_size=one, gated=gated) for one in c.listed("intermediate_size") or ()
        ]
    return [DenseMlp(kind="dense", intermediate_size=c.need("intermediate_size"), gated=gated)] * c.layers


plain = partial(dense, gated=False)
"""As ``dense``, with two matrices instead of three (StarCoder2)."""


def experts_everywhere(c: Config) -> list[Mlp]:
    """Every layer has experts of ``intermediate_size`` (Mixtral, MiniMax M2, gpt-oss)."""
    shared = c.number("shared_intermediate_size") or 0
    return [_moe(c, "num_local_experts", "intermediate_size", shared)] * c.layers


def qwen(c: Config) -> list[Mlp]:
    """Experts in every ``decoder_sparse_step``-th layer but those of ``mlp_only_layers`` (Qwen 2, 3, 3.5 and Next)."""
    c.ignore("intermediate_size")
    step, only = c.number("decoder_sparse_step") or 1, c.get("mlp_only_layers") or []
    if not isinstance(only, list):
        raise c.error(f"has mlp_only_layers = {shown(only)}; it must be a list")
    moe = _moe(c, "num_experts", "moe_intermediate_size", c.number("shared_expert_intermediate_size") or 0)
    chosen = [(layer + 1) % step == 0 and layer not in only for layer in range(c.layers)]
    return _chosen(c, ["moe" if one else "dense" for one in chosen], moe)


def deepseek(c: Config) -> list[Mlp]:
    """Dense layers first (``first_k_dense_replace``), then experts with shared ones (DeepSeek, Kimi, GLM)."""
    width = c.need("moe_intermediate_size")
    moe = _moe(c, ROUTED, "moe_intermediate_size", width * (c.number("n_shared_experts") or 0))
    kinds = c.kinds("mlp_layer_types", _MLP_TYPES)
    first = c.number("first_k_dense_replace") or 0
    if isinstance(c.get("moe_layer_freq"), list):  # MiMo V2 lists 0 (dense) or 1 for each layer.
        kinds = ["moe" if one else "dense" for one in c.listed("moe_layer_freq") or ()]
    every = 1 if kinds else c.number("moe_layer_freq") or 1
    kinds = kinds or ["moe" if layer >= first and layer % every == 0 else "dense" for layer in range(c.layers)]
    c.ignore("intermediate_size")
    return _chosen(c, kinds, moe)


def afmoe(c: Config) -> list[Mlp]:
    """``num_dense_layers`` dense layers first, then experts with shared ones (Trinity)."""
    width, first = c.need("moe_intermediate_size"), c.number("num_dense_layers") or 0
    moe = _moe(c, "num_experts", "moe_intermediate_size", width * (c.number("num_shared_experts") or 0))
    c.ignore("num_expert_groups", "intermediate_size")
    return _chosen(c, ["dense" if layer < first else "moe" for layer in range(c.layers)], moe)


def llama4(c: Config) -> list[Mlp]:
    """Experts and a shared one in every ``interleave_moe_layer_step``-th layer, a wider MLP in the others (Llama 4)."""
    moe = _moe(c, "num_local_experts", "intermediate_size", c.need("intermediate_size"))
    wide, step = (
        DenseMlp(kind="dense", intermediate_size=c.need("intermediate_size_mlp")),
        c.need("interleave_moe_layer_step"),
    )
    named = c.get("moe_layers")
    chosen = named if isinstance(named, list) else range(step - 1, c.layers, step)
    return [moe if layer in chosen else wide for layer in range(c.layers)]


def gemma3n(c: Config) -> list[Mlp]:
    """Dense. What LAuReL and AltUp add to the weights, about half a percent, is left out (Gemma 3n)."""
    c.ignore("laurel_rank", "activation_sparsity_pattern")
    return dense(c)


def gemma4(c: Config) -> list[Mlp]:
    """Dense, with ``use_double_wide_mlp`` twice as wide where KV is shared; or experts beside the dense."""
    if c.flag("enable_moe_block") or c.number("num_experts"):
        c.ignore("use_double_wide_mlp")
        return [_moe(c, "num_experts", "moe_intermediate_size", c.need("intermediate_size"))] * c.layers
    one = dense(c)[0]
    if not c.flag("use_double_wide_mlp"):
        return [one] * c.layers
    wide = DenseMlp(kind="dense", intermediate_size=2 * c.need("intermediate_size"))
    own = c.layers - (c.number("num_kv_shared_layers") or 0)
    return [one if layer < own else wide for layer in range(c.layers)]


def nemotron(c: Config, pattern: str = "hybrid_override_pattern", blocks: str = "layers_block_type") -> list[Mlp]:
    """A layer is only an MLP, only experts, or has neither; none is gated (Nemotron-H, Nemotron 3)."""
    one: dict[str, Mlp] = {"mamba": NoMlp(kind="none"), "attention": NoMlp(kind="none")}
    kinds = nemotron_kinds(c, pattern, blocks)
    if "moe" in kinds:
        shared = c.number("n_shared_experts") or 0
        shared *= c.need("moe_shared_expert_intermediate_size") if shared else 1
        moe = _moe(c, ROUTED, "moe_intermediate_size", shared)
        one["moe"] = changed(moe, {"gated": False, "latent_size": c.number("moe_latent_size") or None})
    c.ignore("intermediate_size")
    if "mlp" in kinds:
        one["mlp"] = plain(c)[0]
    return [one[kind] for kind in kinds]


def jamba(c: Config) -> list[Mlp]:
    """Experts once in ``expert_layer_period`` layers, an MLP of the same width in the others (Jamba)."""
    period, offset = c.need("expert_layer_period"), c.number("expert_layer_offset")
    if (c.number("num_experts") or 1) == 1:
        return dense(c)
    moe = _moe(c, "num_experts", "intermediate_size", 0)
    return _chosen(c, ["moe" if layer % period == offset else "dense" for layer in range(c.layers)], moe)


def granite(c: Config) -> list[Mlp]:
    """Experts beside a shared MLP, or the shared MLP alone (Granite 4)."""
    shared = c.number("shared_intermediate_size") or 0
    if c.number("num_local_experts"):
        return [_moe(c, "num_local_experts", "intermediate_size", shared)] * c.layers
    c.ignore("intermediate_size", "num_experts_per_tok")
    return [DenseMlp(kind="dense", intermediate_size=c.need("shared_intermediate_size"))] * c.layers


def lfm2(c: Config) -> list[Mlp]:
    """Two thirds of the width that is given, rounded up to ``block_multiple_of`` (LFM2)."""
    width = c.positive("block_ff_dim") or c.need("intermediate_size")
    c.ignore("intermediate_size")
    if c.flag("block_auto_adjust_ff_dim", True):
        factor, step = c.get("block_ffn_dim_multiplier"), c.need("block_multiple_of")
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 100:
            raise c.error(f"has block_ffn_dim_multiplier = {shown(factor)}; it must be a number above 0")
        width = -(-int(factor * int(2 * width / 3)) // step) * step
    return [DenseMlp(kind="dense", intermediate_size=width)] * c.layers


def _moe(c: Config, experts: str | tuple[str, ...], width: str, shared: int) -> MoeMlp:
    return MoeMlp(
        kind="moe",
        experts=c.need(*([experts] if isinstance(experts, str) else experts)),
        active=c.need("num_experts_per_tok", "experts_per_token", "top_k_experts"),
        expert_intermediate_size=c.need(width),
        shared_intermediate_size=shared,
    )


def _chosen(c: Config, kinds: list[str], moe: MoeMlp) -> list[Mlp]:
    usual = dense(c)[0] if "dense" in kinds else moe
    return [moe if kind == "moe" else usual for kind in kinds]
