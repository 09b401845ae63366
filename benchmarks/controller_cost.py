"""What the controller costs: its CPU time in an hour with 10, 100 and 1,000 live jobs.

    python benchmarks/controller_cost.py [--repetitions 3] [--seconds 20] [--policies A,B] [--json
    PATH]

The jobs are on one node of 64 cores. As live, each tells once a second what it uses, and a loss;
one job in a hundred ends each minute and another comes for it. So many SECONDS of this are given to
the controller, and its CPU time is scaled to an hour. Under policies that go by it, what is left of
each job is predicted, which is in the CPU time, and told by itself: jobs are ten minutes old as it
begins, so that one in six is predicted anew in ten seconds. In memory: no engine, no store, no
socket.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

import _frame

from headgate import policies
from headgate.controller.core import Controller
from headgate.forecast.remaining import answer
from headgate.model.cluster import Node
from headgate.model.endings import Exit
from headgate.model.events import (
    Event,
    JobPlanned,
    JobSubmitted,
    NodeJoined,
    TaskExited,
    Usage,
    Wake,
)
from headgate.model.identifiers import JobId, TaskId
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.progress import Progress

LIVE = (10, 100, 1_000)
POLICIES = ("none", "equal", "headgate")
AGE_SECONDS = 600
PLAN = Plan(strategy="single", workers=1, batch_per_worker=None, worker_nodes=("node",))


class Learning:
    """A job whose loss falls, once a second."""

    def __init__(self, number: int) -> None:
        self.task = TaskId(f"{number}/job/worker-0")
        self._noise = 0.01 * (number % 7)
        self._seconds = 0

    def report(self) -> Progress:
        self._seconds += 1
        loss = 2.0 / (1.0 + 0.01 * self._seconds) + self._noise
        epoch = 1 + self._seconds // 60
        return Progress(self.task, self._seconds * 10, epoch=epoch, loss=loss, epochs=100)


def age(controller: Controller, jobs: Mapping[int, Learning]) -> None:
    """What is known of jobs that have run for so long; their policy hears none of it."""
    for job in jobs.values():
        tracker = controller.tracker(job.task.job)
        assert tracker is not None
        for second in range(1 - AGE_SECONDS, 1):
            tracker.use(second, 1.0)
            report = job.report()
            tracker.report(second, report.loss, report)
            tracker.due()


def cost(policy: str, live: int, seconds: int) -> tuple[float, float, int]:
    """CPU seconds of the controller with so many jobs for so long, those of them that predictions
    took, and the events it was told.
    """
    controller = Controller(policies.make(policy))
    predicts, predicting = controller.policy.predicts, 0.0
    spec = Job(name="job", run="train")
    wake_at: float | None = None

    def tell(now: float, event: Event) -> None:
        nonlocal wake_at
        wake_at = controller.step(now, event)[1]

    def start(now: float, number: int) -> None:
        tell(now, JobSubmitted(JobId(f"{number}/job"), spec))
        tell(now, JobPlanned(JobId(f"{number}/job"), 1, PLAN))

    tell(-AGE_SECONDS, NodeJoined(Node("node", cores=64.0, memory_bytes=2**38)))
    running = list(range(live))
    for number in running:
        start(-AGE_SECONDS, number)
    jobs = {number: Learning(number) for number in running}
    if predicts:
        age(controller, jobs)
    events, ends = 0, 0.0
    began = time.process_time()
    for second in range(1, seconds + 1):
        for place, number in enumerate(running):
            now, job, cores = second + place / live, jobs[number], min(64.0 / live, 1.0)
            if wake_at is not None and wake_at <= now:
                tell(now, Wake())
                events += 1
            tell(now, Usage(job.task, cores, 2.0**30))
            tell(now, job.report())
            events += 2
            if predicts:
                asked_at = time.process_time()
                tracker = controller.tracker(job.task.job)
                question = tracker.due() if tracker is not None else None
                left = answer(job.task.job, question) if question is not None else None
                predicting += time.process_time() - asked_at
                if left is not None:
                    tell(now, left)
                    events += 1
        ends += live / 6_000
        while ends >= 1:
            ends -= 1
            gone = running.pop(0)
            tell(second + 1.0, TaskExited(TaskId(f"{gone}/job/worker-0"), Exit(code=0)))
            controller.forget(f"{gone}")
            del jobs[gone]
            running.append(gone + live)
            jobs[gone + live] = Learning(gone + live)
            start(second + 1.0, gone + live)
            events += 3
    return time.process_time() - began, predicting, events


def main() -> None:
    parser = _frame.parser("What the controller costs with many live jobs.", 3)
    parser.add_argument("--seconds", type=int, default=20, help="of the jobs' time (default: 20)")
    parser.add_argument("--policies", default=",".join(POLICIES))
    options = parser.parse_args()
    _frame.heading(options.repetitions)
    print(
        f"{'policy':12}{'jobs':>6}{'events a second':>17}{'us an event':>13}"
        f"{'CPU s an hour':>15}{'predictions':>13}{'of a core':>11}"
    )
    rows: list[dict[str, Any]] = []
    for policy in options.policies.split(","):
        for live in LIVE:
            found = [cost(policy, live, options.seconds) for _ in range(options.repetitions)]
            spent, events = statistics.median(cpu for cpu, _, _ in found), found[0][2]
            hour, predictions = (
                s * 3600 / options.seconds
                for s in (spent, statistics.median(p for _, p, _ in found))
            )
            print(
                f"{policy:12}{live:>6}{events / options.seconds:>17.0f}"
                f"{spent / events * 1e6:>13.1f}{hour:>15.1f}"
                f"{predictions:>13.1f}{hour / 3600:>11.2%}",
                flush=True,
            )
            row = {"policy": policy, "jobs": live, "events": events, "cpu_seconds_an_hour": hour}
            rows.append(row | {"predictions_an_hour": predictions})
    _frame.write(options.json, "controller_cost", {"seconds": options.seconds, "rows": rows})


if __name__ == "__main__":
    main()
