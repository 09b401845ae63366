"""The four training scripts that planner_lab.py measures, the nodes that it measures them on, and
how.

Plans are measured for real on the nodes of a lab. A task is what a run would start: its own process
in the network, the host name and the cgroups of its node, the task library, the task channel, the
strategies. What it does not have is a hub, and the seconds of `import torch`: it is forked where
PyTorch is imported. On a Ray cluster, whose raylets are on the nodes of the lab, each plan is a run
of engine `ray`.

Batches can be divided by 1 to 6, for those baselines that know equal parts only.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import _frame
from pydantic import TypeAdapter
from tests.harness.gang import Gang
from tests.harness.warm import TORCH, WarmProcess, warm_python

from headgate import lab
from headgate.hub.state.peers import Peers
from headgate.isolation.base import Box, Launch
from headgate.isolation.process import ProcessIsolation
from headgate.model.cluster import Cluster, Node
from headgate.model.identifiers import TaskId, TaskName
from headgate.model.job_states import ENDED
from headgate.model.plans import Plan
from headgate.model.shares import Share

NAME = "planner-lab"
LAB = f"""
lab: true
name: {NAME}
oversubscribe: true
nodes:
  - {{kind: large, count: 2, address: 10.77.46.1, cores: 0.5, memory: 4GiB, nic: 1Gbit}}
  - {{kind: fast-nic, count: 2, address: 10.77.46.11, cores: 0.2, memory: 2GiB, nic: 1Gbit}}
  - {{kind: slow-nic, count: 2, address: 10.77.46.21, cores: 0.2, memory: 2GiB, nic: 200Mbit}}
"""
"""The nodes of examples/lab-mixed.yaml, at other addresses: 1.8 cores in all."""

_SCRIPT = """
import os, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import headgate.torch as hg

torch.manual_seed(1)
{model}
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(features, labels), {batch}, shuffle=True)
model, optimizer, loader = hg.prepare(model, optimizer, loader)
steps = open(f"steps-{{os.getpid()}}", "a", buffering=1)
done = 0
for epoch in hg.epochs(100000):
    for inputs, targets in loader:
        loss = {loss}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hg.report(loss=loss)
        done += 1
        print(time.time(), done, len(targets), file=steps)
"""
_CLASSES = "nn.functional.cross_entropy(model(inputs), targets)"


def _script(model: str, batch: int, loss: str = _CLASSES) -> str:
    return _SCRIPT.format(model=model.strip(), batch=batch, loss=loss)


SCRIPTS = {
    "cnn": _script(
        """
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(),
    nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4096, 10),
)
features, labels = torch.randn(4800, 3, 32, 32), torch.randint(0, 10, (4800,))
""",
        60,
    ),
    "mlp": _script(
        """
model = nn.Sequential(
    nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10),
)
features, labels = torch.randn(24000, 512), torch.randint(0, 10, (24000,))
""",
        240,
    ),
    "recommender": _script(
        """
class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        tables = (nn.EmbeddingBag(100_000, 16, mode="sum", sparse=True) for _ in range(4))
        self.tables = nn.ModuleList(tables)
        self.top = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, indices):
        parts = zip(self.tables, indices.chunk(4, 1))
        return self.top(torch.cat([table(part) for table, part in parts], 1))

model = Recommender()
features, labels = torch.randint(0, 100_000, (48000, 32)), torch.randint(0, 2, (48000,))
""",
        480,
    ),
    "transformer": _script(
        """
class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 256)

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)))

model = Transformer()
features = torch.randint(0, 256, (6000, 16))
labels = features.roll(-1, 1)
""",
        60,
        "nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())",
    ),
}
"""Compute-bound, network-bound, most of it sparse tables, and of many small operations."""


# --- tasks that are forked ------------------------------------------------------------------------

TASK = Path(__file__).with_name("_planner_lab_task.py")
WARM_STEPS, WARM_SECONDS = 3, 0.8
"""Of each measurement, before anything counts: library and connections set up what they need in the
first steps.
"""
LEAST_STEPS = 6
PATIENCE_SECONDS = 60.0
"""Longest that a plan may take until it is warm."""
LOOK_SECONDS = 0.05
_LONGEST = 2.0  # times the seconds asked for, where steps are long

Measure = Callable[[Plan, str], float]
"""Samples a second of a plan of a script; raises a `RuntimeError` that says why where it did not
run.
"""


class Boxes:
    """Boxes on the nodes, for the first worker of each, its second, its first server and so on;
    made when they are first needed. What is in one all the time sleeps.
    """

    def __init__(self, cluster: Cluster, isolation: ProcessIsolation) -> None:
        self._nodes = {node.name: node for node in cluster.nodes}
        self._isolation = isolation
        self._boxes: dict[tuple[str, str], Box] = {}
        self._output = os.open(os.devnull, os.O_WRONLY)

    def __enter__(self) -> Boxes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for box in self._boxes.values():
            box.close()
        os.close(self._output)

    def node(self, name: str) -> Node:
        return self._nodes[name]

    def where(self, node: str, slot: str) -> str:
        """What `_planner_lab_task.py` is told of a box."""
        place = self._nodes[node].place
        if place is None:
            raise ValueError(f"node {node} is no node of a lab")
        if (node, slot) not in self._boxes:
            launch = Launch(
                TaskId(f"planner/{node}/{slot}"),
                ("sleep", "infinity"),
                dict(os.environ),
                os.sep,
                1,
                place,
            )
            self._boxes[node, slot] = self._isolation.start(launch, Share(), self._output)
        cgroups = dict.fromkeys(map(str, self._boxes[node, slot].cgroups.values()))
        there = {"namespace": place.namespace, "hostname": place.hostname, "hosts": place.hosts}
        return json.dumps({**there, "cgroups": list(cgroups)})


class _Placed(Peers):
    """Tasks are reached at the addresses of their nodes."""

    def __init__(self, plan: Plan, boxes: Boxes) -> None:
        super().__init__(plan, encrypt=False)
        self._boxes = boxes

    def start(self, name: TaskName, node: str, address: str, joins: bool = False) -> None:
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
        return warm_python(*TORCH).start(
            arguments, env=variables, cwd=self.folder, output=output.fileno()
        )

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
        script: Text of the script, which writes the lines that `_frame.steps` reads.
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
            while (found := throughput(_frame.steps(folder), plan.workers, seconds)) is None:
                if why := gang.ended():
                    raise RuntimeError(why)
                if time.monotonic() - begun > PATIENCE_SECONDS + _LONGEST * seconds:
                    raise RuntimeError(
                        f"it made too few steps in {PATIENCE_SECONDS + _LONGEST * seconds:g} s"
                    )
                time.sleep(LOOK_SECONDS)
            return found


def throughput(steps: Sequence[_frame.Step], workers: int, seconds: float) -> float | None:
    """Samples a second from the first warm step on; None as long as there are too few steps to
    tell.
    """
    of_step: dict[int, list[_frame.Step]] = {}
    for step in steps:
        of_step.setdefault(step.number, []).append(step)
    whole = sorted(number for number, parts in of_step.items() if len(parts) == workers)
    if not whole:
        return None
    ends = {number: max(part.at for part in of_step[number]) for number in whole}
    first = next(
        (n for n in whole if n >= WARM_STEPS and ends[n] - ends[whole[0]] >= WARM_SECONDS), None
    )
    if first is None:
        return None
    last = whole[-1]
    took = ends[last] - ends[first]
    if (
        took < seconds
        or (last - first < LEAST_STEPS and took < _LONGEST * seconds)
        or last == first
    ):
        return None
    samples = sum(part.samples for number in whole if number > first for part in of_step[number])
    return samples / took


# --- runs on Ray ----------------------------------------------------------------------------------

HEAD = "head"
LAB_WITH_HEAD = (
    f"{LAB}  - {{name: {HEAD}, address: 10.77.46.31, cores: 1, memory: 4GiB, nic: 1Gbit}}\n"
)
STARTING_CORES = 1.0
"""Of each node until its raylet is there: Ray gives one up that takes longer than 30 s."""
SLOWNESS = 4.0
"""So many times longer than a forked task may a run take until it is warm: it imports PyTorch on a
part of a core.
"""
VARIABLES = {"RAY_memory_monitor_refresh_ms": "0"}  # that looks at the whole machine's memory
_HOLD = "import time\ntime.sleep(1e9)\n"
_NODES = TypeAdapter(list[Node])


class OnHead(_frame.OnHead):
    """Commands of the benchmark."""

    head = f"{NAME}/{HEAD}"


@contextmanager
def ray_cluster(seconds: float) -> Iterator[tuple[_frame.Bench, tuple[Node, ...], Measure]]:
    """A Ray on the nodes of the lab: where commands are typed, the nodes as they were measured
    through Ray, and what measures a plan. A job that sleeps on the head has the agents stay from
    plan to plan.

    Args:
        seconds: How long a plan is measured.
    """
    with _frame.bench(LAB_WITH_HEAD, OnHead) as made:
        # where what is asked in this process looks for the lab
        os.environ["HEADGATE_HOME"] = str(made.home)
        of_lab = {node.name: node for node in lab.nodes(NAME).nodes}
        with _frame.raylets(of_lab[HEAD].address, VARIABLES) as ray:
            for name in (HEAD, *(name for name in of_lab if name != HEAD)):
                lab.change(f"{NAME}/{name}", {"cores": STARTING_CORES})
                ray.start_in_lab(NAME, name, 1)
                lab.change(f"{NAME}/{name}", {"cores": of_lab[name].cores})
            engine = ("--engine", "ray", "--address", ray.address)
            found = _NODES.validate_python(
                json.loads(made.headgate("calibrate", *engine, "--json"))["nodes"]
            )
            (made.folder / "hold.py").write_text(_HOLD)
            made.headgate("run", "--detach", "hold.py", "--nodes", HEAD, *engine, "--shared-files")

            def measure(plan: Plan, script: str) -> float:
                return _measured(made, (*engine, "--shared-files"), plan, script, seconds)

            try:
                yield (
                    made,
                    tuple(_limited(node, of_lab[node.name]) for node in found if node.name != HEAD),
                    measure,
                )
            finally:
                with suppress(subprocess.CalledProcessError):
                    made.headgate("stop", "--all", "--kill")


def _limited(node: Node, of_lab: Node) -> Node:
    """A node of Ray's with what the lab gives it: Ray counts whole CPUs, and guesses at the
    memory.
    """
    return replace(node, cores=of_lab.cores, memory_bytes=of_lab.memory_bytes)


def _measured(
    made: _frame.Bench, engine: tuple[str, ...], plan: Plan, script: str, seconds: float
) -> float:
    """Samples a second of a plan.

    Raises:
        RuntimeError: It did not run; the message says why.
    """
    usual = asdict(Plan(strategy="single", workers=1, batch_per_worker=None))
    said = {
        name: value
        for name, value in asdict(plan).items()
        if name == "strategy" or value != usual[name]
    }
    (made.folder / "plan.yaml").write_text(json.dumps(said))
    (made.folder / "train.py").write_text(script)
    made.starts("--plan", "plan.yaml", "--no-encrypt", *engine)
    begun, longest = time.monotonic(), SLOWNESS * PATIENCE_SECONDS + seconds
    try:
        while (found := throughput(_frame.steps(made.folder), plan.workers, seconds)) is None:
            job = made.job()
            if job["state"] in ENDED:
                raise RuntimeError(f"it {job['state']}: {job['reason']}")
            if time.monotonic() - begun > longest:
                raise RuntimeError(f"it made too few steps in {longest:g} s")
            time.sleep(LOOK_SECONDS)
        return found
    finally:
        with suppress(subprocess.CalledProcessError):  # it has ended by itself
            made.headgate("stop", "--run", made.run, "--kill")
