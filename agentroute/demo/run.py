"""The demo: two real llama.cpp servers of different shape, asked, measured, and routed over."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from agentroute.adapters import adapter
from agentroute.bench.measure import measure
from agentroute.bench.plan import Load
from agentroute.catalogue import shipped
from agentroute.client import Client, Reply, Retry
from agentroute.demo.embedded import MODEL_ALIAS, EmbeddedServer
from agentroute.demo.tasks import Demand, Message
from agentroute.fleet import Fleet
from agentroute.latency.points import Measurement
from agentroute.origin import Provenance
from agentroute.probe import probe
from agentroute.profile import Capabilities, Engine, KvPool, Limits, Profile
from agentroute.router import Router
from agentroute.toml import dumps
from agentroute.transport import LIMITS
from agentroute.wire import TextDelta

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Shape:
    """One of the demo's servers: ``slots`` of ``slot_tokens`` each, and the loads it is measured at."""

    name: str
    slots: int
    slot_tokens: int
    loads: tuple[Load, ...]


SHAPES = (
    Shape("one-long", 1, 2048, (Load(40, 32, 1), Load(300, 32, 1), Load(900, 32, 1))),
    Shape("four-short", 4, 512, (Load(40, 32, 1), Load(40, 32, 2), Load(40, 32, 4), Load(300, 32, 1))),
)


@contextmanager
def servers() -> Iterator[dict[str, str]]:
    """Base URLs of the demo's servers by name; they run until the block is left, however it is left."""
    with ExitStack() as stack:
        yield {
            shape.name: stack.enter_context(EmbeddedServer(ctx=shape.slots * shape.slot_tokens, slots=shape.slots)).url
            for shape in SHAPES
        }


def direct() -> httpx.HTTPTransport:
    """A way that no proxy from the environment stands in: the servers are on this machine."""
    return httpx.HTTPTransport(limits=LIMITS)


def adirect() -> httpx.AsyncHTTPTransport:
    """The same for a client."""
    return httpx.AsyncHTTPTransport(limits=LIMITS)


def write_config(folder: Path, urls: dict[str, str], say: Say) -> Path:
    """Ask each server what it can hold, measure a short curve of it, write its profile and a configuration."""
    (folder / "profiles").mkdir(parents=True, exist_ok=True)
    deployments = []
    for shape in SHAPES:
        profile = _measured(_asked(shape, urls[shape.name], say), shape, urls[shape.name], say)
        profile.save(folder / "profiles" / f"{shape.name}.toml", comment="Written by agentroute demo.")
        deployments.append(
            {
                "name": shape.name,
                "profile": f"profiles/{shape.name}.toml",
                "base_url": urls[shape.name],
                "adapter": "llamacpp",
                "served_model": MODEL_ALIAS,
            }
        )
    config = folder / "agentroute.toml"
    config.write_text("# Written by agentroute demo.\n" + dumps({"format": 1, "deployments": deployments}))
    return config


def _asked(shape: Shape, url: str, say: Say) -> Profile:
    said = probe(url, adapter("llamacpp"), transport=direct())
    say(f"{shape.name}: {said.max_num_seqs} slots of {said.max_model_len} tokens at {url}")
    reported = Provenance(origin="reported", source="the running server's /props", date=dt.date.today())
    return Profile(
        format=1,
        name=shape.name,
        model=MODEL_ALIAS,
        engine=Engine(name="llamacpp", version=said.engine_version),
        limits=Limits(
            max_model_len=said.max_model_len,
            max_num_seqs=said.max_num_seqs,
            # The server does not say whether its slots split the memory; the demo started it, and there they do.
            kv_pool=KvPool(
                tokens=shape.slots * shape.slot_tokens,
                block_tokens=shape.slot_tokens,
                provenance=Provenance(origin="reported", source="how agentroute demo started the server"),
            ),
            provenance=reported,
        ),
        capabilities=Capabilities(offers=dict(said.capabilities), provenance=reported),
    )


def _measured(profile: Profile, shape: Shape, url: str, say: Say) -> Profile:
    alone = replace(shipped().deployment(profile), urls=(url,), adapter="llamacpp", served_model=MODEL_ALIAS)
    with Client(Router(Fleet([alone])), retry=Retry(attempts=1), transport=adirect()) as client:
        # The first request after the start is slower than any other; it is not a measurement.
        measure(client, [Load(60, 2, 1)])
        points = measure(
            client,
            shape.loads,
            seed=1,
            progress=lambda load: say(f"  measuring {load.concurrency} x ({load.isl} + {load.osl} tokens)"),
        )
    provenance = Provenance(
        origin="measured",
        source="agentroute demo, on the machine that it ran on",
        date=dt.date.today(),
        tool="agentroute demo",
        quality="C",
        notes="One burst a load: a first idea, not a benchmark.",
    )
    block = Measurement(provenance=provenance, workload="one closed-loop burst a load", points=tuple(points))
    return profile.model_copy(update={"measurements": (block,)})


def answer(client: Client, demand: Demand, write: Say) -> list[Reply]:
    """Call for every conversation of a demand at once; a single one streams to ``write``, siblings a line each."""
    conversations = demand.conversations
    if len(conversations) == 1:
        return [_stream(client, conversations[0], demand, write)]
    threads = ThreadPoolExecutor(len(conversations))
    try:
        calls = [threads.submit(_stream, client, conversation, demand, _ignore) for conversation in conversations]
        replies = []
        for conversation, call in zip(conversations, calls, strict=True):
            reply = call.result()
            replies.append(reply)
            question, text = conversation[-1]["content"], " ".join(reply.text.split())
            write(f"{reply.decision.deployment:<10}  {question:<40} {text}\n")
        return replies
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _stream(client: Client, messages: Sequence[Message], demand: Demand, write: Say) -> Reply:
    with client.stream(messages, task=demand.task, body={"temperature": 0}) as events:
        for event in events:
            if isinstance(event, TextDelta):
                write(event.text)
        reply = events.reply
    if reply is None:
        raise AssertionError("a stream ended without a reply and without an error")
    return reply


def _ignore(text: str) -> None:
    """Siblings are written when they are whole."""
