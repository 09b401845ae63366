"""Plans measured for real on the nodes of a lab: their tasks in boxes, forked where PyTorch is imported.

A task is what a run would start: its own process in the network, the host name and the cgroups of its node, the task
library, the task channel, the strategies. What it does not have is a hub, and the seconds of `import torch`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import _job

from headgate.cluster import Cluster, Node
from headgate.hub.peers import Peers
from headgate.isolation.base import Box, Launch
from headgate.isolation.process import ProcessIsolation
from headgate.plans import Plan
from headgate.shares import Share
from headgate.testing.gang import Gang
from headgate.testing.warm import TORCH, WarmProcess, warm_python

TASK = Path(__file__).with_name("_planner_lab_task.py")
WARM_STEPS, WARM_SECONDS = 3, 0.8
"""Of each measurement, before anything counts: library and connections set up what they need in the first steps."""
LEAST_STEPS = 6
PATIENCE_SECONDS = 60.0
"""Longest that a plan may take until it is warm."""
LOOK_SECONDS = 0.05
_LONGEST = 2.0  # times the seconds asked for, where steps are long

Measure = Callable[[Plan, str], float]
"""Samples a second of a plan of a script; raises a `RuntimeError` that says why where it did not run."""


class Boxes:
    """Boxes on the nodes, for the first worker of each, its second, its first server and so on; made when they are
    first needed. What is in one all the time sleeps."""

    def __init__(self, cluster: Cluster, isolation: ProcessIsolation) -> None:
        self._nodes = {node.name: node for node in cluster.nodes}
        self._isolation = isolation
        self._boxes: dict[tuple[str, str], Box] = {}
        self._output = os.open(os.devnull, os.O_WRONLY)

    def __enter__(self) -> Boxes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for box in self._boxes.values():
            box.close()
        os.close(self._output)

    def node(self, name: str) -> Node:
        return self._nodes[name]

    def where(self, node: str, slot: str) -> str:
        """What _planner_lab_task.py is told of a box."""
        place = self._nodes[node].place
        if place is None:
            raise ValueError(f"node {node} is no node of a lab")
        if (node, slot) not in self._boxes:
            launch = Launch(f"planner/{node}/{slot}", ("sleep", "infinity"), dict(os.environ), os.sep, 1, place)
            self._boxes[node, slot] = self._isolation.start(launch, Share(), self._output)
        cgroups = dict.fromkeys(map(str, self._boxes[node, slot].cgroups.values()))
        there = {"namespace": place.namespace, "hostname": place.hostname, "hosts": place.hosts}
        return json.dumps({**there, "cgroups": list(cgroups)})


class _Placed(Peers):
    """Tasks are reached at the addresses of their nodes."""

    def __init__(self, plan: Plan, boxes: Boxes) -> None:
        super().__init__(plan, encrypt=False)
        self._boxes = boxes

    def start(self, name: str, node: str, address: str, joins: bool = False) -> None:
        super().start(name, node, self._boxes.node(node).address, joins)


class _LabGang(Gang):
    """The tasks of a plan, each in its box."""

    def __init__(self, folder: Path, plan: Plan, script: Path, boxes: Boxes) -> None:
        super().__init__(folder, plan, ["python", str(script)], encrypt=False)
        self.peers = _Placed(plan, boxes)
        self._where = boxes.where

    def _run(
        self, command: Sequence[str], variables: Mapping[str, str], output: BinaryIO
    ) -> subprocess.Popen[bytes] | WarmProcess:
        name = variables["HEADGATE_TASK"].rpartition("/")[2]
        role, _, index = name.partition("-")
        node = self._node(name)
        before = sum(self._node(f"{role}-{i}") == node for i in range(int(index)))
        arguments = [str(TASK), self._where(node, f"{role}-{before}"), *command[1:]]
        return warm_python(*TORCH).start(arguments, env=variables, cwd=self.folder, output=output.fileno())

    def ended(self) -> str:
        """Why a task has ended, which none should; empty where all run."""
        for name, process in self._processes.items():
            if (code := process.popen.poll()) is not None:
                last = (self.output(name).strip().splitlines() or ["it said nothing"])[-1]
                return f"{name} ended with {code}: {last}"
        return ""


def measure(plan: Plan, script: str, seconds: float, boxes: Boxes) -> float:
    """Samples a second of a plan.

    Args:
        plan: Placed.
        script: Text of the script, which writes the lines that `_job.steps` reads.
        seconds: How long to count, once it is warm.
        boxes: Where its tasks go.

    Raises:
        RuntimeError: It did not run; the message says why.
    """
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as place:
        folder = Path(place)
        path = folder / "train.py"
        path.write_text(script)
        gang = _LabGang(folder, plan, path, boxes)
        with gang:
            gang.start()
            begun = time.monotonic()
            while (found := throughput(_job.steps(folder), plan.workers, seconds)) is None:
                if why := gang.ended():
                    raise RuntimeError(why)
                if time.monotonic() - begun > PATIENCE_SECONDS + _LONGEST * seconds:
                    raise RuntimeError(f"it made too few steps in {PATIENCE_SECONDS + _LONGEST * seconds:g} s")
                time.sleep(LOOK_SECONDS)
            return found


def throughput(steps: Sequence[_job.Step], workers: int, seconds: float) -> float | None:
    """Samples a second from the first warm step on; None as long as there are too few steps to tell."""
    of_step: dict[int, list[_job.Step]] = {}
    for step in steps:
        of_step.setdefault(step.number, []).append(step)
    whole = sorted(number for number, parts in of_step.items() if len(parts) == workers)
    if not whole:
        return None
    ends = {number: max(part.at for part in of_step[number]) for number in whole}
    first = next((n for n in whole if n >= WARM_STEPS and ends[n] - ends[whole[0]] >= WARM_SECONDS), None)
    if first is None:
        return None
    last = whole[-1]
    took = ends[last] - ends[first]
    if took < seconds or (last - first < LEAST_STEPS and took < _LONGEST * seconds) or last == first:
        return None
    samples = sum(part.samples for number in whole if number > first for part in of_step[number])
    return samples / took
