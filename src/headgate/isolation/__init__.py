"""What a task is boxed in."""

from __future__ import annotations

from headgate import registry
from headgate.errors import UsageError
from headgate.isolation.base import Box, Isolation, Launch
from headgate.isolation.process import ProcessIsolation

DEFAULT = ProcessIsolation.name
CONTAINER = "container"


def make(name: str, group: str) -> Isolation:
    """The isolation of that name, one of Headgate's own or one that registered under `headgate.isolations`.

    Args:
        name: As `Isolation.name`.
        group: Sets the boxes of this hub apart from those of others.

    Raises:
        UsageError: No isolation is so called.
    """
    if name == ProcessIsolation.name:
        return ProcessIsolation(group)
    if name == CONTAINER:
        from headgate.isolation.container import ContainerIsolation

        return ContainerIsolation(group)
    found = registry.load("headgate.isolations").found
    factory = found.get(name)
    if callable(factory):
        made = factory(group)
        if isinstance(made, Isolation):
            return made
    known = ", ".join(sorted([ProcessIsolation.name, CONTAINER, *found]))
    raise UsageError(f"no isolation {name!r}; expected one of {known}")


__all__ = ["CONTAINER", "DEFAULT", "Box", "Isolation", "Launch", "make"]
