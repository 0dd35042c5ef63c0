"""The hooks of frameworks: what they tell the router of a step, and what they refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from fleets import Watched
from scripted import Played

from agentroute.client import AsyncClient
from agentroute.errors import UsageError
from agentroute.fleet import Deployment, Fleet
from agentroute.profile import Engine, Profile
from agentroute.route import Route

QUESTION = "How is the weather in Paris?"
ANSWER = "The tool said: It is sunny in Paris."


def weather(city: str) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


@pytest.fixture
def server() -> Iterator[Played]:
    with Played() as server:
        yield server


@pytest.fixture
def router(server: Played) -> Watched:
    profile = Profile(format=1, name="played", engine=Engine(name="llamacpp"))
    one = Deployment("here", profile, urls=(server.url,), served_model="played")
    return Watched(Fleet([one]), routes=[Route(name="tools", deadline_s=600)])


def test_pydantic_ai_tells_each_step_of_a_conversation(router: Watched) -> None:
    agents = pytest.importorskip("pydantic_ai")
    from agentroute.integrations.pydantic_ai import routed

    async def run() -> str:
        async with AsyncClient(router) as client:
            agent = agents.Agent(tools=[weather], capabilities=[routed(client, "tools")])
            first = await agent.run(QUESTION)
            await agent.run("And now?", message_history=first.all_messages())
            return str(first.output)

    assert asyncio.run(run()) == ANSWER
    assert [task.step for task in router.tasks] == [1, 2, 3]
    assert len({task.session_id for task in router.tasks}) == 1
    assert {task.route for task in router.tasks} == {"tools"}
    assert router.tasks[0].needs == {"tools"}


def test_pydantic_ai_takes_a_model_for_one_run(router: Watched) -> None:
    agents = pytest.importorskip("pydantic_ai")
    from agentroute.integrations.pydantic_ai import routed_model

    async def run() -> str:
        async with AsyncClient(router) as client:
            agent = agents.Agent("test", tools=[weather])
            return str((await agent.run(QUESTION, model=routed_model(client, "tools"))).output)

    assert asyncio.run(run()) == ANSWER
    assert [task.route for task in router.tasks] == ["tools", "tools"]


def test_pydantic_ai_leaves_our_client_open(router: Watched) -> None:
    agents = pytest.importorskip("pydantic_ai")
    from agentroute.integrations.pydantic_ai import routed_model

    async def run() -> list[str]:
        model = routed_model(router)
        answers = []
        for _ in range(2):
            async with agents.Agent(model, tools=[weather]) as agent:
                answers.append((await agent.run(QUESTION)).output)
        assert not model.client.is_closed()
        await model.client.close()
        assert model.client.is_closed()
        return answers

    assert asyncio.run(run()) == [ANSWER, ANSWER]


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
def test_langchain_routes_whatever_model_the_agent_has(router: Watched, way: str) -> None:
    agents = pytest.importorskip("langchain.agents")
    from langchain_core.language_models.fake_chat_models import FakeListChatModel

    from agentroute.integrations.langchain import Routed

    theirs = FakeListChatModel(responses=["not asked"])
    agent = agents.create_agent(theirs, tools=[weather], middleware=[Routed(router, "tools")])
    said = {"messages": [{"role": "user", "content": QUESTION}]}
    done = agent.invoke(said) if way == "invoke" else asyncio.run(agent.ainvoke(said))
    assert done["messages"][-1].content == ANSWER
    assert [(task.step, task.route) for task in router.tasks] == [(1, "tools"), (2, "tools")]


def test_openai_agents_names_a_route_by_the_agents_model(router: Watched) -> None:
    agents = pytest.importorskip("agents")
    from agentroute.integrations.openai_agents import RoutedModels

    async def run() -> str:
        models = RoutedModels(router)
        agent = agents.Agent(name="weather", tools=[agents.function_tool(weather)], model="auto:tools")
        config = agents.RunConfig(model_provider=models, tracing_disabled=True)
        done = await agents.Runner.run(agent, QUESTION, run_config=config)
        with pytest.raises(UsageError, match="must be auto, auto:ROUTE or none, got 'gpt-5'"):
            models.get_model("gpt-5")
        await models.aclose()
        return str(done.final_output)

    assert asyncio.run(run()) == ANSWER
    assert [task.route for task in router.tasks] == ["tools", "tools"]
