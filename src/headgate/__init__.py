"""Headgate: runs deep-learning training jobs on shared machines.

Names are handed out lazily: importing the package costs nothing, and the training side (`headgate.torch`) works in a
user's environment that has none of Headgate's dependencies.
"""

__version__ = "0.2.0"

_HOMES = {
    "Job": "headgate.jobs",
    "Limits": "headgate.jobs",
    "Cluster": "headgate.cluster",
    "Node": "headgate.cluster",
    "Profile": "headgate.profiles",
    "Plan": "headgate.plans",
    "Prediction": "headgate.plans",
    "Share": "headgate.shares",
    "UNLIMITED": "headgate.shares",
    "HeadgateError": "headgate.errors",
    "run": "headgate.hub.api",
    "profile": "headgate.hub.api",
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
