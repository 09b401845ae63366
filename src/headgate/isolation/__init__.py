"""Isolations box tasks in."""

from __future__ import annotations

from headgate.isolation.base import Box, Isolation, Launch
from headgate.model import registry

DEFAULT = "process"
CONTAINER = "container"
VM = "vm"
VM_CONTAINER = "vm+container"
IN_GUESTS = frozenset({VM, VM_CONTAINER})
IN_CONTAINERS = frozenset({CONTAINER, VM_CONTAINER})
_OWN = (DEFAULT, CONTAINER, VM, VM_CONTAINER)


def make(name: str, group: str, daemon: str | None = None) -> Isolation:
    """The isolation of that name, one of Headgate's own or one that registered under
    `headgate.isolations`.

    Args:
        name: As `Isolation.name`.
        group: Distinguishes the boxes of this hub from those of others.
        daemon: Address of the container daemon; None: that in `DOCKER_HOST`.

    Raises:
        UsageError: There is no isolation of that name.
    """
    if name == DEFAULT:
        from headgate.isolation.process import ProcessIsolation

        return ProcessIsolation(group)
    if name == CONTAINER:
        from headgate.isolation.container import ContainerIsolation

        return ContainerIsolation(group, daemon=daemon)
    if name == VM:
        from headgate.isolation.vm import VmIsolation

        return VmIsolation(group)
    if name == VM_CONTAINER:
        from headgate.isolation.vm.containers import VmContainerIsolation

        return VmContainerIsolation(group)
    return registry.make(
        "headgate.isolations", Isolation, name, _OWN, lambda factory: factory(group)
    )


def names() -> tuple[str, ...]:
    """Names of all isolations, plug-ins last."""
    return *_OWN, *registry.load("headgate.isolations").found


__all__ = [
    "CONTAINER",
    "DEFAULT",
    "IN_CONTAINERS",
    "IN_GUESTS",
    "VM",
    "VM_CONTAINER",
    "Box",
    "Isolation",
    "Launch",
]
__all__ += ["make", "names"]
