"""Fingerprints: of a model file, of nobody in particular, and the bound above them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from agentroute.catalogue import shipped
from agentroute.shape.fingerprint import FEATURES, TokenWeights
from agentroute.tokens.classes import pairs
from agentroute.tokens.fingerprint import GENERIC, of_model, of_table, with_margin

DATA = Path(__file__).parents[1] / "data" / "tokens"
TABLE = {
    "tokenizer": "mine",
    "margin": 0.5,
    "weights": dict.fromkeys(FEATURES, 1.0),
    "provenance": {"origin": "assumed", "source": "a test"},
}


def test_a_model_without_a_table_has_the_generic_one() -> None:
    assert of_model(None) is GENERIC
    assert of_model(shipped().model("glm-4.5")) is GENERIC
    assert GENERIC.source == "generic fingerprint"


def test_a_model_with_a_table_has_its_own() -> None:
    own = of_model(shipped().model("deepseek-v3"))
    assert (own.name, own.source, own.message_tokens) == ("deepseek-v3", "fingerprint", 2)


def test_models_of_one_tokenizer_have_one_fingerprint() -> None:
    for name, about in tomllib.loads((DATA / "tokenizers.toml").read_text()).items():
        made = {of_model(shipped().model(model)) for model in about["models"]}
        assert {one.name for one in made} == {name} and len(made) == 1


def test_a_text_is_the_sum_of_its_characters_weights() -> None:
    own = of_table(TokenWeights.model_validate(TABLE))
    assert own.tokens(pairs("one two three.")) == pytest.approx((14.0, 21.0))
    assert own.tokens(pairs("")) == (0.0, 0.0)


def test_a_bound_is_a_margin_above_the_weights_but_not_below_the_floors() -> None:
    bound = dict(zip(FEATURES, with_margin((0.5,) * len(FEATURES), 0.5), strict=True))
    assert bound["kanji"] == 0.75
    assert bound["other"] > 2.0
    assert dict(zip(FEATURES, GENERIC.at_most, strict=True))["other"] == pytest.approx(3.0, abs=0.01)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weights": {"digit": 1.0}}, "weights must hold one for lower_more"),
        ({"weights": TABLE["weights"] | {"digits": 1.0}}, "weights.digits"),  # type: ignore[operator]
        ({"weights": TABLE["weights"] | {"digit": -1.0}}, "greater than or equal to 0"),  # type: ignore[operator]
        ({"margin": "wide"}, "margin"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TokenWeights.model_validate({**TABLE, **change})
