"""What is said of a call through a gateway, by the frameworks that go through one."""

from __future__ import annotations

from pathlib import Path

import pytest
from gateways import Served
from programs import NEEDS, example, run
from scripted import Played
from servers import answers, deployment

from agentroute.route import Route

SAYS = {
    "crewai_agent.py": ("base_url=url", 'base_url=url, default_headers={"x-agentroute-route": "night"}'),
    "dspy_agent.py": ("api_base=url", 'api_base=url, extra_headers={"x-agentroute-route": "night"}'),
    "gateway.py": ("extra_headers=SAID", 'extra_headers={"x-agentroute-route": "night"}'),
}
"""By example what is put in another's place so that it says a hint."""


@pytest.mark.parametrize("name", SAYS)
def test_a_hint_in_its_headers_is_heard(name: str, tmp_path: Path) -> None:
    old, new = SAYS[name]
    text = example(name).read_text()
    assert text.count(old) == 1
    changed = tmp_path / name
    changed.write_text(text.replace(old, new))
    with (
        Played() as server,
        Served(deployment(server.url, served_model="played"), routes=(Route(name="night"),)) as gateway,
    ):
        printed = run(changed, f"http://127.0.0.1:{gateway.port}/v1", "any", home=tmp_path)
        assert any("The tool said: It is sunny in Paris." in line for line in printed)
        ended = gateway.ended(NEEDS[name].steps)
    assert [record["route"] for record in ended] == ["night"] * NEEDS[name].steps


def test_an_error_is_not_sent_again_by_the_sdk() -> None:
    openai = pytest.importorskip("openai")
    with Played() as server, Served(deployment(server.url, served_model="played")) as gateway:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="any", max_retries=5) as client:
            server.behave = answers('{"error": {"message": "starting"}}', status=503)
            with pytest.raises(openai.InternalServerError) as caught:
                client.chat.completions.create(model="auto", messages=[{"role": "user", "content": "Hello"}])
        assert len(gateway.ended()) == 1
    assert caught.value.response.headers["x-should-retry"] == "false"
