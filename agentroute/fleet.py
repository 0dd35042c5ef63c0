"""A fleet: the deployments that a router may choose from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agentroute.errors import UsageError
from agentroute.profile import Profile
from agentroute.shape.accelerator import Accelerator
from agentroute.shape.model import Model


@dataclass(frozen=True, slots=True)
class Deployment:
    """One running server group with a profile."""

    name: str
    profile: Profile
    model: Model | None = None
    """The model that the profile refers to."""
    accelerator: Accelerator | None = None
    """The accelerator that the profile refers to."""
    usd_per_accelerator_hour: float | None = None
    """From the price table; a price in the profile comes before it. ``None`` when unknown."""
    urls: tuple[str, ...] = ()
    """Base URLs of its endpoints, identical replicas; none: it can be decided on, not called."""
    adapter: str = "openai"
    """The name of the adapter that speaks its wire."""
    served_model: str | None = None
    """The model id on the wire; ``None``: the first id that the server lists."""
    api_key_env: str | None = None
    """The environment variable that holds the server's key; the key itself is never stored."""
    pool: str | None = None
    """The physical KV memory it stands on, when it shares one with another deployment."""

    @property
    def model_name(self) -> str | None:
        """The model's name, or what the server calls it."""
        return self.model.name if self.model else self.profile.model or self.served_model


class Fleet:
    """Deployments in a fixed order, each with a name of its own."""

    def __init__(self, deployments: Iterable[Deployment]) -> None:
        self.deployments = tuple(deployments)
        names = [deployment.name for deployment in self.deployments]
        if not names:
            raise UsageError("a fleet needs at least one deployment")
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise UsageError(f"deployment names must differ, got {sorted(twice)[0]!r} twice")

    @classmethod
    def shipped(cls) -> Fleet:
        """Every profile that ships with agentroute, as a fleet to decide on; it has no endpoints to call."""
        from agentroute.catalogue import shipped

        catalogue = shipped()
        return cls(catalogue.deployment(catalogue.profile(name)) for name in catalogue.profile_names)

    def __len__(self) -> int:
        return len(self.deployments)
