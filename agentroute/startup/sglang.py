"""SGLang: its start-up log and its arguments.

The lines were read in SGLang 0.5.23 (``managers/scheduler.py``, ``mem_cache/memory_pool.py``,
``mem_cache/swa_memory_pool.py``, ``model_executor/model_runner.py``, ``arg_groups/fields``), older
forms in public logs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from agentroute.startup.devices import DEVICE, spaced
from agentroute.startup.dtypes import kv_type, weights_type
from agentroute.startup.dumps import amount, called, fields, first, whole
from agentroute.startup.facts import Started
from agentroute.startup.heard import ASKED, SETTLED, Heard
from agentroute.startup.lines import Line
from agentroute.startup.starts import Sign

MARKS: tuple[str, ...] = (
    "server_args=ServerArgs(", "server_args={", "max_total_num_tokens=", "KV Cache is allocated",
    "sglang.launch_server", "sglang serve",
)  # fmt: skip
WORDS: tuple[str, ...] = (
    "server_args=", "sglang.launch_server", "sglang serve", "max_total_num_tokens=", "KV Cache is allocated.",
    "SWAKVPool mem usage: ", "Mamba Cache is allocated.", "Using KV cache dtype: ", "Load weight end.", "device_name=",
)  # fmt: skip
SIGNS: tuple[Sign, ...] = (Sign("server_args=", re.compile(r"server_args=(?:ServerArgs\(|\{)"), "start"),)
EXAMPLE = "max_total_num_tokens=442750, chunked_prefill_size=8192, ..."

_ARGS = re.compile(r"server_args=(?=ServerArgs\(|\{)")
_COMMAND = re.compile(r"sglang(?:\.launch_server| serve)(?=\s|$)")
_FINAL = re.compile(r"max_total_num_tokens=(\d+), chunked_prefill_size=")
_ALLOCATED = re.compile(r"KV Cache is allocated\.(?: dtype: (\S+),)? #tokens: (\d+)")
_SIZES = re.compile(r"\b(?:K|V|KV) size: ([\d.]+) GB")
_WINDOWED = re.compile(r"SWAKVPool mem usage: .{0,40}\bswa size: (\d+), full size: (\d+)")
_USAGE = re.compile(r"mem usage=([\d.]+) GB")
_QUANT = re.compile(r"quant=(\w+)")
_KV_DTYPE = re.compile(r"Using KV cache dtype: (torch\.\w+)")
_WINDOW_NOTE = "the pool of full attention; layers with a sliding window have a pool of their own, of {} tokens"
_STATE_NOTE = "layers without a KV cache keep a state for each request beside this pool, which limits the slots, too"
_CONFIG_NOTE = "--config names a file that may say more; it is not read"


def read(lines: Sequence[Line]) -> Started:
    """What an SGLang log or command line says."""
    heard = Heard()
    memory: dict[str | None, tuple[float, Line]] = {}
    sums: dict[str | None, float] = defaultdict(float)
    loaded: set[str | None] = set()
    for line in lines:
        text = line.text
        if found := _ARGS.search(text):
            cut = not text.rstrip().endswith((")", "}"))
            if cut:
                heard.remarks.append(
                    f"line {line.number} is cut short; the sharding, of which it says a part, is unknown"
                )
            _arguments(heard, line, fields(text[found.end() :]), SETTLED, split=not cut)
        elif call := called(text, _COMMAND):
            given = _long(call[1])
            heard.commands.add(line.number)
            _arguments(heard, line, given, ASKED, split=True)
            if "config" in given:
                heard.remarks.append(_CONFIG_NOTE)
        if found := _FINAL.search(text):
            said = fields(text[found.start() :])
            heard.kv_tokens.add(whole(found[1]), line)
            heard.max_num_seqs.add(whole(said.get("max_running_requests"), 10**6), line)
            heard.max_model_len.add(whole(said.get("context_len")), line)
            heard.max_num_batched_tokens.add(_step(said), line)
        if found := _WINDOWED.search(text):
            heard.kv_tokens.add(whole(found[2]), line, SETTLED)
            heard.pool_notes.append(_WINDOW_NOTE.format(f"{whole(found[1]) or 0:,}"))
        elif found := _ALLOCATED.search(text):
            heard.kv_tokens.add(whole(found[2]), line, ASKED)
            heard.kv.add(kv_type(found[1]), line)
            sums[line.rank] += sum(value for size in _SIZES.findall(text) if (value := amount(size)))
            memory[line.rank] = (sums[line.rank], line)
        if "Mamba Cache is allocated." in text:
            heard.pool_notes.append(_STATE_NOTE)
        if found := _KV_DTYPE.search(text):
            heard.kv.add(kv_type(found[1]), line)
        if "Load weight end." in text and line.rank not in loaded:
            loaded.add(line.rank)
            _weights(heard, line)
        if found := DEVICE.search(text):
            heard.device.add(spaced(found[1]), line)
    for total, line in memory.values():
        heard.kv_gib.add(round(total, 2) or None, line)
    return heard.settle("sglang")


def _arguments(heard: Heard, line: Line, said: Mapping[str, str], trust: int, *, split: bool) -> None:
    """The arguments; the degrees only where ``split``: what one means depends on others."""
    inside = _split(heard, line, said, trust if split else None)
    heard.named(first(said, "model_path"), line, trust)
    heard.max_model_len.add(whole(first(said, "context_length")), line, trust)
    slots = whole(first(said, "max_running_requests"), 10**6)
    heard.max_num_seqs.add((slots // inside or None) if slots and split else None, line, trust)
    heard.max_num_batched_tokens.add(_step(said), line, trust)
    heard.block_tokens.add(whole(first(said, "page_size")), line, trust)
    heard.weights.add(weights_type(first(said, "quantization")), line, trust)
    heard.kv.add(kv_type(first(said, "kv_cache_dtype")), line, trust)


def _split(heard: Heard, line: Line, said: Mapping[str, str], trust: int | None) -> int:
    """The degrees, and how many replicas of attention stand inside tp, which share the slots among them.

    SGLang counts them inside tp, a profile beside it: ``attn_dp_size`` since 0.5.23, before that ``dp_size`` together
    with ``enable_dp_attention``; ``dp_size`` alone is whole replicas.
    """
    tp, dp, pp, ep, dcp, inside = (
        whole(said.get(f"{name}_size"), 10**6) for name in ("tp", "dp", "pp", "ep", "dcp", "attn_dp")
    )
    inside = inside or 1
    if inside == 1 and said.get("enable_dp_attention") in ("True", ""):
        inside, dp = dp or 1, 1
    if trust is None:
        return inside
    if tp and tp % inside:
        heard.remarks.append(f"line {line.number}: tp_size = {tp} is no multiple of its {inside} attention replicas")
    elif tp:
        heard.tp.add(tp // inside, line, trust)
        heard.attention_dp.add(inside * (dp or 1) if dp or inside > 1 else None, line, trust)
    for pile, degree in ((heard.pp, pp), (heard.ep, ep), (heard.dcp, dcp)):
        pile.add(degree, line, trust)
    return inside


def _step(said: Mapping[str, str]) -> int | None:
    """Tokens that one step of prefill takes: a chunk, or, where chunks are off (-1), max_prefill_tokens."""
    chunk = first(said, "chunked_prefill_size")
    return whole(first(said, "max_prefill_tokens")) if chunk == "-1" else whole(chunk)


def _weights(heard: Heard, line: Line) -> None:
    """``Load weight end. type=..., quant=fp8, fmt=e4m3, avail mem=63.48 GB, mem usage=15.11 GB.``

    A rank's first such line is of the model, its second of a draft. The ``dtype`` that some versions print is that of
    the activations: they print ``dtype=torch.bfloat16`` for fp8 weights, too.
    """
    if found := _USAGE.search(line.text):
        heard.weights_gib.add(amount(found[1]), line)
    if found := _QUANT.search(line.text):
        heard.weights.add(weights_type(found[1]), line)


def _long(given: Mapping[str, str]) -> dict[str, str]:
    """Options under the names that the dump uses: ``--tp 8`` and ``--tensor-parallel-size 8`` are ``tp_size``."""
    names = {"model": "model_path"}
    for short, long in (("tp", "tensor"), ("pp", "pipeline"), ("dp", "data"), ("ep", "expert")):
        names |= {short: f"{short}_size", f"{long}_parallel_size": f"{short}_size"}
    names |= {"attention_data_parallel_size": "attn_dp_size", "decode_context_parallel_size": "dcp_size"}
    return {names.get(name, name): value for name, value in given.items()}
