"""A training on the nodes of a lab, as its user follows it: what each worker was trained on, what
faults did to it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.harness.cgroups import cgroups
from tests.hub.traces import variables
from tests.hub.user import User

from headgate.lab.names import Names
from headgate.recorded import runs
from headgate.recorded.reader import RunReader
from headgate.testing import wait

SCRIPT = Path(__file__).with_name("digits.py")
SAMPLES, BATCH = 1797, 64
SECONDS = 90.0
"""Longest that anything is waited for: the tasks of a job together take ten CPU seconds to
start.
"""
LAB = """
lab: true
oversubscribe: true
nodes:
  - {name: a, cores: 2, memory: 1GiB, nic: 200Mbit}
  - {name: b, cores: 2, memory: 1GiB, nic: 200Mbit}
  - {name: c, cores: 2, memory: 1GiB, nic: 200Mbit}
"""


@dataclass(frozen=True)
class Step:
    """A step that a process took.

    Args:
        life: Which process: its task and number.
    """

    task: str
    life: str
    step: int
    epoch: int
    samples: tuple[int, ...]


@dataclass(frozen=True)
class End:
    """How a process ended: after how many steps of the training, and a digest of its parameters."""

    step: int
    digest: str


class Training:
    """Starts `digits.py` and looks at what becomes of it.

    Args:
        user: Who does.
        data: What it trains on.
        lab: The file of the lab.
    """

    def __init__(self, user: User, data: Path, lab: Path) -> None:
        self.user = user
        self.lab = lab
        self.run = ""
        self._data = data

    # --- steering it ------------------------------------------------------------------------------

    def starts(self, *plan: str, waits: tuple[str, ...] = (), script: tuple[str, ...] = ()) -> None:
        """Run it under a plan; tasks wait before steps as `waits` says, each `TASK@STEP`."""
        args = [str(self._data), *(word for each in waits for word in ("--wait", each)), *script]
        words = [
            "run",
            "--detach",
            "--json",
            str(SCRIPT),
            "--cluster",
            "faults",
            *plan,
            "--",
            *args,
        ]
        self.run = str(self.user.types(*words).json["run"])

    def resumes(self, *plan: str) -> None:
        """Go on with it under another plan."""
        self.run = str(self.user.json("resume", self.run, "--detach", *plan)["run"])

    def is_at(self, task: str, step: int) -> None:
        """Wait until a task waits before that step."""
        self.waits_for(
            (self.user.folder / f"waits-{task}-{step}").exists, f"{task} is at step {step}"
        )

    def goes(self, *places: str) -> None:
        """Have tasks go on that wait, or will: `TASK@STEP`."""
        for place in places:
            self.user.touch(f"go-{place.replace('@', '-')}")

    def ends(self) -> dict[str, Any]:
        """Have it end after an epoch that no worker has begun yet; how the job stands then."""
        newest = max(step.epoch for step in self.steps())
        self.user.write(".last", str(newest + 2)).rename(self.user.folder / "last")
        return self.becomes("done", "failed")

    def becomes(self, *states: str) -> dict[str, Any]:
        """How the job stands, once it is in one of these states."""
        self.waits_for(
            lambda: self.rows("jobs")[0]["state"] in states, f"it is {' or '.join(states)}"
        )
        return self.rows("jobs")[0]

    def changes(self, node: str, setting: str) -> None:
        """Change what a node of the lab has."""
        self.user.types("lab", "set", node, setting)

    def changes_lab(self, without: str) -> None:
        """Take a node out of the lab."""
        lines = LAB.splitlines(keepends=True)
        self.user.write(
            "faults.yaml", "".join(line for line in lines if f"name: {without}," not in line)
        )
        self.user.types("lab", "up", "faults.yaml")

    def kills(self, task: str) -> None:
        """kill -9 of a task."""
        for pid in self.pids(task):
            self.user.kills(pid)

    # --- what it does -----------------------------------------------------------------------------

    def pids(self, task: str) -> list[int]:
        """The processes of a task."""
        id = f"{self.run}/digits/{task}"
        return [
            pid for pid in self.user.traces.tasks() if variables(pid).get("HEADGATE_TASK") == id
        ]

    def steps(self, task: str = "*") -> list[Step]:
        """The steps that were taken; of each process in their order."""
        return [
            step for path in self.user.folder.glob(f"trained-{task}-*") for step in _steps(path)
        ]

    def lives(self, task: str) -> int:
        """Processes of a task that have taken a step."""
        return len({step.life for step in self.steps(task)})

    def goes_on(self, task: str, count: int = 40) -> None:
        """Wait until the present process of a task has taken so many steps more."""
        before = len(self.steps(task))
        self.waits_for(
            lambda: len(self.steps(task)) >= before + count, f"{task} takes {count} steps"
        )

    def waits_for(self, what: Callable[[], Any], words: str) -> Any:
        """Wait until something is true; it tells what happened where that never is."""
        try:
            return wait.until(what, SECONDS, words)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.story()}") from None

    def joins(self, task: str, lives: int = 1) -> None:
        """Wait until a task has taken a step, in this life of it."""
        self.waits_for(lambda: self.lives(task) >= lives, f"life {lives} of {task} takes a step")

    def ended(self) -> list[End]:
        """The processes that ended by themselves."""
        return [End(**json.loads(path.read_text())) for path in self.user.folder.glob("ended-*")]

    # --- what is recorded of it -------------------------------------------------------------------

    def rows(self, table: str) -> list[dict[str, Any]]:
        """A table of its store."""
        with RunReader(self.user.home / "runs" / self.run / "run.sqlite") as reader:
            return list(reader.rows(table))

    def said(self, *kinds: str) -> list[str]:
        """The texts of its events of these kinds."""
        return [row["text"] for row in self.rows("events") if row["kind"] in kinds]

    def saved(self, why: str) -> list[dict[str, Any]]:
        """The checkpoints that were saved for that reason."""
        return [row for row in self.rows("checkpoints") if row["why"] == why]

    def costs(self, words: str) -> list[tuple[float, int]]:
        """What faults with these words were said to cost, seconds and steps."""
        rows = [
            row for row in self.rows("events") if row["kind"] == "fault" and words in row["text"]
        ]
        return [(row["seconds"], row["steps"]) for row in rows if row["seconds"] is not None]

    def now(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def last_progress(self) -> tuple[int, int]:
        """Steps and samples that the training came to, as its first worker reported them."""
        last = [row for row in self.rows("progress") if row["task"] == "digits/worker-0"][-1]
        return last["step"], last["samples"]

    def reported(self) -> tuple[int, float]:
        """How many faults the report counts, and what it says that they cost, in seconds."""
        [job] = self.user.json("report", self.run)["jobs"]
        return job["faults"], job["fault_seconds"]

    def sees_fault(self, words: str) -> str:
        """The text of a fault with these words, once there is one."""
        return str(
            self.waits_for(
                lambda: next((text for text in self.said("fault") if words in text), ""),
                f"fault: {words}",
            )
        )

    def story(self) -> str:
        """All that happened, for whoever has to find out why it should not have."""
        folder = self.user.home / "runs" / self.run / "jobs" / "digits"
        logs = [
            f"--- {path.name}\n{path.read_text()[-1500:]}" for path in sorted(folder.glob("*.log"))
        ]
        events = [
            f"{row['t']:.2f} {row['kind']} {row['task'] or ''}: {row['text']}"
            for row in self.rows("events")
        ]
        return "\n".join([*events, *logs])


def save_digits(path: Path) -> None:
    """Write what it trains on."""
    from sklearn.datasets import (
        load_digits,  # takes seconds of CPU to import, in every process that collects tests
    )

    images, labels = load_digits(return_X_y=True)
    np.save(path, np.column_stack([images, labels]).astype(np.uint8))


def uneven(steps: Iterable[Step]) -> dict[int, Counter[int]]:
    """Samples that were not trained on exactly once in an epoch, and how often they were, by
    epoch.
    """
    counts: dict[int, Counter[int]] = {}
    for step in steps:
        counts.setdefault(step.epoch, Counter(dict.fromkeys(range(SAMPLES), 0))).update(
            step.samples
        )
    left = {
        epoch: Counter({sample: n for sample, n in each.items() if n != 1})
        for epoch, each in counts.items()
    }
    return {epoch: each for epoch, each in left.items() if each}


def groups() -> set[Path]:
    """The cgroups within those of the lab's nodes."""
    bases = cgroups(Names("faults", runs.home()).group)
    return {path for base in bases for path in cgroups("*", base) if path.parent != base}


def _steps(path: Path) -> Iterator[Step]:
    _, role, index, pid = path.name.split("-")
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):  # else it is being written
            read = json.loads(line)
            task = f"{role}-{index}"
            yield Step(task, f"{task}-{pid}", read["step"], read["epoch"], tuple(read["samples"]))
