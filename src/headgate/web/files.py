"""The files of the pages: scripts, styles, the icon."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

from headgate.model.errors import NotFoundError

ICON = "icon.svg"
_FILES = {
    "report.js": ("reports", "text/javascript"),
    "report.css": ("reports", "text/css"),
    "uplot.min.js": ("reports", "text/javascript"),
    "uplot.min.css": ("reports", "text/css"),
    "web.js": ("web", "text/javascript"),
    "web.css": ("web", "text/css"),
    ICON: ("web", "image/svg+xml"),
}
"""The room that each is in, and its media type."""


@cache
def read(name: str) -> tuple[bytes, str]:
    """What is in a file, and its media type.

    Raises:
        NotFoundError: The pages have no such file.
    """
    if name not in _FILES:
        raise NotFoundError(f"no file {name!r}")
    room, kind = _FILES[name]
    return resources.files(f"headgate.{room}").joinpath("assets", name).read_bytes(), kind


@cache
def version(name: str) -> str:
    """A name for what is in a file now: browsers may keep what they got under it."""
    return hashlib.sha256(read(name)[0]).hexdigest()[:16]


def address(name: str) -> str:
    """Where a page finds a file."""
    return f"/assets/{name}?{version(name)}"
