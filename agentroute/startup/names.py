"""Names that were given by somebody else, without what must not be repeated or shown."""

from __future__ import annotations

import re

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://")
_KEY = re.compile(r"(?:sk-|hf_|nvapi-|gh[pous]_|github_pat_|glpat-|xox[a-z]-|AIza|eyJ|A[KS]IA[0-9A-Z])")
"""How the keys of well-known services begin; recalled."""


def without_secrets(given: str) -> str | None:
    """A model's name, path or address without user, password, query and fragment; ``None`` when it looks like a key.

    What stands before an ``@`` in an address goes, even behind a slash: keys hold slashes, too.
    """
    scheme = _SCHEME.match(given)
    address = given[scheme.end() :] if scheme else given
    path, *more = re.split(r"[?#]", address, maxsplit=1)
    if more and "@" in more[0]:
        return None  # a query with an @, or a password with a ? or #
    if scheme or ":" in path.partition("@")[0]:
        path = path.rpartition("@")[2]
    if not path.strip("/") or any(_KEY.match(part) for part in re.split(r"[/\\:=\s]", path)):
        return None
    return f"{scheme[0] if scheme else ''}{path}"


def printable(name: object) -> str:
    """A name as a terminal may show it: what is not printable, such as a bell, as ``\\x07``."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in str(name))
