"""The files that ship with agentroute: models, accelerators, prices and profiles, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeVar

from agentroute.errors import ProfileError, UnknownNameError
from agentroute.files import locate, parse, read_text, validate
from agentroute.fleet import Deployment
from agentroute.origin import Frozen
from agentroute.profile import Profile
from agentroute.shape.accelerator import Accelerator, PriceTable
from agentroute.shape.model import Model

FOLDER = Path(__file__).parent / "profiles"

T = TypeVar("T")
F = TypeVar("F", bound=Frozen)


def read(kind: type[F], path: Path) -> F:
    """One file of the catalogue, or ``ProfileError``."""
    text = read_text(path, ProfileError)
    return validate(kind, parse(text, path, ProfileError), text=text, path=path, error=ProfileError)


@dataclass(frozen=True)
class Catalogue:
    """Models, accelerators, prices and profiles by name.

    A folder is listed, and a file read, when it is first asked for, and then kept.
    """

    folder: Path = FOLDER
    _read: dict[Path, object] = field(default_factory=dict, repr=False, compare=False)

    def model(self, name: str) -> Model:
        """A model by name or hub id."""
        by_name = self._files("models")
        if name in by_name:
            return self._get(by_name[name], lambda path: read(Model, path))
        for other in by_name:
            if name in (model := self.model(other)).hf_ids:
                return model
        raise UnknownNameError("model", name, by_name)

    def accelerator(self, name: str) -> Accelerator:
        """An accelerator by name."""
        by_name = self._files("accelerators")
        if name not in by_name:
            raise UnknownNameError("accelerator", name, by_name)
        return self._get(by_name[name], lambda path: read(Accelerator, path))

    def profile(self, name: str) -> Profile:
        """A shipped profile by name."""
        by_name = self._files("deployments")
        if name not in by_name:
            raise UnknownNameError("profile", name, by_name)
        return self._get(by_name[name], Profile.load)

    def prices(self) -> PriceTable:
        """The dated table of accelerator-hour prices."""
        return self._get(self.folder / "prices.toml", lambda path: read(PriceTable, path))

    def load(self, path: Path) -> Profile:
        """A profile from one's own file; raises ``ProfileError``, for an unknown model or accelerator, too."""
        profile = Profile.load(path)
        for key, find in (("model", self.model), ("accelerator", self.accelerator)):
            name = getattr(profile, key)
            try:
                if name is not None:
                    find(name)
            except UnknownNameError as problem:
                line = locate(read_text(path, ProfileError), path, (key,))
                raise ProfileError(str(problem), path=path, key=key, line=line) from None
        return profile

    def deployment(self, profile: Profile, *, name: str | None = None) -> Deployment:
        """A deployment of ``profile`` with model, accelerator and hourly price looked up; it has no endpoint yet."""
        return Deployment(
            name=name or profile.name,
            profile=profile,
            model=self.model(profile.model) if profile.model else None,
            accelerator=self.accelerator(profile.accelerator) if profile.accelerator else None,
            usd_per_accelerator_hour=self.prices().usd_per_accelerator_hour.get(profile.accelerator or ""),
        )

    @property
    def model_names(self) -> list[str]:
        """Every shipped model, sorted."""
        return sorted(self._files("models"))

    @property
    def accelerator_names(self) -> list[str]:
        """Every shipped accelerator, sorted."""
        return sorted(self._files("accelerators"))

    @property
    def profile_names(self) -> list[str]:
        """Every shipped profile, sorted: ``model/engine-accelerator-split``."""
        return sorted(self._files("deployments"))

    def _files(self, kind: str) -> Mapping[str, Path]:
        return self._get(self.folder / kind, lambda root: {_named(root, path): path for path in root.rglob("*.toml")})

    def _get(self, path: Path, load: Callable[[Path], T]) -> T:
        if path not in self._read:
            self._read[path] = load(path)
        return self._read[path]  # type: ignore[return-value]


def _named(root: Path, path: Path) -> str:
    return path.relative_to(root).with_suffix("").as_posix()


@cache
def shipped() -> Catalogue:
    """The catalogue in this package."""
    return Catalogue()
