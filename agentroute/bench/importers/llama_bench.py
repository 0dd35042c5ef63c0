"""``llama-bench -o json``, ``jsonl`` or ``csv``: the speed of one prompt and of one answer, alone on the machine.

A row either reads ``n_prompt`` tokens (its TTFT), or writes ``n_gen`` tokens behind ``n_depth`` others (its TPOT), or
with ``-pg`` does both. A prompt row and an answer row at the depth of that prompt make one point; else each is a point
of its own. Keys and meanings are those of llama.cpp's ``tools/llama-bench`` (recalled; no result of it was at hand).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from agentroute.bench.importers.material import Material, Record, number
from agentroute.bench.importers.run import Facts, Run, Times, sharding_of
from agentroute.errors import counted
from agentroute.startup.dtypes import kv_type

NAME = "llama-bench"
EXPECTS = "model_filename, n_prompt, n_gen and avg_ts"

APART = "prompt and answer were measured apart; -d 0,N with -p N measures the answer behind the prompt"


def detects(material: Material) -> bool:
    """Whether the file holds rows of ``llama-bench``."""
    wanted = ("n_prompt", "n_gen", "avg_ts", "model_filename")
    return set(wanted) <= set(material.head) or material.first.has(*wanted)


def runs(material: Material) -> Iterator[Run]:
    """A run for each prompt with the answer behind it, and for what has no other half."""
    rows = []
    for row in _rows(material):
        if row.number("avg_ts"):
            rows.append(row)
        else:
            yield Run(where=row.where, wrong="it holds no speed (avg_ts)")
    prompts = [row for row in rows if row.number("n_prompt")]
    answers: dict[str, list[Record]] = defaultdict(list)
    for row in rows:
        if not row.number("n_prompt") and row.number("n_gen"):
            answers[_setup(row, row.number("n_depth") or 0.0)].append(row)
    for row in prompts:
        prompt, answer, depth = (row.number(key) or 0.0 for key in ("n_prompt", "n_gen", "n_depth"))
        if depth:
            yield replace(_run(row), wrong=f"it reads a prompt behind {counted(round(depth), 'token')} in the cache")
        elif answer:
            yield replace(_run(row), isl=prompt, osl=answer, e2e_ms=_spread(row, prompt + answer))
        elif behind := answers.pop(_setup(row, prompt), []):
            for other in behind:
                osl, tpot = other.number("n_gen"), _spread(other, 1)
                yield replace(_run(row), isl=prompt, osl=osl, ttft_ms=_spread(row, prompt), tpot_ms=tpot)
        else:
            yield replace(_run(row), isl=prompt, osl=1, ttft_ms=_spread(row, prompt), notes=(APART,))
    for row in (row for group in answers.values() for row in group):
        isl, osl = row.number("n_depth") or 1.0, row.number("n_gen")
        yield replace(_run(row), isl=isl, osl=osl, tpot_ms=_spread(row, 1), notes=(APART,))


def _run(row: Record) -> Run:
    return Run(where=row.where, clients=1, loop="closed", date=row.date("test_time"), facts=_facts(row))


def _spread(row: Record, tokens: float) -> Times:
    """Milliseconds for ``tokens`` at the mean speed of the row's repetitions."""
    speed = row.number("avg_ts") or 0.0
    return {"mean": tokens * 1_000 / speed} if speed > 0 else {}


def _setup(row: Record, context: float) -> str:
    """What two rows must share to be halves of one point: the model, how it was run, and the tokens of the prompt."""
    keys = ("model_filename", "n_gpu_layers", "split_mode", "type_k", "type_v", "flash_attn", "n_batch", "n_ubatch")
    return repr([context, *(row.get(key) for key in (*keys, "build_number", "n_threads", "gpu_info"))])


def _facts(row: Record) -> Facts:
    """llama.cpp, the accelerators of ``gpu_info``, and their split: layers in a pipeline, or rows of each layer."""
    build = row.count("build_number")
    gpus = [name.strip() for name in (row.text("gpu_info") or "").split(",") if name.strip()]
    on_gpu = bool(gpus) and row.number("n_gpu_layers") != 0
    mode, count = row.text("split_mode"), len(gpus)
    split = {"pp": count} if mode == "layer" else {"tp": count} if mode in ("row", "tensor") else {"tp": 1}
    key_type = kv_type(row.text("type_k"))
    return Facts(
        model_word=row.text("model_filename"),
        engine="llamacpp",
        engine_version=f"b{build}" if build else None,
        accelerator_word=gpus[0] if on_gpu and len(set(gpus)) == 1 else None,
        sharding=sharding_of(**split) if on_gpu else None,
        weights="gguf",
        kv=key_type if key_type == kv_type(row.text("type_v")) else None,
    )


def _rows(material: Material) -> Sequence[Record]:
    """The rows as records; a CSV's cells become numbers where they look like one."""
    if not material.rows:
        return material.records
    return [
        Record({name: _cell(cell) for name, cell in zip(material.head, row, strict=False)}, f"row {i}", material.lost)
        for i, row in enumerate(material.rows[1:], start=2)
    ]


def _cell(text: str) -> Any:
    return number(float(text)) if re.fullmatch(r"-?\d{1,18}(\.\d{1,18})?", text, re.ASCII) else text
