"""An agent of the OpenAI Agents SDK: one tool call, then the answer. Every step is routed.

Run: python examples/agents/openai_agents_agent.py agentroute.toml
"""

import asyncio
import sys

from agents import Agent, RunConfig, Runner, function_tool

from agentroute import Router
from agentroute.integrations.openai_agents import RoutedModels


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


async def main(config: str) -> None:
    """Ask, and tell the answer."""
    router = Router.from_config(config)
    run_config = RunConfig(model_provider=RoutedModels(router), tracing_disabled=True)
    agent = Agent(name="weather", tools=[weather])
    done = await Runner.run(agent, "How is the weather in Paris?", run_config=run_config)
    print(done.final_output)
    await run_config.model_provider.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "agentroute.toml"))
