"""Which profiles ``agentroute profiles list`` shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import get_args

from agentroute.catalogue import Catalogue
from agentroute.errors import UnknownNameError
from agentroute.profile import EngineName, Profile

DISAGGREGATED = "disagg"
"""What ``--sharding`` calls every deployment with prefill and decode apart."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a profile must be; ``None`` asks for nothing."""

    model: str | None = None
    """The model file's name."""
    gpus: frozenset[str] | None = None
    """Names of accelerator files."""
    engine: str | None = None
    sharding: str | None = None
    """Words that must stand in the split, in this order: ``tp8``, ``tp8 ep8``, ``D 9x(tp8 ep8)``; or ``disagg``."""

    @classmethod
    def of(
        cls, catalogue: Catalogue, *, model: str | None, gpu: str | None, engine: str | None, sharding: str | None
    ) -> Wanted:
        """What the options ask for; raises ``UnknownNameError`` for a model, accelerator or engine that is none."""
        return cls(
            model=catalogue.model(model).name if model else None,
            gpus=_accelerators(catalogue, gpu) if gpu else None,
            engine=_engine(engine) if engine else None,
            sharding=" ".join(sharding.split()) if sharding else None,
        )

    def takes(self, profile: Profile) -> bool:
        """Whether a profile is all of this."""
        return (
            (self.model is None or profile.model == self.model)
            and (self.gpus is None or profile.accelerator in self.gpus)
            and (self.engine is None or profile.engine.name == self.engine)
            and (self.sharding is None or self._split(profile))
        )

    def _split(self, profile: Profile) -> bool:
        if self.sharding == DISAGGREGATED:
            return profile.disaggregated is not None
        # tp1 is no part of tp16.
        return re.search(rf"(?<!\w){re.escape(self.sharding or '')}(?!\w)", profile.split or "") is not None

    def __str__(self) -> str:
        parts = [f"of {self.model}"] if self.model else []
        parts += [f"on {' or '.join(sorted(self.gpus))}"] if self.gpus else []
        parts += [f"under {self.engine}"] if self.engine else []
        parts += [f"split as {self.sharding!r}"] if self.sharding else []
        return ", ".join(parts) or "there"


def _accelerators(catalogue: Catalogue, name: str) -> frozenset[str]:
    """An accelerator by its name, or all that a shorter one stands for: ``h100`` for ``h100_sxm`` and ``h100_pcie``."""
    found = {one for one in catalogue.accelerator_names if one == name or one.startswith(f"{name}_")}
    if not found:
        raise UnknownNameError("accelerator", name, catalogue.accelerator_names)
    return frozenset(found)


def _engine(name: str) -> str:
    if name not in get_args(EngineName):
        raise UnknownNameError("engine", name, get_args(EngineName))
    return name
