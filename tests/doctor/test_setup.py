"""What a person should know of deployments as they are set up."""

from __future__ import annotations

from typing import Any

import pytest
from fleets import profile

from agentroute.catalogue import shipped
from agentroute.doctor.finding import Finding
from agentroute.doctor.setup import cautions
from agentroute.fleet import Deployment
from agentroute.profile import Engine, Precision, Profile
from agentroute.shape.sharding import Disaggregated, Sharding, Workers


def on_gpus(model: str, accelerator: str, **split: Any) -> Deployment:
    own = Profile(
        format=1,
        name="p",
        model=model,
        accelerator=accelerator,
        engine=Engine(name="vllm", version="0.32.0"),
        precision=Precision(weights="fp8", kv="bf16"),
        **split,
    )
    return Deployment("d", own, shipped().model(model), shipped().accelerator(accelerator))


def kinds(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.kind, finding.severity) for finding in findings]


@pytest.mark.parametrize(
    ("model", "sharding", "kind", "severity", "text"),
    [
        ("deepseek-v3", Sharding(ep=16, attention_dp=16), "experts_cross", "warning", "50% of its all-to-all crosses"),
        ("qwen3-32b", Sharding(tp=16), "tensors_cross", "warning", "tp 16 spans 2 tight domains of 8"),
        ("qwen3-32b", Sharding(tp=16), "kv_copied", "note", "keeps each of 8 KV heads 2 times"),
        ("deepseek-v3", Sharding(tp=8, ep=8), "kv_copied", "note", "the latent KV"),
    ],
)
def test_a_split_that_costs_more_than_it_seems_is_told(
    model: str, sharding: Sharding, kind: str, severity: str, text: str
) -> None:
    found = [one for one in cautions([on_gpus(model, "h200_sxm", sharding=sharding)]) if one.kind == kind]
    assert kinds(found) == [(kind, severity)]
    assert text in found[0].text
    assert found[0].numbers == {"tp": sharding.tp, "ep": sharding.ep, "domain": 8}


def test_a_split_within_the_tight_domain_is_not() -> None:
    assert cautions([on_gpus("deepseek-v3", "h200_sxm", sharding=Sharding(ep=8, attention_dp=8))]) == []


def test_where_prefill_is_apart_both_sides_are_looked_at() -> None:
    sides = [Workers(sharding=Sharding(ep=n, attention_dp=n)) for n in (16, 32)]
    apart = Disaggregated(prefill=sides[0], decode=sides[1])
    found = cautions([on_gpus("deepseek-v3", "h200_sxm", disaggregated=apart)])
    assert kinds(found) == [("experts_cross", "warning")] * 2
    assert found[0].text.startswith("prefill: ep 16 ") and found[1].text.startswith("decode: ep 32 ")


def test_a_window_over_the_kv_pool_is_told_with_both_numbers() -> None:
    (found,) = cautions([Deployment("d", profile(window=32_768, kv_blocks=1_000))])
    assert kinds([found]) == [("window_over_pool", "warning")]
    assert dict(found.numbers) == {"window": 32_768, "pool": 16_000}
    assert "32,768 tokens" in found.text and "holds 16,000 of one request" in found.text


@pytest.mark.parametrize(("window", "blocks"), [(16_000, 1_000), (8_192, 1_000), (None, 1_000), (32_768, None)])
def test_a_window_that_the_pool_holds_or_that_nobody_knows_is_not(window: int | None, blocks: int | None) -> None:
    assert cautions([Deployment("d", profile(window=window, kv_blocks=blocks))]) == []


def at(name: str, *urls: str, pool: str | None = None, model: str | None = None) -> Deployment:
    return Deployment(name, profile(), urls=urls, pool=pool, served_model=model)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (at("one", "http://gpu:8000"), at("two", "http://gpu:8000/v1/")),
        (at("one", "http://gpu:80"), at("two", "http://GPU")),
        (at("one", "http://gpu:8000", pool="a"), at("two", "http://gpu:8000", pool="b")),
        (at("one", "http://gpu:8000", pool="a"), at("two", "http://gpu:8000")),
        (at("one", "http://gpu:8000", model="m"), at("two", "http://gpu:8000", model="m")),
    ],
)
def test_two_names_for_one_address_must_share_a_pool(first: Deployment, second: Deployment) -> None:
    (found,) = cautions([first, second])
    assert (found.kind, found.severity, found.deployment) == ("pool_not_shared", "wrong", "two")
    assert f'set pool = "{first.pool or "one"}" for both' in found.text


def test_two_models_at_one_address_may_stand_on_different_accelerators() -> None:
    found = cautions([at("one", "http://proxy:1", model="a"), at("two", "http://proxy:1", model="b")])
    assert kinds(found) == [("pool_not_shared", "warning")]


@pytest.mark.parametrize(
    "deployments",
    [
        [at("one", "http://gpu:8000", pool="a"), at("two", "http://gpu:8000", pool="a")],
        [at("one", "http://gpu:8000"), at("two", "http://gpu:8001")],
        [at("one", "http://gpu:8000/a"), at("two", "http://gpu:8000/b")],
        [at("one"), at("two")],
    ],
)
def test_a_pool_that_is_shared_or_another_address_is_well(deployments: list[Deployment]) -> None:
    assert cautions(deployments) == []


def test_one_address_named_twice_in_one_deployment_has_no_two_memories() -> None:
    (found,) = cautions([at("one", "http://gpu:8000", "http://gpu:8000/v1")])
    assert (found.kind, found.severity) == ("pool_not_shared", "wrong")
