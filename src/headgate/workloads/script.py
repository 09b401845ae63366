"""Shared parts of all frameworks' scripts: options, samples, and printed lines."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headgate import workloads
from headgate.workloads import WorkloadError, samples

__all__ = ["MOMENTUM", "StepPrinter", "Options", "parser", "rate", "run"]

MOMENTUM = 0.9
"""Momentum of stochastic gradient descent on networks. Sparse regression has none, because it would
change every row in every step.
"""
_RATES = {"sparse": 0.1, "inception3": 2e-8}
"""Inception V3 has no shortcuts. Through its normalisations the first gradients are very large
(Yang et al. 2019, arXiv:1902.08129). A rate of 1e-6 trains it, but amplifies rounding errors so
that no two runs are equal.
"""
_BATCHES = {
    "alexnet": {"small": 16, "full": 128},
    "resnet50": {"small": 16, "full": 32},
    "inception3": {"small": 16, "full": 32},
    "mlp": {"small": 64, "full": 256},
    "sparse": {"small": 256, "full": 4096},
}
_IN_MEMORY = 4
"""Number of different batches that are made in memory."""
_EVERY = 10
_SILENT = ("spark",)
"""Frameworks that only report steps to Headgate by printed lines, one for each step, as in
`trace`.
"""


def rate(workload: str) -> float:
    return _RATES.get(workload, 0.01)


class Options(argparse.Namespace):
    """The options of a script."""

    workload: str
    framework: str
    size: str
    steps: int
    warmup: int
    batch: int
    data: str | None
    seed: int
    pull: str
    placed: str

    @property
    def total(self) -> int:
        """Number of all steps."""
        return self.warmup + self.steps

    def samples(self, channels_first: bool = False) -> samples.Samples:
        """The training samples, repeated for all steps."""
        if self.data is not None:
            arrays = samples.make(Path(self.data), self.workload, self.size, self.seed)
        else:
            count = _IN_MEMORY * self.batch
            arrays = samples.made(self.workload, self.size, count, self.seed, channels_first)
        return samples.Samples(arrays, self.total * self.batch, channels_first)


def run(
    name: str, train: Callable[[Options], object], read: Callable[[], Options] | None = None
) -> None:
    """Read the command line of a script and train. Bad input ends it with status 2 and one message.

    Args:
        name: Name of the script in `headgate.workloads`.
        read: Reads the command line; None: the parser of the script's framework.
    """
    try:
        train(_parsed(name) if read is None else read())
    except WorkloadError as error:
        print(f"headgate.workloads.{name}: {error}", file=sys.stderr)
        sys.exit(2)


def parser(module: str, about: str, *examples: str) -> argparse.ArgumentParser:
    """A parser with the options that all scripts have."""
    made = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=about,
        epilog="\n  ".join(("Examples:", *examples)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--size", choices=workloads.SIZES, default="small", help="full: as in the papers"
    )
    made.add_argument(
        "--steps", type=_whole(1), default=100, metavar="N", help="steps that are counted (100)"
    )
    made.add_argument(
        "--warmup", type=_whole(0), default=10, metavar="N", help="steps before these (10)"
    )
    made.add_argument(
        "--seed", type=_whole(0), default=0, metavar="N", help="of weights and samples (0)"
    )
    return made


def _parsed(framework: str) -> Options:
    names = [
        name
        for name in workloads.WORKLOADS
        if name != "trace" and framework in workloads.frameworks_of(name)
    ]
    module = f"headgate.workloads.{framework}"
    reader = parser(
        module,
        f"Train a workload of studies in {workloads.FRAMEWORKS[framework]}.",
        f"python -m {module} alexnet --steps 100 --warmup 10",
        f"headgate run -m {module} -- resnet50 --size small --batch 32",
    )
    reader.add_argument("workload", metavar="WORKLOAD", help=f"one of {', '.join(names)}")
    reader.add_argument(
        "--batch", type=_whole(1), metavar="N", help="samples of a step, of all workers together"
    )
    reader.add_argument(
        "--data", metavar="DIR", help="read samples from this folder, and make it if it is missing"
    )
    if framework != "keras":
        about = "sparse: read and move the rows in use (default), or all"
        reader.add_argument("--pull", choices=("sparse", "dense"), default="sparse", help=about)
    options = reader.parse_args(namespace=Options(framework=framework))
    if options.workload not in names:
        reader.error(f"unknown workload {options.workload!r}; expected one of {', '.join(names)}")
    options.batch = options.batch or _BATCHES[options.workload][options.size]
    return options


def _whole(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"found {text!r}; expected a whole number from {least}"
            )
        return int(text)

    return read


class StepPrinter:
    """Counts steps and prints their rate: a line every ten steps, and one at the end. If nothing
    else reports steps to Headgate, it prints a line for each step.

    The rate is the job's if its workers train on one batch together, otherwise this worker's.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._begun = self._last = time.perf_counter()
        self._unit = {"sparse": "rows", "mlp": "samples", "trace": "traces"}.get(
            options.workload, "images"
        )
        self._every = 1 if options.workload == "trace" or options.framework in _SILENT else _EVERY
        self.steps = 0

    def step(self, loss: Any) -> None:
        """Count a step. Its loss is only read, and so waited for, if a line needs it."""
        self.steps += 1
        if self.steps == self._options.warmup:
            float(loss)
            self._begun = self._last = time.perf_counter()
        elif (
            self.steps - self._options.warmup
        ) % self._every == 0 or self.steps == self._options.total:
            value, now = float(loss), time.perf_counter()
            counted = self.steps - self._options.warmup
            lately = (counted - 1) % self._every + 1 if counted > 0 else self._every
            speed = lately * self._options.batch / (now - self._last)
            place = f"step {self.steps}/{self._options.total}"
            print(f"{place}  loss {value:.6f}  {speed:.1f} {self._unit}/s", flush=True)
            self._last = now

    def end(self) -> None:
        """Print the rate over all counted steps."""
        counted, seconds = self.steps - self._options.warmup, self._last - self._begun
        if counted > 0:
            speed = counted * self._options.batch / seconds
            print(
                f"{counted} steps in {seconds:.3f} s: {speed:.1f} {self._unit}/s, "
                f"{seconds / counted:.5f} s a step"
            )
