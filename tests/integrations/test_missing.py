"""What is said where a framework's package is not installed."""

from __future__ import annotations

import sys

import pytest

from agentroute.errors import UsageError
from agentroute.integrations.openai import model_name, openai_client
from agentroute.router import Router


def test_a_missing_sdk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(UsageError, match=r"^the OpenAI SDK is not installed; pip install 'agentroute\[openai\]'$"):
        openai_client(Router.shipped())


@pytest.mark.parametrize(("route", "name"), [(None, "auto"), ("tools", "auto:tools")])
def test_a_route_is_asked_for_by_a_models_name(route: str | None, name: str) -> None:
    assert model_name(route) == name
