"""Who may come in, and what he may do: keys, limits, and hints that lift none."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from gateways import HELLO, Served
from servers import Asked, Server, answers, deployment

from agentroute.errors import RefusedError, UsageError
from agentroute.fleet import Deployment
from agentroute.gateway.keys import ANYBODY, Caller, Keys
from agentroute.route import Route
from agentroute.tables import KeyConfig

WHOLE = json.dumps(
    {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]}
)
ROUTES = (Route(name="night", allow=frozenset({"cheap"})), Route(name="day", allow=frozenset({"dear"})))


@pytest.fixture(name="fleet")
def _fleet() -> Any:
    with Server(answers(WHOLE)) as one, Server(answers(WHOLE)) as two:
        yield (
            deployment(one.url, name="cheap", adapter="openai", served_model="small"),
            deployment(two.url, name="dear", adapter="openai", served_model="large"),
        )


def key(name: str, **may: Any) -> KeyConfig:
    """A key of that name, in the variable of the same name."""
    return KeyConfig.model_validate({"name": name, "env": name, **may})


def bearer(*values: bytes) -> list[tuple[bytes, bytes]]:
    """Authorization headers."""
    return [(b"authorization", value) for value in values]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        bearer(b""),
        bearer(b"Bearer"),
        bearer(b"Bearer "),
        bearer(b"Bearer sk-a2"),
        bearer(b"Bearer sk-"),
        bearer(b"Basic sk-a"),
        bearer(b"sk-a"),
        bearer(b"Bearer sk-a", b"Bearer sk-b"),
        [(b"x-api-key", b"sk-a")],
    ],
)
def test_who_has_no_valid_key_stays_outside(headers: list[tuple[bytes, bytes]]) -> None:
    keys = Keys([key("a"), key("b")], {"a": "sk-a", "b": "sk-b"})
    with pytest.raises(RefusedError) as refused:
        keys.caller(headers)
    assert refused.value.answer.status == 401


@pytest.mark.parametrize("header", [b"Bearer sk-b", b"bearer sk-b", b"Bearer  sk-b "])
def test_a_key_says_whose_request_it_is(header: bytes) -> None:
    keys = Keys([key("a"), key("b", routes=["night"])], {"a": "sk-a", "b": " sk-b\n"})
    caller = keys.caller(bearer(header))
    assert (caller.name, caller.routes, caller.admin) == ("b", frozenset({"night"}), False)


def test_every_key_is_compared_whether_one_was_found_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys([key(name) for name in "abcd"], {name: f"sk-{name}" for name in "abcd"})
    compared: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return one == other

    monkeypatch.setattr("agentroute.gateway.keys.hmac.compare_digest", compare)
    for secret in (b"sk-a", b"sk-d"):
        compared.clear()
        keys.caller(bearer(b"Bearer " + secret))
        assert len(compared) == 4
        assert {len(digest) for digest in compared} == {32}


def test_without_keys_anybody_may_come_in() -> None:
    assert Keys(()).caller([]) is ANYBODY
    assert not Keys(()).required


@pytest.mark.parametrize("environment", [{}, {"a": ""}, {"a": "  "}])
def test_a_key_that_is_not_set_lets_nobody_in_and_is_said(environment: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="key 'a': the environment variable a is not set"):
        Keys([key("a")], environment)


def test_two_names_for_one_secret_are_a_mistake() -> None:
    with pytest.raises(UsageError, match="'a' and 'b' are the same") as error:
        Keys([key("a"), key("b")], {"a": "sk-x", "b": "sk-x"})
    assert "sk-x" not in str(error.value)


def test_every_path_with_anything_in_it_asks_for_a_key(fleet: tuple[Deployment, ...]) -> None:
    posts = ("chat/completions", "completions", "responses", "embeddings", "agentroute/decide")
    gets = ("/v1/models", "/v1/models/auto", "/v1/agentroute/fleet", "/metrics")
    asks = [*(("POST", f"/v1/{path}") for path in posts), *(("GET", path) for path in gets)]
    with Served(*fleet, keys={"a": {"admin": True}}) as served:
        for method, path in asks:
            for headers in ({}, {"authorization": "Bearer sk-b"}):
                answer = served.client.request(method, path, json=HELLO if method == "POST" else None, headers=headers)
                assert answer.status_code == 401, path
                assert answer.json()["error"]["code"] == "invalid_api_key"
        for open_ in ("/health", "/ready", "/"):
            assert served.client.get(open_).status_code in (200, 503)
        assert not list(served.gateway.records.last(ANYBODY))  # strangers push nothing out of the list


def test_the_callers_key_does_not_reach_the_server() -> None:
    with Server(answers(WHOLE)) as upstream:
        with Served(deployment(upstream.url, adapter="openai"), keys={"a": {}}) as served:
            assert served.chat(key="a").status_code == 200
        for asked in upstream.asked:
            assert "sk-a" not in str(asked)


def test_a_key_may_use_its_own_routes_alone(fleet: tuple[Deployment, ...]) -> None:
    with Served(*fleet, routes=ROUTES, keys={"a": {"routes": ["night"]}, "b": {}}) as served:
        assert served.chat(key="a", model="auto:night").headers["x-agentroute-deployment"] == "cheap"
        for model in ("auto:day", "auto", "auto:nowhere", "large"):
            answer = served.chat(key="a", model=model)
            assert answer.status_code == 403
            assert answer.json()["error"]["message"].endswith("it may use: night")
        assert served.chat(key="b", model="auto:day").headers["x-agentroute-deployment"] == "dear"
        shown = [[m["id"] for m in served.get("/v1/models", key=k).json()["data"]] for k in "ab"]
    assert shown == [["auto:night", "small"], ["auto", "auto:night", "auto:day", "small", "large"]]


def test_each_model_that_a_key_is_shown_it_may_use(fleet: tuple[Deployment, ...]) -> None:
    with Served(*fleet, routes=ROUTES, keys={"a": {"routes": ["night", "day"]}}) as served:
        shown = [model["id"] for model in served.get("/v1/models", key="a").json()["data"]]
        answers_ = {model: served.chat(key="a", model=model) for model in shown}
    assert {model: one.headers.get("x-agentroute-deployment") for model, one in answers_.items()} == {
        "auto:night": "cheap", "auto:day": "dear", "small": "cheap", "large": "dear",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"x-agentroute-route": "day"}, {}),
        ({}, {"metadata": {"agentroute_route": "day"}}),
        ({"x-agentroute-route": "day"}, {"model": "small"}),
    ],
)
def test_a_hint_opens_no_other_route(
    fleet: tuple[Deployment, ...], headers: dict[str, str], body: dict[str, Any]
) -> None:
    with Served(*fleet, routes=ROUTES, keys={"a": {"routes": ["night", "default"]}}) as served:
        assert served.chat(key="a", headers=headers, **body).status_code == 403


@pytest.mark.parametrize(
    ("route", "hint", "priority"),
    [
        ("batch", "interactive", "batch"),
        ("batch", None, None),
        ("interactive", "batch", "batch"),
        ("agent", "interactive", "agent"),
        (None, "interactive", "interactive"),
    ],
)
def test_a_hint_does_not_go_before_what_its_route_says(
    fleet: tuple[Deployment, ...], route: Any, hint: str | None, priority: str | None
) -> None:
    headers = [(b"x-agentroute-priority", hint.encode())] if hint else []
    with Served(*fleet, routes=(Route(name="night", priority=route),)) as served:
        body = json.dumps(HELLO | {"model": "auto:night"}).encode()
        assert served.gateway.reader.read(body, headers, ANYBODY).task.priority == priority


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ({"priority": -1_000}, {}),
        ({"nvext": {"agent_hints": {"priority": 9, "osl": 5}, "x": 1}}, {"nvext": {"agent_hints": {"osl": 5}, "x": 1}}),
        ({"metadata": {"agentroute_step": 1, "a": "b"}, "priority": 1}, {"metadata": {"a": "b"}}),
    ],
)
@pytest.mark.parametrize("of_route", ["batch", None])
def test_what_a_body_tells_its_server_goes_before_nothing_where_the_route_has_a_priority(
    fleet: tuple[Deployment, ...], of_route: Any, said: dict[str, Any], sent: dict[str, Any]
) -> None:
    body = HELLO | {"model": "auto:night"}
    with Served(*fleet, routes=(Route(name="night", priority=of_route),)) as served:
        asked = served.gateway.reader.read(json.dumps(body | said).encode(), [], ANYBODY)
    kept = body | said if of_route is None else body | sent
    assert json.loads(asked.body) == asked.parsed == kept | ({"metadata": {"a": "b"}} if "metadata" in said else {})


@pytest.mark.parametrize(
    ("headers", "least"),
    [({"x-agentroute-max-cost-usd": "1e6"}, None), ({"x-agentroute-deadline-s": "1e6"}, 1e-3)],
)
def test_a_hint_raises_no_budget_and_no_deadline_of_its_route(headers: dict[str, str], least: float | None) -> None:
    route = Route(name="tight", max_cost_usd=1e-9, deadline_s=least)
    with Served(deployment(None), routes=(route,)) as served:
        body = HELLO | {"model": "auto:tight"}
        plain, hinted = (served.client.post("/v1/agentroute/decide", json=body, headers=more) for more in ({}, headers))
    assert plain.status_code == hinted.status_code == 422
    assert plain.json() == hinted.json()


@pytest.mark.parametrize(
    "headers",
    [
        {"x-agentroute-deployment": "dear"},
        {"x-agentroute-pin": "dear"},
        {"x-agentroute-allow": "dear"},
        {"x-agentroute-url": "http://127.0.0.1:9/"},
        {"x-gateway-destination-endpoint": "127.0.0.1:9"},
        {"host": "127.0.0.1:9"},
        {"x-forwarded-host": "127.0.0.1:9"},
    ],
)
def test_no_header_chooses_a_server(fleet: tuple[Deployment, ...], headers: dict[str, str]) -> None:
    with Served(*fleet, routes=ROUTES) as served:
        assert served.chat(headers=headers, model="auto:night").headers["x-agentroute-deployment"] == "cheap"


@pytest.mark.parametrize("body", [{"base_url": "http://127.0.0.1:9"}, {"metadata": {"agentroute_pin": "dear"}}])
def test_nor_does_the_body(fleet: tuple[Deployment, ...], body: dict[str, Any]) -> None:
    with Served(*fleet, routes=ROUTES) as served:
        answer = served.chat(model="auto:night", **body)
        assert answer.status_code == 400 or answer.headers["x-agentroute-deployment"] == "cheap"


def test_prompts_beyond_a_keys_limit_are_refused_whatever_the_hints_say(fleet: tuple[Deployment, ...]) -> None:
    long = [{"role": "user", "content": "word " * 400}]
    hints = {"x-agentroute-shared-prefix-tokens": "399", "x-agentroute-expected-output-tokens": "1"}
    with Served(*fleet, keys={"a": {"max_context_tokens": 100}}) as served:
        assert served.chat(key="a").status_code == 200
        answer = served.chat(key="a", messages=long, headers=hints)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_no_more_requests_of_a_key_are_in_flight_than_it_may_have() -> None:
    let_go = threading.Event()

    def behave(connection: socket.socket, asked: Asked) -> None:
        if asked.method == "POST":
            let_go.wait(20.0)
        answers(WHOLE)(connection, asked)

    hints = {"x-agentroute-concurrency": "64", "x-agentroute-priority": "interactive"}
    with (
        Server(behave) as upstream,
        Served(deployment(upstream.url, adapter="openai"), keys={"a": {"max_concurrency": 2}, "b": {}}) as served,
        ThreadPoolExecutor(5) as pool,
    ):
        first = [pool.submit(served.chat, "a") for _ in range(2)]
        while sum(asked.method == "POST" for asked in list(upstream.asked)) < 2:
            let_go.wait(0.01)
        refused = served.chat("a", hints)
        other = pool.submit(served.chat, "b")
        let_go.set()
        assert [one.result().status_code for one in (*first, other)] == [200, 200, 200]
        assert served.chat("a").status_code == 200  # the places were given back
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"


def test_the_places_of_those_who_went_away_or_failed_are_given_back() -> None:
    def behave(connection: socket.socket, asked: Asked) -> None:
        if asked.method == "POST" and b"wait" in asked.body:
            connection.recv(1)
        else:
            answers(WHOLE)(connection, asked)

    with (
        Server(behave) as upstream,
        Served(deployment(upstream.url, adapter="openai"), keys={"a": {"max_concurrency": 1}}) as served,
    ):
        own = {"authorization": "Bearer sk-a"}
        for i in range(3):
            with pytest.raises(httpx.ReadTimeout):
                body = HELLO | {"messages": [{"role": "user", "content": "wait"}]}
                served.client.post("/v1/chat/completions", json=body, headers=own, timeout=0.5)
            served.ended(i + 1)
        assert served.client.post("/v1/chat/completions", content=b"{", headers=own).status_code == 400
        assert served.chat("a").status_code == 200


def test_what_one_key_did_another_one_does_not_see(fleet: tuple[Deployment, ...]) -> None:
    keys: dict[str, dict[str, Any]] = {"a": {}, "b": {}, "boss": {"admin": True}, "small": {"routes": ["night"]}}
    with Served(*fleet, routes=ROUTES, keys=keys) as served:
        for name in "ab":
            served.chat(name)
        served.ended(2)
        seen = {name: served.get("/v1/agentroute/fleet", key=name).json() for name in keys}
        assert served.get("/metrics", key="boss").status_code == 200
        for name in ("a", "small"):
            assert served.get("/metrics", key=name).status_code == 403
    assert {name: [one["key"] for one in told["decisions"]] for name, told in seen.items()} == {
        "a": ["a"],
        "b": ["b"],
        "boss": ["b", "a"],
        "small": [],
    }
    assert [one["name"] for one in seen["small"]["deployments"]] == ["cheap"]
    assert seen["small"]["routes"] == ["night"]
    for name in ("a", "small"):
        assert "127.0.0.1" not in json.dumps(seen[name])


def test_a_dry_run_tells_a_key_of_its_own_deployments_alone(fleet: tuple[Deployment, ...]) -> None:
    keys: dict[str, dict[str, Any]] = {"small": {"routes": ["night"]}, "boss": {"admin": True}}
    with Served(*fleet, routes=ROUTES, keys=keys) as served:
        told = [
            served.client.post(
                "/v1/agentroute/decide",
                json=HELLO | {"model": "auto:night"},
                headers={"authorization": f"Bearer sk-{name}"},
            ).json()
            for name in keys
        ]
    assert "dear" not in json.dumps(told[0])
    assert not {"record", "explanation"} & set(told[0])
    assert {"record", "explanation"} <= set(told[1])
    assert told[1]["rejected"] == {"dear": {"kind": "not_allowed", "text": "neither the task nor its route allows it"}}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/agentroute/decide"])
def test_nor_does_a_refusal_tell_it_of_others(fleet: tuple[Deployment, ...], path: str) -> None:
    keys: dict[str, dict[str, Any]] = {"small": {"routes": ["night"]}, "boss": {"admin": True}}
    body = HELLO | {"model": "auto:night", "metadata": {"agentroute_max_cost_usd": 1}}
    with Served(*fleet, routes=ROUTES, keys=keys) as served:
        small, boss = (
            served.client.post(path, json=body, headers={"authorization": f"Bearer sk-{name}"}) for name in keys
        )
    assert (small.status_code, boss.status_code) == (422, 422)
    assert "cheap: " in small.text
    assert "dear" not in small.text
    assert "dear: " in boss.text


def test_a_conversation_of_one_key_is_not_that_of_another(fleet: tuple[Deployment, ...]) -> None:
    headers = [(b"x-session-id", b"s1"), (b"x-dynamo-parent-session-id", b"s0")]
    with Served(*fleet, keys={"a": {}, "b": {}}) as served:
        reader, body = served.gateway.reader, json.dumps(HELLO).encode()
        tasks = [
            reader.read(body, headers, served.gateway.keys.caller(bearer(f"Bearer sk-{name}".encode()))).task
            for name in "ab"
        ]
    assert [(task.session_id, task.parent_session_id) for task in tasks] == [("a|s1", "a|s0"), ("b|s1", "b|s0")]


def test_nor_where_the_names_of_keys_look_like_conversations(fleet: tuple[Deployment, ...]) -> None:
    with Served(*fleet) as served:
        reader, body = served.gateway.reader, json.dumps(HELLO).encode()
        ids = {
            reader.read(body, [(b"x-session-id", session)], Caller(name=name)).task.session_id
            for name, session in (("a", b"b/s1"), ("a/b", b"s1"), ("a b", b"s1"), ("a", b"b s1"))
        }
    assert len(ids) == 4
