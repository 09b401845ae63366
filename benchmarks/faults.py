"""What each fault costs a training over several nodes.

    python benchmarks/faults.py [--plans synchronous,backup,asynchronous,allreduce] [--repetitions 3] [--json PATH]

Needs root: the nodes are a lab's. Each plan is trained under undisturbed first, which tells its pace; then one fault
after the other is done to it. What a fault cost is the time from it until the job is at work again as it was, less the
time in which it would have come as far at that pace. Steps that were done again from a checkpoint count once.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import _frame
import _job

from headgate import lab

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

    bench: _job.Bench
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
        # All workers of a step tell its number, stragglers late; after a restart it goes on from the checkpoint's.
        return max((step.number for step in found[-8:]), default=0) * _job.BATCH

    def cost(self, fault: Callable[[], object], workers: int = 2) -> float:
        """Seconds that a fault cost, until so many workers are at work again: a step may do without a backup worker."""
        before = time.time()
        self._lasts(PACE_SECONDS)
        at = time.time()
        pace = (self.done(at) - self.done(before)) / (at - before)
        fault()
        over = time.time()
        _job.until(lambda: self.at_work(workers, over), f"{self.plan}: it is at work again")
        end = time.time()
        return (end - at) - (self.done(end) - self.done(at)) / pace

    def _lasts(self, seconds: float) -> None:
        end = time.time() + seconds
        _job.until(lambda: time.time() >= end, "time passes")

    # --- the faults -------------------------------------------------------------------------------------------------

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
        return self.cost(lambda: self.bench.headgate("resize", name, "--workers", str(workers)), workers)


@contextmanager
def training(bench: _job.Bench, plan: str) -> Iterator[Training]:
    """A job that is at work, and killed on the way out."""
    bench.starts("--cluster", "bench", "--nodes", "a,b,c,d", *PLANS[plan])
    made = Training(bench, plan)
    _job.until(lambda: made.at_work(3 if plan == "backup" else 2, 0.0), f"{plan}: all are at work")
    try:
        yield made
    finally:
        bench.stops()


def costs(bench: _job.Bench, plan: str) -> dict[str, float]:
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


def main() -> None:
    arguments = _frame.parser("What each fault costs.", 3)
    arguments.add_argument("--plans", default=",".join(PLANS), help=f"some of {', '.join(PLANS)} (default: all)")
    options = arguments.parse_args()
    plans = options.plans.split(",")
    _frame.heading(options.repetitions, "torch", "pyzmq")
    seconds: dict[tuple[str, str], list[float]] = {}
    with _job.bench(LAB) as bench:
        os.environ["HEADGATE_HOME"] = str(bench.home)
        for _ in range(options.repetitions):
            for plan in plans:
                for fault, cost in costs(bench, plan).items():
                    seconds.setdefault((plan, fault), []).append(cost)
    print("seconds of training lost by each fault; a lost worker is not missed until another has taken its place")
    for (plan, fault), found in seconds.items():
        print(f"{plan:14}{fault:32}{statistics.median(found):>8.1f} ({min(found):.1f} to {max(found):.1f})")
    rows = [{"plan": plan, "fault": fault, "seconds": found} for (plan, fault), found in seconds.items()]
    _frame.write(options.json, Path(__file__).stem, {"rows": rows}, "torch", "pyzmq")


if __name__ == "__main__":
    main()
