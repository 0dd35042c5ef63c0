"""TensorRT-LLM: its start-up log and its arguments.

The lines were read in TensorRT-LLM's source (``py_executor_creator.py``, ``_util.py``, ``kvCacheManager.cpp``) and in
public logs of 0.17 to 1.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from agentroute.startup.dtypes import kv_type
from agentroute.startup.dumps import amount, called, fields, first, whole
from agentroute.startup.facts import Found, Started
from agentroute.startup.heard import ASKED, SETTLED, Heard, Pile
from agentroute.startup.lines import Line
from agentroute.startup.starts import Sign

MARKS: tuple[str, ...] = (
    "LLM Args:", "for max tokens in paged KV cache (", "TensorRT-LLM version: ", "TensorRT LLM version: ",
    "trtllm-serve",
)  # fmt: skip
"""Not its prefix ``[TensorRT-LLM]``: other engines print that, too, where they use its kernels."""

WORDS: tuple[str, ...] = (
    *MARKS, "tensor_parallel_size=", "tokens per block", "max_num_requests=", " GB for model weights",
)  # fmt: skip
EXAMPLE = "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 26.91 GiB for max tokens in paged KV cache (220480)."

_VERSION = re.compile(r"TensorRT[- ]LLM version: ([0-9][0-9A-Za-z_.+-]{0,60})")
SIGNS: tuple[Sign, ...] = (
    Sign("Using LLM with ", re.compile(r"Using LLM with (?:PyTorch|TensorRT|AutoDeploy) backend"), "start"),
    Sign(" version: ", re.compile(r"TensorRT[- ]LLM version: (?P<version>[0-9][0-9A-Za-z_.+-]{0,60})")),
)
_DUMP = re.compile(r"LLM Args:\s*")
_COMMAND = re.compile(r"trtllm-serve(?: serve)?(?=\s|$)")
_POOL = re.compile(r"Allocated ([\d.]+) GiB for max tokens in paged KV cache \((\d+)\)")
_BLOCK = re.compile(r"Number of tokens per block: (\d+)")
_WINDOW = re.compile(r"\[window size=(\d+)\], tokens per block=(\d+), primary blocks=(\d+)")
_SIZES = re.compile(r"max_seq_len=\d+, max_num_requests=\d+, max_num_tokens=\d+")
_WEIGHTS = re.compile(r"Use ([\d.]+) GB for model weights")
_KV_DTYPE = re.compile(r"dtype='(\w+)'")
_WINDOWS_NOTE = "the pool of full attention; layers with a sliding window have pools of their own"
_FILE_REMARK = (
    "the command names a file with more arguments, which is not read; it may turn on attention DP, so the sharding "
    "stays unknown"
)
_FILES = ("extra_llm_api_options", "config")


def read(lines: Sequence[Line]) -> Started:
    """What a TensorRT-LLM log or command line says.

    The pool is allocated twice, a small one to try and then the real one, and the window is cut to what fits each time:
    of what one rank prints twice, the last counts.
    """
    heard = Heard()
    windows: dict[str | None, dict[int, int]] = {}
    pools: dict[str | None, Found[int]] = {}
    memory: dict[str | None, Found[float]] = {}
    sizes: Line | None = None
    dumped: int | None = None
    for line in lines:
        text = line.text
        if found := _VERSION.search(text):
            heard.version.add(found[1].rstrip(".-+"), line)
        if (found := _DUMP.search(text)) or line.number - 1 == dumped:
            rest = text[found.end() :] if found else text
            dumped = None if rest.strip() else line.number  # the arguments stand on the next line
            _arguments(heard, line, fields(rest), SETTLED)
            if kv := _KV_DTYPE.search(rest[rest.find("kv_cache_config=") :]) if "kv_cache_config=" in rest else None:
                heard.kv.add(kv_type(kv[1]), line, SETTLED)
        if call := called(text, _COMMAND):
            model, given = call
            heard.commands.add(line.number)
            _arguments(heard, line, {**_long(given), **({"model": model} if model else {})}, ASKED)
            if any(name in given for name in _FILES):
                heard.remarks.append(_FILE_REMARK)
        if found := _WINDOW.search(text):
            size, block, count = (whole(part) for part in found.groups())
            if size and block and count:
                windows.setdefault(line.rank, {})[size] = block * count
                heard.block_tokens.add(block, line)
        if found := _BLOCK.search(text):
            heard.block_tokens.add(whole(found[1]), line)
        if found := _POOL.search(text):
            of_windows = windows.pop(line.rank, {})
            tokens = whole(found[2])
            if len(of_windows) > 1:
                heard.pool_notes.append(_WINDOWS_NOTE)
                tokens = whole(str(of_windows[max(of_windows)]))
            if tokens:
                pools[line.rank] = Found(tokens, line.number)
            if gib := amount(found[1]):
                memory[line.rank] = Found(gib, line.number)
        if _SIZES.search(text):
            sizes = line
        if found := _WEIGHTS.search(text):
            heard.weights_gib.add(amount(found[1]), line)
    for rank, pool in pools.items():
        heard.kv_tokens.add(pool.value, Line(pool.line, "", rank))
    for rank, gib_of in memory.items():
        heard.kv_gib.add(gib_of.value, Line(gib_of.line, "", rank))
    if sizes and (found := _SIZES.search(sizes.text)):
        said = fields(found[0])
        heard.max_model_len.add(whole(said.get("max_seq_len")), sizes)
        heard.max_num_seqs.add(whole(said.get("max_num_requests"), 10**6), sizes)
        heard.max_num_batched_tokens.add(whole(said.get("max_num_tokens")), sizes)
    if _FILE_REMARK in heard.remarks:
        if any(one.trust == SETTLED for one in heard.tp.said):
            heard.remarks = [remark for remark in heard.remarks if remark != _FILE_REMARK]
        else:
            heard.tp, heard.pp, heard.ep, heard.attention_dp = Pile(), Pile(), Pile(), Pile()
    return heard.settle("trtllm")


def _arguments(heard: Heard, line: Line, said: Mapping[str, str], trust: int) -> None:
    """The arguments. With attention DP, all of tp are replicas of attention, each on one accelerator."""
    heard.named(first(said, "model"), line, trust)
    tp = whole(said.get("tensor_parallel_size"), 10**6)
    replicated = said.get("enable_attention_dp") == "True"
    heard.tp.add(1 if tp and replicated else tp, line, trust)
    heard.attention_dp.add(tp if replicated else 1 if tp else None, line, trust)
    heard.pp.add(whole(said.get("pipeline_parallel_size"), 10**6), line, trust)
    heard.ep.add(whole(said.get("moe_expert_parallel_size"), 10**6), line, trust)
    heard.max_model_len.add(whole(said.get("max_seq_len")), line, trust)
    heard.max_num_seqs.add(whole(said.get("max_batch_size"), 10**6), line, trust)
    heard.max_num_batched_tokens.add(whole(said.get("max_num_tokens")), line, trust)
    heard.kv.add(kv_type(first(said, "kv_cache_dtype")), line, trust)


def _long(given: Mapping[str, str]) -> dict[str, str]:
    """Options under the names that the dump uses: ``--tp_size 8`` is ``tensor_parallel_size``."""
    names: dict[str, str] = {}
    for short, long in (("tp", "tensor_parallel"), ("pp", "pipeline_parallel"), ("ep", "moe_expert_parallel")):
        names |= {f"{short}_size": f"{long}_size", long.removeprefix("moe_") + "_size": f"{long}_size"}
    return {names.get(name, name): value for name, value in given.items()}
