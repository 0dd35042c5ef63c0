"""The examples of agents run as they stand, with the real packages: a tool call and a final answer, all routed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gateways import Served
from programs import EXAMPLES, NEEDS, example, run
from scripted import Played
from servers import deployment

from agentroute.demo.embedded import MODEL_ALIAS, EmbeddedServer

CONFIG = """
[[deployments]]
name = "here"
profile = "qwen3-32b/vllm-h100-tp4"
base_url = "{url}/v1"
served_model = "{model}"

[routes.default]
deadline_s = 600
"""
KEY = "sk-team"


@pytest.fixture(scope="session")
def llama() -> Iterator[EmbeddedServer]:
    """A real server whose small model is shown how to call a tool."""
    shots = Path(__file__).with_name("shots.jinja")
    with EmbeddedServer(jinja_template=shots, temperature=0) as server:
        yield server


@contextmanager
def routed(name: str, url: str, model: str, folder: Path) -> Iterator[tuple[str, ...]]:
    """What an example is told, so that it asks the server at ``url``: a configuration, or a gateway and its key."""
    if NEEDS[name].by_gateway:
        with Served(deployment(url, served_model=model), keys={"team": {}}) as gateway:
            yield f"http://127.0.0.1:{gateway.port}/v1", KEY
            ended = gateway.ended(NEEDS[name].steps)
            assert [(record["key"], record["outcome"]) for record in ended] == [("team", "ok")] * NEEDS[name].steps
    else:
        path = folder / "agentroute.toml"
        path.write_text(CONFIG.format(url=url, model=model))
        yield (str(path),)


def test_every_example_is_tried() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(NEEDS)


@pytest.mark.parametrize("name", NEEDS)
def test_an_agent_calls_its_tool_and_answers(name: str, tmp_path: Path) -> None:
    path = example(name)
    with Played() as server, routed(name, server.url, "played", tmp_path) as told:
        printed = run(path, *told, home=tmp_path)  # crewAI prints from another thread, into the same line at times
        assert any("The tool said: It is sunny in Paris." in line for line in printed)
    asked = [asked for asked in server.asked if asked.body]
    assert [one.target for one in asked] == ["/v1/chat/completions"] * NEEDS[name].steps
    first, second = server.bodies[:2]
    for body in (first, second):
        assert tuple(tool["function"]["name"] for tool in body.get("tools", ())) == NEEDS[name].tools
    assert first["model"] == second["model"] == "played"
    assert "It is sunny in Paris." not in json.dumps(first)
    assert "It is sunny in Paris." in second["messages"][-1]["content"]
    sent = json.dumps([dict(one.headers) for one in asked])
    assert "theirs" not in sent and KEY not in sent


@pytest.mark.parametrize("name", NEEDS)
def test_an_agent_calls_its_tool_and_answers_with_a_real_model(
    name: str, llama: EmbeddedServer, tmp_path: Path
) -> None:
    path = example(name)
    with routed(name, llama.url, MODEL_ALIAS, tmp_path) as told:
        assert any("It is sunny in Paris." in line for line in run(path, *told, home=tmp_path))
