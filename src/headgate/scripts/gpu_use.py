"""Decides whether a job's program computes on a GPU, as far as its command shows."""

from __future__ import annotations

import sys

from headgate.model.events import GpuUse
from headgate.model.jobs import Job
from headgate.scripts.facts import ScriptFacts

_ON_GPUS = frozenset(
    {
        "torch",
        "tensorflow",
        "keras",
        "tf_keras",
        "jax",
        "flax",
        "cupy",
        "cudf",
        "cuml",
        "pycuda",
        "headgate",
    }
    | {
        "lightning",
        "pytorch_lightning",
        "transformers",
        "accelerate",
        "diffusers",
        "ultralytics",
        "fastai",
        "trl",
    }
    | {"deepspeed"}
)
"""Packages of programs that usually compute on a GPU if there is one."""
_ON_CPUS = frozenset(
    {
        "numpy",
        "scipy",
        "pandas",
        "sklearn",
        "joblib",
        "matplotlib",
        "seaborn",
        "plotly",
        "statsmodels",
        "networkx",
    }
    | {
        "polars",
        "pyarrow",
        "h5py",
        "nltk",
        "PIL",
        "yaml",
        "tqdm",
        "rich",
        "click",
        "requests",
        "psutil",
    }
)
"""Packages that never compute on a GPU."""
_STARTERS = frozenset({"subprocess", "multiprocessing", "ctypes"})
"""Modules of the standard library that may start or load other programs."""
_NAMES_ONE = (b"cuda", b"device", b"headgate")
"""Words in a script for a GPU that imports only PyTorch."""


def gpu_use(job: Job, facts: ScriptFacts) -> GpuUse:
    """Whether the job computes on a GPU.

    Args:
        job: A job with absolute paths.
        facts: Facts about its script.

    Returns:
        `yes`: it imports a framework that does, or its user gives it GPUs. `no`: all packages that
        it imports are known not to. `maybe`: unknown, as for a command other than Python.
    """
    if (
        job.limits.gpus is not None
        or job.limits.exclusive
        or job.limits.gpu_memory_bytes is not None
    ):
        return "no" if job.limits.gpus == 0 else "yes"
    names, text = facts.source.packages, facts.source.text
    if names is None:
        return "maybe"
    if on_gpus := names & _ON_GPUS:
        return (
            "maybe"
            if on_gpus == {"torch"} and not any(name in text for name in _NAMES_ONE)
            else "yes"
        )
    plain = facts.all_packages
    if plain is None or not plain & _ON_CPUS:
        return "maybe"
    return "no" if plain <= (_ON_CPUS | sys.stdlib_module_names) - _STARTERS else "maybe"
