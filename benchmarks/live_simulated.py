"""Schedules of real jobs, run for real and simulated: when each job ends, live against simulated.

    python benchmarks/live_simulated.py [--schedules equal,headgate,srpt] [--scale 1] [--isolation container]
                                        [--repetitions 1] [--json PATH]

The simulation is the one of `headgate simulate`: the same controller and policy, a clock of its own. What it is told of
each kind of script is measured beforehand, in runs without any other kind, and nothing is fitted to the runs compared:

- alone: time, CPU time, what it does on one core before it has anything to say, and its losses by work done;
- as many of a kind as there are cores, and twice as many, under `equal`: what a core each brings, and half of one,
  while the others are busy (cores may be threads of one, and caches and memory are shared);
- where it can use more than a core: before a longer one of its kind, under `srpt`, which leaves it most of the machine:
  what it keeps of its speed in company, where threads that wait do not spin and others take turns on its cores, and how
  many of these it can use.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import _frame
from _elastic import KINDS, Job, Stage, epochs, stage

from headgate.cluster import Cluster, Node
from headgate.simulation import Assumptions, TraceJob, simulate
from headgate.simulation.recorded import read
from headgate.simulation.speeds import Interference, Speeds
from headgate.simulation.traces import made
from headgate.telemetry.store import RunReader

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
LONGER = 2.0
"""Times the epochs of the job that comes second under `srpt`: enough for it to stay second, however it is predicted."""


@dataclass(frozen=True)
class Profile:
    """What was measured of a kind.

    Args:
        job: As a trace has it, which comes at 0 s.
        table: Cores and work a second; times `kept` they are what was measured beside others, but for the last point.
        kept: Part of its speed that it keeps beside other jobs.
    """

    job: TraceJob
    table: tuple[tuple[float, float], ...]
    kept: float


def jobs_of(schedule: Sequence[tuple[str, float]], scale: float) -> list[Job]:
    """The jobs of a schedule; `scale` is of their epochs and of the times between them."""
    return [Job(kind, kind, at * scale, epochs(kind, LENGTHS[kind] * scale)) for kind, at in schedule]


def profile(there: Stage, kind: str, scale: float, cores: int) -> Profile:
    """Measure a kind in runs of its own."""
    job = Job(kind, kind, 0.0, epochs(kind, LENGTHS[kind] * scale))
    [alone] = _measured(there, there.start([job], "equal"), [job], cores)
    several, twice = (_alike(there, job, count, cores, alone) for count in (cores, 2 * cores))
    half, one = _mean(twice), _mean(several)
    most, whole = one, _mean([alone])
    if whole[0] > CLEARLY * one[0]:
        longer = replace(job, name=f"{kind}-longer", epochs=epochs(kind, LENGTHS[kind] * scale * LONGER))
        folder = there.start([job, longer], "srpt")
        most = _mean(_measured(there, folder, [job], cores, alone))
        if CLEARLY * most[0] < _entitled(folder, kind):  # what it uses beyond that alone are threads that spin
            whole = most[0], whole[1]
    lower = [half, one] if whole[0] > CLEARLY * one[0] else [half]
    kept = kept_of(one, most, whole)
    table = (*((used, speed / kept) for used, speed in lower), whole)
    return Profile(replace(alone, model=kind, cores=whole[0]), table, kept)


def _alike(there: Stage, job: Job, count: int, cores: int, alone: TraceJob) -> list[TraceJob]:
    """So many of a job at once."""
    jobs = [replace(job, name=f"{job.name}-{place}") for place in range(count)]
    return _measured(there, there.start(jobs, "equal"), jobs, cores, alone)


def _entitled(folder: Path, job: str) -> float:
    """Cores that a job of a run was entitled to in the end."""
    with RunReader(folder / "run.sqlite") as reader:
        rows = reader.rows("shares", "task GLOB ?", [f"{job}/*"], order="t")
        return [float(row["entitled_cores"]) for row in rows][-1]


def kept_of(one: tuple[float, float], most: tuple[float, float], whole: tuple[float, float]) -> float:
    """The part of its speed alone that a job keeps beside another, had it as many cores there: by a straight line
    through what it does on one and on most of them, but no less than on the latter, nor more than in proportion.

    Args:
        one: Cores and work a second beside others, with one core each.
        most: The same with most of the machine.
        whole: The same alone.
    """
    speed = most[1]
    if CLEARLY * one[0] < most[0] < whole[0]:
        ahead = (most[1] - one[1]) * (whole[0] - most[0]) / (most[0] - one[0])
        speed += min(max(ahead, 0.0), most[1] * (whole[0] / most[0] - 1.0))
    return min(speed / whole[1], 1.0)


def _mean(jobs: Sequence[TraceJob]) -> tuple[float, float]:
    """Cores that each used, and its work a second."""
    return statistics.mean(job.cores for job in jobs), 1.0 / statistics.mean(job.seconds for job in jobs)


def _measured(
    there: Stage, folder: Path, jobs: Sequence[Job], cores: int, alone: TraceJob | None = None
) -> list[TraceJob]:
    """Jobs of a run that came at once: of each the seconds from its arrival to its end but for what it does at first,
    on a core or its part of one, and the cores used meanwhile. What it does at first is as much as of the one that ran
    `alone`, or else the work after it would be another: one that cannot use a second core seems to start for longer."""
    ran, recorded = there.went(folder, jobs), {job.name: job for job in read(folder).jobs}
    found = []
    for job in (recorded[each.name] for each in jobs):
        own = job.startup_core_seconds or 0.0
        startup = (alone.startup_core_seconds or 0.0) if alone is not None else own
        seconds = ran[job.name].seconds - startup * max(len(jobs) / cores, 1.0)
        found.append(replace(job, seconds=seconds, cores=(job.seconds * job.cores + own - startup) / seconds))
    return found


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
    made_parser = _frame.parser("Schedules of real jobs, run for real and simulated.", 1)
    made_parser.add_argument("--schedules", default=",".join(SCHEDULES), help="by policy (default: all)")
    made_parser.add_argument("--scale", type=float, default=1.0, help="of epochs and times of arrival (default: 1)")
    made_parser.add_argument("--isolation", default="process", choices=("process", "container"))
    options = made_parser.parse_args()
    _frame.heading(options.repetitions, "torch", "tensorflow-cpu", "jax")
    chosen = options.schedules.split(",")
    kinds = [kind for kind in KINDS if any(kind == each for policy in chosen for each, _ in SCHEDULES[policy])]
    cores = len(os.sched_getaffinity(0))
    rows = []
    with stage(options.isolation, on_lab=False) as there:
        profiles = {kind: profile(there, kind, options.scale, cores) for kind in kinds}
        for kind, found in profiles.items():
            speeds = ", ".join(f"{1 / speed:.1f} s with {used:.2f} cores" for used, speed in found.table)
            startup = f"{found.job.startup_core_seconds or 0.0:.1f} s on one core"
            print(f"{kind:14} {startup}, then {speeds}; keeps {found.kept:.2f} beside another")
        for policy in chosen:
            jobs = jobs_of(SCHEDULES[policy], options.scale)
            runs = [there.run(jobs, policy) for _ in range(options.repetitions)]
            told = simulated(jobs, policy, profiles, cores)
            print(f"\n{policy:14}{'live':>10}{'simulated':>12}{'error':>9}{'lowest and highest live':>26}")
            for job in jobs:
                seconds = [ran[job.name].seconds for ran in runs]
                live, low, high = statistics.median(seconds), min(seconds), max(seconds)
                error = told[job.name] / live - 1.0
                row = {"policy": policy, "job": job.name, "live": live, "simulated": told[job.name]}
                rows.append({**row, "lowest": low, "highest": high})
                line = f"{job.name:14}{live:>8.1f} s{told[job.name]:>10.1f} s{error:>+9.1%}"
                apart = f"{low:>14.1f} to {high:.1f} s, {(high - low) / live:.1%}" if len(runs) > 1 else ""
                print(line + apart)
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
