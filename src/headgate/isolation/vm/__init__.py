"""A task in its own virtual machine, a guest, and optionally in a container within it."""

from headgate.isolation.vm.isolation import VmIsolation

__all__ = ["VmIsolation"]
