"""The watcher, against servers that answer, do not, or do so in odd ways; and real llama.cpp servers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from servers import Asked, Behaviour, Server, answers, deployment, free_port, router, says, silent, until

from agentroute import AsyncWatcher, PoolFull, Router, Task, UsageError, Watcher
from agentroute.adapters import adapter
from agentroute.demo.embedded import EmbeddedServer
from agentroute.fleet import Deployment
from agentroute.outcome import Outcome
from agentroute.probe import probe
from agentroute.pulse import GONE, Vital

TASK = Task(context_tokens=50, max_output_tokens=5)
BUSY = "llamacpp:requests_processing 7\nllamacpp:requests_deferred 2\n"


def looked(*deployments: Deployment, times: int = 1, timeout_s: float = 5.0) -> tuple[Router, list[Vital]]:
    """A router and how its endpoints are after so many looks."""
    by = router(*deployments)
    watcher = Watcher(by, timeout_s=timeout_s)
    for _ in range(times):
        watcher.look()
    return by, list(watcher.vitals.values())


def kinds(by: Router) -> list[str]:
    return [finding.kind for finding in by.doctor()]


def routes(table: dict[str, str | tuple[int, str]]) -> Behaviour:
    """Answers by path; 404 to all else."""

    def behave(connection: object, asked: Asked) -> None:
        found = table.get(asked.target, (404, ""))
        status, body = found if isinstance(found, tuple) else (200, found)
        answers(body, status=status)(connection, asked)  # type: ignore[arg-type]

    return behave


# ---- what the router learns


def test_what_others_do_is_told_to_the_router() -> None:
    with Server(answers(BUSY, content_type="text/plain")) as server:
        by, (vital,) = looked(deployment(server.url))
    assert (vital.up, vital.load.running, vital.load.waiting) == (True, 7, 2)
    assert by.decide(TASK).candidates[0].n == 10
    assert by.doctor() == []


def test_a_report_is_as_old_as_the_question() -> None:
    clock = iter([100.0] + [103.0] * 1_000)
    with Server(answers(BUSY)) as server:
        by = Router(router(deployment(server.url)).fleet, clock=lambda: next(clock))
        Watcher(by).look()
        signs = by.signs("here")
    assert signs.age_s == pytest.approx(3.0)


def test_two_names_for_one_address_are_asked_once_and_both_told() -> None:
    with Server(answers(BUSY)) as server:
        by, vitals = looked(deployment(server.url), deployment(server.url, name="too"))
        assert len(server.asked) == 1
    assert [vital.load.running for vital in vitals] == [7, 7]
    assert [by._situation.foreign.current(by.clock()).running[pool] for pool in (0, 1)] == [7.0, 7.0]


def test_an_endpoint_that_is_down_gets_nothing_and_its_twin_does() -> None:
    with Server(answers(BUSY)) as server:
        gone = f"http://127.0.0.1:{free_port()}"
        one = replace(deployment(gone), urls=(gone, server.url))
        by, (down, up) = looked(one, times=GONE)
        assert (down.up, up.up) == (False, True)
        assert kinds(by) == ["unreachable"]
        assert f"at {gone}, cannot be asked: cannot be reached" in by.doctor()[0].text
        with by.acquire(TASK) as lease:
            assert lease.url == server.url


def test_of_equal_endpoints_the_one_with_the_least_in_flight_is_taken_by_what_all_of_them_say() -> None:
    with Server(answers(BUSY)) as busy, Server(answers(BUSY.replace("7", "1"))) as idle:
        by, _ = looked(replace(deployment(busy.url), urls=(busy.url, idle.url)))
        leases = [by.acquire(TASK) for _ in range(8)]
        # 9 and 3 in flight, by their own account: the first six go to one, then both are even
        assert [lease.url for lease in leases[:6]] == [idle.url] * 6
        assert sorted(str(lease.url) for lease in leases[6:]) == sorted([busy.url, idle.url])
    for lease in leases:
        lease.release()


def test_an_endpoint_that_is_back_is_tried_with_one_call() -> None:
    port = free_port()
    one = deployment(f"http://127.0.0.1:{port}")
    by = router(one)
    watcher = Watcher(by)
    for _ in range(GONE):
        watcher.look()
    assert kinds(by) == ["unreachable"]
    with pytest.raises(PoolFull):
        by.acquire(TASK)
    with EmbeddedServer(ctx=256, port=port):
        watcher.look()
        with by.acquire(TASK) as first:
            with pytest.raises(PoolFull):
                by.acquire(TASK)
            first.first_token()
            first.settle(Outcome(ttft_ms=100.0))
        with by.acquire(TASK), by.acquire(TASK):
            assert by.doctor() == []


def test_an_engine_that_died_behind_its_front_gets_nothing() -> None:
    table: dict[str, str | tuple[int, str]] = {
        "/metrics": "vllm:num_requests_running 6\n",
        "/health": (503, ""),
        "/v1/models": '{"data": [{"id": "m"}]}',
    }
    with Server(routes(table)) as server:
        by, (vital,) = looked(deployment(server.url, adapter="vllm"))
    assert (vital.up, vital.trouble) == (False, "dead")
    assert kinds(by) == ["engine_dead"]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_metrics_that_are_blocked_are_told_and_the_server_is_used(status: int) -> None:
    with Server(routes({"/metrics": (status, ""), "/health": "ok"})) as server:
        by, (vital,) = looked(deployment(server.url, adapter="vllm"))
        assert (vital.up, vital.trouble) == (True, "hidden")
        assert kinds(by) == ["load_hidden"]
        with by.acquire(TASK) as lease:
            assert lease.url == server.url


def test_several_servers_behind_one_address_are_told_and_not_believed() -> None:
    turn = iter(range(1_000))

    def behave(connection: object, asked: Asked) -> None:
        process = 100 + next(turn) % 2
        answers(BUSY, headers={"Process-Start-Time-Unix": str(process)})(connection, asked)  # type: ignore[arg-type]

    with Server(behave) as server:
        by, (vital,) = looked(deployment(server.url), times=3)
        assert vital.trouble == "mixed"
        assert kinds(by) == ["load_mixed"]


# ---- odd servers


@pytest.mark.parametrize(
    "behave",
    [
        silent,
        says(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n"),
        says(b""),
        answers("no", status=500),
        answers("", status=503),
    ],
)
def test_a_server_that_does_not_answer_well_is_neither_up_nor_down(behave: Behaviour) -> None:
    with Server(behave) as server:
        by, (vital,) = looked(deployment(server.url), times=2, timeout_s=0.5)
    assert vital.up is None
    assert (vital.failures, vital.said != "") == (2, True)
    assert by.doctor() == []


def test_what_speaks_no_http_is_no_server() -> None:
    with Server(says(b"not HTTP at all\r\n\r\n")) as server:
        by, (vital,) = looked(deployment(server.url), times=GONE)
    assert (vital.up, kinds(by)) == (False, ["unreachable"])


def test_an_answer_that_drips_is_given_up_on_time() -> None:
    def drip(connection: object, asked: Asked) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")  # type: ignore[attr-defined]
        for _ in range(1_000):
            connection.sendall(b"a")  # type: ignore[attr-defined]
            time.sleep(0.05)

    with Server(drip) as server:
        start = time.monotonic()
        _, (vital,) = looked(deployment(server.url), timeout_s=0.5)
        assert time.monotonic() - start < 5.0
    assert vital.said == "did not answer within 0.5 s"


def test_metrics_without_end_are_cut_and_not_believed() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n"
    with Server(says(head + BUSY.encode() + b"a 1\n" * (3 << 20))) as server:
        _, (vital,) = looked(deployment(server.url))
    assert (vital.trouble, vital.load.running) == ("hidden", None)
    assert vital.said == "/metrics has more than 8 MiB, which is not read; start it with --metrics"


def test_a_key_is_sent_and_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHED_KEY", "sk-watched-secret")
    with Server(answers('{"error": {"message": "who is sk-watched-secret?"}}', status=400)) as server:
        _, (vital,) = looked(deployment(server.url, api_key_env="WATCHED_KEY"))
        assert server.asked[0].headers["authorization"] == "Bearer sk-watched-secret"
    assert vital.said == "who is ***?"


def test_a_key_that_is_not_set_is_said_and_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHED_KEY", raising=False)
    with Server(answers(BUSY)) as server:
        _, (vital,) = looked(deployment(server.url, api_key_env="WATCHED_KEY"))
        assert server.asked == []
    assert "the environment variable WATCHED_KEY is not set" in vital.said


@pytest.mark.parametrize(("interval_s", "timeout_s"), [(0.0, 1.0), (float("inf"), 1.0), (1.0, -1.0), (1.0, True)])
def test_times_that_are_none_are_refused(interval_s: float, timeout_s: float) -> None:
    with pytest.raises(UsageError, match="finite number of seconds above 0"):
        Watcher(router(deployment("http://127.0.0.1:1")), interval_s=interval_s, timeout_s=timeout_s)


def test_a_fleet_without_endpoints_has_nothing_to_watch() -> None:
    assert looked(deployment(None))[1] == []


# ---- again and again


def test_a_thread_asks_again_and_again_until_it_is_left() -> None:
    with Server(answers(BUSY)) as server:
        by = router(deployment(server.url))
        with Watcher(by, interval_s=0.05) as watcher:
            until(lambda: len(server.asked) >= 5)
            assert watcher.vitals["here", server.url].load.running == 7
        asked = len(server.asked)
        time.sleep(0.3)
        assert len(server.asked) == asked


def test_a_watcher_can_be_entered_again() -> None:
    with Server(answers(BUSY)) as server:
        watcher = Watcher(router(deployment(server.url)), interval_s=0.05)
        for _ in range(2):
            before = len(server.asked)
            with watcher:
                until(lambda before=before: len(server.asked) > before)  # type: ignore[misc]


def test_a_server_that_does_not_answer_is_asked_less_and_less_often_and_keeps_no_other_waiting() -> None:
    with Server(answers("", status=500)) as bad, Server(answers(BUSY)) as good:
        with Watcher(router(deployment(bad.url), deployment(good.url, name="good")), interval_s=0.05):
            until(lambda: len(good.asked) >= 20)
        assert len(bad.asked) < 10


def test_a_task_does_the_same() -> None:
    async def watch(server: Server) -> AsyncWatcher:
        async with AsyncWatcher(router(deployment(server.url)), interval_s=0.05) as watcher:
            while len(server.asked) < 3:
                await asyncio.sleep(0.02)
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
        return watcher

    with Server(answers(BUSY)) as server:
        watcher = asyncio.run(watch(server))
        assert watcher.vitals["here", server.url].up is True


# ---- real servers


def test_real_servers_split_and_unified_are_up_and_idle(
    llama_split: EmbeddedServer, llama_unified: EmbeddedServer
) -> None:
    by, vitals = looked(deployment(llama_split.url), deployment(llama_unified.url, name="unified"), times=2)
    assert [(v.up, v.load.running, v.load.waiting, v.load.kv_used) for v in vitals] == [(True, 0, 0, None)] * 2
    assert by.doctor() == []


def test_a_real_server_that_stops_is_down_and_one_that_comes_back_is_up() -> None:
    with EmbeddedServer(ctx=256) as server:
        by = router(deployment(server.url))
        watcher = Watcher(by)
        watcher.look()
        assert probe(server.url, adapter("llamacpp")).max_model_len == 256
    for _ in range(GONE):
        watcher.look()
    (vital,) = watcher.vitals.values()
    assert (vital.up, vital.trouble) == (False, "unreachable")
    assert kinds(by) == ["unreachable"]
