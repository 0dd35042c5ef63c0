"""``llama-batched-bench --output-format jsonl``: ``pl`` prompts read as one batch, then as many answers in lockstep.

``t_pp`` is the time of the whole batch of prompts, which every one of them waits for; ``t_tg`` that of ``tg`` steps.
The keys were read in rows of the tool in public repositories and in its source (llama.cpp, ``tools/batched-bench``).
"""

from __future__ import annotations

from collections.abc import Iterator

from agentroute.bench.importers.material import Material
from agentroute.bench.importers.run import Facts, Run

NAME = "llama-batched-bench"
EXPECTS = "pp, tg, pl, t_pp and t_tg, one JSON object a line"

LOCKSTEP = "one batch in lockstep: all prompts are read, then all answers are written"


def detects(material: Material) -> bool:
    """Whether the file holds rows of ``llama-batched-bench``."""
    return material.first.has("pp", "tg", "pl", "t_pp", "t_tg")


def runs(material: Material) -> Iterator[Run]:
    """The run of each row."""
    for row in material.records:
        prompt, answer, lanes = (row.number(key) for key in ("pp", "tg", "pl"))
        prefill_s, decode_s = row.number("t_pp") or 0.0, row.number("t_tg") or 0.0
        whole_s = prefill_s + decode_s
        shared = row.number("is_pp_shared") == 1
        wrong = None
        if shared and lanes and lanes > 1:
            wrong = "its prompts were one shared prompt (-pps), so that its TTFT is that of a single one"
        yield Run(
            where=row.where,
            isl=prompt,
            osl=answer,
            clients=lanes,
            loop="closed",
            requests_per_s=lanes / whole_s if lanes and whole_s > 0 else None,
            ttft_ms={"mean": prefill_s * 1_000} if prefill_s > 0 else {},
            tpot_ms={"mean": decode_s * 1_000 / answer} if answer and decode_s > 0 else {},
            e2e_ms={"mean": whole_s * 1_000} if whole_s > 0 else {},
            workload=LOCKSTEP,
            facts=Facts(engine="llamacpp", weights="gguf"),
            wrong=wrong,
        )
