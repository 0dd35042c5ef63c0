"""A fleet: the deployments that a router may choose from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from agentroute.errors import UsageError, shown
from agentroute.profile import Profile
from agentroute.shape.accelerator import Accelerator
from agentroute.shape.model import Model

_NO_HOST = frozenset("!\"$&'()*+,;<=>\\^`{|}")
"""What no host's name holds (RFC 3986 lets some of it stand there, and no resolver knows it): a list, or a typo."""

_CALL = re.compile(r"(/chat/completions|(?<=/v1)/(?:completions|responses|embeddings|models))/*$")
"""What is asked of a server, and what people copy along with its address."""


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

    def __post_init__(self) -> None:
        if isinstance(self.urls, str):
            raise UsageError(f"deployment {self.name!r}: urls must be a tuple of addresses, got one text")
        for url in self.urls:
            try:
                check_url(url)
            except ValueError as problem:
                raise UsageError(f"deployment {self.name!r}: a URL {problem}") from None

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


def check_url(url: str) -> None:
    """Raise ``ValueError`` unless ``url`` is a plain http or https address, without credentials, query or fragment."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except (ValueError, AttributeError, TypeError):
        parts = urlsplit("")
    if parts.username or parts.password:
        raise ValueError("must not hold a password; put the key into the environment and name it in api_key_env")
    if parts.scheme not in {"http", "https"} or not parts.hostname or any(c.isspace() for c in url):
        raise ValueError(f"must be an address such as http://127.0.0.1:8080, got {shown(url)}")
    if _NO_HOST & set(parts.hostname):
        raise ValueError(f"must name a host, got {shown(url)}")
    if parts.hostname.startswith("xn--"):
        _check_label(parts.hostname, url)
    if parts.query or parts.fragment:
        raise ValueError(f"must not have a query or a fragment, got {shown(url)}")
    if (calls := _CALL.search(parts.path)) is not None:
        raise ValueError(f"must be a server's base URL, without {calls[1]}, got {shown(url)}")


def _check_label(host: str, url: str) -> None:
    """httpx reads such a name back into its own letters, as IDNA 2008 (RFC 5891) has it, whenever it is asked for."""
    import idna

    try:
        idna.decode(host)
    except UnicodeError:
        raise ValueError(f"must name a host, got {shown(url)}, whose xn-- stands for no letters") from None
