"""From a job and a cluster to a plan."""

from headgate.planning.candidates import candidates

__all__ = ["candidates"]
