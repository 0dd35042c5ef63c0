"""Where a profile disagrees with the running server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fleets import grid
from hypothesis import given
from hypothesis import strategies as st

from agentroute.adapters.base import Discovery
from agentroute.catalogue import shipped
from agentroute.cli.init import profile_of
from agentroute.doctor.finding import Finding
from agentroute.doctor.server import disagreements
from agentroute.fleet import Deployment
from agentroute.latency.points import Measurement
from agentroute.origin import Provenance
from agentroute.profile import Capabilities, Engine, KvPool, Limits, Precision, Profile
from agentroute.shape.sharding import Disaggregated, Sharding, Workers

REPORTED = Provenance(origin="reported", source="a test")
PROFILE = Profile(
    format=1,
    name="p",
    model="qwen3-32b",
    accelerator="h100_sxm",
    engine=Engine(name="vllm", version="0.11.0"),
    precision=Precision(weights="fp8", kv="bf16"),
    sharding=Sharding(tp=4),
    limits=Limits(
        max_model_len=32_768,
        max_num_seqs=256,
        max_num_batched_tokens=8_192,
        kv_pool=KvPool(tokens=400_000, block_tokens=16),
        prefix_caching=True,
        priority="lower",
        provenance=REPORTED,
    ),
    capabilities=Capabilities(offers={"tools": True, "vision": False}, provenance=REPORTED),
)
SERVER = Discovery(
    models=("Qwen/Qwen3-32B",),
    engine="vllm",
    engine_version="0.11.0",
    max_model_len=32_768,
    max_num_seqs=256,
    max_num_batched_tokens=8_192,
    kv_pool=KvPool(tokens=400_000, block_tokens=16),
    sharding=Sharding(tp=4),
    engines=1,
    prefix_caching=True,
    priority="lower",
    weights="fp8",
    kv="bfloat16",
    device="NVIDIA H100 80GB HBM3",
    capabilities={"tools": True, "vision": False},
)


def deployment(profile: Profile = PROFILE, **more: Any) -> Deployment:
    model = shipped().model(profile.model) if profile.model else None
    return Deployment("d", profile, model, **{"adapter": "vllm", **more})


def found(profile: Profile = PROFILE, server: Discovery = SERVER, **more: Any) -> list[Finding]:
    return disagreements(deployment(profile), server, **more)


def test_a_profile_that_agrees_gives_no_finding() -> None:
    assert found(model="qwen3-32b") == []


WRONG = [
    ({"max_model_len": 16_384}, "window", "wrong", (32_768, 16_384), "set limits.max_model_len to 16384"),
    ({"max_model_len": 40_960}, "window", "warning", (32_768, 40_960), "kept from it"),
    ({"max_num_seqs": 128}, "slots", "wrong", (256, 128), "set limits.max_num_seqs to 128"),
    ({"max_num_seqs": 512}, "slots", "warning", (256, 512), "taken to wait"),
    ({"max_num_batched_tokens": 2_048}, "step_tokens", "warning", (8_192, 2_048), "smaller steps"),
    ({"max_num_batched_tokens": 16_384}, "step_tokens", "warning", (8_192, 16_384), "larger steps"),
    (
        {"kv_pool": KvPool(tokens=300_000, block_tokens=16)},
        "kv_pool",
        "wrong",
        (400_000, 300_000),
        "100,000 tokens",
    ),
    ({"kv_pool": KvPool(tokens=500_000, block_tokens=16)}, "kv_pool", "warning", (400_000, 500_000), "stay unused"),
    ({"kv_pool": KvPool(tokens=398_000, block_tokens=16)}, "kv_pool", "note", (400_000, 398_000), "2,000 tokens too"),
    ({"kv_pool": KvPool(tokens=400_000, block_tokens=64)}, "kv_block", "warning", (16, 64), "block_tokens to 64"),
    ({"sharding": Sharding(tp=8)}, "split", "wrong", (4, 8), "the server tp8"),
    ({"sharding": Sharding(tp=2, attention_dp=2)}, "split", "wrong", (4, 4), "the server tp2 adp2"),
    ({"sharding": None, "engines": 2}, "split", "wrong", (1, 2), "set sharding.attention_dp to 2"),
    ({"prefix_caching": False}, "prefix_caching", "wrong", (), "as true, the server as false: a shared prefix"),
    ({"priority": "higher"}, "priority", "wrong", (), "lower priorities come first, the server higher ones"),
    ({"device": "NVIDIA H200"}, "accelerator", "wrong", (), 'set accelerator = "h200_sxm"'),
    ({"weights": "bfloat16"}, "weights_type", "wrong", (), "weights in fp8, the server bf16"),
    ({"kv": "fp8_e4m3"}, "kv_type", "wrong", (), 'set precision.kv = "fp8_e4m3"'),
    ({"engine_version": "0.12.1"}, "version", "warning", (), "vllm 0.11.0, the server runs 0.12.1"),
    ({"engine": "sglang", "max_model_len": 5}, "engine", "wrong", (), "of vllm, the server is sglang"),
    ({"capabilities": {"tools": False}}, "capability", "wrong", (), "tools as true, the server as false"),
    ({"capabilities": {"vision": True}}, "capability", "warning", (), "kept from it"),
]


@pytest.mark.parametrize(("said", "kind", "severity", "numbers", "text"), WRONG, ids=lambda value: str(value)[:40])
def test_every_disagreement_is_one_finding_with_both_numbers(
    said: dict[str, Any], kind: str, severity: str, numbers: tuple[int, ...], text: str
) -> None:
    (finding,) = found(server=replace(SERVER, **said))
    assert (finding.kind, finding.severity, finding.deployment) == (kind, severity, "d")
    assert tuple(finding.numbers.values()) == numbers
    assert text in finding.text
    assert all(f"{number:,}" in finding.text for number in numbers)


UNSAID: list[tuple[str, dict[str, Any]]] = [
    ("max_model_len", {"max_model_len": 40_960}),  # what is assumed in its place
    ("max_num_seqs", {"max_num_seqs": 7}),
    ("max_num_batched_tokens", {"max_num_batched_tokens": 7}),
    ("kv_pool", {"kv_pool": KvPool(tokens=7, block_tokens=1)}),
    ("prefix_caching", {"prefix_caching": False}),
    ("priority", {"priority": "higher"}),
    ("sharding", {"sharding": Sharding(tp=2), "engines": 2}),
    ("accelerator", {"device": "NVIDIA H200"}),
    ("precision", {"weights": "awq", "kv": "fp8"}),
]


@pytest.mark.parametrize(("key", "said"), UNSAID)
def test_what_the_profile_does_not_say_is_no_disagreement(key: str, said: dict[str, Any]) -> None:
    assert PROFILE.limits is not None
    without: dict[str, Any] = {key: Precision() if key == "precision" else None}
    if key in Limits.model_fields:
        without = {"limits": PROFILE.limits.model_copy(update=without)}
    assert found(server=replace(SERVER, **said))
    assert found(PROFILE.model_copy(update=without), replace(SERVER, **said)) == []


def test_a_model_that_the_profile_does_not_say_is_no_disagreement() -> None:
    assert found(PROFILE.model_copy(update={"model": None}), model="qwen3-8b") == []


def test_a_server_that_says_nothing_but_its_models_disagrees_with_nothing() -> None:
    assert found(server=Discovery(models=("anything",), engine="other")) == []
    assert found(server=Discovery(models=("anything",), engine="vllm")) == []


def test_where_the_profile_says_no_window_the_length_that_decisions_assume_is_compared() -> None:
    profile = PROFILE.model_copy(update={"limits": None})
    (finding,) = found(profile, replace(SERVER, max_model_len=8_192))
    assert (finding.kind, finding.severity) == ("window", "wrong")
    assert dict(finding.numbers) == {"profile": 40_960, "server": 8_192}
    assert "says no window and the model 40,960 tokens" in finding.text


def test_of_a_pool_whose_figure_needs_a_note_nobody_says_which_one_is_wrong() -> None:
    pool = KvPool(tokens=300_000, block_tokens=16)
    (finding,) = found(server=replace(SERVER, kv_pool=pool, pool_notes=("their product",)))
    assert finding.severity == "warning"
    assert finding.text.endswith("(their product)")


@pytest.mark.parametrize(
    ("own", "server"), [("0.11.0", "v0.11.0"), ("0.11.0", "0.11.0+cu128"), ("b4567-1a2b", "b4567-1a2b")]
)
def test_how_a_version_was_built_is_no_disagreement(own: str, server: str) -> None:
    profile = PROFILE.model_copy(update={"engine": Engine(name="vllm", version=own)})
    assert found(profile, replace(SERVER, engine_version=server)) == []


def test_measurements_of_another_version_are_told_where_the_profile_names_none() -> None:
    source = Provenance(origin="measured", source="a test", engine_version="0.9.2")
    measured = (Measurement(provenance=source, points=grid()),)
    profile = PROFILE.model_copy(update={"engine": Engine(name="vllm"), "measurements": measured})
    (finding,) = found(profile)
    assert "was measured on vllm 0.9.2, the server runs 0.11.0" in finding.text
    assert "agentroute measure" in finding.text


@pytest.mark.parametrize(("own", "server"), [("nvfp4", "mxfp4"), ("fp4", "bfloat16"), ("awq", "gptq")])
def test_other_types_of_weights_disagree(own: str, server: str) -> None:
    profile = PROFILE.model_copy(update={"precision": Precision(weights=own)})  # type: ignore[arg-type]
    assert [finding.kind for finding in found(profile, replace(SERVER, weights=server))] == ["weights_type"]


@pytest.mark.parametrize(("own", "server"), [("fp4", "mxfp4"), ("fp4", "modelopt_fp4"), ("int4", "awq_marlin")])
def test_a_general_word_for_a_type_of_weights_agrees_with_the_special_one(own: str, server: str) -> None:
    profile = PROFILE.model_copy(update={"precision": Precision(weights=own)})  # type: ignore[arg-type]
    assert found(profile, replace(SERVER, weights=server)) == []


def test_accelerators_of_an_unknown_split_are_compared_with_those_that_the_server_takes() -> None:
    profile = PROFILE.model_copy(update={"sharding": None, "accelerator_count": 2})
    (finding,) = found(profile)
    assert (finding.kind, dict(finding.numbers)) == ("split", {"profile": 2, "server": 4})


def test_how_prefill_and_decode_are_split_apart_no_server_says() -> None:
    apart = Disaggregated(prefill=Workers(sharding=Sharding(tp=2)), decode=Workers(sharding=Sharding(tp=8)))
    assert found(PROFILE.model_copy(update={"sharding": None, "disaggregated": apart})) == []


@pytest.mark.parametrize(
    ("more", "model", "says"),
    [
        ({"served_model": "mine"}, None, "which the server does not list"),
        ({}, "qwen3-8b", "is of qwen3-32b, the server has qwen3-8b"),
        ({"adapter": "sglang"}, None, 'set adapter = "vllm"'),
    ],
)
def test_what_the_configuration_says_is_compared_too(more: dict[str, Any], model: str | None, says: str) -> None:
    (finding,) = disagreements(deployment(**more), SERVER, model=model)
    assert finding.severity == "wrong" and says in finding.text


def test_a_name_that_was_given_to_the_model_is_no_other_model() -> None:
    served = replace(SERVER, models=("house-model",))
    assert disagreements(deployment(served_model="house-model"), served, model=None) == []


def test_a_capability_that_only_the_model_promises_is_compared() -> None:
    model = shipped().model("qwen3-32b")
    assert model.capabilities["tools"]
    profile = PROFILE.model_copy(update={"capabilities": None})
    (finding,) = found(profile, replace(SERVER, capabilities={"tools": False}))
    assert "the model has tools as true" in finding.text


def test_of_several_endpoints_the_one_is_named() -> None:
    (finding,) = found(server=replace(SERVER, max_num_seqs=8), url="http://two:8000")
    assert finding.text.startswith("at http://two:8000, the profile says 256 slots, the server 8: ")


counts = st.none() | st.integers(1, 1_000_000)


@given(
    window=counts,
    slots=counts,
    step=counts,
    pool=st.none() | st.integers(16, 1_000_000).map(lambda tokens: KvPool(tokens=tokens, block_tokens=16)),
    split=st.none() | st.builds(Sharding, tp=st.sampled_from([1, 2, 8]), attention_dp=st.sampled_from([1, 4])),
    version=st.none() | st.sampled_from(["0.11.0", "v0.5.9", "0.32.0+cu130"]),
    weights=st.none() | st.sampled_from(["bfloat16", "fp8", "awq_marlin", "mxfp4", "auto"]),
    kv=st.none() | st.sampled_from(["auto", "fp8_e5m2", "bfloat16"]),
    device=st.none() | st.sampled_from(["NVIDIA H200", "AMD Instinct MI300X", "something"]),
    capabilities=st.dictionaries(st.sampled_from(["tools", "vision", "audio"]), st.booleans()),
)
def test_a_profile_of_what_a_server_said_agrees_with_it(
    window: int | None, slots: int | None, step: int | None, pool: KvPool | None, split: Sharding | None,
    version: str | None, weights: str | None, kv: str | None, device: str | None, capabilities: dict[Any, bool],
) -> None:  # fmt: skip
    said = Discovery(
        models=("my-model",),
        engine="vllm",
        engine_version=version,
        max_model_len=window,
        max_num_seqs=slots,
        max_num_batched_tokens=step,
        kv_pool=pool,
        sharding=split,
        engines=split.attention_dp if split else None,
        weights=weights,
        kv=kv,
        device=device,
        capabilities=capabilities,
    )
    assert disagreements(deployment(profile_of("p", "http://one:8000", said)), said) == []


# ---- several engines behind one address


@pytest.mark.parametrize(
    ("engines", "sharding", "pool", "told", "key"),
    [
        (2, None, True, None, ""),
        (None, None, True, 1, "limits.engines"),
        (3, None, False, 3, "limits.engines"),
        (None, None, False, None, ""),
        (None, Sharding(tp=4), True, 1, "sharding.attention_dp"),
        (None, Sharding(tp=4, attention_dp=2), True, None, ""),
        (2, Sharding(tp=4), True, None, ""),
    ],
)
def test_engines_that_no_split_tells_are_counted_by_the_limits(
    engines: int | None, sharding: Sharding | None, pool: bool, told: int | None, key: str
) -> None:
    kept = KvPool(tokens=400_000, block_tokens=16) if pool else None
    limits = Limits(kv_pool=kept, engines=engines, provenance=REPORTED)
    own = PROFILE.model_copy(update={"limits": limits, "sharding": sharding})
    said = Discovery(models=("Qwen/Qwen3-32B",), engine="vllm", engines=2)
    found = disagreements(deployment(own), said)
    assert [finding.numbers for finding in found] == ([{"profile": told, "server": 2}] if told else [])
    assert all(finding.text.endswith(f"; set {key} to 2") for finding in found)


# ---- names


@pytest.mark.parametrize(
    ("served", "model", "kinds"),
    [
        ("sql", "qwen3-32b", []),
        ("sql", "qwen3-8b", ["model"]),  # the base of the adapter is another model
        ("gone", None, ["model"]),
    ],
)
def test_an_adapter_is_held_against_its_base(served: str, model: str | None, kinds: list[str]) -> None:
    said = replace(SERVER, models=("Qwen/Qwen3-32B", "sql"), parents={"sql": "Qwen/Qwen3-32B"})
    found = disagreements(deployment(served_model=served), said, model=model)
    assert [finding.kind for finding in found] == kinds


def test_the_adapter_of_a_router_is_not_that_of_the_engine_behind_it() -> None:
    said = replace(SERVER, wire="vllm_router")
    assert [f.kind for f in disagreements(deployment(adapter="vllm"), said)] == ["adapter"]
    assert disagreements(deployment(adapter="vllm_router"), said) == []
