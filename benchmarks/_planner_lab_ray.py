"""Plans measured for real on a Ray cluster whose raylets are on the nodes of a lab: each is a run of engine `ray`."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace

import _job
import _ray
from _planner_lab_measuring import LOOK_SECONDS, PATIENCE_SECONDS, Measure, throughput
from _planner_lab_models import LAB, NAME
from pydantic import TypeAdapter

from headgate import lab
from headgate.cluster import Node
from headgate.events import ENDED
from headgate.plans import Plan

HEAD = "head"
LAB_WITH_HEAD = f"{LAB}  - {{name: {HEAD}, address: 10.77.46.31, cores: 1, memory: 4GiB, nic: 1Gbit}}\n"
STARTING_CORES = 1.0
"""Of each node until its raylet is there: Ray gives one up that takes longer than 30 s."""
SLOWNESS = 4.0
"""So many times longer than a forked task may a run take until it is warm: it imports PyTorch on a part of a core."""
VARIABLES = {"RAY_memory_monitor_refresh_ms": "0"}  # that looks at the whole machine's memory
_HOLD = "import time\ntime.sleep(1e9)\n"
_NODES = TypeAdapter(list[Node])


class OnHead(_ray.OnHead):
    """Commands of the benchmark."""

    head = f"{NAME}/{HEAD}"


@contextmanager
def cluster(seconds: float) -> Iterator[tuple[_job.Bench, tuple[Node, ...], Measure]]:
    """A Ray on the nodes of the lab: where commands are typed, the nodes as they were measured through Ray, and what
    measures a plan. A job that sleeps on the head has the agents stay from plan to plan.

    Args:
        seconds: How long a plan is measured.
    """
    with _job.bench(LAB_WITH_HEAD, OnHead) as made:
        os.environ["HEADGATE_HOME"] = str(made.home)  # where what is asked in this process looks for the lab
        of_lab = {node.name: node for node in lab.nodes(NAME).nodes}
        with _ray.raylets(of_lab[HEAD].address, VARIABLES) as ray:
            for name in (HEAD, *(name for name in of_lab if name != HEAD)):
                lab.change(f"{NAME}/{name}", {"cores": STARTING_CORES})
                ray.start_in_lab(NAME, name, 1)
                lab.change(f"{NAME}/{name}", {"cores": of_lab[name].cores})
            engine = ("--engine", "ray", "--address", ray.address)
            found = _NODES.validate_python(json.loads(made.headgate("calibrate", *engine, "--json"))["nodes"])
            (made.folder / "hold.py").write_text(_HOLD)
            made.headgate("run", "--detach", "hold.py", "--nodes", HEAD, *engine, "--shared-files")

            def measure(plan: Plan, script: str) -> float:
                return _measured(made, (*engine, "--shared-files"), plan, script, seconds)

            try:
                yield made, tuple(_limited(node, of_lab[node.name]) for node in found if node.name != HEAD), measure
            finally:
                with suppress(subprocess.CalledProcessError):
                    made.headgate("stop", "--all", "--kill")


def _limited(node: Node, of_lab: Node) -> Node:
    """A node of Ray's with what the lab gives it: Ray counts whole CPUs, and guesses at the memory."""
    return replace(node, cores=of_lab.cores, memory_bytes=of_lab.memory_bytes)


def _measured(made: _job.Bench, engine: tuple[str, ...], plan: Plan, script: str, seconds: float) -> float:
    """Samples a second of a plan.

    Raises:
        RuntimeError: It did not run; the message says why.
    """
    usual = asdict(Plan(strategy="single", workers=1, batch_per_worker=None))
    said = {name: value for name, value in asdict(plan).items() if name == "strategy" or value != usual[name]}
    (made.folder / "plan.yaml").write_text(json.dumps(said))
    (made.folder / "train.py").write_text(script)
    made.starts("--plan", "plan.yaml", "--no-encrypt", *engine)
    begun, longest = time.monotonic(), SLOWNESS * PATIENCE_SECONDS + seconds
    try:
        while (found := throughput(_job.steps(made.folder), plan.workers, seconds)) is None:
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
