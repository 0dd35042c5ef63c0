"""What the lines of a log say while it is read, and what they agree on at its end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from agentroute.profile import EngineName, KvType, WeightsType
from agentroute.startup.facts import DEGREES, Found, Started
from agentroute.startup.lines import Line
from agentroute.startup.names import without_secrets

T = TypeVar("T")

ASKED, SETTLED, FINAL = 1, 2, 3
"""How far a line can be trusted: an argument is what was asked for, a configuration what the engine made of it, and the
lines after it what it really allocated. The higher explains away the lower."""


@dataclass(frozen=True, slots=True)
class Said(Generic[T]):
    """One line's word on a fact."""

    value: T
    line: int
    trust: int
    rank: str | None


@dataclass(slots=True)
class Pile(Generic[T]):
    """All that a log says of one fact."""

    said: list[Said[T]] = field(default_factory=list)

    def add(self, value: T | None, line: Line, trust: int = FINAL) -> None:
        """One more line's word; ``None`` says nothing."""
        if value is not None:
            self.said.append(Said(value, line.number, trust, line.rank))

    def best(self) -> list[Said[T]]:
        """The words of the most trusted kind."""
        most = max((one.trust for one in self.said), default=0)
        return [one for one in self.said if one.trust == most]

    def first(self) -> Found[T] | None:
        """The first of the best."""
        return next((Found(one.value, one.line) for one in self.best()), None)

    def last(self) -> Found[T] | None:
        """The last of the best: an engine that sets something again means the later."""
        return next((Found(one.value, one.line) for one in reversed(self.best())), None)

    def agreed(self, name: str, remarks: list[str]) -> Found[T] | None:
        """What the best words agree on; when they do not, nothing, and a remark says so."""
        best = self.best()
        other = next((one for one in best if one.value != best[0].value), None)
        if other is not None:
            remarks.append(
                f"line {best[0].line} says {name} = {best[0].value}, line {other.line} says {other.value}: "
                "they contradict each other, so it stays unknown"
            )
            return None
        return self.first()


def least(pile: Pile[int] | Pile[float], name: str, unit: str, remarks: list[str]) -> Found[Any] | None:
    """The least of what workers or ranks print of themselves; a remark says so where they differ."""
    best = _latest(pile.best())
    if not best:
        return None
    low, high = min(best, key=_value), max(best, key=_value)
    if low.value != high.value:
        who = f" ({low.rank})" if low.rank else ""
        differs = "differs between ranks" if len({one.rank for one in best}) > 1 else "is printed more than once"
        remarks.append(
            f"{name} {differs}, {low.value:,} to {high.value:,}{unit}; the least is kept, from line {low.line}{who}"
        )
    return Found(low.value, low.line)


def most(pile: Pile[float]) -> Found[float] | None:
    """The most of what workers print of themselves; a draft's weights, printed after the model's, are less."""
    best = pile.best()
    return Found(top.value, top.line) if (top := max(best, key=_value, default=None)) else None


def _latest(best: Iterable[Said[Any]]) -> list[Said[Any]]:
    """Of each rank its last word, and all the words that name no rank: they may be of several."""
    return list({(one.rank or one.line): one for one in best}.values())


def _value(one: Said[Any]) -> float:
    return float(one.value)


@dataclass(slots=True)
class Heard:
    """What has been heard of each fact so far, while a log is read."""

    version: Pile[str] = field(default_factory=Pile)
    model: Pile[str] = field(default_factory=Pile)
    tp: Pile[int] = field(default_factory=Pile)
    pp: Pile[int] = field(default_factory=Pile)
    ep: Pile[int] = field(default_factory=Pile)
    attention_dp: Pile[int] = field(default_factory=Pile)
    dcp: Pile[int] = field(default_factory=Pile)
    max_model_len: Pile[int] = field(default_factory=Pile)
    max_num_seqs: Pile[int] = field(default_factory=Pile)
    max_num_batched_tokens: Pile[int] = field(default_factory=Pile)
    kv_tokens: Pile[int] = field(default_factory=Pile)
    block_tokens: Pile[int] = field(default_factory=Pile)
    weights: Pile[WeightsType] = field(default_factory=Pile)
    kv: Pile[KvType] = field(default_factory=Pile)
    device: Pile[str] = field(default_factory=Pile)
    kv_gib: Pile[float] = field(default_factory=Pile)
    weights_gib: Pile[float] = field(default_factory=Pile)
    commands: set[int] = field(default_factory=set)
    """The lines that are a command."""
    pool_notes: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def named(self, model: str | None, line: Line, trust: int = FINAL) -> None:
        """One more line's word on the model, without what is secret in it."""
        name = without_secrets(model) if model else None
        if model and name is None:
            self.remarks.append(f"line {line.number} names a model by what may be a key, so it is left out")
        self.model.add(name, line, trust)

    def settle(self, engine: EngineName) -> Started:
        """What the lines agree on. The first version and model and the last block count; pools are the least."""
        remarks = self.remarks
        agreed: dict[str, Any] = {
            name: getattr(self, name).agreed(name, remarks)
            for name in (*DEGREES, "max_model_len", "max_num_seqs", "max_num_batched_tokens", "weights", "kv", "device")
        }
        started = Started(
            engine,
            version=self.version.first(),
            model=self.model.first(),
            **agreed,
            kv_tokens=least(self.kv_tokens, "the KV pool", " tokens", remarks),
            block_tokens=self.block_tokens.last(),
            kv_gib=least(self.kv_gib, "KV memory", " GiB", remarks),
            weights_gib=most(self.weights_gib),
            commands=frozenset(self.commands),
            pool_notes=tuple(dict.fromkeys(self.pool_notes)),
        )
        if started.sharding() is None and any(agreed[name] for name in ("tp", "pp", "attention_dp")):
            degrees = ", ".join(f"{name} = {one.value}" for name in DEGREES if (one := agreed[name]))
            remarks.append(f"the degrees do not divide each other ({degrees}), so the sharding stays unknown")
        if started.kv_tokens is not None and started.kv_pool() is None:
            remarks.append("the KV pool holds not even one block, so it stays unknown")
        return replace(started, remarks=tuple(dict.fromkeys(remarks)))


@dataclass(frozen=True, slots=True)
class Rule:
    """A line that says one fact: what it always holds, how it reads, the fact's name, and what its group means."""

    word: str
    pattern: re.Pattern[str]
    fact: str
    means: Callable[[str], Any]
    trust: int = FINAL


def hear(heard: Heard, line: Line, rules: Iterable[Rule]) -> None:
    """Add what ``line`` says by ``rules``."""
    for rule in rules:
        if rule.word in line.text and (found := rule.pattern.search(line.text)):
            getattr(heard, rule.fact).add(rule.means(found[1]), line, rule.trust)
