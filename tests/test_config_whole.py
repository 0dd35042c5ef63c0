"""The whole of agentroute.toml: fallbacks that fit, keys and the gateway, variables, and every mistake at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from fleets import CONFIG, broken, line_of, written

from agentroute.config import Config
from agentroute.errors import ConfigError, NoFeasibleDeployment
from agentroute.router import Router
from agentroute.state.load import Load
from agentroute.task import Task

ROUTES = """
[routes.tool-use]
description = "agents with tools"
allow = ["one"]
needs = ["tools"]
priority = "agent"
max_cost_usd = 0.5
fallbacks = ["spare"]

[routes.spare]
deny = ["two"]
"""
GATEWAY = """
[gateway]
host = "0.0.0.0"
port = 8443
max_body_bytes = 1_000_000
drain_s = 5
tls_cert = "cert.pem"
tls_key = "key.pem"

[[keys]]
name = "research"
env = "RESEARCH_KEY"
routes = ["batch", "default"]
max_concurrency = 64
max_context_tokens = 32_000

[[keys]]
name = "ops"
env = "OPS_KEY"
"""
WHOLE = CONFIG + ROUTES + GATEWAY


def mistake(folder: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        Config.load(written(folder, text, "agentroute.toml"))
    return raised.value


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    config = Config.load(written(tmp_path, WHOLE))
    routes = {route.name: route for route in config.router_routes()}
    tools = routes["tool-use"]
    assert (set(tools.needs), tools.priority, tools.max_cost_usd) == ({"tools"}, "agent", 0.5)
    assert (tools.fallbacks, tools.description) == (("spare",), "agents with tools")
    assert routes["spare"].deny == {"two"}
    gateway = config.gateway
    assert (gateway.host, gateway.port, gateway.max_body_bytes, gateway.drain_s) == ("0.0.0.0", 8_443, 1_000_000, 5.0)
    assert (gateway.tls_cert, gateway.tls_key) == ("cert.pem", "key.pem")
    first, second = config.keys
    assert (first.name, first.env, first.routes) == ("research", "RESEARCH_KEY", ("batch", "default"))
    assert (first.max_concurrency, first.max_context_tokens) == (64, 32_000)
    assert (second.routes, second.max_concurrency, second.max_context_tokens) == (None, None, None)


def test_a_gateway_that_nobody_describes_is_for_this_machine_alone(tmp_path: Path) -> None:
    config = Config.load(written(tmp_path, CONFIG))
    assert (config.gateway.host, config.keys) == ("127.0.0.1", ())


def test_what_a_route_demands_is_demanded_of_its_tasks(tmp_path: Path) -> None:
    router = Router.from_config(written(tmp_path, WHOLE))
    decision = router.decide(Task(context_tokens=100, max_output_tokens=10, route="spare"))
    assert decision.rejected["two"].kind == "not_allowed"
    dear = broken(WHOLE, "max_cost_usd = 0.5", "max_cost_usd = 1e-9").replace('fallbacks = ["spare"]', "")
    with pytest.raises(Exception, match=r"budget|costs") as raised:
        Router.from_config(written(tmp_path, dear)).decide(
            Task(context_tokens=100, max_output_tokens=10, route="tool-use", max_cost_usd=1.0)
        )
    assert raised.value.reasons["one"].kind == "budget"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("good", "bad", "key", "part", "message"),
    [
        ('fallbacks = ["spare"]', 'fallbacks = ["spair"]', "routes.tool-use.fallbacks", "spair", "mean 'spare'?"),
        ('fallbacks = ["spare"]', 'fallbacks = ["tool-use"]', "routes.tool-use.fallbacks", "fallbacks =", "back to"),
        ('deny = ["two"]', 'deny = ["tow"]', "routes.spare.deny", "deny =", "did you mean 'two'?"),
        ('deny = ["two"]', 'deny = ["one", "two"]', "routes.spare.deny", "deny =", "leaves no deployment"),
        ('needs = ["tools"]', 'needs = ["tool"]', "routes.tool-use.needs[0]", "needs =", "'tools'"),
        ('"agent"', '"high"', "routes.tool-use.priority", "priority =", "'interactive', 'agent' or 'batch'"),
        ("max_cost_usd = 0.5", "max_cost_usd = 0", "routes.tool-use.max_cost_usd", "max_cost_usd", "greater than 0"),
        ('["batch", "default"]', '["batch", "defualt"]', "keys[0].routes", "defualt", "did you mean 'default'?"),
        ('name = "ops"', 'name = "research"', "keys[1].name", "OPS_KEY", "there is a key 'research' already"),
        ('"OPS_KEY"', '"RESEARCH_KEY"', "keys[1].env", "ops", "the variable of the key 'research' already"),
        ('env = "OPS_KEY"', "", "keys[1].env", "ops", "is missing"),
        ("max_concurrency = 64", "max_concurency = 64", "keys[0].max_concurency", "max_concurency", "max_concurrency"),
        ('["batch", "default"]', '"batch"', "keys[0].routes", "routes =", "must be a list, got 'batch'"),
        ("port = 8443", "port = 84430", "gateway.port", "port =", "65535"),
        ("[gateway]", '[telemetry]\nrecords = "a.txt"\n[gateway]', "telemetry.records", "a.txt", "end in .jsonl"),
        ("[gateway]", '[telemetry]\nrecords = "b/.jsonl"\n[gateway]', "telemetry.records", "/.jsonl", "name of a file"),
        ("[gateway]", '[telemetry]\nrecords = "\\u0000.jsonl"\n[gateway]', "telemetry.records", "u0000", "name of a"),
        ("[gateway]", '[objectives]\nown = "mine"\n[gateway]', "objectives.own", "mine", "module:function"),
        ("[gateway]", "[quality]\ncode = 1\n[gateway]", "quality.code", "code =", "must be a table, got 1"),
        ('tls_key = "key.pem"', "", "gateway", "[gateway]", "both tls_cert and tls_key"),
        ("max_body_bytes =", "max_bodi_bytes =", "gateway.max_bodi_bytes", "max_bodi_bytes", "mean 'max_body_bytes'?"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_with_its_place_and_what_would_be_right(
    tmp_path: Path, good: str, bad: str, key: str, part: str, message: str
) -> None:
    text = broken(WHOLE, good, bad)
    error = mistake(tmp_path, text)
    assert error.key == key
    lines = [number for number, line in enumerate(text.splitlines(), 1) if part in line]
    assert any(abs(number - (error.line or 0)) <= 1 for number in lines), (error.line, lines)
    assert message in str(error)


# ---- fallbacks that can never fit


SMALL = """\
format = 1
name = "small"
engine = { name = "vllm" }
[limits]
max_model_len = 2048
provenance = { origin = "reported", source = "a test" }
[capabilities]
offers = { tools = false }
provenance = { origin = "reported", source = "a test" }
"""


def fleet_with_a_small_one(folder: Path, routes: str) -> str:
    written(folder, SMALL, "small.toml")
    return f'{CONFIG}\n[[deployments]]\nname = "small"\nprofile = "small.toml"\nbase_url = "http://a"\n{routes}'


def test_a_fallback_that_lacks_what_the_route_needs_is_a_mistake(tmp_path: Path) -> None:
    routes = """
[routes.tools]
allow = ["one"]
needs = ["tools"]
fallbacks = ["small"]
[routes.small]
allow = ["small"]
"""
    text = fleet_with_a_small_one(tmp_path, routes)
    error = mistake(tmp_path, text)
    assert (error.key, error.line) == ("routes.tools.fallbacks", line_of(text, "fallbacks"))
    assert "'small' can never take what this route is for: none of its deployments offers tools" in str(error)
    assert "'batch', 'default' would do" in str(error)


def test_a_fallback_with_a_smaller_window_takes_what_is_short(tmp_path: Path) -> None:
    routes = '\n[routes.long]\nallow = ["one"]\nfallbacks = ["small"]\n[routes.small]\nallow = ["small"]\n'
    router = Router.from_config(written(tmp_path, fleet_with_a_small_one(tmp_path, routes)))
    router.observe("one", Load(running=0, waiting=0, trouble="dead", said="it is dead"))
    assert router.decide(Task(context_tokens=2_000, max_output_tokens=48, route="long")).deployment == "small"
    with pytest.raises(NoFeasibleDeployment, match="one: nothing goes there for now"):
        router.decide(Task(context_tokens=2_000, max_output_tokens=49, route="long"))


@pytest.mark.parametrize("allow", ['["small"]', '["small", "one"]'])
def test_a_fallback_with_a_window_as_long_as_one_of_the_route_is_none(tmp_path: Path, allow: str) -> None:
    routes = f'\n[routes.short]\nallow = {allow}\nfallbacks = ["small"]\n[routes.small]\nallow = ["small"]\n'
    Config.load(written(tmp_path, fleet_with_a_small_one(tmp_path, routes)))


# ---- variables


@pytest.mark.parametrize(
    ("written_as", "environment", "url"),
    [
        ("http://${HOST}:${PORT}/v1", {"HOST": "gpu1", "PORT": "8000"}, "http://gpu1:8000/v1"),
        ("http://${HOST:-127.0.0.1}:8000", {}, "http://127.0.0.1:8000"),
        ("http://${HOST:-127.0.0.1}:8000", {"HOST": ""}, "http://127.0.0.1:8000"),
        ("http://${HOST:-127.0.0.1}:8000", {"HOST": "b"}, "http://b:8000"),
        ("${WHOLE:-http://a:1}", {}, "http://a:1"),
    ],
)
def test_a_variable_is_put_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_as: str, environment: dict[str, str], url: str
) -> None:
    for name in ("HOST", "PORT", "WHOLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = Config.load(written(tmp_path, broken(CONFIG, "http://127.0.0.1:8001", written_as)))
    assert config.deployments[0].base_url == url


def test_what_a_variable_holds_is_not_read_as_toml_and_not_replaced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAID", '"] \n[routes.x]\n${SAID}')
    text = f'{CONFIG}description = "${{SAID}}"\n'
    assert Config.load(written(tmp_path, text)).routes["batch"].description == '"] \n[routes.x]\n${SAID}'


@pytest.mark.parametrize(
    ("written_as", "message"),
    [
        ("http://${GONE}:1", "the environment variable GONE is not set; set it, or write ${GONE:-default}"),
        ("http://${}:1", "${} is no variable; write ${NAME} or ${NAME:-default}"),
        ("http://${A B}:1", "${A B} is no variable"),
        ("http://${A", "${ is not closed by a }; write ${NAME} or ${NAME:-default}"),
        ("http://${A:-b}:${C", "${ is not closed by a }"),
        ("${A:-${B}}", "${A:-${B}} has a variable inside of another one; a default must be plain text"),
        ("${A:-${B:-http://c}}", "has a variable inside of another one"),
    ],
)
def test_a_variable_that_says_nothing_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_as: str, message: str
) -> None:
    monkeypatch.delenv("GONE", raising=False)
    text = broken(CONFIG, "http://127.0.0.1:8001", written_as)
    error = mistake(tmp_path, text)
    assert (error.key, error.line) == ("deployments[0].base_url", line_of(text, written_as))
    assert message in str(error)


@pytest.mark.parametrize("given", ["${SECRET}", "sk-not a name", "x" * 300])
def test_a_key_that_stands_where_its_variable_is_named_is_refused_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("SECRET", "sk-secret")
    error = mistake(tmp_path, broken(WHOLE, 'env = "OPS_KEY"', f'env = "{given}"'))
    assert (error.key, "must be the name of an environment variable" in str(error)) == ("keys[1].env", True)
    assert "sk-" not in str(error)


# ---- all mistakes


def test_every_mistake_is_found_at_once(tmp_path: Path) -> None:
    text = broken(WHOLE, "port = 8443", "port = -1").replace("drain_s", "drains_s").replace('"agent"', '"high"')
    config, found = Config.read(written(tmp_path, text))
    assert config is None
    assert {str(error.key) for error in found if isinstance(error, ConfigError)} == {
        "gateway.port", "gateway.drains_s", "routes.tool-use.priority",
    }  # fmt: skip


ONE = '[[deployments]]\nname = "a"\nprofile = "qwen3-32b/vllm-h100-tp4"\nbase_url = "{}"\n'


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (ONE.format("nowhere"), "deployments[0].base_url"),
        (ONE.format("http://a") + '[routes.a]\nttft_ms = { value = "x" }\n', "routes.a.ttft_ms.value"),
    ],
)
def test_what_is_wrong_in_a_table_is_not_said_of_the_table_too(tmp_path: Path, text: str, key: str) -> None:
    _, found = Config.read(written(tmp_path, text))
    assert [error.key for error in found] == [key]


def test_every_wrong_name_is_found_at_once(tmp_path: Path) -> None:
    text = WHOLE.replace('["one"]', '["on"]').replace('["spare"]', '["spair"]').replace("qwen3-32b/vllm", "qwen/vllm")
    _, found = Config.read(written(tmp_path, text))
    keys = ["routes.tool-use.allow", "routes.tool-use.fallbacks", "deployments[0].profile"]
    assert [error.key for error in found] == keys


def test_a_good_file_has_no_mistakes(tmp_path: Path) -> None:
    config, found = Config.read(written(tmp_path, WHOLE))
    assert config is not None
    assert not found
