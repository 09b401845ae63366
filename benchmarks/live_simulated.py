"""Schedules of real jobs, run for real and simulated: when each job ends, live against simulated.

    python benchmarks/live_simulated.py [--schedules equal,headgate,srpt] [--scale 1] [--isolation container]
                                        [--repetitions 3] [--json PATH]

The simulation is the one of `headgate simulate`: the same controller and policy, a clock of its own. What it is told of
each kind of script is measured in runs of their own, and nothing is fitted to the runs compared:

- as many of a kind as there are cores: its time on one core while the others are busy, and its losses by work done;
- alone: how fast it is on all cores, over how fast it is on one. Two threads that wait for each other are the least
  steady of all here (a small network has been 0.6 to 1.3 times as fast as on one), so nothing else rests on that;
- two kinds, as many of each as there are cores: how fast it is on half a core, over how fast it is on one, and what it
  does before it has anything to say. That is measured beside other kinds because who shares a core with its like finds
  more of its data in the cache.

Speeds are compared over the same steps.

The machine's speed changes from second to second and from minute to minute, by what others do on its host. So each is
measured as often as the schedules run, in turn with them, and medians are compared; and all times, CPU time too, are
told at the machine's usual speed, by what a small piece of work costs meanwhile that has nothing to do with the jobs
(`_pace.py`). The seconds that passed are told beside them.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import _frame
import _pace
import numpy as np
from _elastic import KINDS, Job, Run, Stage, epochs, stage
from _pace import Seconds

from headgate.cluster import Cluster, Node
from headgate.simulation import Assumptions, TraceJob, simulate
from headgate.simulation.recorded import read
from headgate.simulation.speeds import Interference, Speeds
from headgate.simulation.traces import made
from headgate.telemetry.store import RunReader

LENGTHS = {"vae": 3.0, "cnn": 1.5, "charlm": 5.0, "plain": 1.5, "jax_digits": 28.0}
"""Of the usual epochs. Whoever has less left goes first, so no two jobs of a schedule have about as much left at a
time: live, now one of the two would go first, now the other."""
SHORT = {"vae": 0.75, "cnn": 0.75, "charlm": 1.0, "plain": 0.75, "jax_digits": 8.0}
"""The same for runs of two kinds."""
SCHEDULES: Mapping[str, Sequence[tuple[str, float]]] = {
    "equal": (("vae", 0.0), ("plain", 5.0), ("cnn", 10.0), ("charlm", 15.0)),
    "headgate": (("charlm", 0.0), ("vae", 6.0), ("cnn", 20.0), ("plain", 55.0)),
    "srpt": (("vae", 0.0), ("charlm", 6.0), ("jax_digits", 20.0), ("plain", 65.0), ("cnn", 98.0)),
}
"""By policy: kinds, and when they arrive (s)."""
NODE_KIND = "here"
REPORT_SECONDS = 1.0
"""Between two readings of what a job uses."""
CLEARLY = 1.1
"""Times as many cores as beside others, from which on a job uses more than one alone."""


@dataclass(frozen=True)
class Told:
    """What jobs of a run said: of each the times (s since the epoch) and how far it was, in steps or epochs."""

    run: Run
    jobs: Mapping[str, TraceJob]
    at: Mapping[str, Sequence[float]]
    done: Mapping[str, Sequence[float]]

    def ended(self, name: str) -> float:
        return self.run.began + self.run.ran[name].ended

    def seconds(self, name: str, pace: Seconds) -> float:
        """From its first report to its end."""
        return pace(self.at[name][0], self.ended(name))

    def at_once(self, name: str) -> tuple[float, float]:
        """How far it was when all of them were at work, from the first moment to the last."""
        at, done = self.at[name], self.done[name]
        first = bisect_left(at, max(each[0] for each in self.at.values()))
        last = bisect_right(at, min(each[-1] for each in self.at.values())) - 1
        if last <= first:
            raise SystemExit(f"{', '.join(self.jobs)}: too short to tell how fast they are beside each other")
        return done[first], done[last]

    def between(self, name: str, first: float, last: float, pace: Seconds) -> float:
        """Seconds from when it was so far to when it was so far."""
        start, end = np.interp((first, last), self.done[name], self.at[name])
        return pace(start, end)

    def started(self, name: str, pace: Seconds) -> float:
        """CPU time before its first report."""
        came = self.run.began + self.run.ran[name].at
        speed = pace(came, self.at[name][0]) / (self.at[name][0] - came)
        return (self.jobs[name].startup_core_seconds or 0.0) * speed


@dataclass(frozen=True)
class Seen:
    """What was measured of a kind once.

    Args:
        job: As a trace has it, which comes at 0 s, with the cores that it uses alone; its seconds are on one core.
        startup: Core-seconds before its first report.
        used: Cores that it used where it had one.
        whole: How fast it is with all cores, over how fast it is with one.
        half: The same with half of one.
    """

    job: TraceJob
    startup: float
    used: float
    whole: float
    half: float


@dataclass(frozen=True)
class Profile:
    """What a simulation is told of a kind.

    Args:
        job: As a trace has it, which comes at 0 s.
        table: Cores and how fast it is on them, over how fast it is alone; times `kept` as it was beside others.
        kept: Part of its speed that it keeps beside others, where it can use one core only.
    """

    job: TraceJob
    table: tuple[tuple[float, float], ...]
    kept: float


def job_of(kind: str, lengths: Mapping[str, float], scale: float, at: float = 0.0) -> Job:
    """A job of a kind; `scale` is of its epochs and of when it arrives."""
    return Job(kind, kind, at * scale, epochs(kind, lengths[kind] * scale))


def jobs_of(schedule: Sequence[tuple[str, float]], scale: float) -> list[Job]:
    """The jobs of a schedule."""
    return [job_of(kind, LENGTHS, scale, at) for kind, at in schedule]


def told(there: Stage, jobs: Sequence[Job]) -> Told:
    """Run jobs under `equal`."""
    folder = there.start(jobs, "equal")
    at: dict[str, list[float]] = {job.name: [] for job in jobs}
    done: dict[str, list[float]] = {job.name: [] for job in jobs}
    run = there.went(folder, jobs)
    with RunReader(folder / "run.sqlite") as reader:
        for row in reader.rows("progress", order="t"):
            name = row["task"].partition("/")[0]
            far = row["epoch"] if row["step"] is None else row["step"]
            if far is not None:
                at[name].append(run.began + row["t"])
                done[name].append(far)
    return Told(run, {each.name: each for each in read(folder).jobs}, at, done)


def copies(job: Job, count: int) -> list[Job]:
    """As many of a job."""
    return [replace(job, name=f"{job.kind}-{place}") for place in range(count)]


def by_itself(there: Stage, kind: str, scale: float, cores: int) -> tuple[Told, Told]:
    """Runs of a kind without any other: one for each core, and alone."""
    job = job_of(kind, LENGTHS, scale)
    return told(there, copies(job, cores)), told(there, copies(job, 1))


def beside(there: Stage, kinds: Sequence[str], scale: float, cores: int) -> list[Told]:
    """Each kind beside the next, and the last one beside the first: as many of both as there are cores."""
    pairs = zip(kinds, [*kinds[1:], kinds[0]], strict=True)
    return [told(there, [job for kind in pair for job in copies(job_of(kind, SHORT, scale), cores)]) for pair in pairs]


def seen_of(kind: str, one: Told, alone: Told, pairs: Sequence[Told], pace: Seconds) -> Seen:
    """What runs of a kind, and those of pairs with it, tell."""

    def faster(other: Told, name: str) -> float:
        steps = other.at_once(name)
        on_one = statistics.mean(one.between(each, *steps, pace) for each in one.jobs)
        return on_one / other.between(name, *steps, pace)

    [(name, whole)] = alone.jobs.items()
    job = next(iter(one.jobs.values()))
    first = job.losses[0][0] if job.losses else 0.0
    losses = tuple(((done - first) / (1.0 - first), loss) for done, loss in job.losses)
    seconds = statistics.mean(one.seconds(each, pace) for each in one.jobs)
    halves = [(pair, each) for pair in pairs for each in pair.jobs if each.startswith(f"{kind}-")]
    return Seen(
        job=replace(job, seconds=seconds, cores=whole.cores, losses=losses),
        startup=statistics.mean(pair.started(each, pace) for pair, each in halves),
        used=statistics.mean(each.cores for each in one.jobs.values()),
        whole=faster(alone, name),
        half=statistics.mean(faster(pair, each) for pair, each in halves),
    )


def profile(kind: str, seen: Sequence[Seen]) -> Profile:
    """What several measurements tell of a kind: those in the middle."""
    job = sorted((each.job for each in seen), key=lambda job: job.seconds)[len(seen) // 2]
    rows = zip(*((each.startup, each.used, each.whole, each.half) for each in seen), strict=True)
    startup, used, whole, half = map(statistics.median, rows)
    job = replace(job, model=kind, seconds=job.seconds / whole, startup_core_seconds=startup)
    if job.cores > CLEARLY * used:
        return Profile(job, ((0.5, half / whole), (1.0, 1.0 / whole), (job.cores, 1.0)), 1.0)
    kept = min(1.0 / whole, 1.0)
    return Profile(job, ((0.5, half / whole / kept), (job.cores, 1.0)), kept)


def simulated(jobs: Sequence[Job], policy: str, profiles: Mapping[str, Profile], cores: int) -> dict[str, float]:
    """Seconds from each job's arrival to its end."""
    trace = made(policy, [replace(profiles[job.kind].job, name=job.name, submitted=job.at) for job in jobs])
    pairs = {kind: dict.fromkeys(profiles, found.kept) for kind, found in profiles.items()}
    assumptions = Assumptions(
        speeds=Speeds(tables={kind: found.table for kind, found in profiles.items()}),
        interference=Interference({NODE_KIND: pairs}),
        report_seconds=REPORT_SECONDS,
    )
    cluster = Cluster((Node("here", cores=float(cores), memory_bytes=1 << 40, kind=NODE_KIND),))
    outcome = simulate(trace, cluster, policy, assumptions)
    return {job.job.name: job.ended - job.job.submitted for job in outcome.jobs if job.ended is not None}


def main() -> None:
    made_parser = _frame.parser("Schedules of real jobs, run for real and simulated.", 3)
    made_parser.add_argument("--schedules", default=",".join(SCHEDULES), help="by policy (default: all)")
    made_parser.add_argument("--scale", type=float, default=1.0, help="of epochs and times of arrival (default: 1)")
    made_parser.add_argument("--isolation", default="process", choices=("process", "container"))
    options = made_parser.parse_args()
    _frame.heading(options.repetitions, "torch", "tensorflow-cpu", "jax")
    chosen = options.schedules.split(",")
    kinds = [kind for kind in KINDS if any(kind == each for policy in chosen for each, _ in SCHEDULES[policy])]
    cores = len(os.sched_getaffinity(0))
    measured: dict[str, list[tuple[Told, Told]]] = {kind: [] for kind in kinds}
    pairs: list[list[Told]] = []
    runs: dict[str, list[Run]] = {policy: [] for policy in chosen}
    with tempfile.TemporaryDirectory() as folder, stage(options.isolation, on_lab=False) as there:
        with _pace.probing(Path(folder, "pace")):
            for number in range(options.repetitions):
                print(f"repetition {number + 1}", file=sys.stderr)
                for kind in kinds:
                    measured[kind].append(by_itself(there, kind, options.scale, cores))
                pairs.append(beside(there, kinds, options.scale, cores))
                for policy in chosen:
                    runs[policy].append(there.run(jobs_of(SCHEDULES[policy], options.scale), policy))
        pace = _pace.read(Path(folder, "pace"))
    seen = {
        kind: [seen_of(kind, *own, others, pace) for own, others in zip(measured[kind], pairs, strict=True)]
        for kind in kinds
    }
    profiles = {kind: profile(kind, each) for kind, each in seen.items()}
    for kind, found in profiles.items():
        speeds = ", ".join(f"{speed:.2f} of it on {used:.2f}" for used, speed in found.table)
        startup = f"{found.job.startup_core_seconds or 0.0:.1f} s on one core"
        apart = "; ".join(f"{each.job.seconds:.1f} s, {each.whole:.2f}, {each.half:.2f}" for each in seen[kind])
        print(f"{kind:14}{startup}, then {found.job.seconds:.1f} s alone; {speeds} cores; keeps {found.kept:.2f}")
        print(f"{'':14}each time on one core, and how many times as fast on all and on half of one: {apart}")
    rows, errors = [], []
    for policy in chosen:
        jobs, usually = jobs_of(SCHEDULES[policy], options.scale), [each.usual(pace) for each in runs[policy]]
        expected = [
            simulated([replace(job, at=ran[job.name].at) for job in jobs], policy, profiles, cores) for ran in usually
        ]
        heads = (
            ("live", 10),
            ("simulated", 12),
            ("error", 9),
            ("lowest and highest live", 26),
            ("seconds that passed", 26),
        )
        print(f"\n{policy:14}" + "".join(f"{head:>{width}}" for head, width in heads))
        for job in jobs:
            usual = [ran[job.name].seconds for ran in usually]
            passed = [each.ran[job.name].seconds for each in runs[policy]]
            live, foretold = statistics.median(usual), statistics.median(each[job.name] for each in expected)
            row = {"policy": policy, "job": job.name, "live": live, "simulated": foretold}
            rows.append({**row, "lowest": min(usual), "highest": max(usual), "passed": passed})
            line = f"{job.name:14}{live:>8.1f} s{foretold:>10.1f} s{foretold / live - 1.0:>+9.1%}"
            print(line + "".join(f"{min(each):>17.1f} to {max(each):.1f} s" for each in (usual, passed)))
        off = [abs(row["simulated"] / row["live"] - 1.0) for row in rows[-len(jobs) :]]
        print(f"error of a completion time: {statistics.mean(off):.1%} on the mean, {max(off):.1%} at worst")
        errors += off
    print(f"\nof all: {statistics.mean(errors):.1%} on the mean, {max(errors):.1%} at worst")
    content = {
        "scale": options.scale,
        "profiles": {
            kind: {"startup": found.job.startup_core_seconds, "table": found.table, "kept": found.kept}
            for kind, found in profiles.items()
        },
        "rows": rows,
        "mean_error": statistics.mean(errors),
        "worst_error": max(errors),
    }
    _frame.write(options.json, "live_simulated", content, "torch", "tensorflow-cpu", "jax")


if __name__ == "__main__":
    main()
