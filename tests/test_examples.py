"""The examples run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentroute.config import Config
from agentroute.router import Router
from agentroute.state.load import Load
from agentroute.task import Task

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("quickstart.py", "A first token within 1 ms is refused by all"),
        ("fan_out.py", " s  "),
    ],
)
def test_an_example_runs(name: str, says: str) -> None:
    ran = subprocess.run([sys.executable, "-W", "error", EXAMPLES / name], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert says in ran.stdout
    assert ran.stderr == ""


def test_every_example_is_tried() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"quickstart.py", "fan_out.py"}


def test_the_example_configuration_routes_each_kind_of_work_as_it_says() -> None:
    config, mistakes = Config.read(EXAMPLES / "agentroute.toml")
    assert not mistakes
    assert config is not None
    assert {"interactive", "tool-use", "batch", "long-context"} <= config.routes.keys()
    router = config.router(Router)
    for route, within in (
        ("interactive", {"small", "middle"}), ("tool-use", {"middle", "long"}), ("batch", {"middle", "long"}),
        ("long-context", {"long"}),
    ):  # fmt: skip
        decision = router.decide(Task(context_tokens=4_000, max_output_tokens=300, route=route))
        assert decision.deployment in within
        assert decision.task.route == route
    for deployment in config.deployments[:2]:
        for url in deployment.endpoints:
            router.observe(deployment.name, Load(trouble="unreachable"), url=url)
    spared = router.decide(Task(context_tokens=4_000, max_output_tokens=300, route="interactive"))
    assert (spared.deployment, spared.task.route) == ("long", "long-context")
