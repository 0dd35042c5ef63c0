"""The page for people: three files of this package, which fetch the fleet from the gateway and nothing from elsewhere.

The page itself holds nothing of the fleet, so it is served to anybody; what it fetches asks for a key where keys are
set.
"""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
"""By path the file, and what it is."""

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Nothing is run, drawn or asked that does not come from the gateway itself."""


async def serve(request: Request) -> Response:
    """One of the page's files."""
    name, kind = FILES[request.url.path]
    text = files("agentroute.gateway").joinpath("static", name).read_text("utf-8")
    return Response(text, media_type=kind, headers=HEADERS)
