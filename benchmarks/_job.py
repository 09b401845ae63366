"""A training job of several tasks under a hub of its own, for the benchmarks that look at it from outside."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import _frame

from headgate.cli.status import latest
from headgate.telemetry.store import RunReader

T = TypeVar("T")
SECONDS = 120.0
"""Longest that anything is waited for."""
BATCH = 256
_PAUSE = 0.02

SCRIPT = """
import os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
{opening}
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
data = TensorDataset(torch.randn(8192, 256), torch.randint(0, 10, (8192,)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(data, {batch}, shuffle=True)
{preparing}
steps = open(f"steps-{{os.getpid()}}", "a", buffering=1)
done = 0
for epoch in {epochs}:
    for features, labels in loader:
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {reporting}
        done += 1
        print(time.time(), {step}, len(labels), file=steps)
        if done == int(sys.argv[1]):
            sys.exit()
"""

PLAIN = SCRIPT.format(batch=BATCH, opening="", preparing="", epochs="range(100000)", reporting="", step="done")

HEADGATE = SCRIPT.format(
    batch=BATCH,
    opening="import headgate.torch as hg",
    preparing="""
class Count:
    value = 0
    def state_dict(self):
        return {"value": self.value}
    def load_state_dict(self, state):
        self.value = state["value"]
count = Count()
hg.keep(count=count)
model, optimizer, loader = hg.prepare(model, optimizer, loader)
""",
    epochs="hg.epochs(100000)",
    reporting="hg.report(loss=loss); count.value += 1",
    step="count.value",
)
"""Three calls; a line for each step: when it was done, its number, and of how many samples this worker's part was."""

DDP = SCRIPT.format(
    batch=BATCH,
    opening="import torch.distributed",
    preparing="""
torch.distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
""",
    epochs="range(100000)",
    reporting="",
    step="done",
)
"""As torchrun starts it: rank, number of processes and the address of the first in the environment."""


def until(what: Callable[[], T], words: str) -> T:
    """The first true value of `what`.

    Raises:
        TimeoutError: There was none within two minutes.
    """
    deadline = time.monotonic() + SECONDS
    while not (value := what()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{words}: not within {SECONDS:g} s")
        time.sleep(_PAUSE)
    return value


@dataclass(frozen=True)
class Step:
    """A step of one worker: when it was done (seconds since 1970), its number, and the samples of the worker's part."""

    at: float
    pid: int
    number: int
    samples: int


def steps(folder: Path) -> list[Step]:
    """What the scripts in a folder have written so far, in the order of time."""
    found = []
    for path in folder.glob("steps-*"):
        pid = int(path.name.removeprefix("steps-"))
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # else it is being written
                at, number, samples = line.split()
                found.append(Step(float(at), pid, int(number), int(samples)))
    return sorted(found, key=lambda step: step.at)


class Bench:
    """A folder with the script in it, and a `HEADGATE_HOME` beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self.home = folder / "home"
        self.home.mkdir(mode=0o700)
        self.environment = _frame.environment(HEADGATE_HOME=str(self.home), OMP_NUM_THREADS="1")
        self.run = ""
        for name, text in (("plain.py", PLAIN), ("train.py", HEADGATE), ("ddp.py", DDP)):
            (self.folder / name).write_text(text)

    def headgate(self, *words: str) -> str:
        """What a headgate command prints."""
        command = [sys.executable, "-m", "headgate", *words]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def starts(self, *plan: str, count: int = 0) -> None:
        """Start the job; it ends after `count` steps (0: never)."""
        for path in self.folder.glob("steps-*"):
            path.unlink()
        words = ("run", "--detach", "--json", "train.py", *plan, "--", str(count))
        self.run = json.loads(self.headgate(*words))["run"]

    def job(self) -> dict[str, Any]:
        """How it stands, as `headgate status` tells, without a process for each look."""
        with RunReader(self.home / "runs" / self.run / "run.sqlite") as reader:
            [row] = reader.rows("jobs")
            return {**row, **latest(reader, row["name"])}

    def pid(self, task: str) -> int:
        """Process of a task that runs."""
        running = (each for each in self.job()["tasks"] if each["state"] == "running")
        return int(next(each["pid"] for each in running if each["task"] == task))

    def steps(self) -> list[Step]:
        return steps(self.folder)

    def stops(self) -> None:
        """Kill the job."""
        self.headgate("stop", "--kill")


@contextmanager
def bench(lab: str | None = None, kind: type[Bench] = Bench) -> Iterator[Bench]:
    """A bench, and on the way out the end of its hub; with the lab of that cluster file up, where one is given."""
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        made = kind(Path(folder))
        if lab is not None:
            (made.folder / "bench.yaml").write_text(lab)
            made.headgate("lab", "up", "bench.yaml")
        try:
            yield made
        finally:
            _frame.end_hub(made.environment)
            if lab is not None:
                made.headgate("lab", "down")
