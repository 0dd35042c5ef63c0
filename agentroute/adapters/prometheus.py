"""Prometheus text: the few metrics of it that tell a server's load, by their new and their old names.

The names are those of vLLM 0.32.0, SGLang 0.5.23, TensorRT-LLM 1.3 (``metrics/collector.py``), Dynamo 1.6.1, llama.cpp
and Text Generation Inference, and what the first two called them before.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from agentroute.adapters.base import Load, Total
from agentroute.wire import Answer

METRICS = "/metrics"
MAX_BYTES = 8 << 20
"""A longer text is not read: vLLM's has 54 kB, one of Dynamo's frontend with two workers 82 kB."""
MAX_SAMPLES = 10_000
"""... and no more samples of one metric."""

RUNNING = (
    "vllm:num_requests_running", "sglang:num_running_reqs", "trtllm_num_requests_running",
    "llamacpp:requests_processing", "tgi_batch_current_size",
)  # fmt: skip
WAITING = (
    "vllm:num_requests_waiting", "sglang:num_queue_reqs", "trtllm_num_requests_waiting", "llamacpp:requests_deferred",
    "tgi_queue_size",
)  # fmt: skip
KV_USED = (
    "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage", "trtllm_kv_cache_utilization",
    "llamacpp:kv_cache_usage_ratio",
)  # fmt: skip
TTFT = (
    "vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds", "trtllm_time_to_first_token_seconds",
    "dynamo_frontend_time_to_first_token_seconds",
)  # fmt: skip
ISL = ("vllm:request_prompt_tokens", "dynamo_frontend_input_sequence_tokens", "tgi_request_input_length")
OSL = ("vllm:request_generation_tokens", "dynamo_frontend_output_sequence_tokens", "tgi_request_generated_tokens")
STEPS = ("vllm:iteration_tokens_total_count", "vllm:generation_tokens_total", "llamacpp:n_decode_total")
"""Counters that grow with every step; others grow only when a request is done."""
COUNTERS = (
    *STEPS, "vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "sglang:generation_tokens_total",
    "trtllm_num_requests_completed_total", "trtllm_prompt_tokens_total", "trtllm_generation_tokens_total",
    "llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total",
    "dynamo_frontend_output_tokens_total", "dynamo_frontend_requests_started_total",
    "tgi_request_count", "tgi_request_generated_tokens_sum",
)  # fmt: skip
STARTED = "process_start_time_seconds"
"""What every Prometheus client for Python reports of its own process, unless there are several."""

_FAMILY = re.compile(r"[a-z]+[:_]")
_REFUSED = {
    401: "asks for a key",
    403: "is forbidden",
    404: "is not there",
    405: "is not there",
    501: "is switched off",
}
_LABEL = re.compile(r'(?:^|,)[ ]*(\w{1,100})="((?:[^"\\]|\\.)*+)"')
_AFTER_NAME = re.compile(r'(?:\{((?:[^"{}\n]++|"(?:[^"\\\n]++|\\.)*+")*+)\})?[ \t]+(\S{1,40})')

Sample = tuple[Mapping[str, str], float]
"""One line of the text: its labels and its value."""


class Metrics:
    """A whole text. A metric that is missing is unknown, never 0; a value that is no number is left out."""

    def __init__(self, text: str) -> None:
        self._text = "\n" + text if len(text) <= MAX_BYTES else ""
        self._families: dict[str, bool] = {}
        """Whether any metric begins so (``vllm:``): most names that are asked for are another engine's."""

    @classmethod
    def of(cls, answer: Answer) -> Metrics:
        """The text of a good answer; an empty one for any other, or one beyond ``MAX_BYTES``."""
        good = answer.status == 200 and len(answer.body) <= MAX_BYTES
        return cls(answer.body.decode("utf-8", errors="replace") if good else "")

    def samples(self, *names: str) -> list[Sample]:
        """The samples of the first of these metrics that has any; ``a:b`` is also looked for as ``a_b``."""
        for name in names:
            for spelt in dict.fromkeys((name, name.replace(":", "_"))):
                if found := list(self._of(spelt)):
                    return found
        return []

    def values(self, *names: str) -> list[float]:
        """The values of the same."""
        return [value for _, value in self.samples(*names)]

    def count(self, *names: str) -> int | None:
        """The sum of a gauge of requests over all engines."""
        values = self.values(*names)
        return int(sum(values)) if values and all(0 <= value < 1e9 for value in values) else None

    def share(self, *names: str) -> float | None:
        """The mean of a gauge from 0 to 1 over all engines."""
        values = self.values(*names)
        return sum(values) / len(values) if values and all(0 <= value <= 1 for value in values) else None

    def total(self, *names: str) -> Total | None:
        """The sum and the count of a histogram over all its labels."""
        for name in names:
            sums, counts = self.values(f"{name}_sum"), self.values(f"{name}_count")
            if sums and counts and all(0 <= value < 1e18 for value in (*sums, *counts)):
                return Total(sum(sums), sum(counts))
        return None

    def _has_family(self, name: str) -> bool:
        family = _FAMILY.match(name)
        prefix = family[0] if family else name
        if prefix not in self._families:
            self._families[prefix] = "\n" + prefix in self._text
        return self._families[prefix]

    def _of(self, name: str) -> Iterator[Sample]:
        if not self._has_family(name):
            return
        text, needle = self._text, "\n" + name
        at, left = text.find(needle), MAX_SAMPLES
        while at >= 0 and left:
            found = _AFTER_NAME.match(text, at + len(needle))
            at = text.find(needle, at + 1)
            if found is None:
                continue
            try:
                value = float(found[2])
            except ValueError:
                continue
            left -= 1
            yield dict(_LABEL.findall(found[1] or "")), value


def load_of(metrics: Metrics) -> Load:
    """The load that is told by any of the known names."""
    by_name = {name: [value for value in metrics.values(name) if 0 <= value < math.inf] for name in COUNTERS}
    counted = [value for values in by_name.values() for value in values]
    steps = [value for name in STEPS for value in by_name[name]]
    started = sorted(f"{value:.2f}" for value in metrics.values(STARTED))
    engines = sorted({labels["engine"] for labels, _ in metrics.samples(*RUNNING) if labels.get("engine")})
    return Load(
        running=metrics.count(*RUNNING),
        waiting=metrics.count(*WAITING),
        kv_used=metrics.share(*KV_USED),
        process=" ".join(started or engines) or None,
        counted=sum(counted) if counted else None,
        steps=sum(steps) if steps else None,
        ttft_s=metrics.total(*TTFT),
        isl=metrics.total(*ISL),
        osl=metrics.total(*OSL),
    )


def refused(answer: Answer, what: str = METRICS) -> str:
    """Why an answer that is no failure of the server has no metrics in it; empty where it is one, or has some."""
    if answer.status == 200 and len(answer.body) > MAX_BYTES:
        return f"{what} has more than {MAX_BYTES >> 20} MiB, which is not read"
    return f"{what} {_REFUSED[answer.status]}" if answer.status in _REFUSED else ""
