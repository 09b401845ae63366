"""The isolation `container`: tasks in containers of Docker Engine."""

from headgate.isolation.container.isolation import ContainerIsolation

__all__ = ["ContainerIsolation"]
