"""An agent's loop with nothing of agentroute's: a tool call, then the answer. A gateway, ``agentroute serve``, routes.

Run: python examples/agents/gateway.py http://127.0.0.1:4200/v1 KEY
"""

import json
import sys

from openai import OpenAI

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SAID = {"x-agentroute-session-id": "weather", "x-agentroute-deadline-s": "60"}


def weather(city: str) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


def main(url: str, key: str) -> None:
    """Ask, call the tool, and tell the answer."""
    client = OpenAI(base_url=url, api_key=key)
    messages: list[dict[str, object]] = [{"role": "user", "content": "How is the weather in Paris?"}]
    while True:
        answer = client.chat.completions.create(model="auto", messages=messages, tools=[TOOL], extra_headers=SAID)
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
    main(*sys.argv[1:])
