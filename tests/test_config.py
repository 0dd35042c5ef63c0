"""agentroute.toml: deployments, routes, and the profiles they name."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from fleets import CONFIG, PROFILE, broken, line_of, written
from hypothesis import given
from hypothesis import strategies as st
from own_objective import busiest

from agentroute.adapters import ADAPTERS as LOADABLE
from agentroute.config import Config
from agentroute.errors import ConfigError, ProfileError, UnknownNameError, UsageError
from agentroute.fleet import Deployment, Fleet, check_url
from agentroute.profile import Engine, Profile
from agentroute.route import soft
from agentroute.router import Router
from agentroute.tables import ADAPTERS
from agentroute.task import Slo, Task
from agentroute.transport import Target


def test_a_configuration_names_deployments_and_routes(tmp_path: Path) -> None:
    config = Config.load(written(tmp_path, CONFIG))
    one, two = config.fleet().deployments
    assert (one.name, one.urls, one.adapter, one.pool) == ("one", ("http://127.0.0.1:8001",), "openai", None)
    assert one.model is not None
    assert one.accelerator is not None
    assert (one.model.name, one.accelerator.name, one.usd_per_accelerator_hour) == ("qwen3-32b", "h100_sxm", 2.5)
    assert two.urls == ("http://127.0.0.1:8002", "http://127.0.0.1:8003")
    assert [route.name for route in config.router_routes()] == ["default", "batch"]


@pytest.mark.parametrize(
    ("written_as", "slo"),
    [
        ("250", Slo(250, hard=False)),
        ("250.5", Slo(250.5, hard=False)),
        ("{ value = 250.0 }", Slo(250.0, hard=False)),
        ('{ value = 250.0, stat = "p95" }', Slo(250.0, "p95", hard=False)),
        ("{ value = 250.0, hard = true }", Slo(250.0, hard=True)),
    ],
)
def test_an_slo_of_a_route_is_soft_unless_it_says_hard(tmp_path: Path, written_as: str, slo: Slo) -> None:
    config = Config.load(written(tmp_path, f"{CONFIG}\n[routes.fast]\nttft_ms = {written_as}\n"))
    assert soft(config.router_routes()[-1].ttft_ms) == slo


def test_a_router_is_made_from_a_file(tmp_path: Path) -> None:
    made = Router.from_config(written(tmp_path, CONFIG))
    assert made.objective == "latency"
    assert made.decide(Task(context_tokens=100, max_output_tokens=10, route="batch")).objective == "fit"


def test_a_profile_may_be_a_file_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    written(tmp_path / "sub", PROFILE, "mine.toml")
    config = Config.load(written(tmp_path, broken(CONFIG, "qwen3-32b/vllm-h100-tp4", "sub/mine.toml")))
    assert config.fleet().deployments[0].profile.name == "mine"


def test_a_mistake_in_that_file_names_that_file(tmp_path: Path) -> None:
    written(tmp_path, broken(PROFILE, "tp = 2", "tp = 0"), "mine.toml")
    with pytest.raises(ProfileError) as raised:
        Config.load(written(tmp_path, broken(CONFIG, "qwen3-32b/vllm-h100-tp4", "mine.toml")))
    assert raised.value.path == tmp_path / "mine.toml"
    assert raised.value.key == "sharding.tp"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('model = "qwen3-23b"', "there is no model 'qwen3-23b'; did you mean 'qwen3-32b'?"),
        ('accelerator = "h100_sxn"', "there is no accelerator 'h100_sxn'; did you mean 'h100_sxm'?"),
    ],
)
def test_what_a_profile_refers_to_must_exist(tmp_path: Path, line: str, message: str) -> None:
    written(tmp_path, broken(PROFILE, 'name = "mine"', f'name = "mine"\n{line}'), "mine.toml")
    with pytest.raises(ProfileError) as raised:
        Config.load(written(tmp_path, broken(CONFIG, "qwen3-32b/vllm-h100-tp4", "mine.toml")))
    assert str(raised.value) == f"{tmp_path / 'mine.toml'}:3: {line.split()[0]}: {message}"


@pytest.mark.parametrize("name", ["agentroute.toml", "gone.toml"])
def test_a_configuration_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read: no such file or directory"):
        Router.from_config(tmp_path / name)


@pytest.mark.parametrize(
    "deployment",
    [
        'name = "a"\nprofile = "qwen3-32b/vllm-h100-tp4"\n',
        'name = "a"\nprofile = "qwen3-32b/vllm-h100-tp4"\nbase_url = "http://a"\nurls = ["http://b"]\n',
        'name = "a"\nprofile = "qwen3-32b/vllm-h100-tp4"\nurls = []\n',
    ],
)
def test_a_deployment_has_one_way_of_giving_its_urls(tmp_path: Path, deployment: str) -> None:
    with pytest.raises(ConfigError, match="must give either base_url or urls"):
        Config.load(written(tmp_path, f"[[deployments]]\n{deployment}"))


@pytest.mark.parametrize("text", ["", "deployments = []\n", 'objective = "fit"\n'])
def test_a_configuration_has_a_deployment(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="deployments"):
        Config.load(written(tmp_path, text))


def test_a_key_is_named_and_never_written(tmp_path: Path) -> None:
    text = broken(CONFIG, 'adapter = "openai"', 'api_key_env = "sk-123 secret"')
    with pytest.raises(ConfigError, match="api_key_env"):
        Config.load(written(tmp_path, text))


def test_a_pool_described_in_two_ways_is_refused_with_both_names(tmp_path: Path) -> None:
    written(tmp_path, PROFILE, "a.toml")
    written(tmp_path, broken(PROFILE, "tokens = 65536", "tokens = 32768"), "b.toml")
    text = "".join(
        f'[[deployments]]\nname = "{name}"\nprofile = "{name}.toml"\nbase_url = "http://a"\npool = "gpu"\n'
        for name in ("a", "b")
    )
    with pytest.raises(UsageError, match="'a' and 'b' share the pool 'gpu'"):
        Router.from_config(written(tmp_path, text))


def test_the_adapters_of_a_file_are_those_that_can_be_loaded() -> None:
    assert set(ADAPTERS) == set(LOADABLE)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080",
        "https://host/v1",
        "http://[::1]:80/",
        "http://host.example/deep/path",
        "HTTP://host",
        "http://xn--mnchen-3ya.example",
    ],
)
def test_a_url_is_good(url: str) -> None:
    check_url(url)
    assert Target.of(url, None).shown


@given(st.from_regex(r"https?://xn--[a-z0-9.-]{0,12}/?", fullmatch=True))
def test_a_name_in_other_letters_is_read_or_refused_in_one_sentence(url: str) -> None:
    for check in (check_url, lambda url: Target.of(url, None)):
        try:
            check(url)
        except (ValueError, UsageError) as error:
            assert not isinstance(error, UnicodeError)
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    "url",
    ["", "host:80", "127.0.0.1", "ftp://host", "http://", "http://host:port", "http://host:99999", "http://ho st",
     "http://host\n", "http://[::1", "http://u:p@host", "http://u@host", "http://host?x=1", "http://host#x", "file:///x",
     "http://gpu1;:8000", "http://gpu1,gpu2", "http://gpu1}", "http://$HOST:1", "http://gpu*",
     "http://xn--/", "https://XN--", "http://xn--a/v1", "http://xn--zzzzzz99999.example"],
)  # fmt: skip
def test_a_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must"):
        check_url(url)


def test_an_objective_of_ones_own_may_stand_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "frugal_beside.py").write_text("def frugal(assessment):\n    return assessment.usd\n")
    text = f'{CONFIG}\n[objectives]\nfrugal = "frugal_beside:frugal"\n'
    searched = list(sys.path)
    try:
        config = Config.load(written(tmp_path, text))
    finally:
        sys.modules.pop("frugal_beside", None)
    assert config.own_objectives()["frugal"].__module__ == "frugal_beside"
    assert sys.path == searched


@pytest.mark.parametrize("what", ["objective", "route"])
def test_a_task_cannot_ask_for_what_the_file_does_not_have(tmp_path: Path, what: str) -> None:
    made = Router.from_config(written(tmp_path, CONFIG))
    task = Task(context_tokens=1, objective="batch") if what == "objective" else Task(context_tokens=1, route="batsh")
    with pytest.raises(UnknownNameError, match=f"there is no {what}"):
        made.decide(task)


def test_what_you_pay_comes_before_the_table(tmp_path: Path) -> None:
    config = Config.load(written(tmp_path, f"{CONFIG}\n[prices]\nh100_sxm = 1.25\n"))
    assert config.fleet().deployments[0].usd_per_accelerator_hour == 1.25


def test_a_price_for_what_does_not_exist_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no accelerator 'h100'; did you mean 'h100_sxm'"):
        Config.load(written(tmp_path, f"{CONFIG}\n[prices]\nh100 = 1.25\n"))


def test_a_model_id_on_the_wire_may_be_a_path(tmp_path: Path) -> None:
    text = CONFIG.replace('name = "', 'served_model = "/models/Llama-3-8B"\nname = "', 1)
    assert Config.load(written(tmp_path, text)).fleet().deployments[0].served_model == "/models/Llama-3-8B"


OWN = 'objective = "busiest"\n\n[objectives]\nbusiest = "own_objective:busiest"\n\n[[deployments]]'


def own(text: str) -> str:
    """CONFIG with an objective of its own."""
    return text.replace('objective = "latency"\n\n[[deployments]]', OWN, 1)


def test_an_objective_of_ones_own_is_named_in_the_file(tmp_path: Path) -> None:
    made = Router.from_config(written(tmp_path, own(CONFIG)))
    with made.acquire(Task(context_tokens=100)) as lease:
        assert made.decide(Task(context_tokens=100)).deployment == lease.deployment.name


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("own_objective:nothing", "'own_objective:nothing' cannot be imported"),
        ("not_a_module:busiest", "'not_a_module:busiest' cannot be imported"),
        ("os:name", "'os:name' must be a function, got 'posix'"),
        ("own_objective:of_two", "must be called with one argument, the assessment, and takes (assessment"),
        ("os:getcwd", "must be called with one argument, the assessment, and takes ()"),
        ("own_objective:later", "'own_objective:later' must be a plain function, and is an async one"),
    ],
)
def test_an_objective_that_can_be_none_is_a_mistake(tmp_path: Path, where: str, said: str) -> None:
    text = own(CONFIG).replace("own_objective:busiest", where)
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        Config.load(path)
    assert str(caught.value).startswith(f"{path}:{line_of(text, where)}: objectives.busiest: ")


@pytest.mark.parametrize(("does", "said"), [("1 / 0", "division by zero"), ("raise SystemExit('no GPU')", "no GPU")])
def test_a_module_that_cannot_be_imported_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, said: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fails_when_imported.py").write_text(f"{does}\n")
    path = written(tmp_path, own(CONFIG).replace("own_objective", "fails_when_imported"))
    with pytest.raises(ConfigError, match=rf"cannot be imported \({said}\)"):
        Config.load(path)


def test_an_objective_has_a_name_of_its_own(tmp_path: Path) -> None:
    text = own(CONFIG).replace("busiest =", "fit =").replace('"busiest"', '"fit"')
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match="there is a built-in objective 'fit' already") as caught:
        Config.load(path)
    assert str(caught.value).startswith(f"{path}:{line_of(text, 'own_objective')}: objectives.fit: ")


@pytest.mark.parametrize(
    ("name", "score", "said"),
    [
        ("cost", busiest, "there is a built-in objective 'cost' already; give your own another name"),
        ("mine", "busiest", "the objective 'mine' must be a function, got 'busiest'"),
        ("mine", lambda: 1, "the objective 'mine' must be called with one argument"),
    ],
)
def test_a_router_is_given_objectives_that_can_be_some(name: str, score: Any, said: str) -> None:
    one = Deployment("one", Profile(format=1, name="p", engine=Engine(name="vllm")))
    with pytest.raises(UsageError, match=said):
        Router(Fleet([one]), objectives={name: score})


def test_qualities_and_floors_come_from_the_file(tmp_path: Path) -> None:
    table = '\n[quality.qwen3-32b]\ncode = 0.7\n\n[quality."llama-3.1-8b"]\ncode = 0.3\n'
    route = "[routes.batch]\nquality = { code = 0.5 }\np95_output_tokens = 200\n"
    made = Router.from_config(written(tmp_path, CONFIG.replace("[routes.batch]\n", route) + table))
    decision = made.decide(Task(context_tokens=100, route="batch"))
    assert [candidate.deployment for candidate in decision.candidates] == ["one"]
    with made.acquire(Task(context_tokens=100, max_output_tokens=4_000, route="batch", deadline_s=600)) as lease:
        assert lease.decision._assessment.ask.held_tokens == 300
