"""An agent of pydantic-ai: one tool call, then the answer. Every step is routed.

Run: python examples/agents/pydantic_ai_agent.py agentroute.toml
"""

import sys

from pydantic_ai import Agent

from agentroute import Router
from agentroute.integrations.pydantic_ai import routed


def weather(city: str) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


def main(config: str) -> None:
    """Ask, and tell the answer."""
    router = Router.from_config(config)
    agent = Agent(tools=[weather], capabilities=[routed(router)])
    print(agent.run_sync("How is the weather in Paris?").output)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "agentroute.toml")
