"""An agent of crewAI: one tool call, then the answer. Every step is routed by a gateway, ``agentroute serve``.

Run: python examples/agents/crewai_agent.py http://127.0.0.1:4200/v1 KEY
"""

import sys

from crewai import LLM, Agent
from crewai.tools import tool


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


def main(url: str, key: str) -> None:
    """Ask, and tell the answer."""
    llm = LLM(model="openai/auto", base_url=url, api_key=key)
    agent = Agent(role="Guide", goal="Tell the weather", backstory="You know it.", llm=llm, tools=[weather])
    print(agent.kickoff("How is the weather in Paris?").raw)


if __name__ == "__main__":
    main(*sys.argv[1:])
