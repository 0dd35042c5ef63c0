"""What an engine's rules make of one record: a candidate for every rule that its log leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from agentroute.capacity import kv, llamacpp, sglang, trtllm, vllm
from agentroute.capacity.kv import MIB, KvType, Unknown
from agentroute.capacity.loaded import sharding, weigh
from agentroute.capacity.records import Record
from agentroute.shape.model import Gqa, Linear, Model

Quantity = Literal["kv_tokens", "kv_memory", "weights", "concurrency", "needed_kv", "max_len"]
Figures = dict[Quantity, float | None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one set of rules predicts."""

    rule: str
    figures: Figures


def candidates(record: Record, model: Model | None) -> Sequence[Candidate] | Unknown:
    """What every rule that the log leaves open makes of ``record``, the most usual first."""
    if model is None:
        return _from_own_figures(record) or no_model(record)
    types = record.kv_types
    if types is None:
        return Unknown(f"the KV type {record.kv_dtype!r} is not known")
    if record.engine == "vllm":
        return _vllm(record, model, types[0], record.draft_tokens > 0)
    if record.engine == "sglang":
        return _sglang(record, model, types[0])
    if record.engine == "trtllm":
        return _trtllm(record, model, types[0])
    if record.engine.startswith("llama.cpp"):
        return _llamacpp(record, model, types)
    return Unknown(f"the rules of the engine {record.engine!r} are not known here")


def with_draft(record: Record, model: Model | None) -> Sequence[Candidate]:
    """The same with the built-in draft's layers, for a log that does not say whether it is in use."""
    types = record.kv_types
    if record.engine != "vllm" or model is None or not model.draft_layers or record.spec or types is None:
        return []
    found = _vllm(record, model, types[0], True)
    return [] if isinstance(found, Unknown) else found


def no_model(record: Record) -> Unknown:
    """Why there is no model to predict from."""
    if record.arch.startswith(kv.COMPRESSED):
        return kv.NO_COMPRESSED_RULE
    if record.arch.startswith("unknown"):
        return Unknown("the log does not name its model")
    return Unknown(f"no shipped model has the shape {record.arch!r}")


def _from_own_figures(record: Record) -> list[Candidate]:
    """What follows from a log's own figures, without the model.

    A refusal's two figures: what fits is in proportion to what is needed, where every layer is full. A count of tokens
    that no whole blocks make is by vLLM's newer rule, so it is the concurrency times the window.
    """
    have, need, window = record.kv_memory_gib_per_gpu, record.needed_kv_gib, record.max_model_len
    if record.engine != "vllm" or window is None or record.arch.startswith(kv.COMPRESSED):
        return []
    if have is not None and need is not None:
        fit = int(have / need * window) // 16 * 16
        return [Candidate("full layers, from its own needed GiB", {"kv_tokens": fit, "max_len": fit})]
    if record.kv_tokens is not None and record.kv_tokens % 16 and record.max_concurrency_len == window:
        return [Candidate("tokens by concurrency, from its own tokens", {"concurrency": record.kv_tokens / window})]
    return []


def _kinds(model: Model) -> tuple[bool, bool]:
    """Whether the model has windowed layers beside others, and whether it has states."""
    attentions = [group.attention for group in model.layers]
    windowed = {isinstance(a, Gqa) and bool(a.window_tokens or a.chunk_tokens) for a in attentions}
    return len(windowed) > 1, any(isinstance(a, Linear) for a in attentions)


def _sglang(record: Record, model: Model, kv_type: KvType) -> list[Candidate] | Unknown:
    left = record.kv_memory_gib_per_gpu
    pools = _sglang_pools_gib(record, model) if left is None or record.kv_tokens is None else None
    states = _kinds(model)[1]
    found: list[Candidate] = []
    for whole in (False, True) if record.pp > 1 else (False,):
        layout = sglang.layout(
            model, sharding(record), kv_type, sglang.Options(draft=record.draft_tokens > 0, whole_model_per_stage=whole)
        )
        if isinstance(layout, Unknown):
            return layout
        if pools is not None:
            left = layout.split(pools)[0]
        figures: Figures = {} if left is None else {"kv_tokens": layout.pool(left).printed_tokens}
        if pools is not None:
            figures["kv_memory"] = left
        names = ["KV beside states" if states else "one slot per token"]
        names += ["all layers on every stage" if whole else "each stage its layers"] if record.pp > 1 else []
        found.append(Candidate(", ".join(names), figures))
    return found


def _sglang_pools_gib(record: Record, model: Model) -> float | None:
    """GiB for the pools from free memory; what was free before loading is what is free after it, and the weights."""
    before, after, share = record.avail_before_gib, record.avail_after_load_gib, record.gpu_memory_utilization
    if after is None or share is None:
        return None
    if before is None:
        counted = weigh(record, model)
        load = record.model_load_gib_per_gpu or (None if isinstance(counted, Unknown) else counted.gib)
        before = None if load is None else after + load
    return None if before is None else sglang.pool_gib(before, after, share)


def _trtllm(record: Record, model: Model, kv_type: KvType) -> list[Candidate] | Unknown:
    if record.kv_memory_gib_per_gpu is None:
        return [Candidate("blocks", {})]
    block = record.block_size or trtllm.BLOCK_TOKENS
    pool = trtllm.pool(model, sharding(record), kv_type, record.kv_memory_gib_per_gpu, block_tokens=block)
    return pool if isinstance(pool, Unknown) else [Candidate(f"blocks of {block}", {"kv_tokens": pool.tokens})]


def _llamacpp(record: Record, model: Model, types: tuple[KvType, KvType]) -> list[Candidate] | Unknown:
    """The cells are what the log prints, so the rule of the windowed layers' cells is chosen by them, not by memory."""
    if record.kv_tokens is None:
        return Unknown("the log does not say the context that its cache was made for")
    sequences = (record.max_num_seqs,) if record.max_num_seqs else (1, 4)
    for count, windows in product(sequences, (record.swa_tokens is not None,)):
        options = llamacpp.Options(
            sequences=count,
            unified=record.max_num_seqs is None,
            windows=windows,
            latent=not record.arch.endswith("-mha"),
        )
        pool = llamacpp.pool(model, record.kv_tokens, *types, options)
        if isinstance(pool, Unknown):
            return pool
        if pool.swa_cells == record.swa_tokens:
            rule = f"{'windowed' if windows else 'full'} cells, {count} sequences, {pool.bytes / MIB:.2f} MiB"
            return [Candidate(rule, {"kv_memory": pool.gib})]
    return Unknown(f"{record.swa_tokens} windowed cells follow from no number of sequences that is usual")


def _vllm(record: Record, model: Model, kv_type: KvType, draft: bool) -> list[Candidate] | Unknown:
    windowed, states = _kinds(model)
    version = record.version
    v0 = (version is not None and version < (0, 8)) or "V0" in (record.notes or "")
    hybrids = (not v0 and version >= (0, 10),) if version and not v0 else (False,) if v0 else (True, False)
    rules: tuple[vllm.TokenRule, ...] = ("blocks_per_group", "concurrency")
    if version or v0:
        rules = ("concurrency",) if version and version >= (0, 20) else ("blocks_per_group",)
    batched = (record.max_num_batched_tokens,) if record.max_num_batched_tokens else (8_192, 2_048)
    checks = (version is not None and version <= (0, 15),) if version or record.pp == 1 else (False, True)
    found: list[Candidate] = []
    problem = Unknown("no rule applies")
    for rule, hybrid, step, align, ssm, check in product(
        rules,
        hybrids if windowed else (True,),
        batched if windowed else batched[:1],
        (True, False) if states else (True,),
        (4, 2) if states else (4,),
        checks,
    ):
        options = vllm.Options(
            block_tokens=None if states else record.block_size,
            batched_tokens=step,
            hybrid=hybrid,
            align=align,
            draft=draft,
            speculative_tokens=record.draft_tokens,
            ssm_bytes=ssm,
            whole_model_check=check,
        )
        layout = vllm.layout(model, sharding(record), kv_type, options)
        if isinstance(layout, Unknown):
            problem = layout
            continue
        names = [f"tokens by {rule.replace('_', ' ')}"]
        names += [f"hybrid {'on' if hybrid else 'off'}"] if windowed else []
        names += [f"{step} batched tokens"] if windowed and hybrid else []
        names += [f"state mode {'align' if align else 'none'}", f"{8 * ssm}-bit states"] if states else []
        names += ["with the draft's layers"] if draft and not record.draft_tokens else []
        names += [f"admission by {'all layers' if check else 'stage'}"] if record.pp > 1 else []
        found.append(Candidate(", ".join(names), _vllm_figures(record, layout, rule)))
    return found or problem


def _vllm_figures(record: Record, layout: vllm.Layout, rule: vllm.TokenRule) -> Figures:
    figures: Figures = {}
    memory, window = record.kv_memory_gib_per_gpu, record.max_model_len
    length = record.max_concurrency_len or window
    pool = None
    if memory is not None and memory > 0:
        pool = layout.pool(memory)
        tokens = pool.printed_tokens(rule, window)
        figures["kv_tokens"] = None if isinstance(tokens, Unknown) else tokens
        figures["max_len"] = vllm.longest(layout.needed_gib, memory, window or 1 << 30)
    elif record.num_blocks is not None:
        pool = vllm.VllmPool(layout, record.num_blocks)
    elif record.kv_tokens is not None:
        groups = sum(group.groups for group in layout.groups)
        whole = record.kv_tokens // layout.block_tokens * groups
        if rule == "concurrency" and window:
            whole = round(record.kv_tokens / window * layout.units(window))
        pool = vllm.VllmPool(layout, whole)
    if pool is not None and length is not None:
        figures["concurrency"] = pool.concurrency(length)
    if window is not None:
        figures["needed_kv"] = layout.needed_gib(window)
    return figures
