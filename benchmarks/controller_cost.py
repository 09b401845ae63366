"""What the controller costs: its CPU time in an hour with 10, 100 and 1,000 live jobs.

    python benchmarks/controller_cost.py [--repetitions 3] [--seconds 20] [--policies A,B] [--json PATH]

The jobs are on one node of 64 cores. As live, each tells once a second what it uses, and a loss; one job in a hundred
ends each minute and another comes for it. So many SECONDS of this are given to the controller, and its CPU time is
scaled to an hour. In memory: no engine, no store, no socket.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import _frame

from headgate import policies
from headgate.cluster import Node
from headgate.controller import Controller
from headgate.events import Event, Exit, JobPlanned, JobSubmitted, NodeJoined, Progress, TaskExited, Usage, Wake
from headgate.jobs import Job
from headgate.plans import Plan

LIVE = (10, 100, 1_000)
POLICIES = ("none", "equal", "headgate")
PLAN = Plan(strategy="single", workers=1, batch_per_worker=None, worker_nodes=("node",))


def cost(policy: str, live: int, seconds: int) -> tuple[float, int]:
    """CPU seconds of the controller, and the events it was told, with so many jobs for so long."""
    controller = Controller(policies.make(policy))
    spec = Job(name="job", run="train")
    wake_at: float | None = None

    def tell(now: float, event: Event) -> None:
        nonlocal wake_at
        wake_at = controller.step(now, event)[1]

    def start(now: float, number: int) -> None:
        tell(now, JobSubmitted(f"{number}/job", spec))
        tell(now, JobPlanned(f"{number}/job", 1, PLAN))

    tell(0.0, NodeJoined(Node("node", cores=64.0, memory_bytes=2**38)))
    running = list(range(live))
    for number in running:
        start(0.0, number)
    events, ends = 0, 0.0
    began = time.process_time()
    for second in range(1, seconds + 1):
        for place, number in enumerate(running):
            now, task = second + place / live, f"{number}/job/worker-0"
            if wake_at is not None and wake_at <= now:
                tell(now, Wake())
                events += 1
            tell(now, Usage(task, min(64.0 / live, 1.0), 2.0**30))
            tell(now, Progress(task, step=second * 10, loss=2.0 / (1.0 + 0.01 * second) + 0.01 * (number % 7)))
            events += 2
        ends += live / 6_000
        while ends >= 1:
            ends -= 1
            gone = running.pop(0)
            tell(second + 1.0, TaskExited(f"{gone}/job/worker-0", Exit(code=0)))
            controller.forget(f"{gone}")
            running.append(gone + live)
            start(second + 1.0, gone + live)
            events += 3
    return time.process_time() - began, events


def main() -> None:
    parser = _frame.parser("What the controller costs with many live jobs.", 3)
    parser.add_argument("--seconds", type=int, default=20, help="of the jobs' time (default: 20)")
    parser.add_argument("--policies", default=",".join(POLICIES))
    options = parser.parse_args()
    _frame.heading(options.repetitions)
    print(f"{'policy':12}{'jobs':>6}{'events a second':>17}{'us an event':>13}{'CPU s an hour':>15}{'of a core':>11}")
    rows: list[dict[str, Any]] = []
    for policy in options.policies.split(","):
        for live in LIVE:
            found = [cost(policy, live, options.seconds) for _ in range(options.repetitions)]
            spent, events = statistics.median(cpu for cpu, _ in found), found[0][1]
            hour = spent * 3600 / options.seconds
            print(
                f"{policy:12}{live:>6}{events / options.seconds:>17.0f}{spent / events * 1e6:>13.1f}{hour:>15.1f}"
                f"{hour / 3600:>10.2%}",
                flush=True,
            )
            rows.append({"policy": policy, "jobs": live, "events": events, "cpu_seconds_an_hour": hour})
    _frame.write(options.json, "controller_cost", {"seconds": options.seconds, "rows": rows})


if __name__ == "__main__":
    main()
