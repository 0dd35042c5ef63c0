"""Real llama.cpp servers with a small model, each started once for the tests that need it; and which tests go together
where several processes share them (``make test``)."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import lru_cache
from pathlib import Path

import pytest
from faults import FaultServer
from hypothesis import settings

from agentroute import compiled, pools
from agentroute.catalogue import shipped
from agentroute.demo.embedded import EmbeddedServer
from agentroute.fleet import Deployment
from agentroute.latency.curve import Curve
from agentroute.latency.physics import Shape
from agentroute.latency.points import Point

# Examples are timed by the wall clock, which other processes on the machine share.
settings.register_profile("agentroute", deadline=None)
settings.load_profile("agentroute")


def once(fit: Callable[[Deployment], Curve | None]) -> Callable[[Deployment], Curve | None]:
    """``fit``, but the curve of a shipped profile is fitted once in a process, and not by every router over all of them
    and every command: that takes a second each time. Curves are frozen."""
    kept: dict[tuple[int, ...], tuple[Deployment, Curve | None]] = {}
    names = frozenset(shipped().profile_names)

    def fitted(deployment: Deployment) -> Curve | None:
        name = deployment.profile.name
        if name not in names or shipped().profile(name) is not deployment.profile:
            return fit(deployment)
        key = tuple(id(getattr(deployment, field.name)) for field in fields(deployment))
        if key not in kept:
            kept[key] = deployment, fit(deployment)  # with the deployment, whose fields' identities are the key
        return kept[key][1]

    return fitted


pytest.MonkeyPatch().setattr(compiled, "_curve", once(compiled._curve))


class Fitted:
    """``Curve`` as routers use it: through equal points of deployments without a roofline, as most made for a test are,
    it is fitted once. That is most of making a router."""

    plain = staticmethod(lru_cache(maxsize=256)(Curve.fit))

    @classmethod
    def fit(cls, points: tuple[Point, ...], shape: Shape | None = None) -> Curve | None:
        return cls.plain(points) if shape is None else Curve.fit(points, shape)


pytest.MonkeyPatch().setattr(compiled, "Curve", Fitted)


def plain(is_fast: Callable[[str], bool]) -> Callable[[str], bool]:
    """``is_fast`` as without the extra ``fast``, unless a test asks for aiohttp: most tests are of what most have."""
    return lambda wire: is_fast("httpx" if wire == "auto" else wire)


pytest.MonkeyPatch().setattr(pools, "_is_fast", plain(pools._is_fast))

LIVE = {"llama_one", "llama_split", "llama_unified", "llama_tools", "llama_embeddings"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test that asks one of the live servers goes to one process, the first, so that each server is started once
    and asked by one at a time. The others go by file, so that what a file computes once is computed once."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group("live" if is_live(item) else item.nodeid.partition("::")[0]))
    items.sort(key=is_live, reverse=True)


def pytest_collection_finish(session: pytest.Session) -> None:
    """A pytest that pytest-xdist does not know loses the groups in silence: each process would start every server.

    What was imported and collected stays to the end. Without looking through it a whole collection of garbage, of which
    the tests ask for hundreds, takes a fiftieth of the time.
    """
    gc.collect()
    gc.freeze()
    if session.items and session.config.getoption("loadgroup", False):
        assert all("@" in item.nodeid for item in session.items), "this pytest-xdist cannot group tests of this pytest"


def is_live(item: pytest.Item) -> bool:
    """Whether it asks one of the servers below."""
    return isinstance(item, pytest.Function) and not LIVE.isdisjoint(item.fixturenames)


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names no proxy and no certificates, whatever it does on this machine."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def first() -> Iterator[FaultServer]:
    """A scripted server."""
    with FaultServer() as server:
        yield server


@pytest.fixture
def second() -> Iterator[FaultServer]:
    """Another one."""
    with FaultServer() as server:
        yield server


@pytest.fixture(scope="session")
def llama_one() -> Iterator[EmbeddedServer]:
    """One slot of 2,048 tokens."""
    with EmbeddedServer(ctx=2048, slots=1) as server:
        yield server


@pytest.fixture(scope="session")
def llama_split() -> Iterator[EmbeddedServer]:
    """Four slots of 512 tokens."""
    with EmbeddedServer(ctx=2048, slots=4) as server:
        yield server


@pytest.fixture(scope="session")
def llama_unified() -> Iterator[EmbeddedServer]:
    """Two slots that share 256 tokens."""
    with EmbeddedServer(ctx=256, slots=2, unified=True) as server:
        yield server


@pytest.fixture(scope="session")
def llama_tools() -> Iterator[EmbeddedServer]:
    """One slot, and a chat template that knows tools."""
    with EmbeddedServer(ctx=1024, slots=1, jinja_template=Path(__file__).with_name("chatml_tools.jinja")) as server:
        yield server


@pytest.fixture(scope="session")
def llama_embeddings() -> Iterator[EmbeddedServer]:
    """One slot of 512 tokens, and texts are embedded."""
    with EmbeddedServer(ctx=512, slots=1, embeddings=True) as server:
        yield server
