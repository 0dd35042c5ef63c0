"""A configuration that changes under a running router: all of it applies at once, or nothing; nothing is lost."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from fleets import assert_nothing_is_held, held, written

from agentroute.capacity.pool import NULL_BLOCKS
from agentroute.config import Config
from agentroute.errors import ConfigError, NoFeasibleDeployment, PoolFull, UnknownNameError, UsageError
from agentroute.lease import Lease
from agentroute.outcome import Outcome
from agentroute.reload import Reloading
from agentroute.state.load import Load
from agentroute.task import Task

PROFILE = """\
format = 1
name = "{name}"
engine = {{ name = "vllm" }}
[limits]
max_model_len = {window}
kv_pool = {{ tokens = {tokens}, block_tokens = 16 }}
provenance = {{ origin = "reported", source = "a test" }}
"""
POINTS = """\
[[measurements]]
provenance = {{ origin = "measured", source = "a test" }}
points = [
  {{ isl = 512, osl = 64, concurrency = 1, ttft_ms = {{ mean = {ttft} }}, tpot_ms = {{ mean = 10.0 }} }},
  {{ isl = 512, osl = 64, concurrency = 8, ttft_ms = {{ mean = {ttft} }}, tpot_ms = {{ mean = 20.0 }} }},
]
"""


def folder(at: Path, points: str = POINTS, **tokens: int) -> Path:
    """Profiles by name, each with room for so many tokens of KV."""
    for name, size in tokens.items():
        held = size + 16 * NULL_BLOCKS
        written(at, (PROFILE + points).format(name=name, window=4_096, tokens=held, ttft=50.0), f"{name}.toml")
    return at


def text(*names: str, routes: str = "", port: int = 1) -> str:
    return (
        "".join(
            f'[[deployments]]\nname = "{name}"\nprofile = "{name}.toml"\nbase_url = "http://127.0.0.1:{port}/{name}"\n'
            for name in names
        )
        + routes
    )


@pytest.fixture
def live(tmp_path: Path) -> Reloading:
    """Two servers, ``a`` with room for four requests of 1,024 tokens and ``b`` for two."""
    folder(tmp_path, a=4_096, b=2_048, c=2_048)
    return Reloading(written(tmp_path, text("a", "b"), "agentroute.toml"))


def changed(live: Reloading, to: str) -> None:
    live.path.write_text(to)
    live.reload()


ASKED = Task(context_tokens=960, max_output_tokens=64)


def at(live: Reloading, name: str) -> Lease:
    """A lease at one deployment."""
    return live.router.acquire(Task(context_tokens=960, max_output_tokens=64, pin=name))


def blocks_held(live: Reloading) -> dict[str, float]:
    ledger, rules = live.router._situation.ledger, live.router.rules.compiled
    return {one.name: float(ledger.held[rules.first_pool[d]]) for d, one in enumerate(rules.deployments)}


# ---- all or nothing


@pytest.mark.parametrize("first", [text("a"), text("a", "c")])
def test_what_is_written_while_a_file_is_read_applies_at_the_next_look(tmp_path: Path, first: str) -> None:
    folder(tmp_path, a=4_096, b=2_048, c=2_048)
    path = written(tmp_path, text("a", "b"), "agentroute.toml")

    def write_the_rest(config: Config) -> None:
        if len(path.read_text()) == len(first):
            path.write_text(first + text("b"))

    live = Reloading(path, before_change=write_the_rest)
    path.write_text(first)
    assert live.look()
    assert live.look()
    assert live.config.deployments[-1].name == "b"
    assert not live.look()


class Steps:
    """What happens between two looks at the files, one after the other."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._left = list(steps)

    def wait(self, timeout_s: float) -> bool:
        if not self._left:
            return True
        self._left.pop(0)()
        return False


def test_a_file_that_is_being_written_is_not_read_before_it_is_still(
    live: Reloading, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[Config] = []
    live = Reloading(live.path, on_change=applied.append)
    half, whole = text("c"), text("c", routes="[routes.x]\n")
    looks: list[Callable[[], object]] = [
        lambda: live.path.write_text(half),
        lambda: live.path.write_text(whole),
        lambda: None,
        lambda: None,
    ]
    monkeypatch.setattr(live, "_stop", Steps(*looks))
    live._keep_looking()
    assert [list(config.routes) for config in applied] == [["x"]]


def test_a_folder_of_links_that_is_swapped_applies(tmp_path: Path) -> None:
    # How Kubernetes puts a ConfigMap into a container.
    for name, to in (("one", text("a")), ("two", text("a", "b"))):
        (tmp_path / name).mkdir()
        written(folder(tmp_path / name, a=4_096, b=2_048), to, "agentroute.toml")
    (tmp_path / "now").symlink_to("one")
    live = Reloading(tmp_path / "now" / "agentroute.toml")
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").rename(tmp_path / "now")
    assert live.look()
    assert [one.name for one in live.config.deployments] == ["a", "b"]


def test_another_file_applies_to_the_same_router(live: Reloading) -> None:
    router = live.router
    changed(live, text("b", "c", routes='[routes.new]\nallow = ["c"]\n'))
    assert live.router is router
    assert [one.name for one in router.fleet.deployments] == ["b", "c"]
    assert router.decide(Task(context_tokens=100, max_output_tokens=10, route="new")).deployment == "c"
    with pytest.raises(UnknownNameError):
        router.decide(Task(context_tokens=100, max_output_tokens=10, pin="a"))


@pytest.mark.parametrize(
    "bad",
    ["[[deployments", text("a", routes='[routes.x]\nallow = ["gone"]\n'), text("nowhere"), text("a", "a"), "",
     text("a", routes='[objectives]\nmine = "no_such:f"\n'), text("a", routes='[routes.x]\nobjective = "cost"\n')],
)  # fmt: skip
def test_a_bad_file_is_refused_and_says_why_and_the_one_before_still_applies(
    live: Reloading, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = live.router.rules
    live.path.write_text(bad)
    with caplog.at_level(logging.WARNING, "agentroute.reload"):
        assert not live.look()
        assert not live.look()
    assert live.router.rules is before
    assert live.refused is not None
    assert [str(live.refused) in record.getMessage() for record in caplog.records] == [True]
    assert live.router.decide(ASKED).deployment == "a"
    live.path.write_text(text("b"))
    assert live.look()
    assert live.refused is None
    assert live.reloads == 1


def test_who_is_asked_before_may_refuse_a_file(live: Reloading) -> None:
    def refuse(config: Config) -> None:
        assert picky.router.rules is before
        if len(config.deployments) == 1:
            raise UsageError("one is not enough")

    told: list[Config] = []
    picky = Reloading(live.path, before_change=refuse, on_change=told.append)
    before = picky.router.rules
    live.path.write_text(text("c"))
    assert not picky.look()
    assert (str(picky.refused), picky.router.rules, told) == ("one is not enough", before, [])
    live.path.write_text(text("b", "c"))
    assert picky.look()
    assert told == [picky.config]


def test_what_is_no_refusal_of_who_is_asked_before_is_raised_and_told_all_the_same(live: Reloading) -> None:
    def breaks(config: Config) -> None:
        raise ZeroDivisionError("of its own")

    broken = Reloading(live.path, before_change=breaks)
    before = broken.router.rules
    live.path.write_text(text("c"))
    with pytest.raises(ZeroDivisionError):
        broken.look()
    assert str(broken.refused) == f"{live.path}: ZeroDivisionError: of its own"
    assert broken.router.rules is before


def test_the_first_file_must_be_good(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not valid TOML"):
        Reloading(written(tmp_path, "[[", "agentroute.toml"))


def test_a_profile_beside_it_is_looked_at_too(live: Reloading) -> None:
    assert not live.look()
    folder(live.path.parent, a=2_048)
    assert live.look()
    assert live.router.rules.compiled.blocks[0] == 128


def test_a_file_that_is_gone_is_refused_and_comes_back(live: Reloading) -> None:
    live.path.unlink()
    assert not live.look()
    assert "no such file" in str(live.refused)
    live.path.write_text(text("a"))
    assert live.look()


def test_a_thread_looks_at_the_file(live: Reloading) -> None:
    came = threading.Event()
    with Reloading(live.path, every_s=0.01, on_change=lambda _: came.set()) as looked:
        live.path.write_text(text("c"))
        assert came.wait(20.0)
        assert [one.name for one in looked.config.deployments] == ["c"]
        assert looked.router.decide(ASKED).deployment == "c"


def test_of_two_reloads_at_once_the_later_is_told_last(live: Reloading) -> None:
    told: list[list[str]] = []
    others: list[threading.Thread] = []

    def tell(now: Config) -> None:
        if not others:
            assert not slow.look(), "whoever is told may look itself"
            slow.path.write_text(text("c"))
            others.append(threading.Thread(target=slow.reload))
            others[0].start()
            others[0].join(0.3)  # time enough to be told before this is
        told.append([one.name for one in now.deployments])

    slow = Reloading(live.path, on_change=tell)
    changed(slow, text("b"))
    others[0].join()
    assert told == [["b"], ["c"]]
    assert [one.name for one in slow.config.deployments] == ["c"]


# ---- what is held counts on


@pytest.mark.parametrize("to", [("a", "b"), ("b", "a"), ("c", "b", "a"), ("b", "c", "a")])
def test_what_is_held_counts_on_where_the_server_stays(live: Reloading, to: tuple[str, ...]) -> None:
    leases = [at(live, "a"), at(live, "a"), at(live, "b")]
    changed(live, text(*to, routes='[routes.x]\nobjective = "latency"\n'))
    assert {name: blocks_held(live)[name] for name in ("a", "b")} == {"a": 128.0, "b": 64.0}
    with at(live, "b"), pytest.raises(PoolFull):
        at(live, "b")
    leases[0].settle(Outcome(ttft_ms=50.0, tpot_ms=10.0, output_tokens=64))
    assert blocks_held(live)["a"] == 64.0
    for lease in leases[1:]:
        lease.release()
    assert_nothing_is_held(live.router)


def test_a_lease_at_a_server_that_is_gone_ends_in_peace(live: Reloading) -> None:
    lease, dropped, late = at(live, "a"), at(live, "a"), at(live, "a")
    changed(live, text("b"))
    lease.first_token()
    assert lease.extend(500)
    del dropped
    late.release(after_s=0.0)
    lease.settle(Outcome(ttft_ms=50.0, tpot_ms=10.0))
    assert_nothing_is_held(live.router)
    changed(live, text("a", "b"))
    assert blocks_held(live) == {"a": 0.0, "b": 0.0}


def test_a_server_at_another_address_is_another_one(live: Reloading) -> None:
    lease = at(live, "a")
    changed(live, text("a", "b", port=2))
    assert blocks_held(live) == {"a": 0.0, "b": 0.0}
    lease.release()
    assert_nothing_is_held(live.router)


def test_a_pool_that_became_smaller_takes_nothing_until_there_is_room(live: Reloading) -> None:
    leases = [at(live, "a") for _ in range(4)]
    folder(live.path.parent, a=2_048)
    live.reload()
    leases.pop().release()
    for _ in range(2):
        with pytest.raises(PoolFull):
            at(live, "a")
        leases.pop().release()
    leases.append(at(live, "a"))
    for lease in leases:
        lease.release()
    assert_nothing_is_held(live.router)


def test_a_cancelled_request_still_holds_its_memory_for_a_while(live: Reloading) -> None:
    at(live, "b").release(after_s=1_000.0)
    changed(live, text("c", "b"))
    assert blocks_held(live) == {"c": 0.0, "b": 64.0}


def test_what_siblings_share_is_held_once_for_them(tmp_path: Path) -> None:
    folder(tmp_path, a=65_536)
    profile = tmp_path / "a.toml"
    profile.write_text(profile.read_text().replace("[limits]", "[limits]\nprefix_caching = true"))
    live = Reloading(written(tmp_path, text("a"), "agentroute.toml"))
    asked = Task(context_tokens=1_000, max_output_tokens=24, concurrency=4, shared_prefix_tokens=800, group="g")
    leases = [live.router.acquire(asked) for _ in range(3)]
    before = blocks_held(live)["a"]
    folder(tmp_path, c=2_048)
    changed(live, text("c", "a"))
    assert blocks_held(live)["a"] == before == 3 * 14 + 50
    for lease in leases:
        lease.release()
    assert_nothing_is_held(live.router)


# ---- what was learnt stays


def ttft_ms(live: Reloading, name: str) -> float:
    found = live.router.decide(Task(context_tokens=960, max_output_tokens=64, pin=name)).ttft_ms
    assert found is not None
    return found.mean


def test_what_was_learnt_of_a_server_stays_with_it(live: Reloading) -> None:
    for _ in range(30):
        at(live, "b").settle(Outcome(ttft_ms=150.0, tpot_ms=10.0))
    slow = ttft_ms(live, "b")
    changed(live, text("c", "b"))
    assert ttft_ms(live, "b") == pytest.approx(slow, rel=0.02)
    assert ttft_ms(live, "c") < slow / 1.5


def test_who_is_down_stays_down_and_others_load_is_known(live: Reloading) -> None:
    live.router.observe("b", Load(running=0, waiting=0, trouble="dead", said="it is dead"))
    live.router.observe("a", Load(running=7, waiting=2, kv_used=0.5))
    changed(live, text("c", "b", "a"))
    with pytest.raises(NoFeasibleDeployment) as raised:
        live.router.decide(Task(context_tokens=960, max_output_tokens=64, pin="b"))
    assert raised.value.reasons["b"].kind == "down"
    assert live.router.signs("b").said == "it is dead"
    assert live.router.signs("a").kv_used == 0.5
    assert live.router._situation.state(ASKED, live.router.clock()).in_flight.tolist() == [0.0, 0.0, 9.0]


def test_a_warm_conversation_stays_warm(live: Reloading) -> None:
    asked = Task(context_tokens=960, max_output_tokens=64, session_id="s", pin="b")
    live.router.acquire(asked).settle(Outcome(ttft_ms=50.0, tpot_ms=10.0, output_tokens=64))
    changed(live, text("c", "b"))
    state = live.router._situation.state(asked, live.router.clock())
    assert state.cached_tokens is not None
    assert state.cached_tokens.tolist() == [0.0, 960.0]


# ---- who waits


def test_who_waits_is_placed_by_the_new_file(live: Reloading) -> None:
    leases = [held(live.router, ASKED) for _ in range(6)]
    ticket = live.router.queue(ASKED)
    assert not ticket.done
    changed(live, text("a", "b", "c"))
    assert ticket.result().deployment.name == "c"
    for lease in (*leases, ticket.result()):
        lease.release()
    assert_nothing_is_held(live.router)


def test_who_waits_for_what_is_gone_is_refused(live: Reloading) -> None:
    changed(live, text("a", "b", routes='[routes.x]\nallow = ["b"]\n'))
    leases = [at(live, "b"), at(live, "b")]
    ticket = live.router.queue(Task(context_tokens=960, max_output_tokens=64, route="x"))
    changed(live, text("a", "b"))
    with pytest.raises(UnknownNameError, match="there is no route 'x'"):
        ticket.result()
    for lease in leases:
        lease.release()


# ---- under load


FILES = (
    text("a", "b"),
    text("b", "a", routes='[routes.default]\nobjective = "latency"\n'),
    text("c", "a", "b"),
    text("a", routes='[routes.default]\nfallbacks = ["spare"]\n[routes.spare]\n'),
    "[[deployments",
)


@contextmanager
def crowd(number: int, work: Callable[[], None]) -> Iterator[list[BaseException]]:
    """So many threads that do it again and again; what any of them raised."""
    stop, raised = threading.Event(), list[BaseException]()

    def again() -> None:
        while not stop.is_set():
            try:
                work()
            except BaseException as error:
                raised.append(error)
                return

    threads = [threading.Thread(target=again) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield raised
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_thousand_reloads_under_64_threads_lose_nothing(live: Reloading) -> None:
    folder(live.path.parent, points="", a=4_096, b=2_048, c=2_048)  # no curve is fitted: that takes most of a reload
    dice, placed, full = random.Random(7), [0], [0]

    def work() -> None:
        try:
            with live.router.admit(ASKED, timeout_s=0.5) as lease:
                ledger = live.router._situation.ledger
                assert (ledger.held <= ledger.capacity).all()
                placed[0] += 1
                time.sleep(0.03)  # as a stream does most of the time
                if dice.random() < 0.3:
                    lease.first_token()
                    lease.settle(Outcome(ttft_ms=50.0, tpot_ms=10.0, output_tokens=10))
        except PoolFull:
            full[0] += 1

    refused = 0
    with crowd(64, work) as raised:
        for i in range(1_000):
            live.path.write_text(FILES[i % len(FILES)])
            try:
                live.reload()
            except ConfigError:
                refused += 1
            ledger = live.router._situation.ledger
            assert (ledger.held <= ledger.capacity).all()
    assert not raised
    assert (refused, live.reloads) == (200, 800)
    assert placed[0] > 1_000
    assert_nothing_is_held(live.router)
    ledger = live.router._situation.ledger
    assert (ledger.total, ledger.overruns, live.router.queued) == (0, 0, 0)
    assert not np.any(ledger.in_flight)
    assert not np.any(ledger.resident)


def test_reloads_under_64_tasks_lose_nothing(live: Reloading) -> None:
    assert asyncio.run(reloaded_under_tasks(live)) >= 64
    assert_nothing_is_held(live.router)
    assert live.router.queued == 0


async def reloaded_under_tasks(live: Reloading) -> int:
    """A hundred reloads while 64 tasks wait and are placed; how often they were."""
    done = [0]
    stop = asyncio.Event()

    async def work() -> None:
        while not stop.is_set():
            async with live.router.admit(ASKED):
                await asyncio.sleep(0)
                done[0] += 1

    tasks = [asyncio.create_task(work()) for _ in range(64)]
    for i in range(100):
        live.path.write_text(FILES[i % (len(FILES) - 1)])
        live.reload()
        await asyncio.sleep(0)
    stop.set()
    await asyncio.gather(*tasks)
    return done[0]
