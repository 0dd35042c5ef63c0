"""The JSON Schema of a file, for editors."""

from __future__ import annotations

import json

from pydantic import BaseModel

from agentroute.config import Config

CONFIG_SCHEMA = "agentroute.schema.json"
"""What the schema of a configuration is called where it is written beside one."""


def config_schema() -> str:
    """That of ``agentroute.toml``."""
    return schema_text(Config)


def schema_text(kind: type[BaseModel]) -> str:
    """That of a model, with the descriptions of its fields."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **kind.model_json_schema()}
    return json.dumps(schema, indent=2)
