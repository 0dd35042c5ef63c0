"""Whether anything grows over a million decisions, in time or in memory; one JSON line. Run by ``make bench-million``.

Each cycle decides, acquires and lets go; every tenth call is learnt from, every eighth task is a step of one of many
conversations, so that corrections and warm prefixes are at work, too.
"""

from __future__ import annotations

import sys
import time
from array import array
from dataclasses import replace
from pathlib import Path

from speed import sized, tasks
from timing import line

from agentroute.outcome import Outcome
from agentroute.router import Router

CYCLES = 1_000_000
DEPLOYMENTS = 32
SESSIONS = 30_000
"""More conversations than the router remembers warm prefixes of."""
FILLED = 0.4
"""By then as many are remembered as ever will be."""


def main(cycles: int) -> None:
    """One line: the median cycle of the first and of the last tenth, and what the process holds by then."""
    router, asked = Router(sized(DEPLOYMENTS)), tasks(4_096)
    leases = [router.acquire(task) for task in tasks(4 * DEPLOYMENTS)]
    seen = Outcome(ttft_ms=300.0, tpot_ms=20.0, output_tokens=300)
    taken = array("q", bytes(8 * cycles))
    filled_kib = 0.0
    for i in range(cycles):
        task = asked[i % len(asked)]
        if i % 8 == 0:
            task = replace(task, session_id=f"s{i // 8 % SESSIONS}")
        if i == int(FILLED * cycles):
            filled_kib = resident_kib()
        start = time.thread_time_ns()
        router.decide(task)
        lease = router.acquire(task)
        if i % 10:
            lease.release()
        else:
            lease.settle(seen)
        taken[i] = time.thread_time_ns() - start
    end_kib = resident_kib()  # before a million figures are sorted
    tenth = max(1, cycles // 10)
    first, last = sorted(taken[:tenth]), sorted(taken[-tenth:])
    line(
        "million_cycles",
        DEPLOYMENTS,
        cycles=cycles,
        p50_us=round(sorted(taken)[cycles // 2] / 1_000, 1),
        p99_us=round(sorted(taken)[cycles * 99 // 100] / 1_000, 1),
        first_tenth_p50_us=round(first[tenth // 2] / 1_000, 1),
        last_tenth_p50_us=round(last[tenth // 2] / 1_000, 1),
        filled_mib=round(filled_kib / 1_024, 1),
        end_mib=round(end_kib / 1_024, 1),
        leases=len(leases),
    )


def resident_kib() -> float:
    """What the process has in memory, in KiB."""
    rows = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(float(row.split()[1]) for row in rows if row.startswith("VmRSS:"))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else CYCLES)
