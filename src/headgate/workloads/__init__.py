"""Workloads of studies: the same networks and sparse models in each framework, from the same
weights on the same batches.

`python -m headgate.workloads` lists them. Each framework has its own script, for example `python -m
headgate.workloads.torch`. Standard library only, so that planning a study needs no framework.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping

__all__ = ["FRAMEWORKS", "SIZES", "WORKLOADS", "WorkloadError", "command", "frameworks_of", "lack"]

WORKLOADS: Mapping[str, str] = {
    "alexnet": "AlexNet (Krizhevsky 2014, one tower): few convolutions, 61 million parameters",
    "resnet50": "ResNet-50 (He et al. 2015): many convolutions, 25.6 million parameters",
    "inception3": (
        "Inception V3 (Szegedy et al. 2015): many small convolutions side by side, "
        "23.8 million parameters"
    ),
    "mlp": "two hidden layers on vectors",
    "sparse": (
        "sparse logistic regression: 39 of up to 33,762,578 features in a row, as in a "
        "log of clicks"
    ),
    "trace": "trace of A·A for a matrix A in blocks: multiplies blocks and trains nothing",
}
"""Descriptions of the workloads, by name."""

FRAMEWORKS: Mapping[str, str] = {
    "torch": "PyTorch",
    "keras": "Keras by `fit`, over the back end that KERAS_BACKEND names",
    "tensorflow": (
        "TensorFlow, with a loop of its own: the one for its all-reduce and its parameter servers"
    ),
    "jax": "JAX",
    "numpy": "NumPy, for `trace` alone",
    "spark": "PySpark, for `sparse` and `trace`",
}
"""Descriptions of the frameworks. Each except NumPy has a script of that name in
`headgate.workloads`; `trace` has one for all.
"""
_FEW: Mapping[str, tuple[str, ...]] = {
    "numpy": ("trace",),
    "spark": ("sparse", "trace"),
    "keras": tuple(name for name in WORKLOADS if name != "trace"),
}
"""Frameworks without all workloads, and the workloads that they have."""
_MODULES = {"spark": "pyspark"}

SIZES = ("small", "full")


class WorkloadError(ValueError):
    """The workload does not exist, or not in this framework. The message lists those that do.

    Args:
        problem: The given name.
        cure: What is expected instead; empty: the problem says it.
    """

    def __init__(self, problem: str, cure: str = "") -> None:
        super().__init__(f"{problem}; {cure}" if cure else problem)
        self.problem, self.cure = problem, cure


def frameworks_of(workload: str) -> tuple[str, ...]:
    """The frameworks that have a workload.

    Raises:
        WorkloadError: The workload does not exist.
    """
    _check("workload", workload, WORKLOADS)
    return tuple(name for name in FRAMEWORKS if workload in _FEW.get(name, (workload,)))


def lack(framework: str) -> str:
    """What this machine lacks for workloads of a framework, with a remedy; empty if it lacks
    nothing.
    """
    module = _MODULES.get(framework, framework)
    if importlib.util.find_spec(module) is None:
        return f"{module} is not installed; `pip install {module}`"
    if framework == "spark" and not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        return (
            "Spark needs Java 17, and there is no `java`; `apt-get install openjdk-17-jre-headless`"
        )
    return ""


def command(
    workload: str,
    *,
    framework: str = "torch",
    size: str = "small",
    steps: int | None = None,
    warmup: int | None = None,
    batch: int | None = None,
    data: str | None = None,
    seed: int | None = None,
    more: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """The words of the command that runs a workload. For None the script's default is used.

    Args:
        size: `small`, or `full` for that of the papers.
        steps: Number of counted steps, after those of the warm-up.
        batch: Samples in a step of all workers together.
        data: Folder of real data, made there if missing; None: repeat a few batches from memory.
        more: Further options of the workload, for example `--pull dense`.

    Raises:
        WorkloadError: There is no such workload, framework or size, or no such combination.
    """
    known = frameworks_of(workload)
    _check("framework", framework, FRAMEWORKS)
    _check("size", size, SIZES)
    if framework not in known:
        raise WorkloadError(
            f"workload {workload!r} is not written in {framework}",
            f"expected {', '.join(known)}",
        )
    script, first = ("trace", framework) if workload == "trace" else (framework, workload)
    options = {"steps": steps, "warmup": warmup, "batch": batch, "data": data, "seed": seed}
    if script == "trace" and (batch, data) != (None, None):
        raise WorkloadError("workload 'trace' has neither batches nor data", "leave them out")
    option_words = [
        word
        for name, value in options.items()
        if value is not None
        for word in (f"--{name}", str(value))
    ]
    return (
        "python",
        "-m",
        f"headgate.workloads.{script}",
        first,
        "--size",
        size,
        *option_words,
        *more,
    )


def _check(what: str, name: str, known: Mapping[str, str] | tuple[str, ...]) -> None:
    if name not in known:
        raise WorkloadError(f"unknown {what} {name!r}", f"expected one of {', '.join(known)}")
