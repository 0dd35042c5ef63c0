"""How fast the tokens of a prompt are estimated: one JSON line for each, in thread CPU time. Run by ``make bench``.

``n`` is the prompt's length in kB. A prompt of 36 kB has some 9,000 tokens in English.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from timing import line

from agentroute.catalogue import shipped
from agentroute.fleet import Fleet
from agentroute.router import Router
from agentroute.task import Task
from agentroute.tokens import GENERIC, Previous, estimate
from agentroute.tokens.classes import pairs
from agentroute.tokens.learn import Learner

RUNS = 1_000
WORDS = [
    "the",
    "cache",
    "keeps",
    "(value,",
    "cost)",
    "entry_id=4711;",
    "'miss'",
    "->",
    "recompute()",
    "\n   ",
    '{"ok":',
    "true}",
]
KANJI = "港の朝は静かで、船が三隻だけ、灯台の下に止まっている。"


def english(size: int) -> str:
    """So many characters of words, code and numbers; no two alike."""
    random_words = random.Random(5)
    return " ".join(random_words.choice(WORDS) + str(random_words.randint(0, 99)) for _ in range(size))[:size]


def timed(bench: str, size: int, call: Callable[[], object]) -> None:
    """The median and the 99th percentile of many calls; the first tenth warms up."""
    taken = []
    for _ in range(RUNS):
        start = time.thread_time_ns()
        call()
        taken.append(time.thread_time_ns() - start)
    ordered = sorted(taken[RUNS // 10 :])
    p50, p99 = ordered[len(ordered) // 2] / 1_000, ordered[len(ordered) * 99 // 100] / 1_000
    line(bench, size, p50_us=round(p50, 1), p99_us=round(p99, 1), quickest_us=round(ordered[0] / 1_000, 1))


def main() -> None:
    """Every line."""
    long, short, japanese = english(36_000), english(400), KANJI * 440
    timed("tokens_pairs_english", 36, lambda: pairs(long))
    timed("tokens_pairs_japanese", 36, lambda: pairs(japanese))
    counts = pairs(long)
    timed("tokens_fingerprint_of_pairs", 36, lambda: GENERIC.tokens(counts))
    step = [{"role": "user" if i % 2 else "assistant", "content": long[i * 900 : i * 900 + 900]} for i in range(40)]
    timed("tokens_estimate_40_messages", 36, lambda: estimate(step))
    before = Previous.of(step, 9_000, 60)
    more = [*step, {"role": "assistant", "content": short}, {"role": "tool", "content": short}]
    timed("tokens_estimate_next_step", 36, lambda: estimate(more, previous=before))
    model = shipped().model("qwen3-32b")
    timed("tokens_task_from_messages", 36, lambda: Task.from_messages(step, model=model))
    learner = Learner.of(GENERIC)
    timed("tokens_learn", 36, lambda: learner.learn(step, 9_000))
    router = Router(Fleet.shipped())
    for size, text in ((0, short), (36, long)):
        task = Task.from_messages([{"role": "user", "content": text}], max_output_tokens=200)
        timed("tokens_decide_shipped", size, lambda task=task: router.decide(task))  # type: ignore[misc]


if __name__ == "__main__":
    main()
