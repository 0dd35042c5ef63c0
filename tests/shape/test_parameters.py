"""Weights counted from a shape: each part by hand, a model whose size is known to the digit, and what is unknown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.shape.model import Model
from agentroute.shape.parameters import ParameterCount, count

GQA: dict[str, Any] = {"kind": "gqa", "heads": 4, "kv_heads": 2, "head_dim": 8}
MLA: dict[str, Any] = {
    "kind": "mla", "heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 2, "v_head_dim": 6,
}  # fmt: skip
NO_MIXER, NO_MLP = {"kind": "none"}, {"kind": "none"}
MOE: dict[str, Any] = {"kind": "moe", "experts": 8, "active": 2, "expert_intermediate_size": 16}
H, V = 32, 100


def model(attention: dict[str, Any], mlp: dict[str, Any] | None = NO_MLP, count: int = 1, **more: Any) -> Model:
    group = {"count": count, "attention": attention} | ({"mlp": mlp} if mlp else {}) | more.pop("group", {})
    base = {"format": 1, "name": "m", "hidden_size": H, "vocab_size": V, "tied_embeddings": True, "layers": [group]}
    return Model.model_validate(base | {"provenance": {"origin": "assumed", "source": "a test"}} | more)


def layer(attention: dict[str, Any], mlp: dict[str, Any] | None = NO_MLP, **more: Any) -> tuple[int, int]:
    """The weights of the one layer alone: all, and those that a token passes."""
    counted = count(model(attention, mlp, **more))
    assert counted.total is not None
    assert counted.active is not None
    outside = V * H + H
    return counted.total - outside, counted.active - outside


@pytest.mark.parametrize(
    ("attention", "weights"),
    [
        pytest.param(GQA, H * 32 + 2 * H * 16 + 32 * H + H, id="queries, keys and values, output, norm"),
        pytest.param(GQA | {"v_head_dim": 4}, H * 32 + H * 16 + H * 8 + 16 * H + H, id="narrow values"),
        pytest.param(GQA | {"k_eq_v": True}, H * 32 + H * 16 + 32 * H + H, id="values from the keys"),
        pytest.param(GQA | {"output_gate": True}, 2 * H * 32 + 2 * H * 16 + 32 * H + H, id="gated output"),
        pytest.param(GQA | {"window_tokens": 8}, H * 32 + 2 * H * 16 + 32 * H + H, id="a window costs nothing"),
        pytest.param(
            MLA, H * 40 + H * 18 + 16 * 4 * 14 + 24 * H + (H + 16), id="latent: queries, down, up, output, norms"
        ),
        pytest.param(
            MLA | {"q_lora_rank": 12},
            (H * 12 + 12 * 40) + H * 18 + 16 * 56 + 24 * H + (H + 16 + 12),
            id="two-step queries",
        ),
        pytest.param(
            MLA | {"q_lora_rank": 12, "index": {"heads": 3, "head_dim": 5}},
            (H * 12 + 12 * 40) + H * 18 + 16 * 56 + 24 * H + (H + 16 + 12) + (H * 5 + 12 * 15 + H * 3),
            id="indexer: key, queries, weights of its heads",
        ),
        pytest.param({"kind": "linear", "parameters": 1_000}, 1_000 + H, id="a mixer that says its size"),
        pytest.param(NO_MIXER, 0, id="no mixer"),
    ],
)
def test_what_mixes_tokens_has_these_weights(attention: dict[str, Any], weights: int) -> None:
    assert layer(attention) == (weights, weights)


@pytest.mark.parametrize(
    ("mlp", "total", "active"),
    [
        pytest.param({"kind": "dense", "intermediate_size": 64}, 3 * H * 64, 3 * H * 64, id="gated"),
        pytest.param(
            {"kind": "dense", "intermediate_size": 64, "gated": False}, 2 * H * 64, 2 * H * 64, id="not gated"
        ),
        pytest.param(MOE, H * 8 + 8 * 3 * H * 16, H * 8 + 2 * 3 * H * 16, id="router and experts"),
        pytest.param(
            MOE | {"shared_intermediate_size": 20},
            H * 8 + 10 * 3 * H * 2 + 8 * 3 * H * 16,
            H * 8 + 10 * 3 * H * 2 + 2 * 3 * H * 16,
            id="shared expert",
        ),
        pytest.param(
            MOE | {"latent_size": 8, "gated": False},
            H * 8 + 2 * H * 8 + 8 * 2 * 8 * 16,
            H * 8 + 2 * H * 8 + 2 * 2 * 8 * 16,
            id="experts in a latent",
        ),
    ],
)
def test_what_follows_has_these_weights(mlp: dict[str, Any], total: int, active: int) -> None:
    assert layer(NO_MIXER, mlp) == (total + H, active + H)


def test_layers_that_share_kv_have_no_keys_and_values_of_their_own() -> None:
    assert layer(GQA, group={"shares_kv": True})[0] == layer(GQA)[0] - 2 * H * 16


@pytest.mark.parametrize(("tied", "lookup"), [(True, 0), (False, V * H)])
def test_an_embedding_that_is_not_the_output_layer_is_only_looked_up(tied: bool, lookup: int) -> None:
    counted = count(model(NO_MIXER, tied_embeddings=tied))
    assert counted == ParameterCount(V * H + H + lookup, V * H + H + lookup, lookup, V * H)


@pytest.mark.parametrize("tied", [True, False])
def test_without_an_output_layer_the_embedding_is_only_looked_up(tied: bool) -> None:
    counted = count(model(NO_MIXER, tied_embeddings=tied, output_layer=False))
    assert counted == ParameterCount(V * H + H, V * H + H, V * H, 0)


def test_per_layer_embeddings_are_looked_up_in_every_layer() -> None:
    plain, with_own = count(model(NO_MIXER, count=3)), count(model(NO_MIXER, count=3, per_layer_embedding_size=4))
    assert plain.total is not None
    assert with_own.lookup == V * 4 * 3
    assert with_own.total == plain.total + V * 4 * 3 + 3 * H * 4 * 3


def test_draft_layers_are_not_counted() -> None:
    draft = [{"count": 1, "attention": GQA, "mlp": NO_MLP}]
    assert count(model(GQA, draft_layers=draft)) == count(model(GQA))


@pytest.mark.parametrize(
    ("unknown", "parts"),
    [
        (model(GQA, hidden_size=None), ("hidden_size",)),
        (model(GQA, vocab_size=None, tied_embeddings=None), ("vocab_size", "tied_embeddings")),
        (model({"kind": "gqa", "kv_heads": 2, "head_dim": 8}), ("attention.heads",)),
        (model(GQA, None), ("mlp",)),
        (model({"kind": "linear"}), ("attention.parameters",)),
        (
            model({"kind": "mla", "kv_lora_rank": 16, "qk_rope_head_dim": 2, "index": {"head_dim": 4}}),
            ("attention.heads", "attention.qk_nope_head_dim", "attention.v_head_dim", "attention.index.heads"),
        ),
    ],
)
def test_an_unknown_part_leaves_the_count_unknown_and_is_named(unknown: Model, parts: tuple[str, ...]) -> None:
    assert count(unknown) == ParameterCount(None, None, None, None, parts)


def test_the_count_of_a_plain_model_is_exact() -> None:
    """SmolLM2-135M: llama.cpp prints n_params = 134,515,008. Query heads and MLP are those of its config.json."""
    smollm = model(
        {"kind": "gqa", "heads": 9, "kv_heads": 3, "head_dim": 64},
        {"kind": "dense", "intermediate_size": 1536},
        count=30,
        hidden_size=576,
        vocab_size=49_152,
    )
    assert count(smollm).total == count(smollm).active == 134_515_008


@given(
    layers=st.integers(1, 100), hidden=st.integers(1, 10_000), experts=st.integers(1, 512), active=st.integers(1, 512)
)
def test_a_token_never_passes_more_than_there_is(layers: int, hidden: int, experts: int, active: int) -> None:
    moe = MOE | {"experts": experts, "active": min(active, experts)}
    counted = count(model(GQA, moe, count=layers, hidden_size=hidden))
    assert counted.total is not None
    assert counted.active is not None
    assert 0 < counted.active <= counted.total
    assert (counted.active == counted.total) == (active >= experts)
