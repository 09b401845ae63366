"""Mounts of containers and guests, and checks of the fields that concern isolation."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

WRITABLE, READ_ONLY = ":rw", ":ro"
"""Suffixes of a writable mount and of a read-only one. Read-only is the default."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder that a container or guest sees.

    Args:
        source: Its path on the machine.
        target: Its path inside.
        writable: Whether it may be written.
    """

    source: str
    target: str
    writable: bool = False

    @classmethod
    def of(cls, text: str, folder: str = "") -> Mount:
        """Parse `PATH[:OTHER][:rw|:ro]`; `~` is the home of this process's user.

        Args:
            text: The mount as the user writes it.
            folder: Folder against which a relative path is resolved; empty: relative paths stay.
        """
        path, writable = text.removesuffix(READ_ONLY), False
        if text.endswith(WRITABLE):
            path, writable = text.removesuffix(WRITABLE), True
        first, _, other = path.rpartition(":/")
        source = os.path.expanduser(first or path)
        if folder:
            source = os.path.normpath(os.path.join(folder, source))
        return cls(source, f"/{other}" if first else source, writable)

    def __str__(self) -> str:
        other = f":{self.target}" if self.target != self.source else ""
        return f"{self.source}{other}{WRITABLE if self.writable else ''}"


def against_isolation(
    isolation: str | None,
    image: str | None,
    runtime: str | None,
    mounts: Collection[str],
    tty: bool,
) -> Iterator[tuple[str, str, str]]:
    """Conflicts among the fields of containers, guests and terminals: field, what was found, and
    the cure.
    """
    for field_name, given in (
        ("image", image is not None),
        ("runtime", runtime is not None),
        ("mounts", bool(mounts)),
    ):
        if given and isolation in (None, "process"):
            yield (
                field_name,
                "only containers have it",
                "add `isolation: container`, or leave it out",
            )
        elif given and isolation == "vm" and field_name == "image":
            yield (
                field_name,
                "only containers have it",
                "add `isolation: vm+container`, or leave it out",
            )
        elif given and isolation in ("vm", "vm+container") and field_name == "runtime":
            yield (
                field_name,
                "only containers of Docker Engine have it",
                "add `isolation: container`, or leave it out",
            )
    if tty and isolation not in (None, "process"):
        yield "tty", f"found it with isolation {isolation}, which has none", "leave one of them out"
    if image is not None and not re.fullmatch(r"[a-z0-9][\w./:@-]*", image):
        yield (
            "image",
            f"found {image!r}",
            "give the name of an image, such as pytorch/pytorch:2.4.0, or host",
        )
    if runtime is not None and not re.fullmatch(r"[\w.-]+", runtime):
        yield (
            "runtime",
            f"found {runtime!r}",
            "give the name of a runtime of the Docker daemon, such as runsc",
        )
    for mount in mounts:
        if not os.path.isabs(Mount.of(mount).source):
            cure = (
                "give an absolute path, such as /data, /data:rw to be written, or "
                "/data:/mnt to be seen under another"
            )
            yield "mounts", f"found {mount!r}", cure
