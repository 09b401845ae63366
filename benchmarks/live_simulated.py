"""Schedules of real jobs, run for real and simulated: when each job ends, live against simulated.

    python benchmarks/live_simulated.py [--schedules equal,headgate,srpt] [--scale 1] [--isolation container]
                                        [--repetitions 3] [--json PATH]

The simulation is the one of `headgate simulate`: the same controller and policy, a clock of its own. What it is told of
each kind of script is measured in runs without any other kind, and nothing is fitted to the runs compared:

- alone: time, CPU time, what it does on one core before it has anything to say, and its losses by work done;
- as many of a kind as there are cores, and twice as many, under `equal`: what a core each brings while the others are
  busy, and half of one.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import _frame
import _pace
from _elastic import KINDS, Job, Run, Stage, epochs, stage
from _pace import Seconds

from headgate.cluster import Cluster, Node
from headgate.simulation import Assumptions, TraceJob, simulate
from headgate.simulation.recorded import read
from headgate.simulation.speeds import Interference, Speeds
from headgate.simulation.traces import made

LENGTHS = {"vae": 1.5, "cnn": 1.0, "keras_digits": 0.75, "charlm": 2.0, "plain": 0.75, "jax_digits": 1.0}
"""Of the usual epochs: jobs of unlike lengths, and of one for each kind, so that few runs alone tell of all."""
SCHEDULES: Mapping[str, Sequence[tuple[str, float]]] = {
    "equal": (("vae", 0.0), ("plain", 4.0), ("cnn", 8.0), ("charlm", 12.0)),
    "headgate": (
        ("charlm", 0.0),
        ("cnn", 3.0),
        ("keras_digits", 6.0),
        ("vae", 10.0),
        ("jax_digits", 14.0),
        ("plain", 20.0),
    ),
    "srpt": (("vae", 0.0), ("charlm", 5.0), ("jax_digits", 10.0), ("cnn", 15.0), ("plain", 20.0)),
}
"""By policy: kinds, and when they arrive (s)."""
NODE_KIND = "here"
REPORT_SECONDS = 1.0
"""Between two readings of what a job uses."""
CLEARLY = 1.1
"""Times as many cores as beside others, from which on a job uses more than one alone."""


@dataclass(frozen=True)
class Recorded:
    """A run of jobs, and each of them as a trace has it, by name."""

    run: Run
    jobs: Mapping[str, TraceJob]


@dataclass(frozen=True)
class Seen:
    """What was measured of a kind once.

    Args:
        alone: As a trace has it, which comes at 0 s.
        half: Cores that each used with two of its kind for each core, and the seconds that its work took there.
        one: The same with one for each core.
    """

    alone: TraceJob
    half: tuple[float, float]
    one: tuple[float, float]


@dataclass(frozen=True)
class Profile:
    """What a simulation is told of a kind.

    Args:
        job: As a trace has it, which comes at 0 s.
        table: Cores and work a second, on all it can use as it was alone; times `kept` on less as it was beside others.
        kept: Part of its speed that it keeps beside others, where it can use one core only.
    """

    job: TraceJob
    table: tuple[tuple[float, float], ...]
    kept: float


def jobs_of(schedule: Sequence[tuple[str, float]], scale: float) -> list[Job]:
    """The jobs of a schedule; `scale` is of their epochs and of the times between them."""
    return [Job(kind, kind, at * scale, epochs(kind, LENGTHS[kind] * scale)) for kind, at in schedule]


def measure(there: Stage, kind: str, scale: float, cores: int) -> list[Recorded]:
    """Runs of a kind without any other: alone, two for each core, and one."""
    job = Job(kind, kind, 0.0, epochs(kind, LENGTHS[kind] * scale))
    result = []
    for count in (1, 2 * cores, cores):
        jobs = [replace(job, name=f"{kind}-{place}") for place in range(count)]
        folder = there.start(jobs, "equal")
        result.append(Recorded(there.went(folder, jobs), {each.name: each for each in read(folder).jobs}))
    return result


def seen_in(runs: Sequence[Recorded], pace: Seconds, cores: int) -> Seen:
    """What the runs of `measure` tell."""
    alone, half, one = runs
    [job] = _found(alone, pace, cores)

    def mean(each: Sequence[TraceJob]) -> tuple[float, float]:
        return statistics.mean(job.cores for job in each), statistics.mean(job.seconds for job in each)

    return Seen(job, mean(_found(half, pace, cores, job)), mean(_found(one, pace, cores, job)))


def _found(told: Recorded, pace: Seconds, cores: int, alone: TraceJob | None = None) -> list[TraceJob]:
    """Jobs that came at once: of each the seconds from its arrival to its end but for what it does at first, on a core
    or its part of one, and the cores used meanwhile. What it does at first is as much as of the one that ran `alone`,
    or else the work after it would be another: one that cannot use a second core seems to start for longer."""
    result, usually = [], told.run.usual(pace)
    for name, job in told.jobs.items():
        passed, usual = told.run.ran[name].seconds, usually[name].seconds
        speed, own = usual / passed, job.startup_core_seconds or 0.0
        startup = (alone.startup_core_seconds or 0.0) if alone is not None else own * speed
        seconds = usual - startup * max(len(told.jobs) / cores, 1.0)
        used = ((job.seconds * job.cores + own) * speed - startup) / seconds
        result.append(replace(job, seconds=seconds, cores=used, startup_core_seconds=startup))
    return result


def profile(kind: str, seen: Sequence[Seen]) -> Profile:
    """What several measurements tell of a kind: those in the middle."""
    alone = sorted((each.alone for each in seen), key=lambda job: job.seconds)[len(seen) // 2]
    whole, half, one = (
        (alone.cores, 1.0 / alone.seconds),
        *(
            (statistics.median(cores for cores, _ in points), 1.0 / statistics.median(seconds for _, seconds in points))
            for points in ([each.half for each in seen], [each.one for each in seen])
        ),
    )
    if whole[0] > CLEARLY * one[0]:
        return Profile(replace(alone, model=kind), (half, one, whole), 1.0)
    kept = min(one[1] / whole[1], 1.0)
    return Profile(replace(alone, model=kind), ((half[0], half[1] / kept), whole), kept)


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
    measured: dict[str, list[list[Recorded]]] = {kind: [] for kind in kinds}
    runs: dict[str, list[Run]] = {policy: [] for policy in chosen}
    with tempfile.TemporaryDirectory() as folder, stage(options.isolation, on_lab=False) as there:
        with _pace.probing(Path(folder, "pace")):
            for number in range(options.repetitions):
                print(f"repetition {number + 1}", file=sys.stderr)
                for kind in kinds:
                    measured[kind].append(measure(there, kind, options.scale, cores))
                for policy in chosen:
                    runs[policy].append(there.run(jobs_of(SCHEDULES[policy], options.scale), policy))
        pace = _pace.read(Path(folder, "pace"))
    seen = {kind: [seen_in(each, pace, cores) for each in measured[kind]] for kind in kinds}
    profiles = {kind: profile(kind, each) for kind, each in seen.items()}
    for kind, found in profiles.items():
        speeds = ", ".join(f"{1 / speed:.1f} s with {used:.2f} cores" for used, speed in found.table)
        startup = f"{found.job.startup_core_seconds or 0.0:.1f} s on one core"
        apart = "; ".join(f"{each.half[1]:.1f}, {each.one[1]:.1f}, {each.alone.seconds:.1f}" for each in seen[kind])
        print(f"{kind:14}{startup}, then {speeds}; keeps {found.kept:.2f} (each time, half, one and all: {apart} s)")
    rows = []
    for policy in chosen:
        jobs, usually = jobs_of(SCHEDULES[policy], options.scale), [each.usual(pace) for each in runs[policy]]
        told = [
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
            live, foretold = statistics.median(usual), statistics.median(each[job.name] for each in told)
            row = {"policy": policy, "job": job.name, "live": live, "simulated": foretold}
            rows.append({**row, "lowest": min(usual), "highest": max(usual), "passed": passed})
            line = f"{job.name:14}{live:>8.1f} s{foretold:>10.1f} s{foretold / live - 1.0:>+9.1%}"
            print(line + "".join(f"{min(each):>17.1f} to {max(each):.1f} s" for each in (usual, passed)))
    errors = [abs(row["simulated"] / row["live"] - 1.0) for row in rows]
    print(f"\nerror of a completion time: {statistics.mean(errors):.1%} on the mean, {max(errors):.1%} at worst")
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
