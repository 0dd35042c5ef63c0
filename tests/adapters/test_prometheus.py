"""Prometheus text: a few metrics, by their new and old names, whatever else stands there."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.adapters.base import Load, Total
from agentroute.adapters.prometheus import MAX_BYTES, MAX_SAMPLES, Metrics, load_of, refused
from agentroute.wire import Answer

NAMES = st.sampled_from(["vllm:num_requests_running", "vllm:kv_cache_usage_perc", "sglang:token_usage", "up"])
VALUES = st.sampled_from(["0", "1", "0.5", "1e3", "NaN", "+Inf", "-1", "x", ""])
LINES = st.lists(st.one_of(st.builds('{}{{a="b"}} {}'.format, NAMES, VALUES), st.text(max_size=60)))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a 1\n", [1.0]),
        ("a 1", [1.0]),
        ('a{x="1"} 1\na{x="2"} 2\n', [1.0, 2.0]),
        ("a 1 1795960773000\n", [1.0]),  # with the time it was taken at
        ('a{x="1"} 1 # {trace="}{"} 2\n', [1.0]),  # with an exemplar, as OpenMetrics has them
        ('a{x="} 9\\n\\" {"} 1\n', [1.0]),  # a label may hold anything
        ("# a 1\n ab 2\nba 3\nab 4\na_b 5\n", []),
        ("a x\na 2\n", [2.0]),
        ("a\r\na 2\r\n", [2.0]),
        ("a{ 1\n", []),
        ("a_1 1\n", []),
    ],
)
def test_the_samples_of_a_metric_are_found(text: str, values: list[float]) -> None:
    assert Metrics(text).values("a") == values


def test_labels_are_told() -> None:
    ((labels, value),) = Metrics('a{engine="0",model_name="org/m, x=\\"y\\""} 3\n').samples("a")
    assert (labels, value) == ({"engine": "0", "model_name": 'org/m, x=\\"y\\"'}, 3.0)


def test_the_first_name_that_is_there_counts_and_a_colon_may_have_become_an_underscore() -> None:
    assert Metrics("b 2\na 1\n").values("a", "b") == [1.0]
    assert Metrics("b 2\n").values("a", "b") == [2.0]
    assert Metrics("x_a 2\n").values("x:a") == [2.0]


@pytest.mark.parametrize(
    ("text", "count", "share"),
    [("a 0\n", 0, 0.0), ("a 1\na 1\n", 2, 1.0), ("", None, None), ("a NaN\n", None, None), ("a -1\n", None, None),
     ("a 0.5\na 1.5\n", 2, None), ("a +Inf\n", None, None)],
)  # fmt: skip
def test_a_gauge_that_is_missing_or_cannot_be_is_unknown(text: str, count: int | None, share: float | None) -> None:
    assert (Metrics(text).count("a"), Metrics(text).share("a")) == (count, share)


def test_a_histogram_has_a_sum_and_a_count_over_all_its_labels() -> None:
    text = 'a_bucket{le="1"} 9\na_sum{e="0"} 1.5\na_sum{e="1"} 0.5\na_count{e="0"} 3\na_count{e="1"} 1\n'
    assert Metrics(text).total("a") == Total(2.0, 4.0)
    assert Total(2.0, 4.0).mean() == 0.5
    assert Total(2.0, 4.0).since(Total(1.0, 2.0)) == Total(1.0, 2.0)
    assert Metrics("a_sum 1\n").total("a") is None
    assert Total(0.0, 0.0).mean() is None


@pytest.mark.parametrize(
    ("text", "load"),
    [
        ("sglang:num_running_reqs 3\nsglang:num_queue_reqs 1\nsglang:token_usage 0.25\n", Load(3, 1, 0.25)),
        ("vllm:num_requests_running 3\nvllm:gpu_cache_usage_perc 0.5\n", Load(3, None, 0.5)),
        ("process_start_time_seconds 1.79596062515e+09\n", Load(process="1795960625.15")),
        ('vllm:num_requests_running{engine="1"} 1\nvllm:num_requests_running{engine="0"} 1\n', Load(2, process="0 1")),
        ("vllm:generation_tokens_total 5\nvllm:prompt_tokens_total 7\n", Load(counted=12.0, steps=5.0)),
        ("trtllm_num_requests_completed_total 5\n", Load(counted=5.0)),
    ],
)
def test_the_load_is_told_by_any_known_name(text: str, load: Load) -> None:
    assert load_of(Metrics(text)) == load


@given(LINES)
def test_no_text_breaks_the_reading_and_no_figure_is_made_up(lines: list[str]) -> None:
    found = load_of(Metrics("\n".join(lines)))
    assert found.running is None or found.running >= 0
    assert found.kv_used is None or 0.0 <= found.kv_used <= 1.0
    if not any(line.startswith(("vllm", "sglang")) for line in lines):
        assert (found.running, found.kv_used) == (None, None)


@pytest.mark.parametrize(
    "line", ["a{" + 'x="' * 300_000, "a{" + "x" * 1_000_000, "a " * 500_000, 'a{x="' + "\\" * 999_999]
)
def test_a_line_of_a_megabyte_takes_no_time(line: str) -> None:
    start = time.process_time()
    Metrics(f"{line}\n" * 7).values("a")
    assert time.process_time() - start < 2.0


def test_a_text_that_is_too_long_is_not_read_and_that_is_said() -> None:
    huge = Answer(200, {}, b"a 1\n" * (MAX_BYTES // 4 + 1))
    assert Metrics.of(huge).values("a") == []
    assert refused(huge) == "/metrics has more than 8 MiB, which is not read"
    assert len(Metrics("a 1\n" * (MAX_SAMPLES + 5)).values("a")) == MAX_SAMPLES
    assert refused(Answer(200, {}, b"a 1\n")) == refused(Answer(503, {}, b"")) == ""
