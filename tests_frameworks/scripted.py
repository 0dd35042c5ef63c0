"""A server that plays a model which calls the tool it is given once, and then repeats what the tool said."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

from servers import Asked, Server, answers


class Played(Server):
    """Keeps every request's body and headers."""

    def __init__(self) -> None:
        super().__init__(_played)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """What was asked, in order."""
        return [json.loads(asked.body) for asked in self.asked if asked.body]


def _played(connection: socket.socket, asked: Asked) -> None:
    if not asked.body:
        return answers('{"object": "list", "data": [{"id": "played", "object": "model"}]}')(connection, asked)
    body = json.loads(asked.body)
    told = [message for message in body["messages"] if message["role"] == "tool"]
    tools = body.get("tools")
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if told:
        message["content"] = f"The tool said: {told[-1]['content']}"
    elif tools:
        name = tools[0]["function"]["name"]
        call = {"name": name, "arguments": json.dumps({"city": "Paris"})}
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": call}]
    elif "[[ ## completed ## ]]" in body["messages"][0]["content"]:
        message["content"] = _in_fields(body["messages"][-1]["content"])
    else:
        message["content"] = "There was no tool."
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    answer = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25},
    }
    return answers(json.dumps(answer))(connection, asked)


def _in_fields(said: str) -> str:
    """What DSPy wants to read, whose tools and answers are named fields of a text."""
    observation = re.search(r"\[\[ ## observation_0 ## ]]\n(.*)", said)
    if "next_tool_name" not in said:
        fields = {"reasoning": "The tool knows.", "answer": f"The tool said: {observation[1] if observation else None}"}
    elif observation:
        fields = {"next_thought": "It is known.", "next_tool_name": "finish", "next_tool_args": "{}"}
    else:
        fields = {"next_thought": "A tool.", "next_tool_name": "weather", "next_tool_args": '{"city": "Paris"}'}
    return "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in fields.items())
