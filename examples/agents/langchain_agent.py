"""An agent of LangChain: one tool call, then the answer. Every step is routed.

Run: python examples/agents/langchain_agent.py agentroute.toml
"""

import sys

from langchain.agents import create_agent

from agentroute import Router
from agentroute.integrations.langchain import Routed, routed_chat_model


def weather(city: str) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


def main(config: str) -> None:
    """Ask, and tell the answer."""
    router = Router.from_config(config)
    agent = create_agent(routed_chat_model(router), tools=[weather], middleware=[Routed(router)])
    done = agent.invoke({"messages": [{"role": "user", "content": "How is the weather in Paris?"}]})
    print(done["messages"][-1].content)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "agentroute.toml")
