"""A task in a virtual machine of its own, a guest."""

from headgate.isolation.vm.isolation import VmIsolation

__all__ = ["VmIsolation"]
