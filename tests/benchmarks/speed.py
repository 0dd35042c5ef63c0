"""How fast the hot paths are: one JSON line for each, in thread CPU time. Run by ``make bench``."""

from __future__ import annotations

import random
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

from timing import line

from agentroute.catalogue import shipped
from agentroute.decision import Decision
from agentroute.fleet import Fleet
from agentroute.origin import Provenance
from agentroute.profile import KvPool, Limits
from agentroute.router import Router
from agentroute.task import Slo, Task

RUNS = 4_000

SEVENTEEN = (
    "deepseek-v3/sglang-b200-tp4-ep4", "deepseek-v3/sglang-h200-disagg", "deepseek-v3/sglang-h200-tp8",
    "deepseek-v3/trtllm-b200-adp8-ep8", "deepseek-v3/trtllm-b200-tp8", "gpt-oss-120b/vllm-b200-tp1",
    "gpt-oss-120b/vllm-h100-tp2", "llama-3.1-70b/trtllm-h200-tp2", "llama-3.1-70b/vllm-h100-tp4",
    "llama-3.1-8b/sglang-h200-tp1", "llama-3.1-8b/trtllm-h100-tp1", "minimax-m2.5/vllm-b200-tp4",
    "minimax-m2.5/vllm-h200-tp8", "qwen3-235b-a22b/trtllm-h100-tp8-ep8", "qwen3-235b-a22b/vllm-h200-tp4",
    "qwen3-32b/trtllm-h100-tp2", "qwen3-32b/vllm-h100-tp4",
)  # fmt: skip
"""Shipped profiles that are always the same, so that figures of different days compare; a fleet of a common size."""


def seventeen() -> Fleet:
    """A fleet of ``SEVENTEEN``."""
    return Fleet(shipped().deployment(shipped().profile(name)) for name in SEVENTEEN)


def percentiles(taken_ns: list[int], digits: int = 1) -> dict[str, float]:
    """The median and the 99th percentile in microseconds, and the median of the quietest tenth of the run.

    On a machine that others use too, the whole run's median is theirs as much as ours; a slower program is slower in
    its quietest tenth, too.
    """
    ordered = sorted(taken_ns)
    tenth = max(1, len(taken_ns) // 10)
    blocks = [sorted(taken_ns[i : i + tenth]) for i in range(0, len(taken_ns) - tenth + 1, tenth)]
    return {
        "p50_us": round(ordered[len(ordered) // 2] / 1_000, digits),
        "p99_us": round(ordered[len(ordered) * 99 // 100] / 1_000, digits),
        "quietest_p50_us": round(min(block[len(block) // 2] for block in blocks) / 1_000, digits),
    }


def cpu_time(call: Callable[[Task], object], tasks: list[Task]) -> list[int]:
    """Thread CPU time of every call, in nanoseconds; the first few hundred warm up."""
    taken = []
    for task in tasks:
        start = time.thread_time_ns()
        call(task)
        taken.append(time.thread_time_ns() - start)
    return taken[len(taken) // 10 :]


def tasks(count: int) -> list[Task]:
    """Tasks of many sizes that every shipped deployment can take, so that none is left out of the work."""
    sizes = random.Random(7)
    return [
        Task(
            context_tokens=sizes.randint(200, 9_000),
            max_output_tokens=sizes.randint(50, 2_000),
            concurrency=sizes.randint(1, 64),
            ttft_ms=Slo(2_000, hard=False),
        )
        for _ in range(count)
    ]


def decide() -> None:
    """``Router.decide`` over seventeen profiles, everything feasible; nothing is cached between tasks."""
    router = Router(seventeen())
    line("decide", len(router.fleet), **percentiles(cpu_time(router.decide, tasks(RUNS))))


def shipped_fleet() -> None:
    """Reading every shipped profile, making a router of them, and ``Router.decide`` over all of them."""
    start = time.thread_time_ns()
    fleet = Fleet.shipped()
    read = time.thread_time_ns()
    router = Router(fleet)
    made = time.thread_time_ns()
    line("read_shipped", len(fleet), seconds=round((read - start) / 1e9, 3))
    line("router_of_shipped", len(fleet), seconds=round((made - read) / 1e9, 3))
    line("decide_shipped", len(fleet), **percentiles(cpu_time(router.decide, tasks(RUNS))))


def sized(count: int) -> Fleet:
    """``count`` deployments of shipped profiles, each with slots and a KV pool that all tasks here fit."""
    draw, names = random.Random(1), shipped().profile_names
    limits = [
        Limits(
            max_num_seqs=256,
            kv_pool=KvPool(tokens=16 * draw.randint(12_500, 125_000), block_tokens=16),
            provenance=Provenance(origin="assumed", source="this benchmark"),
        )
        for _ in range(count)
    ]
    known = [shipped().deployment(shipped().profile(names[7 * i % len(names)])) for i in range(count)]
    return Fleet(
        replace(one, name=f"d{i}", profile=one.profile.model_copy(update={"limits": limits[i]}))
        for i, one in enumerate(known)
    )


def by_size() -> None:
    """``decide``, idle and with four requests in flight at each; ``acquire`` with its release; and the memory taken."""
    for count in (4, 32, 256):
        fleet = sized(count)
        tracemalloc.start()
        router = Router(fleet)
        taken = tracemalloc.get_traced_memory()[0] / count / 1_024
        tracemalloc.stop()
        line(f"decide_idle_{count}", count, **percentiles(cpu_time(router.decide, tasks(RUNS))))
        leases = [router.acquire(task) for task in tasks(4 * count)]
        line(f"decide_busy_{count}", count, **percentiles(cpu_time(router.decide, tasks(RUNS))))

        def hold(task: Task, router: Router = router) -> None:
            router.acquire(task).release()

        line(f"acquire_release_busy_{count}", count, **percentiles(cpu_time(hold, tasks(RUNS))))
        line(f"memory_{count}", count, kib_per_deployment=round(taken, 1), leases=len(leases))


def decide_hard() -> None:
    """``Router.decide`` for a task with a hard SLO and a need, which some deployments cannot take."""
    router = Router(seventeen())
    hard = [replace(task, ttft_ms=2_000, needs=frozenset({"tools"})) for task in tasks(RUNS)]
    line("decide_hard_slo_and_needs", len(router.fleet), **percentiles(cpu_time(router.decide, hard)))


def acquire() -> None:
    """``Router.acquire`` and the release of its lease."""
    router = Router(seventeen())

    def hold(task: Task) -> None:
        with router.acquire(task):
            pass

    line("acquire_release", len(router.fleet), **percentiles(cpu_time(hold, tasks(RUNS))))


def thirty_two() -> Fleet:
    """Every fourth shipped profile, 32 of them."""
    return Fleet(shipped().deployment(shipped().profile(name)) for name in shipped().profile_names[::4][:32])


def decide_many() -> None:
    """``Router.decide_many`` over 32 deployments, 256 tasks at once: microseconds for each task."""
    router, many = Router(thirty_two()), tasks(256)
    taken = []
    for _ in range(200):
        start = time.thread_time_ns()
        router.decide_many(many)
        taken.append((time.thread_time_ns() - start) // len(many))
    line("decide_many", len(router.fleet), tasks=len(many), **percentiles(taken[20:], digits=2))


def explain() -> None:
    """``Decision.explain``, which nobody pays for who does not call it: with the figures of the eight best candidates,
    and of all; of it what would change the answer, and the ceilings of one deployment."""
    router = Router(thirty_two())
    warm_up = router.decide(tasks(1)[0])
    warm_up.explain(top=None)
    parts: dict[str, Callable[[Decision], object]] = {
        "explain": lambda decision: decision.explain(),
        "explain_all": lambda decision: decision.explain(top=None),
        "explain_changes": lambda decision: decision.changes,
        "explain_ceilings": lambda decision: decision.ceilings(decision.deployment),
    }
    for name, part in parts.items():
        taken = []
        for decision in [router.decide(task) for task in tasks(100)]:
            start = time.thread_time_ns()
            part(decision)
            taken.append(time.thread_time_ns() - start)
        line(name, len(router.fleet), **percentiles(taken))


def floor() -> None:
    """Forty small numpy operations: what this machine, at this moment, makes of the same kind of work."""
    import numpy as np

    a, b = np.arange(17.0), np.ones(17)

    def forty(task: Task) -> None:
        for _ in range(40):
            np.add(a, b)

    line("forty_numpy_adds", 17, **percentiles(cpu_time(forty, tasks(RUNS))))


def imports() -> None:
    """Wall time of importing, in a fresh interpreter, less the interpreter's own start; best of five."""
    for bench, code in (("import agentroute", "import agentroute"), ("import Router", "from agentroute import Router")):
        with_import = min(_start(code) for _ in range(5))
        line(bench, 5, seconds=round(with_import - min(_start("pass") for _ in range(5)), 3))


def _start(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    floor()
    decide()
    shipped_fleet()
    by_size()
    decide_hard()
    acquire()
    decide_many()
    explain()
    imports()
