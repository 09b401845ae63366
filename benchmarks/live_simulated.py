"""Schedules of real jobs, run for real and simulated: when each job ends, live against simulated.

    python benchmarks/live_simulated.py [--schedules equal,headgate,srpt] [--cores 1] [--scale 1]
                                        [--isolation container] [--repetitions 3] [--json PATH]

The simulation is the one of `headgate simulate`: the same controller and policy, a clock of its
own. What it is told of each kind of script is measured in runs of their own, and nothing is fitted
to the runs compared:

- beside each other kind, a core for each job: how fast it is on one core, and what it keeps of that
  beside whom (a small network has taken 1.3 times as long beside one kind as beside another);
- among four kinds, half a core for each job: how fast it is on that, and how much of the cores all
  of them have together, as they do not get all. Always beside other kinds, as who shares a core
  with its like finds more of its data in the cache;
- in both, what it does before it has anything to say;
- alone: its losses by work done, and how fast it is on all cores that it may have.

A job may have one core (`--cores`), so that it has one thread. How fast two threads are that wait
for each other says little of the next minute on a machine whose cores are another's: where what one
core writes takes the other three times as long to read (130 ns and 400 were measured, for minutes
each), a small transformer on both makes three quarters of the steps; sums on one core, and reads of
8 MiB, took as long as before, and no simulation can know of it.

The machine's speed changes from second to second and from minute to minute, too, by what others do
on its host. So each is measured as often as the schedules run, in turn with them, and medians are
compared; and all times, CPU time too, are told at the machine's usual speed, by what a small piece
of work costs meanwhile that has nothing to do with the jobs (`_machine_speed.py`). The seconds that
passed are told beside them.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from pathlib import Path

import _frame
import _machine_speed
import numpy as np
from _elastic import KINDS, Job, Run, Stage, epochs, stage
from _machine_speed import Seconds

from headgate.model.cluster import Cluster, Node
from headgate.planning.interference import Interference
from headgate.recorded.reader import RunReader
from headgate.simulation import Assumptions, TraceJob, simulate
from headgate.simulation.recorded import read
from headgate.simulation.speeds import Speeds
from headgate.simulation.traces import made

LENGTHS = {"vae": 3.0, "cnn": 1.5, "charlm": 4.0, "plain": 1.5, "jax_digits": 28.0}
"""Of the usual epochs. Whoever has less left goes first, so no two jobs of a schedule have about as
much left at a time: live, now one of the two would go first, now the other.
"""
PAIRED = {"vae": 1.0, "cnn": 1.25, "charlm": 1.0, "plain": 1.5, "jax_digits": 28.0}
"""The same for runs of two kinds, about equally long on one core: only what all do at the same time
tells.
"""
HALVED = {"vae": 0.9, "cnn": 1.1, "charlm": 1.0, "plain": 1.1, "jax_digits": 26.0}
"""The same for runs of four kinds, about equally long on half of one."""
SCHEDULES: Mapping[str, Sequence[tuple[str, float]]] = {
    "equal": (("vae", 0.0), ("plain", 5.0), ("cnn", 10.0), ("charlm", 15.0)),
    "headgate": (
        ("charlm", 0.0),
        ("vae", 3.0),
        ("jax_digits", 11.0),
        ("plain", 12.0),
        ("cnn", 27.0),
    ),
    "srpt": (("charlm", 0.0), ("vae", 3.0), ("plain", 15.0), ("cnn", 25.0), ("jax_digits", 59.0)),
}
"""By policy: kinds, and when they arrive (s).

Of 113 drawn for each of the last two, from those whose completion times simulations have least off
(4 %, at worst 30) where each job's speed and start are off by 6 % (the standard deviation), with
starts of 2 to 3 core-seconds, as they are where what frameworks import is compiled and in memory,
and of up to four times that: where another order is as good, one live run has the one and the next
the other.
"""
NODE_KIND = "here"
REPORT_SECONDS = 1.0
"""Between two readings of what a job uses."""
CLEARLY = 1.1
"""Cores from which on a job uses more than one."""
NOBODY = ""
"""Who is beside a job that is alone."""
_MEDIAN = math.pi / 2
"""Variance of the median of many over that of their mean."""


@dataclass(frozen=True)
class Told:
    """What jobs of a run said: of each the times (s since the epoch) and how far it was, in steps
    or epochs; and what they used: when that was read, and the cores since the last time.
    """

    run: Run
    jobs: Mapping[str, TraceJob]
    at: Mapping[str, Sequence[float]]
    done: Mapping[str, Sequence[float]]
    used: Mapping[str, Sequence[tuple[float, float]]]

    def ended(self, name: str) -> float:
        return self.run.began + self.run.ran[name].ended

    def a_unit(self, name: str, pace: Seconds) -> float:
        """Seconds for a step or epoch, of those that it did when all of them were at work."""
        at, done, (start, end) = self.at[name], self.done[name], self._together
        first, last = bisect_left(at, start), bisect_right(at, end) - 1
        if last <= first:
            raise SystemExit(
                f"{', '.join(self.jobs)}: too short to tell how fast they are beside each other"
            )
        return pace(at[first], at[last]) / (done[last] - done[first])

    @property
    def _together(self) -> tuple[float, float]:
        """From when to when all of them were at work."""
        return max(each[0] for each in self.at.values()), min(each[-1] for each in self.at.values())

    def cores(self, name: str) -> float:
        """The mean of those that it used when all of them were at work."""
        start, end = self._together
        used = [cores for at, cores in self.used[name] if start <= at <= end]
        if not used:
            raise SystemExit(
                f"{', '.join(self.jobs)}: too short to tell what cores they use beside each other"
            )
        return statistics.mean(used)

    def units(self, name: str, pace: Seconds) -> float:
        """Steps or epochs from its first report to its last; what it does after that is told in
        those, too.
        """
        at, done = self.at[name], self.done[name]
        return done[-1] - done[0] + pace(at[-1], self.ended(name)) / self.a_unit(name, pace)

    def started(self, name: str, pace: Seconds) -> float:
        """CPU time before its first report."""
        came = self.run.began + self.run.ran[name].at
        speed = pace(came, self.at[name][0]) / (self.at[name][0] - came)
        return (self.jobs[name].startup_core_seconds or 0.0) * speed


@dataclass(frozen=True)
class Seen:
    """What was measured of a kind once.

    Args:
        job: As a trace has it, which comes at 0 s, with the cores that it uses alone, where it has
            all of them, and how long it takes then.
        startup: Core-seconds before its first report.
        on_one: Seconds that it would take on one core, by the kind beside it.
        on_half: Seconds that it would take on half of one, beside any.
        half: Cores that it used then.
    """

    job: TraceJob
    startup: float
    on_one: Mapping[str, float]
    on_half: float
    half: float


@dataclass(frozen=True)
class Profile:
    """What a simulation is told of a kind.

    Args:
        job: As a trace has it, which comes at 0 s.
        table: Cores and how fast it is on them, over how fast it is alone; times what it keeps
            beside others.
        kept: The part of its speed that it keeps beside another kind.
    """

    job: TraceJob
    table: tuple[tuple[float, float], ...]
    kept: Mapping[str, float]


@dataclass(frozen=True)
class Sizes:
    """The most cores of a job, and by what its epochs and when it arrives are scaled."""

    cores: float
    scale: float

    def job(self, kind: str, lengths: Mapping[str, float], at: float = 0.0) -> Job:
        """A job of a kind."""
        return Job(
            kind, kind, at * self.scale, epochs(kind, lengths[kind] * self.scale), cores=self.cores
        )

    def schedule(self, policy: str) -> list[Job]:
        """The jobs of a schedule."""
        return [self.job(kind, LENGTHS, at) for kind, at in SCHEDULES[policy]]


def told(there: Stage, jobs: Sequence[Job]) -> Told:
    """Run jobs under `equal`."""
    folder = there.start(jobs, "equal")
    at: dict[str, list[float]] = {job.name: [] for job in jobs}
    done: dict[str, list[float]] = {job.name: [] for job in jobs}
    used: dict[str, list[tuple[float, float]]] = {job.name: [] for job in jobs}
    run = there.went(folder, jobs)
    with RunReader(folder / "run.sqlite") as reader:
        for row in reader.rows("progress", order="t"):
            name = row["task"].partition("/")[0]
            far = row["epoch"] if row["step"] is None else row["step"]
            if far is not None:
                at[name].append(run.began + row["t"])
                done[name].append(far)
        for row in reader.rows("usage", "target GLOB ?", ["*/*"], order="t"):
            if row["cpu_cores"] is not None:
                used[row["target"].partition("/")[0]].append(
                    (run.began + row["t"], row["cpu_cores"])
                )
    return Told(run, {each.name: each for each in read(folder).jobs}, at, done, used)


def copies(job: Job, count: int) -> list[Job]:
    """As many of a job."""
    return [replace(job, name=f"{job.kind}-{place}") for place in range(count)]


def beside(
    there: Stage,
    groups: Iterable[Sequence[str]],
    lengths: Mapping[str, float],
    sizes: Sizes,
    count: int,
) -> list[Told]:
    """Several kinds at a time, so many jobs of each."""
    return [
        told(there, [job for kind in group for job in copies(sizes.job(kind, lengths), count)])
        for group in groups
    ]


def seen_of(
    kind: str, alone: Told, halved: Sequence[Told], paired: Sequence[Told], pace: Seconds
) -> Seen:
    """What runs tell of a kind: alone, and those of several kinds with half a core for each job, or
    one.
    """

    def of(runs: Sequence[Told]) -> list[tuple[Told, str]]:
        return [(run, name) for run in runs for name in run.jobs if kind_of(name) == kind]

    [(name, whole)] = alone.jobs.items()
    units = alone.units(name, pace)
    first = whole.losses[0][0] if whole.losses else 0.0
    losses = tuple(((done - first) / (1.0 - first), loss) for done, loss in whole.losses)
    on_one: dict[str, list[float]] = {}
    for run, each in of(paired):
        [other] = {kind_of(job) for job in run.jobs} - {kind}
        on_one.setdefault(other, []).append(units * run.a_unit(each, pace))
    return Seen(
        job=replace(whole, seconds=units * alone.a_unit(name, pace), losses=losses),
        startup=statistics.mean(run.started(each, pace) for run, each in of([*halved, *paired])),
        on_one={other: statistics.mean(seconds) for other, seconds in on_one.items()},
        on_half=statistics.mean(units * run.a_unit(each, pace) for run, each in of(halved)),
        half=statistics.mean(run.cores(each) for run, each in of(halved)),
    )


def kind_of(name: str) -> str:
    """That one of `copies` is of."""
    return name.rpartition("-")[0]


def agreed(seen: Mapping[str, Sequence[Seen]]) -> dict[str, dict[str, float]]:
    """Seconds that each kind takes on one core, by the kind beside it; of kinds that can use no
    more also beside none.

    One run each says little where a kind takes up to a tenth more or less a minute later. So a kind
    is first taken to take a time of its own, times what the other one costs anybody, which all runs
    tell together (least squares of the logarithms of medians); by how far a pair is off that counts
    only in so far as such differences are larger than repetitions explain (shrinkage, James and
    Stein 1961; all of it where there are no repetitions).
    """

    def times(each: Seen) -> dict[str, float]:
        return (
            dict(each.on_one)
            if each.job.cores > CLEARLY
            else {NOBODY: each.job.seconds, **each.on_one}
        )

    measured = {
        (kind, other): np.log([times(each)[other] for each in repeated])
        for kind, repeated in seen.items()
        for other in times(repeated[0])
        if all(other in times(each) for each in repeated)
    }
    kinds, others = (sorted({pair[place] for pair in measured}) for place in (0, 1))
    rows = np.array(
        [
            [*(kind == each for each in kinds), *(other == each for each in others)]
            for kind, other in measured
        ]
    )
    middle = np.array([np.median(logs) for logs in measured.values()])
    fitted = rows @ np.linalg.lstsq(rows.astype(float), middle, rcond=None)[0]
    free, count = len(middle) - np.linalg.matrix_rank(rows), min(map(len, measured.values()))
    kept = 1.0
    if free > 0 and count > 1:
        noise = _MEDIAN * np.mean([np.var(logs, ddof=1) / len(logs) for logs in measured.values()])
        kept = max(1.0 - noise / (np.sum((middle - fitted) ** 2) / free), 0.0)
    found: dict[str, dict[str, float]] = {kind: {} for kind in seen}
    for (kind, other), log in zip(measured, fitted + kept * (middle - fitted), strict=True):
        found[kind][other] = float(np.exp(log))
    return found


def profile(kind: str, seen: Sequence[Seen], on_one: Mapping[str, float]) -> Profile:
    """What several measurements tell of a kind: those in the middle, and what was `agreed` of
    it.
    """
    job = sorted((each.job for each in seen), key=lambda job: job.seconds)[len(seen) // 2]
    rows = zip(
        *((each.startup, each.job.seconds, each.on_half, each.half) for each in seen), strict=True
    )
    startup, alone, on_half, half = map(statistics.median, rows)
    several = job.cores > CLEARLY
    usual = on_one.get(NOBODY, min(on_one.values()))  # where it can be told, as it is beside nobody
    kept = {other: usual / seconds for other, seconds in on_one.items() if other != NOBODY}
    alone = alone if several else usual
    table = [(half, alone / on_half / statistics.mean(kept.values())), (job.cores, 1.0)]
    if several:
        table.insert(1, (1.0, alone / usual))
    return Profile(
        replace(job, model=kind, seconds=alone, startup_core_seconds=startup), tuple(table), kept
    )


def simulated(
    jobs: Sequence[Job], policy: str, profiles: Mapping[str, Profile], cores: float
) -> dict[str, float]:
    """Seconds from each job's arrival to its end."""
    trace = made(
        policy, [replace(profiles[job.kind].job, name=job.name, submitted=job.at) for job in jobs]
    )
    pairs = {kind: found.kept for kind, found in profiles.items()}
    assumptions = Assumptions(
        speeds=Speeds(tables={kind: found.table for kind, found in profiles.items()}),
        interference=Interference({NODE_KIND: pairs}),
        report_seconds=REPORT_SECONDS,
    )
    cluster = Cluster((Node("here", cores=cores, memory_bytes=1 << 40, kind=NODE_KIND),))
    outcome = simulate(trace, cluster, policy, assumptions)
    return {
        job.job.name: job.ended - job.job.submitted for job in outcome.jobs if job.ended is not None
    }


def main() -> None:
    made_parser = _frame.parser("Schedules of real jobs, run for real and simulated.", 3)
    made_parser.add_argument(
        "--schedules", default=",".join(SCHEDULES), help="by policy (default: all)"
    )
    made_parser.add_argument(
        "--cores", type=float, default=1.0, help="the most of a job (default: 1)"
    )
    made_parser.add_argument(
        "--scale", type=float, default=1.0, help="of epochs and times of arrival (default: 1)"
    )
    made_parser.add_argument("--isolation", default="process", choices=("process", "container"))
    options = made_parser.parse_args()
    chosen = options.schedules.split(",")
    if unknown := [name for name in chosen if name not in SCHEDULES]:
        made_parser.error(
            f"--schedules: found {', '.join(unknown)}; expected some of {', '.join(SCHEDULES)}"
        )
    _frame.heading(options.repetitions, "torch", "tensorflow-cpu", "jax")
    kinds = [
        kind
        for kind in KINDS
        if any(kind == each for policy in chosen for each, _ in SCHEDULES[policy])
    ]
    cores = len(os.sched_getaffinity(0))
    sizes, count = Sizes(options.cores, options.scale), max(cores // 2, 1)
    alone: dict[str, list[Told]] = {kind: [] for kind in kinds}
    halved: list[list[Told]] = []
    paired: list[list[Told]] = []
    runs: dict[str, list[Run]] = {policy: [] for policy in chosen}
    with tempfile.TemporaryDirectory() as folder, stage(options.isolation, on_lab=False) as there:
        with _machine_speed.probing(Path(folder, "pace")):
            for number in range(options.repetitions):
                print(f"repetition {number + 1}", file=sys.stderr)
                for kind in kinds:
                    alone[kind].append(told(there, copies(sizes.job(kind, LENGTHS), 1)))
                halved.append(beside(there, combinations(kinds, 4), HALVED, sizes, count))
                paired.append(beside(there, combinations(kinds, 2), PAIRED, sizes, count))
                for policy in chosen:
                    runs[policy].append(there.run(sizes.schedule(policy), policy))
        pace = _machine_speed.read(Path(folder, "pace"))
    seen = {
        kind: [seen_of(kind, *each, pace) for each in zip(alone[kind], halved, paired, strict=True)]
        for kind in kinds
    }
    on_one = agreed(seen)
    profiles = {kind: profile(kind, each, on_one[kind]) for kind, each in seen.items()}
    had = statistics.median(sum(map(run.cores, run.jobs)) for each in halved for run in each)
    print(f"jobs that could use more than all have {had:.2f} of {cores} cores")
    for kind, found in profiles.items():
        speeds = ", ".join(f"{speed:.2f} of it on {used:.2f}" for used, speed in found.table)
        startup = f"{found.job.startup_core_seconds or 0.0:.1f} s on one core"
        kept = ", ".join(f"{part:.2f} beside {other}" for other, part in found.kept.items())
        print(
            f"{kind:14}{startup}, then {found.job.seconds:.1f} s alone; {speeds} cores; "
            f"keeps {kept}"
        )
        apart = "; ".join(
            f"{each.job.seconds:.1f} s, "
            f"{', '.join(f'{seconds:.1f}' for seconds in each.on_one.values())} s, "
            f"{each.on_half:.1f} s"
            for each in seen[kind]
        )
        print(f"{'':14}each time alone, on one core beside these, and on half of one: {apart}")
    rows, errors, once, again = [], [], [], []
    for policy in chosen:
        jobs, usually = sizes.schedule(policy), [each.usual(pace) for each in runs[policy]]
        expected = [
            simulated([replace(job, at=ran[job.name].at) for job in jobs], policy, profiles, had)
            for ran in usually
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
            live, foretold = (
                statistics.median(usual),
                statistics.median(each[job.name] for each in expected),
            )
            row = {"policy": policy, "job": job.name, "live": live, "simulated": foretold}
            rows.append({**row, "lowest": min(usual), "highest": max(usual), "passed": passed})
            once += [abs(foretold / one - 1.0) for one in usual]
            again += [abs(one / other - 1.0) for one, other in permutations(usual, 2)]
            line = f"{job.name:14}{live:>8.1f} s{foretold:>10.1f} s{foretold / live - 1.0:>+9.1%}"
            print(
                line
                + "".join(f"{min(each):>17.1f} to {max(each):.1f} s" for each in (usual, passed))
            )
        off = [abs(row["simulated"] / row["live"] - 1.0) for row in rows[-len(jobs) :]]
        print(
            f"error of a completion time: {statistics.mean(off):.1%} on average, "
            f"{max(off):.1%} at worst"
        )
        errors += off
    print(f"\nof all: {statistics.mean(errors):.1%} on average, {max(errors):.1%} at worst")
    if again:
        print(f"of each live run: {statistics.mean(once):.1%} on average, {max(once):.1%} at worst")
        print(
            f"by another live run instead: {statistics.mean(again):.1%} on average, "
            f"{max(again):.1%} at worst"
        )
    content = {
        "scale": options.scale,
        "cores": options.cores,
        "cores_had": had,
        "profiles": {
            kind: {
                "startup": found.job.startup_core_seconds,
                "table": found.table,
                "kept": found.kept,
            }
            for kind, found in profiles.items()
        },
        "rows": rows,
        "mean_error": statistics.mean(errors),
        "worst_error": max(errors),
        "of_each_live_run": once,
        "by_another_live_run": again,
    }
    _frame.write(options.json, "live_simulated", content, "torch", "tensorflow-cpu", "jax")


if __name__ == "__main__":
    main()
