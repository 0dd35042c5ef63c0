"""A fan-out over a running llama.cpp server: eight siblings at once, never more than its KV cache holds.

Run: python examples/fan_out.py            (starts the embedded server; needs the extra `local`, see the README)
"""

import asyncio

from agentroute import AsyncClient, Deployment, Fleet, Profile, Reply, Router, Task
from agentroute.demo.embedded import MODEL_ALIAS, EmbeddedServer

PROFILE = Profile.model_validate(
    {
        "format": 1,
        "name": "laptop",
        "engine": {"name": "llamacpp"},
        "limits": {
            "max_model_len": 512,
            "max_num_seqs": 4,
            "kv_pool": {"tokens": 2048, "block_tokens": 512},
            "provenance": {"origin": "reported", "source": "how the server was started"},
        },
    }
)


async def ask(router: Router, questions: list[str]) -> list[Reply]:
    """All questions at once; those that do not fit wait for the others."""
    task = Task(context_tokens=80, max_output_tokens=24, concurrency=len(questions))
    async with AsyncClient(router) as client:
        calls = [client.chat([{"role": "user", "content": question}], task=task) for question in questions]
        return await asyncio.gather(*calls)


def main() -> None:
    """Start a server with four slots and ask it eight questions."""
    with EmbeddedServer(ctx=2048, slots=4) as server:
        deployment = Deployment(
            name="laptop", profile=PROFILE, urls=(server.url,), adapter="llamacpp", served_model=MODEL_ALIAS
        )
        replies = asyncio.run(ask(Router(Fleet([deployment])), [f"Count to {n}." for n in range(2, 10)]))
    for reply in replies:
        print(f"{reply.seen.e2e_s:5.2f} s  {reply.text!r}")


if __name__ == "__main__":
    main()
