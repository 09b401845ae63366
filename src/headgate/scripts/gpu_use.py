"""Whether a job's program computes on a GPU, as far as its command tells."""

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
"""Packages of programs that mostly compute on a GPU where there is one."""
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
"""Packages that compute on none."""
_STARTERS = frozenset({"subprocess", "multiprocessing", "ctypes"})
"""Of the standard library: what may start or load anything."""
_NAMES_ONE = (b"cuda", b"device", b"headgate")
"""What a script over PyTorch alone says that computes on a GPU."""


def gpu_use(job: Job, facts: ScriptFacts) -> GpuUse:
    """`yes`: it imports a framework that does, or its user says that it has GPUs. `no`: it computes
    with packages that are known not to, and imports no others. `maybe`: that cannot be told, as of
    a command that is none of Python's.

    Args:
        job: One with absolute paths.
        facts: Of its script.
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
