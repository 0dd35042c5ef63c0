"""The gateway as an OpenAPI 3.1 document: what it takes and answers, out of the tables that it goes by.

https://spec.openapis.org/oas/v3.1.1
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from itertools import groupby
from typing import Any

from agentroute.gateway.fields import Schema, fields_of
from agentroute.gateway.metrics import CONTENT_TYPE
from agentroute.gateway.page import FILES
from agentroute.hints import CLASSES, HEADERS, MAX_NAME, METADATA, MOST, NVEXT, UNITS, from_zero
from agentroute.payload import EndpointName
from agentroute.task import CAPABILITIES, PRIORITIES

_ERRORS: dict[int, str] = {
    400: "The request is malformed, or its prompt is longer than anything in the fleet takes.",
    401: "No valid key was sent.",
    403: "The key may not do this.",
    404: "There is no such model or route.",
    408: "The request did not come in time.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "Nothing in the fleet can take it as it is asked for.",
    429: "The key has as many requests in flight as it may have, or every server turned it away.",
    431: "The head is too large.",
    500: "A setting of the gateway is wrong, or the gateway failed.",
    502: "A server, or the way to it, is broken.",
    503: "There is no room, or everything that could take it is down, at this moment.",
    504: "A server was silent for too long, or the deadline passed.",
}
_SENT_ON = (401, 403, 404, 413, 415, 422, 429, 500, 502, 503, 504)
_EDGE = (400, 408, 431)
"""What may become of any request before it is known what it is for."""

_TITLES: dict[EndpointName, str] = {
    "chat": "Answer a conversation",
    "completions": "Continue a text",
    "responses": "Answer a conversation, in the Responses API",
    "embeddings": "Embed texts",
}
_OBJECT: Schema = {"type": "object"}
_NAMED: Schema = {"type": "string", "minLength": 1}
_LATIN = "\u0021-\u007e\u00a1-\u00ac\u00ae-\u00ff"
_HEADER_NAME = f"^[{_LATIN}]([ {_LATIN}]*[{_LATIN}])?$"
"""The same of the characters that a header may hold."""
_OPENED: dict[str, Any] = {"security": []}
"""Of what is answered to anybody."""


def document(paths: dict[EndpointName, str], *, keyed: bool) -> dict[str, Any]:
    """The document; ``paths``: what is sent on; ``keyed``: whether a key is needed."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "agentroute",
            "version": version("agentroute"),
            "description": "An OpenAI-compatible gateway that chooses a deployment for every request.",
        },
        "security": [{"key": []}] if keyed else [],
        "paths": {
            **{path: {"post": _sent_on(name, keyed)} for name, path in paths.items()},
            "/v1/models": {"get": _get("The names that may stand for a model", _ref("Models"), keyed)},
            "/v1/models/{model}": {"get": _model(keyed)},
            "/v1/agentroute/decide": {"post": _decide(paths, keyed)},
            "/v1/agentroute/fleet": {"get": _get("The fleet and the last decisions, for the page", _FLEET, keyed)},
            "/health": {"get": _OPENED | _get("Whether the gateway runs", _HEALTH, False)},
            "/ready": {"get": _OPENED | _ready()},
            "/metrics": {"get": _metrics(keyed)},
            "/openapi.json": {"get": _OPENED | _get("This document", _OBJECT, False)},
            **{path: {"get": _OPENED | _file(path)} for path in FILES},
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "parameters": {name: _header(field, name) for field, names in HEADERS.items() for name in names},
            "headers": _HEADERS,
            "schemas": {
                "Name": _name(),
                "Error": _ERROR,
                "Model": _MODEL,
                "Models": {
                    "type": "object",
                    "required": ["object", "data"],
                    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": _ref("Model")}},
                },
                **{name: _body(name) for name in paths},
            },
        },
    }


def _sent_on(name: EndpointName, keyed: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _OBJECT}}
    if "stream" in fields_of(name):
        content["text/event-stream"] = {}  # 3.1 has no words for events; they are the server's own
    told = {key: {"$ref": f"#/components/headers/{key}"} for key in _HEADERS}
    ok = {"description": "The server's answer, as it came.", "headers": told, "content": content}
    return {
        "operationId": name,
        "summary": _TITLES[name],
        "parameters": _hints(),
        "requestBody": _takes(_ref(name)),
        "responses": {"200": ok, **_errors(keyed, *_SENT_ON)},
    }


def _decide(paths: dict[EndpointName, str], keyed: bool) -> dict[str, Any]:
    endpoint = {"name": "endpoint", "in": "query", "schema": {"enum": list(paths), "default": "chat"}}
    return {
        "operationId": "decide",
        "summary": "Where a request would go now, and why; nobody is called",
        "parameters": [endpoint, *_hints()],
        "requestBody": _takes({"anyOf": [_ref(name) for name in paths]}),
        "responses": {
            "200": _json("The decision.", _DECISION),
            **_errors(keyed, 401, 403, 404, 413, 415, 422, 500, 503, 504),
        },
    }


def _model(keyed: bool) -> dict[str, Any]:
    named = {"name": "model", "in": "path", "required": True, "schema": _NAMED, "description": "May hold slashes."}
    told = _get("One of them", _ref("Model"), keyed)
    return {**told, "parameters": [named], "responses": {**told["responses"], **_errors(keyed, 404)}}


def _get(summary: str, schema: Schema, keyed: bool) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": _json(f"{summary}.", schema), **_errors(keyed, 401)}}


def _ready() -> dict[str, Any]:
    answer = {"type": "object", "required": ["ready", "endpoints_up"], "properties": _READY}
    told = _get("Whether some endpoint answers", answer, False)
    return told | {"responses": {**told["responses"], "503": _json("None does.", answer)}}


def _metrics(keyed: bool) -> dict[str, Any]:
    text = {CONTENT_TYPE.partition(";")[0]: {"schema": {"type": "string"}}}
    return {
        "summary": "Counters as Prometheus reads them; for keys with admin = true",
        "responses": {"200": {"description": "The counters.", "content": text}, **_errors(keyed, 401, 403)},
    }


def _file(path: str) -> dict[str, Any]:
    kind = FILES[path][1].partition(";")[0]
    ok = {"description": "The file.", "content": {kind: {"schema": {"type": "string"}}}}
    return {"summary": f"The page for people: {FILES[path][0]}", "responses": {"200": ok, **_errors(False)}}


def _takes(schema: Schema) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _json(text: str, schema: Schema) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _errors(keyed: bool, *statuses: int) -> dict[str, Any]:
    """What is answered instead; where no keys are set, nobody's is wrong."""
    told = (status for status in sorted({*_EDGE, *statuses}) if keyed or status not in (401, 403))
    return {str(status): _json(_ERRORS[status], _ref("Error")) for status in told}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


# --- bodies


def _body(name: EndpointName) -> Schema:
    said = "auto, auto:ROUTE, or the id of a model"
    fields: dict[str, Schema] = {"model": {**_NAMED, "description": said, "examples": ["auto"]}}
    for key, kind in fields_of(name).items():
        fields[key] = _or_null(_HINTED[key]() if key in _HINTED else kind.schema)
    needed = ["model", "messages"] if name == "chat" else ["model"]
    if name == "chat":
        fields["messages"] = fields_of(name)["messages"].schema
    return {
        "type": "object",
        "required": needed,
        "properties": fields,
        "description": "Other fields are passed on to the server as they are.",
    }


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _metadata() -> Schema:
    """Hints are taken out of it."""
    hints = {f"{METADATA}{field}": {"anyOf": _either(field)} for field in HEADERS}
    return {"type": "object", "properties": hints}


def _nvext() -> Schema:
    """Dynamo's hints are read and passed on. A group that is no object says nothing."""
    groups: dict[str, Schema] = {}
    for group, key, field in NVEXT:
        said = {"type": "number", "description": "Higher is more important."} if key == "priority" else _value(field)
        groups.setdefault(group, {"properties": {}})["properties"][key] = _or_null(said)
    return {"type": "object", "properties": groups, "description": "Hints, as NVIDIA Dynamo knows them."}


_HINTED: dict[str, Callable[[], Schema]] = {"metadata": _metadata, "nvext": _nvext}
"""The fields that hold hints."""


# --- hints


def _hints() -> list[Schema]:
    return [{"$ref": f"#/components/parameters/{name}"} for names in HEADERS.values() for name in names]


def _header(field: str, name: str) -> Schema:
    schema = {"enum": list(CLASSES)} if name == "x-smg-priority" else _text(field)
    unit = f" In {UNITS[field]}." if field in UNITS else ""
    return {"name": name, "in": "header", "description": f"The hint {field}.{unit}", "schema": schema}


def _value(field: str) -> Schema:
    """A hint as JSON."""
    if field == "needs":
        return {"type": "array", "items": {"enum": list(CAPABILITIES)}}
    if field in MOST:
        return {"type": "integer", "minimum": 0 if from_zero(field) else 1, "maximum": MOST[field]}
    if field in UNITS:
        return {"type": "number", "minimum": 1e-9, "exclusiveMaximum": 1e12}
    return {"enum": list(PRIORITIES)} if field == "priority" else _ref("Name")


@cache
def _name() -> Schema:
    """A name, as ``hints`` takes it: Python's printable characters, of which patterns know no shorter name."""
    runs = groupby(range(sys.maxunicode + 1), lambda code: chr(code).isprintable())
    ends = [(next(run), deque(run, 1)) for printable, run in runs if printable]
    spans = "".join(f"{_point(first)}-{_point(rest[0])}" if rest else _point(first) for first, rest in ends)
    return {"type": "string", "maxLength": MAX_NAME, "pattern": f"^[{spans}]+$"}


def _point(code: int) -> str:
    return f"\\{chr(code)}" if chr(code) in r"\]^-[" else chr(code)


def _either(field: str) -> list[Schema]:
    """A hint as it may stand in the metadata: as what it is, or as a text."""
    return [_value(field), _text(field)] if field == "needs" or field in MOST or field in UNITS else [_value(field)]


def _text(field: str) -> Schema:
    """A hint as a text. A server reads texts alone in headers, so numbers are such, too."""
    if field == "needs":
        one = "|".join(CAPABILITIES)
        return {"type": "string", "pattern": f"^ *({one})? *(, *({one})? *)*$"}
    if field in MOST:
        less = f"[1-9][0-9]{{0,{len(str(MOST[field])) - 2}}}"
        return {"type": "string", "pattern": f"^({'0|' if from_zero(field) else ''}{less}|{MOST[field]})$"}
    if field in UNITS:
        return {"type": "string", "pattern": r"^([1-9][0-9]{0,10}(\.[0-9]+)?|0\.[0-9]{0,7}[1-9])$"}
    if field == "priority":
        return _value(field)
    return {"type": "string", "maxLength": MAX_NAME, "pattern": _HEADER_NAME}


# --- answers

_SHUT: Schema = {"type": ["string", "null"]}
_HEADERS: dict[str, Any] = {
    "x-agentroute-deployment": {
        "required": True, "schema": {"type": "string"}, "description": "Who answered.",
    },
    "x-agentroute-reason": {"required": True, "schema": {"type": "string"}, "description": "Why that one."},
    "x-agentroute-predicted-ttft-ms": {
        "schema": {"type": "number", "minimum": 0}, "description": "The time to the first token that was predicted.",
    },
    "x-request-id": {"required": True, "schema": _NAMED, "description": "The caller's own, if it is a plain word."},
}  # fmt: skip
_ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {"message": _NAMED, "type": _NAMED, "param": _SHUT, "code": _SHUT},
        }
    },
}
_MODEL: Schema = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": {"type": "string"},
    },
}
_HEALTH: Schema = {"type": "object", "required": ["status"], "properties": {"status": {"const": "ok"}}}
_READY: Schema = {"ready": {"type": "boolean"}, "endpoints_up": {"type": "integer", "minimum": 0}}
_ESTIMATE: Schema = {
    "type": ["object", "null"],
    "description": "null: not known",
    "properties": {key: {"type": ["number", "null"]} for key in ("mean", "low", "high")},
}
_DECISION: Schema = {
    "type": "object",
    "required": ["object", "model", "route", "objective", "deployment", "reason", "candidates", "rejected"],
    "properties": {
        "object": {"const": "agentroute.decision"},
        **{key: {"type": "string"} for key in ("model", "route", "objective", "deployment", "reason")},
        "served_model": _SHUT,
        "context_tokens": {"type": "integer"},
        "max_output_tokens": {"type": ["integer", "null"]},
        **dict.fromkeys(("ttft_ms", "tpot_ms", "e2e_ms", "cost_usd"), _ESTIMATE),
        "candidates": {"type": "array", "items": {"type": "object", "required": ["deployment"]}},
        "rejected": {"type": "object", "additionalProperties": {"type": "object", "required": ["kind", "text"]}},
    },
}
_FLEET: Schema = {
    "type": "object",
    "required": ["queued", "routes", "deployments", "decisions", "at"],
    "properties": {
        "queued": {"type": "integer"},
        "routes": {"type": "array", "items": {"type": "string"}},
        "deployments": {"type": "array", "items": {"type": "object", "required": ["name", "endpoints"]}},
        "decisions": {"type": "array", "items": {"type": "object", "required": ["id", "outcome"]}},
        "at": {"type": "number"},
    },
}
