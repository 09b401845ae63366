"""How long a training on Ray stands still at each fault.

    python benchmarks/ray_faults.py [--plans allreduce,synchronous] [--repetitions 3] [--json PATH]

Needs root: the raylets are on the nodes of a lab, the hub on that of Ray's head. Two workers train on nodes of their
own, with one node to spare, which the server of `synchronous` has. Given are the seconds from the fault until a worker
has taken a step that the job had not taken before, and until all workers are at work again: under `synchronous` the
others do without one whose node is gone. Steps that are done again from a checkpoint are part of the time. How soon Ray
gives a node up is as its health check comes, unless `RAY_health_check_*` in the environment says otherwise.

A run whose hub was killed is resumed at once. One whose head was killed is resumed once its job has failed and another
head has been started, with a raylet on each node, which is part of the time.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import _frame
import _job
import _ray
from faults import OUTAGE_SECONDS, PACE_SECONDS, Training

from headgate import lab
from headgate.hub import client

LAB = """
lab: true
oversubscribe: true
nodes:
  - {name: a, address: 10.77.47.1, cores: 0.5, memory: 2GiB, nic: 1Gbit}
  - {name: b, address: 10.77.47.2, cores: 0.5, memory: 2GiB, nic: 1Gbit}
  - {name: c, address: 10.77.47.3, cores: 0.5, memory: 2GiB, nic: 1Gbit}
  - {name: d, address: 10.77.47.4, cores: 0.5, memory: 2GiB, nic: 1Gbit}
"""
HEAD, WORKING, SPARE = "a", ("b", "c"), "d"
WORKER = "worker-1"
CORES = 2
PLANS = {
    "allreduce": ("--strategy", "allreduce", "--workers", "2", "--nodes", "b,c,d"),
    "synchronous": ("--strategy", "ps", "--servers", "1", "--workers", "2", "--nodes", "b,c,d"),
}
AGENT = "ray::HeadgateAgent"


class OnRay(_ray.OnHead):
    head = f"bench/{HEAD}"


class Stillness(Training):
    """A job that runs, and how long it stands still."""

    cut_off = ""
    """The node whose NIC stays down."""

    def seconds(self, fault: Callable[[], object], workers: int) -> tuple[float, float]:
        """From a fault until the job's next step, and until so many workers are at work again."""
        self._lasts(PACE_SECONDS)
        at = time.time()
        fault()
        before, over = max(step.number for step in self.bench.steps()), time.time()

        def next_step() -> float:
            # What was under way when the fault came is none that the job took after it.
            return next((step.at for step in self.bench.steps() if step.at > over and step.number > before + 1), 0.0)

        first = _job.until(next_step, f"{self.plan}: the next step")
        _job.until(lambda: self.at_work(workers, over), f"{self.plan}: {workers} workers are at work again")
        return first - at, time.time() - at

    def unplug(self, node: str) -> None:
        """The NIC of a node is down for a while."""
        lab.change(node, {}, plugged=False)
        self._lasts(OUTAGE_SECONDS)
        lab.change(node, {}, plugged=True)

    def cut(self, node: str) -> None:
        """The NIC of a node is down until the job has ended."""
        self.cut_off = node
        lab.change(node, {}, plugged=False)

    def resume(self) -> None:
        """Go on with the run, as another one."""
        self.bench.run = json.loads(self.bench.headgate("resume", self.bench.run, "--detach", "--json"))["run"]

    def node(self) -> str:
        """The node of the worker that is disturbed."""
        return str(next(each["node"] for each in self.bench.job()["tasks"] if each["task"] == WORKER))


def kill_agent(ray: _ray.Raylets, node: str) -> None:
    """kill -9 of Headgate's actor on a node."""
    for process in ray.below(node):
        if any(word.startswith(AGENT) for word in process.cmdline()):
            process.kill()


def kill_hub(job: Stillness) -> None:
    """kill -9 of the hub; its run is resumed."""
    hub = client.connect()
    if hub is None:
        raise RuntimeError("no hub is running")
    with closing(hub):
        os.kill(hub.ask("hello")["pid"], signal.SIGKILL)
    job.resume()


def kill_head(job: Stillness, ray: _ray.Raylets) -> None:
    """kill -9 of Ray's head; its job fails, and is resumed on a Ray that is started anew."""
    ray.kill(HEAD)
    _job.until(lambda: job.bench.job()["state"] == "failed", "the job has failed")
    for node in ray.running():
        ray.kill(node)
    start(ray, HEAD, *WORKING, SPARE)
    job.resume()


Fault = Callable[[Stillness, _ray.Raylets], object]

FAULTS: dict[str, tuple[Fault, bool]] = {
    "kill -9 of a worker": (lambda job, ray: os.kill(job.bench.pid(WORKER), signal.SIGKILL), False),
    "kill -9 of its node's agent": (lambda job, ray: kill_agent(ray, job.node()), True),
    "kill -9 of its node's raylet": (lambda job, ray: ray.kill(job.node()), True),
    f"NIC of its node down for {OUTAGE_SECONDS:g} s": (lambda job, ray: job.unplug(job.node()), False),
    "NIC of its node down for good": (lambda job, ray: job.cut(job.node()), True),
    "kill -9 of the hub": (lambda job, ray: kill_hub(job), False),
    "kill -9 of Ray's head": (kill_head, False),
}
"""What is done, and whether that takes the node away."""


def start(ray: _ray.Raylets, *nodes: str) -> None:
    """Start the raylets of nodes of the lab."""
    for name in nodes:
        ray.start_in_lab("bench", name, 0 if name == HEAD else CORES)


@contextmanager
def training(bench: _job.Bench, ray: _ray.Raylets, plan: str) -> Iterator[Stillness]:
    """A job that is at work, and killed on the way out."""
    bench.starts("--engine", "ray", "--address", ray.address, "--shared-files", *PLANS[plan])
    made = Stillness(bench, plan)
    _job.until(lambda: made.at_work(2, 0.0), f"{plan}: both are at work")
    try:
        yield made
    finally:
        bench.stops()
        if made.cut_off:
            ray.kill(made.cut_off)
            lab.change(made.cut_off, {}, plugged=True)


def main() -> None:
    arguments = _frame.parser("How long a training on Ray stands still at each fault.", 3)
    arguments.add_argument("--plans", default=",".join(PLANS), help=f"some of {', '.join(PLANS)} (default: all)")
    options = arguments.parse_args()
    _frame.heading(options.repetitions, "ray", "torch")
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with _job.bench(LAB, OnRay) as bench:
        os.environ["HEADGATE_HOME"] = str(bench.home)
        host = lab.nodes("bench").node(HEAD).address
        with _ray.raylets(host) as ray:
            start(ray, HEAD, *WORKING, SPARE)
            for _ in range(options.repetitions):
                for plan in options.plans.split(","):
                    for name, (fault, takes_node) in FAULTS.items():
                        with training(bench, ray, plan) as job:
                            workers = 1 if takes_node and plan == "synchronous" else 2
                            seconds = job.seconds(lambda: fault(job, ray), workers)  # noqa: B023
                        print(f"{plan}: {name}: {seconds[0]:.1f} s, {seconds[1]:.1f} s", file=sys.stderr, flush=True)
                        found.setdefault((plan, name), []).append(seconds)
                        start(ray, *(node for node in (*WORKING, SPARE) if node not in ray.running()))
    print(f"{'seconds until':46}{'the next step':>24}{'all are at work':>24}")
    for (plan, name), pairs in found.items():
        nexts, both = ([pair[i] for pair in pairs] for i in (0, 1))
        print(f"{plan:14}{name:32}{_spread(nexts):>24}{_spread(both):>24}")
    rows = [{"plan": plan, "fault": name, "seconds": pairs} for (plan, name), pairs in found.items()]
    _frame.write(options.json, Path(__file__).stem, {"rows": rows}, "ray", "torch")


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


if __name__ == "__main__":
    main()
