"""llama.cpp's server: the shared wire, ``/props`` and ``/metrics``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentroute.adapters.base import Conversation, Discovery, Endpoint, Load, Served
from agentroute.adapters.dialect import Dialect
from agentroute.adapters.openai import MODELS, OpenAIAdapter, items, json_object, listed_models, names
from agentroute.adapters.prometheus import METRICS, Metrics, load_of, refused
from agentroute.adapters.reading import first, positive
from agentroute.adapters.structured import alone, as_grammar, schema
from agentroute.profile import KvPool
from agentroute.shape.model import Capability
from agentroute.wire import Request

STARTED = "process-start-time-unix"
"""A header of the metrics: a number that is another one after a restart."""

_ANYWHERE = Served()

DIALECT = Dialect(
    server="llama.cpp",
    limit="max_tokens",
    structured={"schema": schema, "choice": as_grammar(alone("grammar")), "grammar": alone("grammar")},
    own=frozenset({"json_schema", "grammar"}),
    clashes=(frozenset({"logprobs", "stream", "tools"}), frozenset({"grammar", "tools"})),
)
"""Seen on xllamacpp 2026.10.11549: unknown fields are ignored, a limit of any size is taken, a prompt beyond a slot's
window is a clean 400. Grammars are GBNF; there are no regular expressions and no priorities."""


class LlamaCppAdapter(OpenAIAdapter):
    """A llama.cpp server (``llama-server``, or the one in xllamacpp)."""

    name = "llamacpp"
    dialect = DIALECT

    def discover(self) -> Conversation[Discovery]:
        """Ask for the models and for ``/props``: window of a slot, slots, template and modalities.

        With one slot the KV pool is that slot's window. With more, no endpoint tells whether the slots split the memory
        or share it: ``/props``, ``/slots``, ``/v1/models`` and ``/metrics`` are alike for 4 slots of 512 tokens out of
        2,048 and for 4 slots that share 512 (checked on xllamacpp 2026.10.11549). So the pool stays unknown.
        """
        models = listed_models((yield Request(MODELS)), self.classify)
        props = json_object((yield Request("/props")), self.classify)
        settings = mapping(props.get("default_generation_settings"))
        window = positive(settings.get("n_ctx")) or positive(mapping(first(models).get("meta")).get("n_ctx"))
        slots = positive(props.get("total_slots"), most=1_000_000)
        pool = KvPool(tokens=window, block_tokens=window) if window and slots == 1 else None
        return Discovery(
            models=names(models),
            engine="llamacpp",
            wire=self.name,
            engine_version=_version(props.get("build_info")),
            max_model_len=window,
            max_num_seqs=slots,
            kv_pool=pool,
            capabilities=_capabilities(props),
            notes=() if pool else (_pool_note(window, slots),),
        )

    def request(
        self,
        endpoint: Endpoint,
        model: str,
        payload: Mapping[str, Any],
        *,
        stream: bool,
        served: Served = _ANYWHERE,
        urgency: int | None = None,
    ) -> Request:
        """The shared request. After a stream the server drops the connection though it promised to keep it.

        Of 60 streams one after the other on a kept connection, 13 met a closed one (xllamacpp 2026.10.11549).
        """
        asked = super().request(endpoint, model, payload, stream=stream, served=served, urgency=urgency)
        return replace(asked, keep_alive=not stream)

    def load(self) -> Conversation[Load]:
        """Ask ``/metrics`` (started with ``--metrics``) for the requests at work and those that wait for a slot.

        Without them ``/slots`` tells those at work. Metrics are answered between two batches, so that a server which
        reads a long prompt may be silent for as long as one takes.
        """
        answer = yield Request(METRICS)
        if not (why := refused(answer)):
            if answer.status != 200:
                raise self.classify(answer)
            return replace(load_of(Metrics.of(answer)), process=answer.headers.get(STARTED))
        slots = [slot.get("is_processing") for slot in items((yield Request("/slots")))]
        known = bool(slots) and all(isinstance(busy, bool) for busy in slots)
        return Load(running=slots.count(True) if known else None, hidden=True, said=f"{why}; start it with --metrics")

    def release_delay_s(self, *, streaming: bool) -> float:
        """A disconnect ends a stream at once, but a call that does not stream only after 2 to 3 s (measured)."""
        return 0.2 if streaming else 3.0


def mapping(value: Any) -> Mapping[str, Any]:
    """A JSON object, or an empty one in place of anything else."""
    return value if isinstance(value, Mapping) else {}


def _capabilities(props: Mapping[str, Any]) -> dict[Capability, bool]:
    """What the template and the modalities say. A schema always holds: llama.cpp compiles it into a grammar."""
    caps, modalities = mapping(props.get("chat_template_caps")), mapping(props.get("modalities"))
    # A template without tools drops them silently; both must hold for a call to come back.
    tools = [caps[key] for key in ("supports_tools", "supports_tool_calls") if isinstance(caps.get(key), bool)]
    said: dict[Capability, Any] = {
        "tools": all(tools) if tools else None,
        "parallel_tools": caps.get("supports_parallel_tool_calls"),
        "vision": modalities.get("vision"),
        "audio": modalities.get("audio"),
        "json_schema": True,
    }
    return {name: value for name, value in said.items() if isinstance(value, bool)}


def _version(build_info: Any) -> str | None:
    """``b4567-1a2b3c4``; a library build calls itself ``b0-unknown``, which is no version."""
    known = isinstance(build_info, str) and build_info and not build_info.startswith("b0-")
    return build_info if known else None


def _pool_note(window: int | None, slots: int | None) -> str:
    if window is None or slots is None:
        return "the KV pool is unknown: /props says neither how long a slot's window is nor how many there are"
    return (
        f"the KV pool is unknown: llama.cpp does not say whether its {slots} slots of {window} tokens split the memory "
        f"(then it holds {window * slots} tokens) or share it (--kv-unified: {window} tokens in all); write it down"
    )
