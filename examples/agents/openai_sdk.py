"""An agent's loop with the OpenAI SDK: one tool call, then the answer. Every step is routed.

Run: python examples/agents/openai_sdk.py agentroute.toml
"""

import json
import sys

from agentroute import Router, hint
from agentroute.integrations.openai import openai_client

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def weather(city: str) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


def main(config: str) -> None:
    """Ask, call the tool, and tell the answer."""
    router = Router.from_config(config)
    client = openai_client(router)
    messages: list[dict[str, object]] = [{"role": "user", "content": "How is the weather in Paris?"}]
    with hint(session_id="weather", deadline_s=60):
        while True:
            answer = client.chat.completions.create(model="auto", messages=messages, tools=[TOOL])
            said = answer.choices[0].message
            messages.append(said.model_dump(exclude_none=True))
            if not said.tool_calls:
                break
            for call in said.tool_calls:
                result = weather(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    print(said.content)
    client.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "agentroute.toml")
