"""The gateway's OpenAPI document, and schemathesis, which holds the gateway against it."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from gateways import HELLO, Served
from schemas import ANSWER, held_against_its_document
from servers import Server, answers, deployment

from agentroute.adapters.endpoints import ENDPOINTS
from agentroute.errors import UsageError
from agentroute.gateway.app import PATHS
from agentroute.gateway.fields import fields_of
from agentroute.hints import HEADERS, NVEXT, Hint
from agentroute.payload import EndpointName


def document(served: Served) -> dict[str, Any]:
    told: dict[str, Any] = served.client.get("/openapi.json").json()
    return told


@pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="needs schemathesis")
def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    options = ("--phases", "examples,fuzzing", "--max-examples", "3", "--seed", "7")
    assert "No issues found" in held_against_its_document(tmp_path, *options, timeout=200)


def test_the_document_tells_of_everything_that_is_answered() -> None:
    with Served(deployment(None)) as served:
        told = document(served)
        for path, operations in told["paths"].items():
            for method, operation in operations.items():
                answer = served.client.request(method, path, json=HELLO if method == "post" else None)
                assert str(answer.status_code) in operation["responses"], path
                assert {"400", "408", "431"} <= set(operation["responses"]), path  # whatever it is for
                allowed = served.client.request("DELETE", path)
                assert allowed.status_code == 405
                assert method.upper() in allowed.headers["allow"]
    assert {path for path, of in told["paths"].items() if "post" in of} == {*PATHS.values(), "/v1/agentroute/decide"}
    assert set(told["components"]["parameters"]) == {name for names in HEADERS.values() for name in names}


def test_the_hints_of_dynamo_are_told_of() -> None:
    with Served(deployment(None)) as served:
        body = document(served)["components"]["schemas"]["chat"]
    told = {
        (group, key)
        for group, inner in body["properties"]["nvext"]["anyOf"][0]["properties"].items()
        for key in inner["properties"]
    }
    assert told == {(group, key) for group, key, _ in NVEXT}


@pytest.mark.parametrize("name", PATHS)
def test_the_fields_of_a_body_are_those_that_are_read(name: EndpointName) -> None:
    endpoint = ENDPOINTS[name]
    with Served(deployment(None)) as served:
        body = document(served)["components"]["schemas"][name]
    assert set(body["properties"]) == {"model", *fields_of(name)} >= {"model", endpoint.prompt, *endpoint.limits}


def test_a_key_is_asked_for_where_keys_are_set() -> None:
    with Served(deployment(None), keys={"a": {}}) as keyed, Served(deployment(None)) as free:
        guarded, opened = document(keyed), document(free)
    assert (guarded["security"], opened["security"]) == ([{"key": []}], [])
    for path in ("/v1/models", "/v1/chat/completions", "/metrics"):
        for told, said in ((guarded, True), (opened, False)):
            assert ("401" in next(iter(told["paths"][path].values()))["responses"]) is said
    assert guarded["paths"]["/health"]["get"]["security"] == []


def test_the_pattern_of_a_name_is_what_a_hint_takes() -> None:
    with Served(deployment(None)) as served:
        schema = document(served)["components"]["schemas"]["Name"]
    everything = [chr(code) for code in range(sys.maxunicode + 1)]
    assert re.fullmatch(schema["pattern"], "".join(filter(str.isprintable, everything)))
    one = schema["pattern"].removeprefix("^").removesuffix("+$")
    assert not re.search(one, "".join(char for char in everything if not char.isprintable()))
    Hint(session_id="x" * schema["maxLength"])
    with pytest.raises(UsageError):
        Hint(session_id="x" * (schema["maxLength"] + 1))


CHAT = b'{"model": "auto", "messages": [{"role": "user", "content": "x"}], %s}'


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (CHAT % b'"max_tokens": 1, "max_tokens": 9', "the body says 'max_tokens' twice"),
        (CHAT % b'"metadata": {"a": 1, "a": 1}', "the body says 'a' twice"),
        (CHAT % b'"temperature": NaN', "the body is not JSON: NaN is no number"),
        (CHAT % b'"temperature": -Infinity', "the body is not JSON: -Infinity is no number"),
        (CHAT % b'"max_tokens": 1e400', "max_tokens must be a whole number of tokens from 1 to 1,000,000,000, got inf"),
        (CHAT % (b'"seed": ' + b"9" * 5_000), "the body is not JSON"),
        (CHAT % b'"max_tokens": 99999999999999999999', "max_tokens must be a whole number of tokens"),
        (CHAT % b'"user": "\xed\xa0\x80"', "the body is not JSON"),
        ('{"model": "auto", "messages": []}'.encode("utf-16"), "the body is not JSON"),
        (CHAT % b'"stream": "yes"', "stream must be true or false, got 'yes'"),
        (CHAT % b'"stream_options": []', "stream_options must be an object, got []"),
        (CHAT % b'"tools": {}', "tools must be a list of objects, got {}"),
        (CHAT % b'"tools": ["search"]', "tools must be a list of objects, got ['search']"),
        (CHAT % b'"metadata": "x"', "metadata must be an object, got 'x'"),
        (CHAT % b'"nvext": "x"', "nvext must be an object, got 'x'"),
        (CHAT % b'"nvext": {"agent_hints": {"osl": "x"}}', "nvext.agent_hints.osl must be a whole number"),
        (CHAT % b'"nvext": {"router": {"ttft_target": 0}}', "nvext.router.ttft_target must be a number of"),
        (CHAT % b'"messages": []', "the body says 'messages' twice"),
        (b'{"model": "auto", "messages": [{"content": "x"}]}', "messages[0].role must be a text, got None"),
        (b'{"model": "auto", "messages": [{"role": "user", "content": 5}]}', "messages[0].content must be a text or a"),
        (b'{"model": "auto", "messages": ' + b"[" * 900 + b"]" * 900 + b"}", "messages[0] must be an object with a"),
        (b'{"model": "auto", "messages": "hi"}', "messages must be a list of messages, got 'hi'"),
        (
            b'{"model": "auto", "messages": {"role": "user"}}',
            "messages must be a list of messages, got {'role': 'user'",
        ),
        (b'{"model": "auto"}', "messages must be a list of messages, got None"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(body: bytes, said: str) -> None:
    with Server(answers(ANSWER)) as upstream, Served(deployment(upstream.url, adapter="openai")) as served:
        for path in ("/v1/chat/completions", "/v1/agentroute/decide"):
            answer = served.client.post(path, content=body)
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert (error["type"], error["param"]) == ("invalid_request_error", None)
            assert said in error["message"]
        assert not [asked for asked in upstream.asked if asked.method == "POST"]


@pytest.mark.parametrize("given", [b"7", b'["a"]', b'{"role": "user"}'])
def test_what_is_no_input_is_one_sentence(given: bytes) -> None:
    with Served(deployment(None)) as served:
        answer = served.client.post("/v1/responses", content=b'{"model": "auto", "input": ' + given + b"}")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("input must be a text or a list of objects, got ")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "multipart/form-data; boundary=x"}, 415),
        ({"content-encoding": "gzip"}, 415),
        ({"content-type": "Application/JSON; charset=utf-8"}, 200),
        ({"content-encoding": "identity"}, 200),
        ({}, 200),
    ],
)
def test_a_body_is_json_or_it_is_not_read(headers: dict[str, str], status: int) -> None:
    """A page of anybody's may have a browser send a text to this machine, but not JSON."""
    with Server(answers(ANSWER)) as upstream, Served(deployment(upstream.url, adapter="openai")) as served:
        answer = served.client.post("/v1/chat/completions", content=json.dumps(HELLO).encode(), headers=headers)
    assert answer.status_code == status
    if status == 415:
        assert answer.json()["error"]["code"] == "unsupported_media_type"


def test_a_number_without_a_fraction_is_a_whole_one() -> None:
    with Served(deployment(None)) as served:
        body = HELLO | {"max_tokens": 5.0, "metadata": {"agentroute_concurrency": 4.0}}
        told = served.client.post("/v1/agentroute/decide", json=body).json()
    assert told["max_output_tokens"] == 5
    assert told["candidates"][0]["n"] == 4
