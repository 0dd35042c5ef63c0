"""What each runtime is asked: one request, put into the words of all of them."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from fleets import BLOCK, profile
from hypothesis import given, settings
from hypothesis import strategies as st

from agentroute.adapters import ADAPTERS, adapter
from agentroute.adapters.base import Served
from agentroute.adapters.endpoints import CHATS, COMPLETIONS, EMBEDDINGS, ENDPOINTS, RESPONSES
from agentroute.errors import BackendError, FailureKind, UsageError

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
TOOLS = [{"type": "function", "function": {"name": "get_weather"}}]
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]
ENGINES = ("dynamo", "llamacpp", "sglang", "transformers", "trtllm", "vllm")
EVERY = pytest.mark.parametrize("name", sorted(ADAPTERS))


def asked(
    name: str, body: dict[str, Any], *, stream: bool = False, served: Served | None = None, urgency: int | None = None
) -> dict[str, Any]:
    """The body of a chat as that runtime gets it, without model and messages."""
    payload = {"messages": HI, **body}
    request = adapter(name).request(CHATS, "m", payload, stream=stream, served=served or Served(), urgency=urgency)
    assert request.path == "/v1/chat/completions"
    assert request.body is not None
    out = dict(request.body)
    assert (out.pop("model"), out.pop("messages")) == ("m", HI)
    return out


def refused(name: str, body: dict[str, Any]) -> BackendError:
    with pytest.raises(BackendError) as caught:
        asked(name, body)
    assert caught.value.kind is FailureKind.NOT_FOUND  # another server may have it, and this one is not at fault
    return caught.value


# --- what every runtime understands passes untouched


@EVERY
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"temperature": 0, "top_p": 0.9, "seed": 1, "stop": ["a"], "max_tokens": 5},
        {"tools": TOOLS, "tool_choice": "auto"},
    ],
)
def test_what_everyone_understands_passes_untouched(name: str, body: dict[str, Any]) -> None:
    kept = copy.deepcopy(body)
    assert asked(name, body) == kept
    assert body == kept


@EVERY
def test_images_pass_untouched(name: str) -> None:
    request = adapter(name).request(CHATS, "m", {"messages": IMAGE}, stream=False)
    assert request.body == {"model": "m", "messages": IMAGE}


@pytest.mark.parametrize("name", sorted(set(ADAPTERS) - {"transformers"}))
def test_a_schema_travels_in_response_format(name: str) -> None:
    assert asked(name, {"response_format": FORMAT}) == {"response_format": FORMAT}


@EVERY
@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=list(ENDPOINTS))
def test_a_chat_is_the_same_by_either_way_and_every_endpoint_has_its_path(name: str, endpoint: Any) -> None:
    wire = adapter(name)
    for stream in (False, True):
        if endpoint.events is None and stream:
            with pytest.raises(UsageError, match="does not stream"):
                wire.request(endpoint, "m", {endpoint.prompt: HI}, stream=True)
            continue
        if not wire.has(endpoint):
            with pytest.raises(BackendError, match=f"has no {endpoint.path}") as caught:
                wire.request(endpoint, "m", {endpoint.prompt: HI}, stream=stream)
            assert caught.value.kind is FailureKind.NOT_FOUND
            continue
        request = wire.request(endpoint, "m", {endpoint.prompt: HI}, stream=stream)
        assert request.path == endpoint.path
        assert request.body is not None
        assert request.body["model"] == "m"
        assert request.body[endpoint.prompt] == HI
        assert request.body.get("stream") is (True if stream else None)
        options = {"include_usage": True} if stream and endpoint in (CHATS, COMPLETIONS) else None
        assert request.body.get("stream_options") == options
        if endpoint is CHATS:
            assert request == wire.chat("m", HI, body={}, stream=stream)


def test_two_runtimes_are_known_to_have_no_embeddings() -> None:
    lacking = {(name, each.name) for name in ADAPTERS for each in ENDPOINTS.values() if not adapter(name).has(each)}
    assert lacking == {("transformers", "embeddings"), ("trtllm", "embeddings")}


@EVERY
def test_options_of_a_stream_are_left_out_where_nothing_streams(name: str) -> None:
    assert asked(name, {"stream_options": {"include_usage": True}}) == {}


@pytest.mark.parametrize("key", ["model", "stream"])
def test_what_the_call_itself_gives_is_not_the_callers_to_set(key: str) -> None:
    with pytest.raises(UsageError, match=f"must not set '{key}'"):
        asked("vllm", {key: "x"})


# --- the limit on the answer


@pytest.mark.parametrize("name", sorted(set(ADAPTERS) - {"openai"}))
@pytest.mark.parametrize("given_as", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_a_limit_goes_under_the_name_that_every_version_knows(name: str, given_as: str) -> None:
    assert asked(name, {given_as: 7}) == {"max_tokens": 7}


def test_of_two_limits_the_newer_name_holds() -> None:
    assert asked("vllm", {"max_tokens": 9, "max_completion_tokens": 7}) == {"max_tokens": 7}


@pytest.mark.parametrize("given_as", ["max_tokens", "max_completion_tokens"])
def test_a_server_that_nobody_knows_gets_the_limit_as_it_was_given(given_as: str) -> None:
    assert asked("openai", {given_as: 7}) == {given_as: 7}


@EVERY
@pytest.mark.parametrize(("limit", "window", "sent"), [(1_000_000, 1_024, 1_023), (1_023, 1_024, 1_023), (9, None, 9)])
def test_a_limit_beyond_the_window_is_cut_to_it(name: str, limit: int, window: int | None, sent: int) -> None:
    """vLLM answers 400 to ``max_tokens`` above ``max_model_len``, others cut it themselves."""
    assert asked(name, {"max_tokens": limit}, served=Served(window=window)) == {"max_tokens": sent}


def test_responses_and_completions_have_limits_of_their_own() -> None:
    served = Served(window=100)
    body = adapter("vllm").request(
        RESPONSES, "m", {"input": "hi", "max_output_tokens": 500}, stream=False, served=served
    )
    assert body.body == {"model": "m", "input": "hi", "max_output_tokens": 99}
    body = adapter("vllm").request(COMPLETIONS, "m", {"prompt": "hi", "n_predict": 500}, stream=False, served=served)
    assert body.body == {"model": "m", "prompt": "hi", "max_tokens": 99}
    body = adapter("vllm").request(EMBEDDINGS, "m", {"input": "hi"}, stream=False, served=served)
    assert body.body == {"model": "m", "input": "hi"}


# --- fields that some refuse


@pytest.mark.parametrize("name", ["dynamo", "transformers", "trtllm"])
def test_a_field_that_a_server_refuses_is_not_sent_to_it(name: str) -> None:
    """Dynamo answers 400, transformers 422, TensorRT-LLM 400; the caller's mistake it is not."""
    error = refused(name, {"no_such_field": 1})
    assert adapter(name).dialect.server in error.detail  # type: ignore[attr-defined]
    assert "'no_such_field'" in error.detail


@pytest.mark.parametrize("name", ["llamacpp", "openai", "sglang", "sglang_router", "vllm", "vllm_router"])
def test_a_field_that_is_ignored_passes(name: str) -> None:
    assert asked(name, {"no_such_field": 1}) == {"no_such_field": 1}


@pytest.mark.parametrize("name", ["dynamo", "transformers", "trtllm"])
def test_a_field_that_no_answer_depends_on_is_left_out_instead(name: str) -> None:
    assert asked(name, {"safety_identifier": "a", "prompt_cache_key": "b"}) == {}


@pytest.mark.parametrize("name", ["dynamo", "transformers", "trtllm"])
@pytest.mark.parametrize("endpoint", [CHATS, COMPLETIONS], ids=lambda each: each.name)
def test_a_strict_server_knows_what_the_request_itself_is_made_of(name: str, endpoint: Any) -> None:
    known = adapter(name).dialect.fields[endpoint.name]  # type: ignore[attr-defined]
    assert {endpoint.prompt, "max_tokens", "stop", "temperature", "stream_options"} <= known


# --- what is dropped in silence


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": FORMAT},
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        {"logprobs": True},
    ],
)
def test_transformers_is_not_asked_for_what_it_drops_in_silence(body: dict[str, Any]) -> None:
    error = refused("transformers", body)
    assert next(iter(body)) in error.detail


@pytest.mark.parametrize("body", [{"response_format": {"type": "text"}}, {"tool_choice": "auto"}, {"logprobs": False}])
def test_a_value_that_changes_nothing_is_no_harm(body: dict[str, Any]) -> None:
    assert asked("transformers", body) == body


def test_tensorrt_llm_is_told_that_tools_may_be_called() -> None:
    assert asked("trtllm", {"tools": TOOLS})["tool_choice"] == "auto"
    assert asked("trtllm", {"tools": TOOLS, "tool_choice": "required"})["tool_choice"] == "required"
    assert asked("trtllm", {}) == {}
    assert asked("trtllm", {"tools": TOOLS, "parallel_tool_calls": False}) == {"tools": TOOLS, "tool_choice": "auto"}


# --- the shape of the answer

SCHEMAS = [
    {"guided_json": SCHEMA},
    {"guided_json": json.dumps(SCHEMA)},
    {"structured_outputs": {"json": SCHEMA}},
    {"json_schema": SCHEMA},
    {"response_format": {"type": "json", "schema": SCHEMA}},
]
REGEXES = [
    {"guided_regex": "a+"},
    {"structured_outputs": {"regex": "a+"}},
    {"regex": "a+"},
    {"response_format": {"type": "regex", "regex": "a+"}},
]
CHOICES = [{"guided_choice": ["yes", "no (a b)"]}, {"structured_outputs": {"choice": ["yes", "no (a b)"]}}]
GRAMMARS = [
    {"guided_grammar": "root ::= x"},
    {"structured_outputs": {"grammar": "root ::= x"}},
    {"ebnf": "root ::= x"},
    {"grammar": "root ::= x"},
    {"response_format": {"type": "ebnf", "ebnf": "root ::= x"}},
]
AS_REGEX = r"yes|no \(a b\)"
OWN: dict[str, set[str]] = {
    "dynamo": {"guided_json", "guided_regex", "guided_choice", "guided_grammar"},
    "llamacpp": {"json_schema", "grammar"},
    "sglang": {"regex", "ebnf"},
    "transformers": set(),
    "trtllm": {"response_format"},
    "vllm": {"structured_outputs"},
}
"""What each reads by itself."""
WRITTEN: dict[str, list[dict[str, Any] | None]] = {
    "dynamo": [
        {"response_format": FORMAT}, {"guided_regex": "a+"}, {"guided_choice": ["yes", "no (a b)"]},
        {"guided_grammar": "root ::= x"},
    ],
    "llamacpp": [
        {"response_format": FORMAT}, None, {"grammar": 'root ::= "yes" | "no (a b)"'}, {"grammar": "root ::= x"},
    ],
    "sglang": [{"response_format": FORMAT}, {"regex": "a+"}, {"regex": AS_REGEX}, {"ebnf": "root ::= x"}],
    "transformers": [None, None, None, None],
    "trtllm": [
        {"response_format": FORMAT}, {"response_format": {"type": "regex", "regex": "a+"}},
        {"response_format": {"type": "regex", "regex": AS_REGEX}},
        {"response_format": {"type": "ebnf", "ebnf": "root ::= x"}},
    ],
    "vllm": [
        {"response_format": FORMAT},
        {"structured_outputs": {"regex": "a+"}, "guided_regex": "a+"},
        {"structured_outputs": {"choice": ["yes", "no (a b)"]}, "guided_choice": ["yes", "no (a b)"]},
        {"structured_outputs": {"grammar": "root ::= x"}, "guided_grammar": "root ::= x"},
    ],
}  # fmt: skip
"""A schema, a regex, choices and a grammar, as each gets it; ``None``: it has no words for that."""


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    ("which", "body"),
    [(which, body) for which, bodies in enumerate([SCHEMAS, REGEXES, CHOICES, GRAMMARS]) for body in bodies],
)
def test_a_constraint_in_anyones_words_is_put_into_those_of_the_server(
    name: str, which: int, body: dict[str, Any]
) -> None:
    if set(body) <= OWN[name]:
        assert asked(name, body) == body
        return
    written = WRITTEN[name][which]
    if written is None:
        assert "cannot hold an answer" in refused(name, body).detail
    else:
        assert asked(name, body) == written


@given(st.lists(st.text(alphabet="ab|()[].*+?{}^$\\ -\"'", min_size=1, max_size=6), min_size=1, max_size=3))
def test_choices_as_a_regular_expression_mean_the_same(choices: list[str]) -> None:
    pattern = asked("sglang", {"guided_choice": choices})["regex"]
    for choice in choices:
        assert re.fullmatch(pattern, choice)
    assert not re.fullmatch(pattern, "c")


@pytest.mark.parametrize("body", [{"guided_choice": "yes"}, {"structured_outputs": {"choice": True}}])
def test_choices_that_are_no_list_are_the_callers_mistake(body: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="must be a list"):
        asked("sglang", body)


# --- any request at all

FIELDS = [
    "max_tokens", "max_completion_tokens", "n_predict", "guided_json", "guided_regex", "guided_choice", "grammar",
    "regex", "ebnf", "json_schema", "structured_outputs", "response_format", "tools", "tool_choice", "logprobs", "user",
    "metadata", "stop", "stream_options", "no_such_field", "nvext", "temperature",
]  # fmt: skip
VALUES = st.none() | st.booleans() | st.integers(1, 9) | st.text(max_size=3) | st.just(SCHEMA) | st.just(["a", "b"])
VALUES |= st.dictionaries(st.sampled_from(["type", "regex", "json", "choice", "schema", "ebnf"]), st.text(max_size=3))


@settings(max_examples=500)
@given(
    st.sampled_from(sorted(ADAPTERS)),
    st.sampled_from([CHATS, COMPLETIONS, RESPONSES]),
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5),
    st.booleans(),
)
def test_a_request_is_refused_or_put_into_words_that_stay_and_the_callers_mapping_is_left_alone(
    name: str, endpoint: Any, body: dict[str, Any], stream: bool
) -> None:
    wire, payload = adapter(name), {endpoint.prompt: HI, **body}
    kept = copy.deepcopy(payload)
    try:
        request = wire.request(endpoint, "m", payload, stream=stream, served=Served(window=8))
    except BackendError as error:
        assert error.kind is FailureKind.NOT_FOUND
        return
    except UsageError as error:
        assert "must be a" in str(error)
        return
    finally:
        assert payload == kept
    assert request.body is not None
    said = {key: value for key, value in request.body.items() if key not in ("model", "stream")}
    assert wire.request(endpoint, "m", said, stream=stream, served=Served(window=8)) == request


@pytest.mark.parametrize("name", ["vllm", "sglang", "llamacpp", "trtllm", "dynamo"])
def test_an_answer_has_one_shape(name: str) -> None:
    with pytest.raises(UsageError, match="must be a single one, got choice and regex"):
        asked(name, {"regex": "a+", "guided_choice": ["a", "b"]})


# --- priority


@pytest.mark.parametrize(
    ("name", "served", "sent"),
    [
        ("vllm", None, [{}, {}, {}]),  # an error where it does not schedule by priority
        ("vllm", "lower", [{"priority": -1}, {"priority": 0}, {"priority": 1}]),
        ("sglang", None, [{}, {}, {}]),  # it may answer 503
        ("sglang", "higher", [{"priority": 1}, {"priority": 0}, {"priority": -1}]),
        ("sglang", "lower", [{"priority": -1}, {"priority": 0}, {"priority": 1}]),
        ("trtllm", None, [{}, {}, {}]),
        ("trtllm", "higher", [{"priority": 0.75}, {"priority": 0.5}, {"priority": 0.25}]),
        (
            "dynamo",
            None,
            [{"nvext": {"agent_hints": {"priority": 1}}}, {}, {"nvext": {"agent_hints": {"priority": -1}}}],
        ),
        ("llamacpp", "lower", [{}, {}, {}]),
        ("openai", "lower", [{}, {}, {}]),
    ],
)
def test_urgency_is_told_in_the_direction_that_the_server_goes_by(name: str, served: Any, sent: list[Any]) -> None:
    found = [asked(name, {}, served=Served(priority=served), urgency=urgency) for urgency in (1, 0, -1)]
    assert found == sent


def test_a_hint_of_the_callers_own_stays() -> None:
    body = {"nvext": {"annotations": ["x"], "agent_hints": {"osl": 9, "priority": 5}}}
    assert asked("dynamo", body, urgency=-2) == body
    body = {"nvext": {"annotations": ["x"], "agent_hints": {"osl": 9}}}
    hints = {"osl": 9, "priority": -2}
    assert asked("dynamo", body, urgency=-2) == {"nvext": {"annotations": ["x"], "agent_hints": hints}}


# --- what must not be sent at all


def test_what_a_profile_says_of_a_place_is_what_is_known_of_it() -> None:
    known = profile(window=32_768, kv_blocks=100)
    assert Served.of(known) == Served(window=32_768, pool_tokens=100 * BLOCK)
    assert Served.of(profile()) == Served()
    assert Served.of(known.model_copy(update={"limits": None})) == Served()


@pytest.mark.parametrize("name", ["dynamo", "sglang_router", "transformers", "vllm_router"])
def test_a_prompt_without_room_for_an_answer_is_not_sent_where_it_does_harm(name: str) -> None:
    wire = adapter(name)
    error = wire.precheck(1_024, None, Served(window=1_024))
    assert error is not None
    assert error.kind is FailureKind.CONTEXT_OVERFLOW
    for word in (wire.dialect.server, "1,024", "at most 1,023"):  # type: ignore[attr-defined]
        assert word in error.detail
    assert wire.precheck(1_023, None, Served(window=1_024)) is None
    assert wire.precheck(10**6, None, Served()) is None  # nobody knows the window


@pytest.mark.parametrize("name", ["llamacpp", "openai", "sglang", "trtllm", "vllm"])
def test_a_prompt_that_a_server_refuses_cleanly_is_left_to_it(name: str) -> None:
    assert adapter(name).precheck(5_000, None, Served(window=1_024)) is None


@pytest.mark.parametrize("name", ["transformers", "vllm"])
def test_a_request_beyond_the_kv_memory_is_not_sent_where_it_kills(name: str) -> None:
    wire, served = adapter(name), Served(pool_tokens=2_048)
    error = wire.precheck(1_000, 1_049, served)
    assert error is not None
    assert error.kind is FailureKind.CONTEXT_OVERFLOW
    for word in (wire.dialect.server, "1,000", "1,049", "2,048"):  # type: ignore[attr-defined]
        assert word in error.detail
    assert wire.precheck(1_000, 1_048, served) is None
    assert wire.precheck(10**6, 10**6, Served()) is None


def test_transformers_plans_an_answer_of_1024_tokens_where_no_limit_is_set() -> None:
    served = Served(pool_tokens=1_024)
    assert adapter("transformers").precheck(1, None, served) is not None
    assert adapter("transformers").precheck(1, 1_023, served) is None
    assert adapter("vllm").precheck(1, None, served) is None


@pytest.mark.parametrize("name", ["vllm", "llamacpp", "sglang"])
def test_a_type_that_is_no_text_is_left_to_the_server(name: str) -> None:
    body: dict[str, Any] = {"response_format": {"type": []}}
    assert asked(name, body) == body
