"""An agent of DSPy: one tool call, then the answer. Every step is routed by a gateway, ``agentroute serve``.

Run: python examples/agents/dspy_agent.py http://127.0.0.1:4200/v1 KEY
"""

import sys

import dspy


def weather(city: str) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


def main(url: str, key: str) -> None:
    """Ask, and tell the answer."""
    lm = dspy.LM("openai/auto", api_base=url, api_key=key)
    dspy.configure(lm=lm)
    agent = dspy.ReAct("question -> answer", tools=[weather])
    print(agent(question="How is the weather in Paris?").answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
