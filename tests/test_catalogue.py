"""The files that ship with agentroute: each loads, agrees with its neighbours, and says where its figures are from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest

from agentroute.capacity.weights import scheme
from agentroute.catalogue import Catalogue, shipped
from agentroute.errors import UnknownNameError
from agentroute.latency.points import Measurement
from agentroute.profile import Profile
from agentroute.shape.model import Gqa, Layers, Model, MoeMlp
from agentroute.shape.parameters import count
from agentroute.shape.sharding import Sharding

C = shipped()
PROFILES = C.profile_names
MODELS = C.model_names
ACCELERATORS = C.accelerator_names


def shardings(profile: Profile) -> list[Sharding]:
    if profile.disaggregated:
        return [profile.disaggregated.prefill.sharding, profile.disaggregated.decode.sharding]
    return [profile.sharding] if profile.sharding else []


def is_moe(profile: Profile) -> bool:
    return has_experts(C.model(profile.model or ""))


def has_experts(model: Model) -> bool:
    return any(isinstance(group.mlp, MoeMlp) for group in model.layers)


def kind(group: Layers) -> str:
    sliding = isinstance(group.attention, Gqa) and group.attention.window_tokens is not None
    return "sliding" if sliding else group.attention.kind


DEGREE = r"(?:tp|pp|adp|ep)\d+"

MEASUREMENTS: list[tuple[str, Measurement]] = [
    (name, block) for name in PROFILES for block in C.profile(name).measurements
]

# ---- every file loads, and its name is its path


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_named_by_its_path_and_filed_under_its_model(name: str) -> None:
    profile = C.profile(name)
    assert profile.name == name
    assert name.split("/")[0] == profile.model


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_names_its_engine_its_accelerator_and_its_split_in_its_path(name: str) -> None:
    """After them stand the weights' type, the engine's version and a run, in this order, each only where needed."""
    profile = C.profile(name)
    engine, accelerator, rest = name.split("/")[1].split("-", 2)
    assert engine == profile.engine.name
    assert accelerator == (profile.accelerator or "").split("_")[0]
    split = rf"disagg(-[pd]\d+(-{DEGREE})+)*" if profile.disaggregated else rf"{DEGREE}(-{DEGREE})*"
    version = re.escape(profile.engine.version or "unversioned")
    found = re.fullmatch(rf"({split})(-{profile.precision.weights})?(-{version})?(-run\d+)?", rest)
    assert found is not None
    if profile.sharding:
        assert set(found[1].split("-")) <= {f"adp{profile.sharding.attention_dp}", *str(profile.sharding).split()}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_named_by_its_path(name: str) -> None:
    assert C.model(name).name == name


@pytest.mark.parametrize("name", ACCELERATORS)
def test_an_accelerator_is_named_by_its_path(name: str) -> None:
    assert C.accelerator(name).name == name


def test_names_are_had_without_reading_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Profile, "load", lambda path: pytest.fail(f"{path} was read"))
    assert Catalogue().profile_names == PROFILES


# ---- the files refer to each other


@pytest.mark.parametrize("name", PROFILES)
def test_the_model_and_the_accelerator_of_a_profile_exist(name: str) -> None:
    profile = C.profile(name)
    assert profile.model in MODELS
    assert profile.accelerator in ACCELERATORS


@pytest.mark.parametrize("name", PROFILES)
def test_the_split_of_a_profile_takes_all_of_its_accelerators(name: str) -> None:
    profile = C.profile(name)
    assert profile.accelerator_count == sum(
        [profile.disaggregated.accelerators] if profile.disaggregated else [s.accelerators for s in shardings(profile)]
    )


@pytest.mark.parametrize("name", PROFILES)
def test_only_a_model_with_experts_is_split_by_experts(name: str) -> None:
    profile = C.profile(name)
    assert is_moe(profile) or all(s.ep == 1 for s in shardings(profile))


@pytest.mark.parametrize("name", ACCELERATORS)
def test_every_accelerator_has_a_price(name: str) -> None:
    assert name in C.prices().usd_per_accelerator_hour


def test_prices_are_dated_assumptions() -> None:
    provenance = C.prices().provenance
    assert provenance.origin == "assumed"
    assert provenance.date is not None


def test_no_hub_id_belongs_to_two_models() -> None:
    ids = [hub_id for name in MODELS for hub_id in C.model(name).hf_ids]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("hub_id", "name"),
    [
        ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m"),
    ],
)
def test_a_model_is_found_by_its_hub_id(hub_id: str, name: str) -> None:
    assert C.model(hub_id) is C.model(name)


# ---- what the shapes are


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("llama-3.1-8b", {"gqa": 32}),
        ("llama-3.1-70b", {"gqa": 80}),
        ("qwen3-32b", {"gqa": 64}),
        ("qwen3-235b-a22b", {"gqa": 94}),
        ("deepseek-v3", {"mla": 61}),
        ("gpt-oss-120b", {"gqa": 18, "sliding": 18}),
        ("minimax-m2.5", {"gqa": 62}),
        ("smollm2-135m", {"gqa": 30}),
    ],
)
def test_a_model_has_these_layers(name: str, layers: dict[str, int]) -> None:
    counted: Counter[str] = Counter()
    for group in C.model(name).layers:
        counted[kind(group)] += group.count
    assert counted == layers


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_dense_exactly_when_all_its_parameters_are_active(name: str) -> None:
    model = C.model(name)
    assert model.parameters is not None
    assert has_experts(model) != (model.parameters.active_b == model.parameters.total_b)


@pytest.mark.parametrize("name", MODELS)
def test_a_recalled_size_is_shown_as_assumed(name: str) -> None:
    parameters = C.model(name).parameters
    assert parameters is not None
    assert (parameters.provenance.origin == "assumed") == ("Recalled" in (parameters.provenance.notes or ""))


WITHOUT_INPUT_EMBEDDING = {
    "deepseek-v2-lite", "deepseek-v3.2", "glm-4.5", "glm-5", "gpt-oss-120b", "gpt-oss-20b",
    "ling-3.0-flash", "nemotron-3-super-120b-a12b", "qwen3.5-35b-a3b",
}  # fmt: skip
"""Models whose published active figure leaves out the input embedding, which a token only looks up."""
LAYERS_ALONE = {"minimax-m2.5"}
"""Models whose published active figure leaves out the output layer, too."""

PARTLY_UNKNOWN = {
    # Its metadata holds no query heads and no MLP.
    "smollm2-135m": {"tied_embeddings", "attention.heads", "mlp"},
    "muse-glimmer-30b": {"vocab_size", "tied_embeddings", "mlp"},
    # Hyper-connections are part of its layers and not in the shape.
    "qwen3.8-flash-next": {"attention.parameters"},
}
"""Models whose shape lacks parts, so that their size cannot be counted."""


def of_origin(*origins: str) -> list[str]:
    """The models whose size has one of these origins."""
    sizes = {name: C.model(name).parameters for name in MODELS}
    return [name for name, size in sizes.items() if size is not None and size.provenance.origin in origins]


def test_at_least_forty_models_ship() -> None:
    assert len(MODELS) >= 40


@pytest.mark.parametrize("name", of_origin("assumed", "reported"))
def test_a_published_size_is_counted_within_3_percent(name: str) -> None:
    model = C.model(name)
    counted = count(model)
    if name in PARTLY_UNKNOWN:
        assert {*counted.unknown} == PARTLY_UNKNOWN[name]
        return
    assert model.parameters is not None
    assert None not in (counted.total, counted.active, counted.lookup, counted.output)
    total, active = counted.total or 0, counted.active or 0
    active -= (counted.lookup or 0) if name in WITHOUT_INPUT_EMBEDDING | LAYERS_ALONE else 0
    active -= (counted.output or 0) if name in LAYERS_ALONE else 0
    assert total / 1e9 == pytest.approx(model.parameters.total_b, rel=0.03)
    assert active / 1e9 == pytest.approx(model.parameters.active_b, rel=0.03)


@pytest.mark.parametrize("name", sorted(WITHOUT_INPUT_EMBEDDING | LAYERS_ALONE))
def test_a_size_without_embeddings_says_so(name: str) -> None:
    assert (size := C.model(name).parameters) is not None
    said = "leaves out the input embedding" if name in WITHOUT_INPUT_EMBEDDING else "without either embedding"
    assert said in (size.provenance.notes or "")


def test_few_sizes_are_not_published_or_so_rounded_that_no_count_meets_them() -> None:
    assert set(of_origin("derived")) <= {
        # of more or less than the language model
        "gemma-3n-e4b", "gemma-4-e4b",
        # one digit: 3B of 3.2, 7B of 7.6, 3B active of 3.6 to 3.9
        "granite-4.0-h-micro", "mimo-7b", "glm-4.7-flash", "qwen3-next-80b-a3b",
        # none
        "glm-5.3",
    }  # fmt: skip


@pytest.mark.parametrize("name", of_origin("derived"))
def test_a_size_that_is_not_published_is_the_count(name: str) -> None:
    counted, size = count(C.model(name)), C.model(name).parameters
    assert size is not None
    assert size.provenance.source == "Counted from the shape."
    assert "ublished" in (size.provenance.notes or "")
    assert (counted.total, counted.active) == pytest.approx((size.total_b * 1e9, size.active_b * 1e9), abs=5e5)


def test_these_checkpoints_are_published_in_fewer_than_16_bits() -> None:
    kept = {name: C.model(name).checkpoint_weights for name in MODELS if C.model(name).checkpoint_weights}
    assert kept == {
        "deepseek-v3": "fp8", "deepseek-v3.2": "fp8", "gpt-oss-120b": "mxfp4", "gpt-oss-20b": "mxfp4", "kimi-k2": "fp8",
        "kimi-k2.5": "int4-experts", "mimo-v2-flash": "fp8", "minimax-m2.5": "fp8", "mistral-small-4": "fp8",
    }  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoints_weights_are_of_a_scheme_that_can_be_counted(name: str) -> None:
    model = C.model(name)
    if model.checkpoint_weights:
        assert scheme(model.checkpoint_weights, model) == model.checkpoint_weights


@pytest.mark.parametrize("name", MODELS)
def test_a_model_says_its_window_or_why_it_has_none(name: str) -> None:
    model = C.model(name)
    assert model.max_context_tokens or "bounds no window" in (model.notes or "")


@pytest.mark.parametrize("name", MODELS)
def test_a_recalled_shape_is_shown_as_assumed(name: str) -> None:
    provenance = C.model(name).provenance
    assert (provenance.origin == "assumed") == ("Recalled" in (provenance.notes or ""))


# ---- what the accelerators are


def test_these_accelerators_ship() -> None:
    assert {
        "a100_40gb_sxm", "a100_80gb_sxm", "h100_sxm", "h100_pcie", "h100_nvl", "h200_sxm", "b200_sxm", "b300_sxm",
        "gb200", "gb300", "l40s", "l4", "rtx_4090", "rtx_5090", "rtx_pro_6000", "mi300x", "mi325x", "mi355x",
    } <= set(ACCELERATORS)  # fmt: skip


@pytest.mark.parametrize("name", ACCELERATORS)
def test_an_accelerator_multiplies_faster_in_fewer_bits_and_sends_faster_inside_its_domain(name: str) -> None:
    accelerator = C.accelerator(name)
    speeds = [accelerator.dense_tflops[dtype] for dtype in ("bf16", "fp8", "fp4") if dtype in accelerator.dense_tflops]
    assert speeds == sorted(speeds)
    assert "bf16" in accelerator.dense_tflops
    assert accelerator.link_gb_per_s_inside is not None
    assert accelerator.link_gb_per_s_inside > (accelerator.link_gb_per_s_across or 0)
    assert accelerator.link_gb_per_s_inside < accelerator.memory_gb_per_s


@pytest.mark.parametrize(("name", "domain"), [("h200_sxm", 8), ("b200_sxm", 8), ("gb200", 72), ("gb300", 72)])
def test_an_nvlink_rack_is_a_domain_of_72(name: str, domain: int) -> None:
    assert C.accelerator(name).tight_domain_accelerators == domain


@pytest.mark.parametrize("name", ACCELERATORS)
def test_a_recalled_accelerator_is_shown_as_assumed(name: str) -> None:
    provenance = C.accelerator(name).provenance
    assert (provenance.origin == "assumed") == ("Recalled" in (provenance.notes or ""))
    assert "data sheet" in provenance.source or "architecture paper" in provenance.source


def test_deepseek_v3_and_r1_share_a_shape_but_not_a_capability_in_which_they_differ() -> None:
    assert "reasoning" not in C.model("deepseek-v3").capabilities


# ---- what the profiles cover


def test_at_least_twelve_profiles_of_five_models_ship() -> None:
    assert len(PROFILES) >= 12
    assert len({C.profile(name).model for name in PROFILES}) >= 5


@pytest.mark.parametrize(
    "holds",
    [
        pytest.param(lambda p: p.engine.name == "vllm", id="vLLM"),
        pytest.param(lambda p: p.engine.name == "sglang", id="SGLang"),
        pytest.param(lambda p: p.engine.name == "trtllm", id="TensorRT-LLM"),
        pytest.param(lambda p: p.accelerator == "h100_sxm", id="H100"),
        pytest.param(lambda p: p.accelerator == "h200_sxm", id="H200"),
        pytest.param(lambda p: p.accelerator == "b200_sxm", id="B200"),
        pytest.param(is_moe, id="mixture of experts"),
        pytest.param(lambda p: not is_moe(p), id="dense"),
        pytest.param(lambda p: p.accelerator_count == 1, id="single accelerator"),
        pytest.param(lambda p: p.sharding is not None and p.sharding.tp > 1, id="tensor split"),
        pytest.param(lambda p: p.sharding is not None and p.sharding.ep > 1, id="expert split"),
        pytest.param(lambda p: p.sharding is not None and p.sharding.attention_dp > 1, id="attention replicas"),
        pytest.param(lambda p: p.disaggregated is not None, id="disaggregated"),
    ],
)
def test_some_profile_covers(holds: Callable[[Profile], bool]) -> None:
    assert any(holds(C.profile(name)) for name in PROFILES)


# ---- where the numbers are from, and what is not known


@pytest.mark.parametrize(("name", "block"), MEASUREMENTS, ids=[name for name, _ in MEASUREMENTS])
def test_a_measurement_names_its_source_and_its_licence(name: str, block: Measurement) -> None:
    provenance = block.provenance
    assert provenance.origin == "measured"
    assert provenance.source.startswith("pypi:aiconfigurator-core==")
    assert provenance.licence == "Apache-2.0"
    assert provenance.quality is not None
    assert provenance.engine_version == C.profile(name).engine.version


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_has_three_loads_at_least(name: str) -> None:
    """How many of one curve: ``tests/bench/test_catalogue.py``."""
    assert len(C.profile(name).points) >= 3


@pytest.mark.parametrize(("name", "block"), MEASUREMENTS, ids=[name for name, _ in MEASUREMENTS])
def test_points_stand_in_order_with_a_mean_of_both_times(name: str, block: Measurement) -> None:
    assert [p.load for p in block.points] == sorted(p.load for p in block.points)
    assert all(p.mean_ttft_ms() and p.mean_tpot_ms() for p in block.points)


@pytest.mark.parametrize(("name", "block"), MEASUREMENTS, ids=[name for name, _ in MEASUREMENTS])
def test_a_median_is_of_the_same_run_as_its_mean(name: str, block: Measurement) -> None:
    """Medians joined from another run differ by 10 to 45 %; those of the same run by less than 5 %."""
    pairs = [(p.tpot_ms.p50, p.tpot_ms.mean) for p in block.points if p.tpot_ms]
    assert all(p50 == pytest.approx(mean, rel=0.05) for p50, mean in pairs if p50 and mean)


@pytest.mark.parametrize("name", PROFILES)
def test_what_the_source_does_not_say_is_unknown(name: str) -> None:
    profile = C.profile(name)
    assert (profile.precision.kv, profile.limits, profile.pool, profile.price) == (None, None, None, None)
    assert "KV dtype, KV pool, window and slots are not in the source." in (profile.notes or "")
    assert ("ngine version" in (profile.notes or "")) == (profile.engine.version is None)


# ---- a wrong name


@pytest.mark.parametrize(
    ("ask", "wrong", "message"),
    [
        (Catalogue.model, "llama-3.1-8B", "there is no model 'llama-3.1-8B'; did you mean 'llama-3.1-8b'?"),
        (Catalogue.accelerator, "h100-sxm", "there is no accelerator 'h100-sxm'; did you mean 'h100_sxm'?"),
        (
            Catalogue.profile,
            "gpt-oss-120b/vllm-h10-tp8",
            "there is no profile 'gpt-oss-120b/vllm-h10-tp8'; did you mean 'gpt-oss-120b/vllm-h100-tp8'?",
        ),
    ],
)
def test_a_wrong_name_suggests_the_closest(ask: Callable[[Catalogue, str], object], wrong: str, message: str) -> None:
    with pytest.raises(UnknownNameError) as raised:
        ask(C, wrong)
    assert str(raised.value) == message
