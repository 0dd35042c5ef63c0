"""Connections: pools of a few requests each, and what they are made of."""

from __future__ import annotations

import asyncio

import pytest
from faults import FaultServer
from pair import one

from agentroute.client import Client, Timeout
from agentroute.errors import UsageError
from agentroute.pools import EACH, Pools
from agentroute.transport import Target


def test_a_pool_is_shared_by_few_and_used_again() -> None:
    async def use() -> None:
        pools = Pools(Timeout(), "httpx")
        taken = [pools.take("http://a") for _ in range(2 * EACH + 1)]
        assert [taken.count(pool) for pool in dict.fromkeys(taken)] == [EACH, EACH, 1]
        assert pools.take("http://b") not in taken
        for pool in taken:
            pools.give(pool)
        assert pools.take("http://a") in taken
        await pools.aclose()
        with pytest.raises(UsageError, match="the client is closed"):
            pools.take("http://a")

    asyncio.run(use())


def test_a_transport_that_is_none_is_refused(first: FaultServer) -> None:
    with pytest.raises(UsageError, match="transport must be"):
        Client(one(first), transport="curl")  # type: ignore[arg-type]


def test_a_plain_address_needs_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> None:
        raise AssertionError("certificates were read")

    for name in ("http_proxy", "https_proxy", "all_proxy", "ssl_cert_file", "ssl_cert_dir"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr("httpx.create_ssl_context", read)
    monkeypatch.setenv("no_proxy", "localhost")  # names no proxy
    pools = Pools(Timeout(), "httpx")
    assert pools._context(Target.of("http://127.0.0.1:1", None).root) is pools._context("http://127.0.0.2")
    with pytest.raises(AssertionError, match="certificates were read"):
        pools._context("https://127.0.0.1")
