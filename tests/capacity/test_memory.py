"""Memory left for the KV cache: a band that holds what engines logged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.capacity.memory import ENGINES, Engine, left_for_kv, usable_gib

LOGGED = [
    # engine, memory, utilisation, weights, hidden, tokens of a step, KV memory; all GiB per accelerator
    ("v004", "vllm", 139.72, 0.95, 16.46, 8_192, 131_072, 107.35),
    ("v070", "vllm", 95.6, 0.865, 55.67, 6_144, 8_192, 19.55),
    ("v071", "vllm", 95.6, 0.865, 56.62, 6_144, 8_192, 18.51),
    ("v077", "vllm", 95.6, 0.82, 56.62, 6_144, 8_192, 14.15),
    ("s007", "sglang", 191.7, 0.7, 81.66, 7_168, 8_192, 47.13),
    ("s011", "sglang", 23.9, 0.85, 15.54, 5_120, 8_192, 2.84),
    ("s012", "sglang", 140.4, 0.8718, 14.98, 4_096, 8_192, 106.36),
    ("s015", "sglang", 79.6, None, 0.74, 1_024, 8_192, 64.82),
    ("s019", "sglang", 288.0, None, 73.58, 7_168, 8_192, 160.63),
    ("s022", "sglang", 95.6, 0.92, 57.06, 6_144, 8_192, 29.32),
]
"""From ``tests/data/kv_records.jsonl``, the memory where it is not logged from the accelerator's data sheet."""

gib = st.floats(1.0, 300.0)
engines = st.sampled_from(ENGINES)


@pytest.mark.parametrize(
    ("engine", "memory", "utilisation", "weights", "hidden", "batched", "kv"),
    [row[1:] for row in LOGGED],
    ids=[row[0] for row in LOGGED],
)
def test_the_band_holds_what_was_logged(
    engine: Engine, memory: float, utilisation: float | None, weights: float, hidden: int, batched: int, kv: float
) -> None:
    left = left_for_kv(engine, memory, weights, hidden_size=hidden, batched_tokens=batched, utilisation=utilisation)
    assert left.low <= kv <= left.high
    assert left.high - left.low < 0.2 * memory


@given(engines, gib, gib, gib)
def test_weights_leave_less_and_memory_more(engine: Engine, memory: float, weights: float, more: float) -> None:
    def left(memory: float, weights: float) -> tuple[float, float, float]:
        found = left_for_kv(engine, memory, weights, hidden_size=4_096, batched_tokens=8_192)
        return found.low, found.mean, found.high

    low, mean, high = left(memory, weights)
    assert low <= mean <= high
    assert all(less < now for less, now in zip(left(memory, weights + more), (low, mean, high), strict=True))
    assert all(now < bigger for now, bigger in zip((low, mean, high), left(memory + more, weights), strict=True))


@given(engines, gib)
def test_what_is_left_and_the_weights_are_never_more_than_what_is_usable(engine: Engine, memory: float) -> None:
    left = left_for_kv(engine, memory, 0.5, hidden_size=1_024, batched_tokens=2_048)
    assert left.high + 0.5 <= usable_gib(engine, memory) + 0.03 * 0.5 + 1e-9


@pytest.mark.parametrize("engine", ENGINES)
def test_a_larger_share_leaves_more(engine: Engine) -> None:
    shares = [
        left_for_kv(engine, 80.0, 16.0, hidden_size=4_096, batched_tokens=8_192, utilisation=share).mean
        for share in (0.5, 0.7, 0.9)
    ]
    assert shares == sorted(shares)
    assert len({*shares}) == 3


@pytest.mark.parametrize(
    ("engine", "low", "high"),
    [
        # 80 GiB, 16 GiB of weights (or 3 % more or less), 4,096 wide, 8,192 tokens in a step: 62.5 MiB of activations.
        ("vllm", 72 - 16.48 - (2.5 + 4.8 + 4 / 16), 72 - 15.52 - (1.0 + 1 / 16)),
        ("sglang", 0.82 * 78.5 - 16.48 - 2.5, 0.9 * 79.6 - 15.52),
        ("trtllm", 0.9 * (80 - 1.5 - 16.48 - 3.0 - 4 / 16), 0.9 * (80 - 0.5 - 15.52 - 0.5 - 1 / 16)),
        ("llamacpp", 79.0 - 16.48 - 2.0, 79.7 - 15.52 - 0.3),
    ],
)
def test_every_engine_divides_memory_in_its_own_way(engine: Engine, low: float, high: float) -> None:
    left = left_for_kv(engine, 80.0, 16.0, hidden_size=4_096, batched_tokens=8_192)
    assert left.low == pytest.approx(low)
    assert left.high == pytest.approx(high)


@pytest.mark.parametrize(
    ("engine", "told", "usable"),
    [("vllm", None, 72.0), ("vllm", 0.5, 40.0), ("sglang", 0.8, 0.8 * 79.6), ("trtllm", 0.5, 79.5),
     ("llamacpp", None, 79.7)],
)  # fmt: skip
def test_what_is_usable_is_the_engines_share(engine: Engine, told: float | None, usable: float) -> None:
    assert usable_gib(engine, 80.0, told) == pytest.approx(usable)
