"""What each fault costs a training over several nodes.

    python benchmarks/faults.py [--engine ray] [--plans synchronous,backup,asynchronous,allreduce]
    [--repetitions 3]
                                [--json PATH]

Needs root: the nodes are a lab's. Each plan is trained under undisturbed first, which tells its
pace; then one fault after the other is done to it. What a fault cost is the time from it until the
job is at work again as it was, less the time in which it would have come as far at that pace. Steps
that were done again from a checkpoint count once.

With `--engine ray` the raylets are on the nodes of a lab, the hub on that of Ray's head, and given
is how long the training stands still. Two workers train on nodes of their own, with one node to
spare, which the server of `synchronous` has. Given are the seconds from the fault until a worker
has taken a step that the job had not taken before, and until all workers are at work again: under
`synchronous` the others do without one whose node is gone. Steps that are done again from a
checkpoint are part of the time. How soon Ray gives a node up is as its health check comes, unless
`RAY_health_check_*` in the environment says otherwise. A run whose hub was killed is resumed at
once. One whose head was killed is resumed once its job has failed and another head has been
started, with a raylet on each node, which is part of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import _frame

from headgate import lab
from headgate.hub.connection import connect
from headgate.recorded import runs

LAB = """
lab: true
nodes:
  - {name: a, cores: 0.5, memory: 2GiB, nic: 1Gbit}
  - {name: b, cores: 0.5, memory: 2GiB, nic: 1Gbit}
  - {name: c, cores: 0.5, memory: 2GiB, nic: 1Gbit}
  - {name: d, cores: 0.2, memory: 2GiB, nic: 1Gbit}
"""
PACE_SECONDS, OUTAGE_SECONDS = 5.0, 5.0
AFTER_STEPS = 20
"""A worker is at work again when it has taken so many steps."""
PS = ("--strategy", "ps", "--servers", "1")
PLANS = {
    "synchronous": (*PS, "--workers", "2"),
    "backup": (*PS, "--workers", "3", "--backup-workers", "1"),
    "asynchronous": (*PS, "--workers", "2", "--async"),
    "allreduce": ("--strategy", "allreduce", "--workers", "2"),
}


@dataclass
class Training:
    """A job that runs.

    Args:
        plan: Which of `PLANS`.
    """

    bench: _frame.Bench
    plan: str

    def at_work(self, workers: int, since: float) -> bool:
        """Whether so many workers have taken enough steps since then, and still do."""
        now, found = time.time(), [step for step in self.bench.steps() if step.at > since]
        count = Counter(step.pid for step in found)
        recent = {step.pid for step in found if step.at > now - 2}
        return len([pid for pid in recent if count[pid] > AFTER_STEPS]) >= workers

    def done(self, until: float) -> int:
        """Samples that count and were trained on by then."""
        found = [step for step in self.bench.steps() if step.at <= until]
        if self.plan == "asynchronous":
            return sum(step.samples for step in found)
        # All workers of a step tell its number, stragglers late; after a restart it goes on from
        # the checkpoint's.
        return max((step.number for step in found[-8:]), default=0) * _frame.BATCH

    def cost(self, fault: Callable[[], object], workers: int = 2) -> float:
        """Seconds that a fault cost, until so many workers are at work again: a step may do without
        a backup worker.
        """
        before = time.time()
        self._lasts(PACE_SECONDS)
        at = time.time()
        pace = (self.done(at) - self.done(before)) / (at - before)
        fault()
        over = time.time()
        _frame.until(lambda: self.at_work(workers, over), f"{self.plan}: it is at work again")
        end = time.time()
        return (end - at) - (self.done(end) - self.done(at)) / pace

    def _lasts(self, seconds: float) -> None:
        end = time.time() + seconds
        _frame.until(lambda: time.time() >= end, "time passes")

    # --- the faults -------------------------------------------------------------------------------

    def kill(self, task: str) -> float:
        """kill -9 of a task."""
        return self.cost(lambda: os.kill(self.bench.pid(task), signal.SIGKILL))

    def outage(self) -> float:
        """The NIC of a node is down for a while."""

        def unplug() -> None:
            lab.change("b", {}, plugged=False)
            self._lasts(OUTAGE_SECONDS)
            lab.change("b", {}, plugged=True)

        return self.cost(unplug)

    def slowness(self) -> float:
        """A node has a tenth of its cores for a while."""

        def slow() -> None:
            lab.change("b", {"cores": 0.05})
            self._lasts(OUTAGE_SECONDS)
            lab.change("b", {"cores": 0.5})

        return self.cost(slow)

    def resize(self, workers: int) -> float:
        """Workers come or go."""
        name = self.bench.job()["name"]
        return self.cost(
            lambda: self.bench.headgate("resize", name, "--workers", str(workers)), workers
        )


@contextmanager
def training(bench: _frame.Bench, plan: str) -> Iterator[Training]:
    """A job that is at work, and killed on the way out."""
    bench.starts("--cluster", "bench", "--nodes", "a,b,c,d", *PLANS[plan])
    made = Training(bench, plan)
    _frame.until(
        lambda: made.at_work(3 if plan == "backup" else 2, 0.0), f"{plan}: all are at work"
    )
    try:
        yield made
    finally:
        bench.stops()


def costs(bench: _frame.Bench, plan: str) -> dict[str, float]:
    """Seconds that each fault cost under a plan."""
    found = {}
    with training(bench, plan) as job:
        found["kill -9 of a worker"] = job.kill("worker-1")
        if plan != "allreduce":
            found["kill -9 of a server"] = job.kill("server-0")
        found[f"NIC of a node down for {OUTAGE_SECONDS:g} s"] = job.outage()
        found[f"a node 10x slower for {OUTAGE_SECONDS:g} s"] = job.slowness()
        if plan != "backup":
            found["a worker joins"] = job.resize(3)
            found["a worker leaves"] = job.resize(2)
    return found


# --- on Ray ---------------------------------------------------------------------------------------

RAY_LAB = """
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
RAY_PLANS = {
    "allreduce": ("--strategy", "allreduce", "--workers", "2", "--nodes", "b,c,d"),
    "synchronous": ("--strategy", "ps", "--servers", "1", "--workers", "2", "--nodes", "b,c,d"),
}
AGENT = "ray::HeadgateAgent"


class OnRay(_frame.OnHead):
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
            return next(
                (
                    step.at
                    for step in self.bench.steps()
                    if step.at > over and step.number > before + 1
                ),
                0.0,
            )

        first = _frame.until(next_step, f"{self.plan}: the next step")
        _frame.until(
            lambda: self.at_work(workers, over), f"{self.plan}: {workers} workers are at work again"
        )
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
        self.bench.run = json.loads(
            self.bench.headgate("resume", self.bench.run, "--detach", "--json")
        )["run"]

    def node(self) -> str:
        """The node of the worker that is disturbed."""
        return str(
            next(each["node"] for each in self.bench.job()["tasks"] if each["task"] == WORKER)
        )


def kill_agent(ray: _frame.Raylets, node: str) -> None:
    """kill -9 of Headgate's actor on a node."""
    for process in ray.below(node):
        if any(word.startswith(AGENT) for word in process.cmdline()):
            process.kill()


def kill_hub(job: Stillness) -> None:
    """kill -9 of the hub, which is that of the head's node; its run is resumed."""
    found = [hub for folder in runs.hubs() if (hub := connect(folder)) is not None]
    if not found:
        raise RuntimeError("no hub is running")
    for hub in found:
        with closing(hub):
            os.kill(hub.ask("hello")["pid"], signal.SIGKILL)
    job.resume()


def kill_head(job: Stillness, ray: _frame.Raylets) -> None:
    """kill -9 of Ray's head; its job fails, and is resumed on a Ray that is started anew."""
    ray.kill(HEAD)
    _frame.until(lambda: job.bench.job()["state"] == "failed", "the job has failed")
    for node in ray.running():
        ray.kill(node)
    start(ray, HEAD, *WORKING, SPARE)
    job.resume()


Fault = Callable[[Stillness, _frame.Raylets], object]

FAULTS: dict[str, tuple[Fault, bool]] = {
    "kill -9 of a worker": (lambda job, ray: os.kill(job.bench.pid(WORKER), signal.SIGKILL), False),
    "kill -9 of its node's agent": (lambda job, ray: kill_agent(ray, job.node()), True),
    "kill -9 of its node's raylet": (lambda job, ray: ray.kill(job.node()), True),
    f"NIC of its node down for {OUTAGE_SECONDS:g} s": (
        lambda job, ray: job.unplug(job.node()),
        False,
    ),
    "NIC of its node down for good": (lambda job, ray: job.cut(job.node()), True),
    "kill -9 of the hub": (lambda job, ray: kill_hub(job), False),
    "kill -9 of Ray's head": (kill_head, False),
}
"""What is done, and whether that takes the node away."""


def start(ray: _frame.Raylets, *nodes: str) -> None:
    """Start the raylets of nodes of the lab."""
    for name in nodes:
        ray.start_in_lab("bench", name, 0 if name == HEAD else CORES)


@contextmanager
def training_on_ray(bench: _frame.Bench, ray: _frame.Raylets, plan: str) -> Iterator[Stillness]:
    """A job that is at work, and killed on the way out."""
    bench.starts("--engine", "ray", "--address", ray.address, "--shared-files", *RAY_PLANS[plan])
    made = Stillness(bench, plan)
    _frame.until(lambda: made.at_work(2, 0.0), f"{plan}: both are at work")
    try:
        yield made
    finally:
        bench.stops()
        if made.cut_off:
            ray.kill(made.cut_off)
            lab.change(made.cut_off, {}, plugged=True)


def on_lab(options: argparse.Namespace, plans: Sequence[str]) -> list[dict[str, object]]:
    """Measure, and print, what faults cost."""
    seconds: dict[tuple[str, str], list[float]] = {}
    with _frame.bench(LAB) as bench:
        os.environ["HEADGATE_HOME"] = str(bench.home)
        for _ in range(options.repetitions):
            for plan in plans:
                for fault, cost in costs(bench, plan).items():
                    seconds.setdefault((plan, fault), []).append(cost)
    print(
        "seconds of training lost by each fault; a lost worker is not missed until another "
        "has taken its place"
    )
    for (plan, fault), found in seconds.items():
        print(f"{plan:14}{fault:32}{_spread(found):>24}")
    return [
        {"plan": plan, "fault": fault, "seconds": found} for (plan, fault), found in seconds.items()
    ]


def on_ray(options: argparse.Namespace, plans: Sequence[str]) -> list[dict[str, object]]:
    """Measure, and print, how long a training stands still."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with _frame.bench(RAY_LAB, OnRay) as bench:
        os.environ["HEADGATE_HOME"] = str(bench.home)
        host = lab.nodes("bench").node(HEAD).address
        with _frame.raylets(host) as ray:
            start(ray, HEAD, *WORKING, SPARE)
            for _ in range(options.repetitions):
                for plan in plans:
                    for name, (fault, takes_node) in FAULTS.items():
                        with training_on_ray(bench, ray, plan) as job:
                            workers = 1 if takes_node and plan == "synchronous" else 2
                            seconds = job.seconds(lambda: fault(job, ray), workers)  # noqa: B023
                        print(
                            f"{plan}: {name}: {seconds[0]:.1f} s, {seconds[1]:.1f} s",
                            file=sys.stderr,
                            flush=True,
                        )
                        found.setdefault((plan, name), []).append(seconds)
                        start(
                            ray, *(node for node in (*WORKING, SPARE) if node not in ray.running())
                        )
    print(f"{'seconds until':46}{'the next step':>24}{'all are at work':>24}")
    for (plan, name), pairs in found.items():
        nexts, both = ([pair[i] for pair in pairs] for i in (0, 1))
        print(f"{plan:14}{name:32}{_spread(nexts):>24}{_spread(both):>24}")
    return [
        {"plan": plan, "fault": name, "seconds": pairs} for (plan, name), pairs in found.items()
    ]


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


ENGINES = {
    "local": (on_lab, PLANS, ("torch", "pyzmq")),
    "ray": (on_ray, RAY_PLANS, ("ray", "torch")),
}


def main() -> None:
    arguments = _frame.parser("What each fault costs.", 3)
    arguments.add_argument(
        "--engine", choices=ENGINES, default="local", help="ray: on a Ray of the lab's nodes"
    )
    arguments.add_argument("--plans", help="some of the engine's, by comma (default: all)")
    options = arguments.parse_args()
    measure, there, packages = ENGINES[options.engine]
    plans = (options.plans or ",".join(there)).split(",")
    if unknown := [plan for plan in plans if plan not in there]:
        arguments.error(f"--plans: found {', '.join(unknown)}; expected some of {', '.join(there)}")
    _frame.heading(options.repetitions, *packages)
    rows = measure(options, plans)
    _frame.write(
        options.json, Path(__file__).stem, {"engine": options.engine, "rows": rows}, *packages
    )


if __name__ == "__main__":
    main()
