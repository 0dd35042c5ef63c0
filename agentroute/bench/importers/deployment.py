"""Which deployment the runs of several files are of: by what the files say, and by what the caller gives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentroute.bench.importers.checks import Judged
from agentroute.bench.importers.run import NOTHING, Facts, accelerator_of, sharding_of
from agentroute.errors import UsageError, shown
from agentroute.startup.devices import ACCELERATORS


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller says of the deployment; ``None`` and absent is what they leave to the files."""

    facts: Facts = NOTHING
    """Model and accelerator are the catalogue's names here; sharding is in ``degrees``."""
    degrees: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Taken:
    """A usable run with the file that it came from."""

    judged: Judged
    files: tuple[str, ...]
    tool: str

    @property
    def label(self) -> str:
        """The file and the place in it."""
        return f"{self.files[0]} {self.judged.run.where}".strip()


def with_names(taken: Taken, given: Given, named: Callable[[str], str | None]) -> Taken:
    """The run with model and accelerator as the catalogue calls them; as ``None`` where it has none of that name.

    Where the file does not say whether attention is replicated, the caller's word for it is taken, on as many GPUs.
    """
    facts = taken.judged.run.facts
    model = named(facts.model_word) if facts.model_word else None
    split = facts.sharding
    if split and facts.attention_unsaid and "attention_dp" in given.degrees:
        told = sharding_of(**{"pp": split.pp, "ep": split.ep, **given.degrees})
        split = told if told and told.accelerators == split.accelerators else split
    facts = replace(facts, model=model, accelerator=accelerator_of(facts.accelerator_word), sharding=split)
    return replace(taken, judged=replace(taken.judged, run=replace(taken.judged.run, facts=facts)))


OPTIONS = {
    "model": "--model",
    "accelerator": "--accelerator",
    "engine": "--engine",
    "engine_version": "--engine-version",
    "sharding": "--tp, --pp, --ep and --attention-dp",
}
"""Facts that the caller may give, and so choose by."""


def choose(every: Sequence[Taken], given: Given) -> list[Taken]:
    """The runs that are of what the caller gives, as far as the files say it."""
    chosen = list(every)
    for name in ("model", "accelerator", "engine", "engine_version"):
        if (wanted := getattr(given.facts, name)) is not None:
            said = [(taken, _said(taken.judged.run.facts, name)) for taken in chosen]
            meant = {i for i, (_, word) in enumerate(said) if word == wanted or (word and _alike(str(word), wanted))}
            # A word that the catalogue does not know may mean what was given, as long as no other run says it clearly.
            chosen = [
                taken
                for i, (taken, word) in enumerate(said)
                if word is None or i in meant or (not meant and _may_mean(taken.judged.run.facts, name))
            ]
    return [taken for taken in chosen if _split_fits(taken.judged.run.facts, given.degrees)]


def _said(facts: Facts, name: str) -> Any:
    """A fact, or the file's own word for it where the catalogue does not know that."""
    return getattr(facts, name) or getattr(facts, f"{name}_word", None)


def _may_mean(facts: Facts, name: str) -> bool:
    """Whether a file's own word for a fact means nothing in the catalogue, not even several of its names."""
    word = _said(facts, name)
    known = name == "accelerator" and any(_alike(str(word), other) for other in ACCELERATORS.values())
    return getattr(facts, name) is None and not known


def _alike(word: str, name: str) -> bool:
    """Whether ``word`` is a short form of the catalogue's ``name``: ``H100`` of ``h100_sxm``."""
    return name.lower().startswith(f"{word.strip().lower()}_")


def _split_fits(facts: Facts, degrees: Mapping[str, int]) -> bool:
    if degrees and facts.disaggregated:
        return False
    return not facts.sharding or all(getattr(facts.sharding, name) == n for name, n in degrees.items())


def agreed(chosen: Sequence[Taken], given: Given) -> Facts:
    """What the runs say of their deployment, with what the caller gives in its gaps; several are refused."""
    found: dict[str, Any] = {}
    for name in (*OPTIONS, "disaggregated", "weights", "kv"):
        values = _values(chosen, name)
        if len(values) > 1:
            how = f"choose with {OPTIONS[name]}" if name in OPTIONS else "give the files of one of them"
            listed = ", ".join(f"{_shown(value)} ({count})" for value, count in list(values.items())[:8])
            raise UsageError(f"the runs are of several deployments, by {name.replace('_', ' ')}: {listed}; {how}")
        known = [getattr(taken.judged.run.facts, name) for taken in chosen]
        found[name] = getattr(given.facts, name) or next((value for value in known if value is not None), None)
    if found["sharding"] and found["disaggregated"]:
        raise UsageError("some runs are of a disaggregated deployment, some are not; give the files of one of them")
    if found["sharding"] is None and found["disaggregated"] is None and given.degrees:
        if (split := sharding_of(**given.degrees)) is None:
            raise UsageError("the sharding is wrong: --ep must divide --tp x --attention-dp")
        found["sharding"] = split
    for name in ("model", "accelerator"):
        found[f"{name}_word"] = next(iter(_values(chosen, name)), None) if found[name] is None else None
    return Facts(**found)


def _values(chosen: Iterable[Taken], name: str) -> dict[Any, int]:
    """Every value of a fact that some run states, and how many do."""
    counted: dict[Any, int] = defaultdict(int)
    for taken in chosen:
        if (value := _said(taken.judged.run.facts, name)) is not None:
            counted[value] += 1
    return dict(counted)


def _shown(value: object) -> str:
    return shown(value) if isinstance(value, str) else str(value)


def held(every: Sequence[Taken]) -> str:
    """What the files say of their deployments, for a sentence."""
    said = []
    for name in (*OPTIONS, "disaggregated"):
        if values := [_shown(value) for value in _values(every, name)]:
            said.append(f"{name.replace('_', ' ')} {', '.join(values[:8])}{', ...' if len(values) > 8 else ''}")
    return "; ".join(said)
