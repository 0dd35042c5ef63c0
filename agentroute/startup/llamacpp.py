"""llama.cpp's server: its start-up log and its arguments.

The lines were read in logs of the server in xllamacpp 2026.10.11549; their older forms in public logs since 2024.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from agentroute.startup.dtypes import kv_type
from agentroute.startup.dumps import amount, called, first, whole
from agentroute.startup.facts import Found, Started
from agentroute.startup.heard import ASKED, SETTLED, Heard, Pile
from agentroute.startup.lines import Line
from agentroute.startup.starts import Sign

MARKS: tuple[str, ...] = (
    "llama_context: ", "llama_kv_cache", "llama_model_loader: ", "llama_new_context_with_model: ",
    "llama_init_from_model: ", "srv    load_model: ", "srv load_model: ", "llama-server",
)  # fmt: skip
WORDS: tuple[str, ...] = (
    "build: ", "build = ", "build_info: b", "load_model: loading model '", "loaded meta data with ",
    "llama_context: n_", "llama_context: kv_unified", "llama_new_context_with_model: n_", "llama_init_from_model: n_",
    "load_model: initializing", "new slot", "llama_kv_cache", "llama_memory_recurrent: size = ",
    " model buffer size = ", "Device ", "using device ", "llama-server",
)  # fmt: skip
SIGNS: tuple[Sign, ...] = (
    Sign("load_model: loading model '", re.compile(r"load_model: loading model '(?P<model>[^']{1,1000})'"), "start"),
    Sign("build", re.compile(r"build(?:: | = |_info: b)(?P<version>[1-9]\d{0,8})(?: \(|-)[0-9a-f]{6,40}\b")),
)
EXAMPLE = "srv load_model: initializing, n_slots = 4, n_ctx_slot = 512, kv_unified = 'false'"

_BUILD = re.compile(r"build(?:: | = |_info: b)([1-9]\d{0,8})(?: \(|-)([0-9a-f]{6,40})\b")
_PATH = re.compile(r"load_model: loading model '([^']+)'")
_FILE = re.compile(r"loaded meta data with [\w\- ]{0,80} tensors from (\S+) \(version")
_CONTEXT = re.compile(
    r"llama_(?:context|new_context_with_model|init_from_model): (n_[a-z_]{1,40}|kv_unified) +(?:: |= )(\w{1,20})\s*$"
)
_SLOTS = re.compile(
    r"load_model: initializing(?: slots)?, n_slots = (\d+)(?:, n_ctx_slot = (\d+), kv_unified = '(\w+)')?"
)
_SLOT = re.compile(r"new slot,? n_ctx(?:_slot)? = (\d+)")
_CACHE = re.compile(
    r"llama_kv_cache[a-z_]{0,40}: size = +([\d.]+) MiB \( *(\d+) cells, +\d+ layers, +(\d+)(?:/ *(\d+))? seqs\), "
    r"K \((\w+)\): +[\d.]+ MiB, V \((\w+)\)"
)
_WEIGHTS = re.compile(r" model buffer size = +([\d.]+) MiB")
_DEVICE = re.compile(r"Device \d+: ([\w /+-]{1,80}), (?:compute capability|gfx)")
_USING = re.compile(r"using device \w+ \(([\w /+-]{1,80})\)")
_COMMAND = re.compile(r"llama-server(?:\.exe)?(?=\s|$)")
_BOOLS = {"true": True, "false": False}
_STATE_NOTE = "layers without a KV cache keep a state for each slot beside this pool"
_SHARED_NOTE = "the slots share this memory (kv_unified)"
_SPLIT_NOTE = "the slots split this memory: a block is what one slot has for itself"


def read(lines: Sequence[Line]) -> Started:
    """What a llama.cpp log or command line says."""
    heard = Heard()
    context, unified = Pile[int](), Pile[bool]()
    piles = {
        "n_ctx_seq": heard.max_model_len, "n_seq_max": heard.max_num_seqs, "n_batch": heard.max_num_batched_tokens,
        "n_ctx": context,
    }  # fmt: skip
    settled: dict[str, int | None] = dict.fromkeys(piles)  # of the first context, the model's; a draft's comes after it
    kv_mib, weights_mib = Pile[float](), Pile[float]()
    for line in lines:
        text = line.text
        if found := _BUILD.search(text):
            heard.version.add(f"b{found[1]}-{found[2]}", line)
        if found := _PATH.search(text) or _FILE.search(text):
            heard.named(found[1], line)
            heard.weights.add("gguf", line)
        if found := _CONTEXT.search(text):
            key, value = found[1].replace("_per_", "_"), found[2]
            if key == "kv_unified":
                unified.add(_BOOLS.get(value), line, SETTLED)
            elif (pile := piles.get(key)) and not settled[key]:
                settled[key] = whole(value, 10**6 if key == "n_seq_max" else 10**9)
                pile.add(settled[key], line, SETTLED)
        if found := _SLOTS.search(text):
            heard.max_num_seqs.add(whole(found[1], 10**6), line)
            heard.max_model_len.add(whole(found[2]), line)
            unified.add(_BOOLS.get(found[3] or ""), line)
        if found := _SLOT.search(text):
            heard.max_model_len.add(whole(found[1]), line)
        if found := _CACHE.search(text):
            sequences, streams = whole(found[3]), whole(found[4])
            if sequences and sequences > 1 and streams:
                unified.add(streams == 1, line, SETTLED)
            cells = whole(found[2])
            context.add(whole(str(cells * (streams or 1))) if cells else None, line, ASKED)
            if found[5] == found[6]:
                heard.kv.add(kv_type(found[5]), line)
            else:
                heard.remarks.append(f"line {line.number}: K is {found[5]} and V {found[6]}; a profile holds one type")
            kv_mib.add(amount(found[1]), line)
        if "llama_memory_recurrent: size = " in text:
            heard.pool_notes.append(_STATE_NOTE)
        if found := _WEIGHTS.search(text):
            weights_mib.add(amount(found[1]), line)
        if found := _DEVICE.search(text) or _USING.search(text):
            heard.device.add(found[1], line)
        if call := called(text, _COMMAND):
            heard.commands.add(line.number)
            _arguments(heard, context, unified, call[1], line)
    for mib, gib in ((kv_mib, heard.kv_gib), (weights_mib, heard.weights_gib)):
        if mib.said:
            total = sum(one.value for one in mib.said)
            gib.said.append(replace(mib.said[0], value=round(total / 1024, 3)))
    return _with_pool(heard.settle("llamacpp"), context, unified)


def _arguments(heard: Heard, context: Pile[int], unified: Pile[bool], given: dict[str, str], line: Line) -> None:
    """``llama-server -m model.gguf -c 8192 -np 4``. Without ``-np`` the server chooses its slots itself."""
    heard.named(first(given, "hf", "hfr", "hf_repo", "m", "model"), line, ASKED)
    heard.weights.add("gguf", line, ASKED)
    total = whole(first(given, "c", "ctx_size"))
    slots = whole(first(given, "np", "parallel"), 10**6)
    shares = True if {"kvu", "kv_unified"} & set(given) else False if slots else None
    context.add(total, line, ASKED)
    unified.add(shares, line, ASKED)
    heard.max_num_seqs.add(slots, line, ASKED)
    if total and slots:
        heard.max_model_len.add(total if shares else total // slots or None, line, ASKED)
    heard.max_num_batched_tokens.add(whole(first(given, "b", "batch_size")), line, ASKED)
    keys, values = first(given, "ctk", "cache_type_k"), first(given, "ctv", "cache_type_v")
    heard.kv.add(kv_type(keys) if keys == values else None, line, ASKED)


def _with_pool(started: Started, context: Pile[int], unified: Pile[bool]) -> Started:
    """The KV memory: all cells of one context, split evenly over the slots or shared by them.

    One slot has all of it: one block. Split slots are blocks that nobody shares; a shared memory is taken cell by cell.
    """
    window, slots, shares = started.max_model_len, started.max_num_seqs, unified.last()
    if slots is None or window is None:
        return started
    total = context.first()
    if slots.value == 1:
        return replace(started, kv_tokens=window, block_tokens=window)
    if total is not None and total.value not in (window.value, window.value * slots.value):
        remark = (
            f"line {total.line} says n_ctx = {total.value}, which is neither one slot's {window.value} tokens nor "
            f"{slots.value} slots of them, so the KV pool stays unknown"
        )
        return replace(started, remarks=(*started.remarks, remark))
    if shares is None and total is not None:
        shares = Found(total.value == window.value, total.line)
    if shares is None or window.value * slots.value > 10**9:
        return started
    if shares.value:
        block, tokens, note = Found(1, shares.line), window, _SHARED_NOTE
    else:
        block, tokens, note = window, Found(window.value * slots.value, shares.line), _SPLIT_NOTE
    return replace(started, kv_tokens=tokens, block_tokens=block, pool_notes=(*started.pool_notes, note))
