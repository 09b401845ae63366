"""Headgate: runs deep-learning training jobs on shared machines.

Names are handed out lazily: importing the package costs nothing, and the training side
(`headgate.torch`) works in a user's environment that has none of Headgate's dependencies.
"""

__version__ = "0.3.0"

_HOMES = {
    "Job": "headgate.model.jobs",
    "Limits": "headgate.model.limits",
    "Cluster": "headgate.model.cluster",
    "Node": "headgate.model.cluster",
    "Profile": "headgate.model.profiles",
    "Plan": "headgate.model.plans",
    "Prediction": "headgate.model.plans",
    "Share": "headgate.model.shares",
    "UNLIMITED": "headgate.model.shares",
    "HeadgateError": "headgate.model.errors",
    "run": "headgate.client.client",
    "profile": "headgate.client.profiling",
    "Client": "headgate.client.client",
    "Run": "headgate.client.run",
    "Executor": "headgate.client.executor",
    "simulate": "headgate.simulation",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name):  # type: ignore[no-untyped-def]
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headgate' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__():  # type: ignore[no-untyped-def]
    return sorted(__all__)
