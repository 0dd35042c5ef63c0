"""Which profiles ``agentroute profiles list`` shows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from pydantic import ValidationError

from agentroute.catalogue import Catalogue
from agentroute.errors import UnknownNameError, UsageError, shown
from agentroute.profile import EngineName, Profile
from agentroute.shape.sharding import Sharding, Workers

DISAGGREGATED = ("disagg", "disaggregated")
"""What ``--sharding`` calls every deployment with prefill and decode apart."""

STYLES = {"tp": "tp", "pp": "pp", "ep": "ep", "adp": "attention_dp", "dp": "attention_dp", "dcp": "dcp"}
STYLES |= {"attention-dp": "attention_dp", "attention_dp": "attention_dp"}
"""How a degree may be called, and which field of ``Sharding`` that is."""

_SIDE = re.compile(r"\b([pd])\s*(?:(\d{1,6})\s*x\s*)?\(([^()]*)\)")
_DEGREE = re.compile(r"([a-z_-]+?)=?(\d{1,6})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a disaggregated deployment: all of its split, and how many workers; ``None``: any number."""

    workers: int | None
    sharding: Sharding

    def takes(self, side: Workers) -> bool:
        """Whether a side is this one."""
        return self.workers in (None, side.workers) and side.sharding == self.sharding


@dataclass(frozen=True, slots=True)
class Split:
    """Degrees that one worker group must have, in any order; of a disaggregated deployment either side's."""

    text: str
    """As it was asked for."""
    degrees: tuple[tuple[str, int], ...]
    disaggregated: bool
    prefill: Side | None
    decode: Side | None

    @classmethod
    def of(cls, text: str) -> Split:
        """``tp8``, ``EP=8, tp=8``, ``disagg``, ``P 1x(tp8) D 9x(tp8 ep8)``; raises ``UsageError`` for anything else."""
        lower = text.lower()
        sides = {which: _side(workers, inner, text) for which, workers, inner in _SIDE.findall(lower)}
        words = re.split(r"[\s,]+", re.sub(r"\s*=\s*", "=", _SIDE.sub(" ", lower)).strip())
        rest = [word for word in words if word and word not in DISAGGREGATED]
        if not (rest or sides or any(words)):
            raise _wrong(text)
        return cls(
            text=" ".join(text.split()),
            degrees=tuple(_degrees(rest, text).items()),
            disaggregated=bool(sides) or len(rest) < len([word for word in words if word]),
            prefill=sides.get("p"),
            decode=sides.get("d"),
        )

    def takes(self, profile: Profile) -> bool:
        """Whether a profile is split so."""
        apart = profile.disaggregated
        groups = [profile.sharding] if profile.sharding else []
        groups += [apart.prefill.sharding, apart.decode.sharding] if apart else []
        if not any(all(getattr(group, name) == n for name, n in self.degrees) for group in groups):
            return False
        return not self.disaggregated or (
            apart is not None
            and (self.prefill is None or self.prefill.takes(apart.prefill))
            and (self.decode is None or self.decode.takes(apart.decode))
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a profile must be; ``None`` asks for nothing."""

    model: str | None = None
    """The model file's name."""
    gpus: frozenset[str] | None = None
    """Names of accelerator files."""
    engine: str | None = None
    sharding: Split | None = None

    @classmethod
    def of(
        cls, catalogue: Catalogue, *, model: str | None, gpu: str | None, engine: str | None, sharding: str | None
    ) -> Wanted:
        """What the options ask for; raises ``UnknownNameError`` for a name that is none, ``UsageError`` for a split."""
        return cls(
            model=catalogue.model(model).name if model is not None else None,
            gpus=_accelerators(catalogue, gpu) if gpu is not None else None,
            engine=_engine(engine) if engine is not None else None,
            sharding=Split.of(sharding) if sharding is not None else None,
        )

    def takes(self, profile: Profile) -> bool:
        """Whether a profile is all of this."""
        return (
            (self.model is None or profile.model == self.model)
            and (self.gpus is None or profile.accelerator in self.gpus)
            and (self.engine is None or profile.engine.name == self.engine)
            and (self.sharding is None or self.sharding.takes(profile))
        )

    def __str__(self) -> str:
        parts = [f"of {self.model}"] if self.model else []
        parts += [f"on {' or '.join(sorted(self.gpus))}"] if self.gpus else []
        parts += [f"under {self.engine}"] if self.engine else []
        parts += [f"split as {self.sharding.text!r}"] if self.sharding else []
        return ", ".join(parts) or "there"


def _side(workers: str, inner: str, text: str) -> Side:
    try:
        return Side(int(workers) if workers else None, Sharding(**_degrees(re.findall(r"[^\s,]+", inner), text)))
    except ValidationError:
        raise UsageError(f"--sharding holds degrees that do not fit each other, got {shown(text)}") from None


def _degrees(words: Sequence[str], text: str) -> dict[str, int]:
    """``tp8`` and ``tp=8`` as fields of ``Sharding``."""
    found: dict[str, int] = {}
    for word in words:
        parts = _DEGREE.fullmatch(word)
        if parts is None:
            raise _wrong(text)
        if parts[1] not in STYLES:
            raise UnknownNameError("style of sharding", parts[1], STYLES)
        name, degree = STYLES[parts[1]], int(parts[2])
        if degree < 1 or found.get(name, degree) != degree:
            raise _wrong(text)
        found[name] = degree
    return found


def _wrong(text: str) -> UsageError:
    return UsageError(
        f"--sharding must be degrees of one worker group such as tp8 or 'tp8 ep8', or disagg, got {shown(text)}"
    )


def _accelerators(catalogue: Catalogue, name: str) -> frozenset[str]:
    """An accelerator by its name, or all that a shorter one stands for: ``h100`` for ``h100_sxm`` and ``h100_pcie``."""
    low = name.lower()
    found = {one for one in catalogue.accelerator_names if one == low or one.startswith(f"{low}_")}
    if not low or not found:
        raise UnknownNameError("accelerator", name, catalogue.accelerator_names)
    return frozenset(found)


def _engine(name: str) -> str:
    if (low := name.lower()) not in get_args(EngineName):
        raise UnknownNameError("engine", name, get_args(EngineName))
    return low
