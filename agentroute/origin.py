"""Where a number comes from: the four origins, and the provenance of a measured block."""

from __future__ import annotations

import ast
import datetime as dt
import inspect
import textwrap
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

Origin = Literal["measured", "reported", "derived", "assumed"]
"""measured: on this profile and engine version; reported: the live server or its log says so; derived: from the model's
shape and the engine's rules; assumed: somebody's guess, and shown as one. The earlier in this list, the better."""

ORIGINS: tuple[Origin, ...] = ("measured", "reported", "derived", "assumed")


def _no_number(value: object) -> object:
    """Pydantic reads a number as seconds since 1970; in these files it is a mistake."""
    if isinstance(value, int | float):
        raise ValueError("must be a date such as 2026-11-29")
    return value


Tokens = Annotated[int, Field(strict=True, ge=1, le=1_000_000_000)]
Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Milliseconds = Annotated[float, Field(strict=True, gt=0, le=1e9, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, gt=0, le=1e18, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(strict=True, ge=0, le=1e18, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/@:+ -]*$")]
JSONL = r"^[^\x00]*[^/\x00]\.jsonl$"
FUNCTION = r"^[\w.]+:\w+$"
"""Patterns: the name of a file of JSON lines; a function, as ``module:function``."""
Date = Annotated[dt.date, BeforeValidator(_no_number)]
Text = Annotated[str, Field(min_length=1, max_length=4_000)]


class Frozen(BaseModel):
    """The base of everything read from a file: frozen, unknown keys refused, no NaN, no infinity.

    The string under a field is its description in the JSON Schema. It is read from the source when a schema is made:
    pydantic's ``use_attribute_docstrings`` does so at import, and took half of the time of importing a profile.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True, protected_namespaces=()
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = handler.resolve_ref_schema(schema := handler(core_schema))
        for name, text in _field_docs(cls).items():
            described["properties"][name].setdefault("description", text)
        return schema


def _field_docs(model: type[BaseModel]) -> dict[str, str]:
    """The docstring under each field of a model, by name."""
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    if not isinstance(body, ast.ClassDef):
        return {}
    docs = {}
    for field, doc in pairwise(body.body):
        match field, doc:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                if name in model.model_fields:
                    docs[name] = inspect.cleandoc(text)
    return docs


class Provenance(Frozen):
    """Where a block of figures comes from."""

    origin: Origin
    """One of measured, reported, derived, assumed."""
    source: Text
    """A URL, a package with its version and file, or a sentence that lets a reader find the figures again."""
    date: Date | None = None
    """The day of the measurement; ``None`` when the source does not say."""
    tool: Text | None = None
    """What measured it (``vllm bench serve 0.33``); ``None`` when unknown."""
    engine_version: Name | None = None
    """The engine's version during the measurement; ``None`` when unknown."""
    licence: Text | None = None
    """The licence under which the figures are passed on (``Apache-2.0``); ``None`` when unknown."""
    quality: Literal["A", "B", "C"] | None = None
    """A: the run itself is identified; B: a table of results; C: read off a plot or a text; ``None``: not judged."""
    notes: Text | None = None
    """Anything a reader must know, such as how a statistic was inferred."""
