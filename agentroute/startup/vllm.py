"""vLLM: its start-up log and its arguments.

The lines were read in vLLM 0.32.0 (``config/vllm.py``, ``v1/core/kv_cache_utils.py``, ``v1/worker/gpu_worker.py``,
``entrypoints/serve/utils/api_utils.py``), those of older versions in public logs of 0.4 to 0.19.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from agentroute.startup.devices import DEVICE, spaced
from agentroute.startup.dtypes import kv_type, weights_type
from agentroute.startup.dumps import amount, called, fields, first, whole
from agentroute.startup.facts import Found, Started
from agentroute.startup.heard import ASKED, SETTLED, Heard, Rule, hear
from agentroute.startup.lines import Line
from agentroute.startup.starts import Sign

MARKS: tuple[str, ...] = (
    "LLM engine (v", "vLLM API server version", "vLLM server version", "non-default args: {", "vllm serve",
    "vllm.entrypoints.", "GPU KV cache size: ", "CPU KV cache size: ", "# GPU blocks: ", "# cuda blocks: ",
)  # fmt: skip
EXAMPLE = "GPU KV cache size: 1,536 tokens"

_CONFIG = re.compile(r"Initializing an? (?:V1 )?LLM engine \(v[^)]{0,80}\) with config: ")
_ARGS = re.compile(r"args: (?=Namespace\(|\{)")
_COMMAND = re.compile(r"vllm(?: serve|\.entrypoints\.\S+)(?=\s|$)")
_BLOCKS = re.compile(r"# (?:GPU|CUDA|CPU|XPU|HPU|TPU|neuron|rocm) blocks: (\d+)", re.IGNORECASE)
_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")
_OVERRIDE = re.compile(r"num_gpu_blocks_override=(\d+)")
_EXPERTS = re.compile(r"\(Worker\w*_EP\d|Expert parallelism is enabled")
_HYBRID = (
    "attention page size is >= mamba page size", " padding layers, may waste", "Hybrid KV cache manager is disabled",
)  # fmt: skip
_NUMBER = r"([0-9][0-9A-Za-z_.+-]{0,60})"
_ENGINES = re.compile(r"data_parallel_size'?(?:=|: )(\d{1,4})\b")

SIGNS: tuple[Sign, ...] = (
    Sign("args: ", re.compile(r"non-default args: \{|args: Namespace\("), "start", _ENGINES),
    Sign(
        "LLM engine (v",
        re.compile(rf"LLM engine \(v(?P<version>{_NUMBER})\) with config: (?:model='(?P<model>[^']{{1,1000}})')?"),
        "rank",
        _ENGINES,
    ),
    Sign("server version ", re.compile(rf"vLLM (?:API )?server version (?P<version>{_NUMBER})")),
    Sign("█ ", re.compile(rf"█ +version (?P<version>{_NUMBER})")),
)


def _version(said: str) -> str:
    return said.rstrip(".-+")


_RULES = (
    Rule("LLM engine (v", re.compile(r"LLM engine \(v" + _NUMBER), "version", _version),
    Rule("server version ", re.compile(r"vLLM (?:API )?server version " + _NUMBER), "version", _version),
    Rule("█ ", re.compile(r"█ +version " + _NUMBER), "version", _version),  # beside the logo
    Rule("Using max model len ", re.compile(r"Using max model len (\d+)"), "max_model_len", whole, SETTLED),
    Rule(
        "Maximum concurrency for ",
        re.compile(r"Maximum concurrency for ([\d,]+) tokens per request"),
        "max_model_len",
        whole,
    ),
    Rule(
        "max_num_batched_tokens=",
        re.compile(r"is enabled with max_num_batched_tokens=(\d+)"),
        "max_num_batched_tokens",
        whole,
    ),
    Rule(" KV cache size: ", re.compile(r" KV cache size: ([\d,]+) tokens"), "kv_tokens", whole),
    Rule("block size to ", re.compile(r"attention block size to (\d+)"), "block_tokens", whole),
    Rule("block size to ", re.compile(r"kv cache block size to (\d+)"), "block_tokens", whole),
    Rule("KV cache memory: ", re.compile(r"Available KV cache memory: ([\d.]+) GiB"), "kv_gib", amount),
    Rule("for KV Cache is ", re.compile(r"memory reserved for KV Cache is ([\d.]+) ?GiB"), "kv_gib", amount),
    Rule(" memory for KV Cache", re.compile(r"reserved ([\d.]+) GiB memory for KV Cache"), "kv_gib", amount),
    Rule("Model loading took ", re.compile(r"Model loading took ([\d.]+) Gi?B"), "weights_gib", amount),
    Rule("model weights took ", re.compile(r"Loading model weights took ([\d.]+) Gi?B"), "weights_gib", amount),
    Rule("model weights take ", re.compile(r"model weights take ([\d.]+) ?GiB"), "weights_gib", amount),
    Rule("device_name=", DEVICE, "device", spaced),
)
WORDS: tuple[str, ...] = (
    *dict.fromkeys(rule.word for rule in _RULES), *_HYBRID,
    "args: ", "vllm serve", "vllm.entrypoints.", " blocks: ", "num_gpu_blocks_override=", "(Worker",
    "Expert parallelism",
)  # fmt: skip
_HYBRID_NOTE = (
    "not all layers keep the whole of a request here: how many tokens fit depends on the length of the requests; the "
    "printed number is vLLM's own reckoning, since about 0.20 for requests of max_model_len"
)
_CONFIG_NOTE = "--config names a file that may say more; it is not read"


def read(lines: Sequence[Line]) -> Started:
    """What a vLLM log or command line says."""
    heard = Heard()
    blocks: list[Found[int]] = []
    experts: Found[bool] | None = None
    requests: list[tuple[int, float]] = []
    for line in lines:
        text = line.text
        hear(heard, line, _RULES)
        if found := _CONFIG.search(text):
            _config(heard, line, fields(text[found.end() :]))
        elif found := _ARGS.search(text):
            said = fields(text[found.end() :])
            _arguments(heard, line, said)
            everything = text.rstrip().endswith(("}", ")"))  # else the line was cut
            if everything or "enable_expert_parallel" in said:
                experts = experts or Found(said.get("enable_expert_parallel") == "True", line.number)
            for name, pile in (("tensor", heard.tp), ("pipeline", heard.pp), ("data", heard.attention_dp)):
                if everything and f"{name}_parallel_size" not in said:  # then it is the default
                    pile.add(1, line, ASKED)
        elif call := called(text, _COMMAND):
            model, given = call
            heard.commands.add(line.number)
            _arguments(heard, line, {**_long(given), **({"model": model} if model else {})})
            if "enable_expert_parallel" in given or "ep" in given:
                experts = Found(True, line.number)
            if "config" in given:
                heard.remarks.append(_CONFIG_NOTE)
        if (found := _BLOCKS.search(text) or _OVERRIDE.search(text)) and (count := whole(found[1])):
            blocks.append(Found(count, line.number))
        if (found := _CONCURRENCY.search(text)) and (length := whole(found[1])) and (times := amount(found[2])):
            requests.append((length, times))
        if any(words in text for words in _HYBRID):
            heard.pool_notes.append(_HYBRID_NOTE)
        if _EXPERTS.search(text):
            experts = Found(True, line.number)
    started = _with_experts(heard.settle("vllm"), experts)
    started = _with_mixture(started, min(requests, key=lambda one: one[0] * one[1], default=None))
    return _in_blocks(started, blocks)


def _config(heard: Heard, line: Line, said: Mapping[str, str]) -> None:
    """The engine's configuration, where every default has been filled in."""
    heard.named(first(said, "model"), line, SETTLED)
    heard.tp.add(whole(said.get("tensor_parallel_size"), 10**6), line, SETTLED)
    heard.pp.add(whole(said.get("pipeline_parallel_size"), 10**6), line, SETTLED)
    heard.attention_dp.add(whole(said.get("data_parallel_size"), 10**6), line, SETTLED)
    heard.dcp.add(whole(said.get("decode_context_parallel_size"), 10**6), line, SETTLED)
    heard.max_model_len.add(whole(said.get("max_seq_len")), line, SETTLED)
    method = first(said, "quantization")
    heard.weights.add(weights_type(method or said.get("dtype")), line, SETTLED)
    # "auto" is the model's own type, unless the checkpoint brings scales for another.
    kv = said.get("kv_cache_dtype")
    heard.kv.add(kv_type(said.get("dtype") if kv == "auto" and method is None else kv), line, SETTLED)


def _arguments(heard: Heard, line: Line, said: Mapping[str, str]) -> None:
    """The arguments, as they were given."""
    heard.named(first(said, "model_tag", "model"), line, ASKED)
    heard.tp.add(whole(said.get("tensor_parallel_size"), 10**6), line, ASKED)
    heard.pp.add(whole(said.get("pipeline_parallel_size"), 10**6), line, ASKED)
    heard.attention_dp.add(whole(said.get("data_parallel_size"), 10**6), line, ASKED)
    heard.dcp.add(whole(said.get("decode_context_parallel_size"), 10**6), line, ASKED)
    heard.max_model_len.add(whole(said.get("max_model_len")), line, ASKED)
    heard.max_num_seqs.add(whole(said.get("max_num_seqs"), 10**6), line, ASKED)
    heard.max_num_batched_tokens.add(whole(said.get("max_num_batched_tokens")), line, ASKED)
    heard.block_tokens.add(whole(said.get("block_size")), line, ASKED)
    heard.weights.add(weights_type(first(said, "quantization")), line, ASKED)
    heard.kv.add(kv_type(first(said, "kv_cache_dtype")), line, ASKED)


def _long(given: Mapping[str, str]) -> dict[str, str]:
    """Options under their long names: ``-tp 8`` is ``--tensor-parallel-size 8``."""
    short = {
        "tp": "tensor_parallel_size",
        "pp": "pipeline_parallel_size",
        "dp": "data_parallel_size",
        "dcp": "decode_context_parallel_size",
        "q": "quantization",
    }
    return {short.get(name, name): value for name, value in given.items()}


def _with_experts(started: Started, experts: Found[bool] | None) -> Started:
    """The expert split: with it on, vLLM spreads whole experts over all of tp x dp; off, they are tensor-split."""
    if experts is None or (experts.value and (started.tp is None or started.attention_dp is None)):
        return started
    group = started.tp.value * started.attention_dp.value if started.tp and started.attention_dp else 1
    return replace(started, ep=Found(group if experts.value else 1, experts.line))


def _with_mixture(started: Started, requests: tuple[int, float] | None) -> Started:
    """A note where the pool holds more or fewer tokens than so many requests of that length have.

    Where all layers keep all of a request, the printed tokens are the requests (rounded to two digits) times their
    length. Of the KV records with both figures, this tells every model with windows or states from every other.
    """
    if requests is None or started.kv_tokens is None:
        return started
    tokens, (length, times) = started.kv_tokens.value, requests
    if abs(tokens - length * times) <= 0.005 * length + 0.01 * tokens:
        return started
    note = f"the log says that it takes {times:g} requests of {length:,} tokens at once"
    return replace(started, pool_notes=(*(started.pool_notes or (_HYBRID_NOTE,)), note))


def _in_blocks(started: Started, blocks: Sequence[Found[int]]) -> Started:
    """A pool that is printed in blocks only (before 0.8) in tokens; or the block of one that is printed in both.

    Where layers of several kinds share the pool, its tokens are not its blocks.
    """
    if not blocks:
        return started
    count = min(blocks, key=lambda one: one.value)
    if started.kv_tokens is None:
        block = started.block_tokens.value if started.block_tokens else started.default_block
        tokens = count.value * block
        return replace(started, kv_tokens=Found(tokens, count.line)) if tokens <= 10**9 else started
    if started.block_tokens is None and not started.pool_notes and started.kv_tokens.value % count.value == 0:
        return replace(started, block_tokens=Found(started.kv_tokens.value // count.value, count.line))
    return started
