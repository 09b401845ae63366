"""A task in a virtual machine of its own, a guest, and there perhaps in a container."""

from headgate.isolation.vm.isolation import VmIsolation

__all__ = ["VmIsolation"]
