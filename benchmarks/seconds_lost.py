"""Seconds that a job lost to its neighbours: as `headgate explain` tells them, against the same job
then run alone.

    python benchmarks/seconds_lost.py [--cases 20] [--seconds 8] [--policy both] [--json PATH]

Jobs with a fixed number of steps, in scripts that use headgate.torch and in plain ones, some of
which change by themselves meanwhile, run beside a neighbour that comes late, comes and goes, is
niced, or starts many processes: a program outside Headgate, or a job. Before and after its cases
each job runs by itself. What it really lost is how much longer it ran than in the mean of those
two, which themselves tell how steady the machine is; if it was faster, it lost nothing. They are
the controls too: nobody may be blamed in them. A loss of less than a tenth of the time is left out
of the errors: the machine's noise is as large. Needs a machine of two cores that does nothing else;
all cases take about ten minutes.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import _frame

PLAIN = Path(__file__).parent / "plain"
TRIED_STEPS = 120
"""Of a job that is run to see how long a step takes."""
SLIGHT = 0.1
"""Part of its time: a job that lost less lost as much as the machine's noise."""


class Victim(NamedTuple):
    """A job of `plain/changing.py`."""

    kind: str
    course: str = "steady"
    aware: bool = False

    def __str__(self) -> str:
        course = "" if self.course == "steady" else f" {self.course}"
        return f"{self.kind}{' aware' if self.aware else ''}{course}"


@dataclass(frozen=True)
class Neighbour:
    """What runs beside a job: a program of `plain/hog.py`, or a job of `plain/unlike.py` if it is
    of no such kind.

    Args:
        after: When it comes, as a part of the job's time alone.
        lasts: How long it stays, likewise.
        bursts: Seconds that it is there and away in turn; none: it stays.
        nice: Its niceness.
        costs: Whether it can cost the job anything.
    """

    name: str
    kind: str
    count: int = 1
    after: float = 0.3
    lasts: float = 0.6
    bursts: tuple[float, float] | None = None
    nice: int = 0
    costs: bool = True


TWO = Neighbour("two, once", "cores", 2)
NICED = Neighbour("two, nice 19", "cores", 2, nice=19)
MANY = Neighbour("many processes", "processes", 4)
ONE = Neighbour("one, once", "cores")
BURSTS = Neighbour("one, in bursts", "cores", after=0.2, lasts=1.2, bursts=(2.0, 2.0))
INNOCENT = Neighbour("other core, half way", "cores", after=0.5, lasts=2.0, costs=False)
MEMORY = Neighbour("memory, once", "memory")
MEMORY_BURSTS = Neighbour("memory, bursts", "memory", after=0.2, lasts=1.2, bursts=(2.0, 2.0))
JOB = Neighbour("a job", "objects")

CASES: Sequence[tuple[Victim, Neighbour, str]] = (
    *((Victim("transformer"), beside, "none") for beside in (TWO, NICED, MANY, BURSTS, JOB)),
    *((Victim("transformer", aware=True), beside, "none") for beside in (ONE, NICED, MANY, BURSTS)),
    *((Victim("objects", "half-way"), beside, "none") for beside in (INNOCENT, BURSTS, TWO)),
    *((Victim("transformer", "growing"), beside, "none") for beside in (ONE, BURSTS)),
    *((Victim("stream"), beside, "none") for beside in (MEMORY_BURSTS, MEMORY)),
    (Victim("transformer", "phases", aware=True), BURSTS, "none"),
    *((Victim("transformer", aware=each), JOB, "headgate") for each in (False, True)),
    (Victim("objects", "half-way"), JOB, "headgate"),
)
"""With the policy that shares the cores."""


class Lab:
    """Runs jobs, and tells what Headgate says of them.

    Args:
        folder: For all that they write.
        seconds: That a job takes alone, about.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._steps: dict[str, int] = {}

    @property
    def variables(self) -> dict[str, str]:
        return _frame.environment(
            HEADGATE_HOME=str(self._folder / "home"), CAUSES_FOLDER=str(self._folder)
        )

    def ran(
        self, victim: Victim, beside: Neighbour | None = None, policy: str = "none"
    ) -> dict[str, Any]:
        """What `headgate explain --json` says of a job after it ran."""
        return self._run(victim, self._steps_of(victim), beside, policy)

    def _steps_of(self, victim: Victim) -> int:
        """Steps that take it about its time alone."""
        usual = Victim(victim.kind, aware=victim.aware)
        key = str(usual)
        if key not in self._steps:
            job = self._run(usual, TRIED_STEPS, None, "none")
            stepping = job["elapsed"] - sum(
                job["account"][part]["seconds"] for part in ("waiting", "starting")
            )
            self._steps[key] = max(
                round(TRIED_STEPS * self._seconds / max(stepping, 0.1)), TRIED_STEPS
            )
        return self._steps[key]

    def _run(
        self, victim: Victim, steps: int, beside: Neighbour | None, policy: str
    ) -> dict[str, Any]:
        words = [victim.kind, "--course", victim.course, "--steps", str(steps)]
        script = "changing_aware.py" if victim.aware else "changing.py"
        jobs = [_job("victim", script, words)]
        if beside is JOB:
            seconds = self._seconds * JOB.lasts + 3.0
            late = {"at": 4.0 + self._seconds * JOB.after}  # a start takes some seconds
            jobs.append(
                {**_job("beside", "unlike.py", [JOB.kind, "--seconds", f"{seconds:g}"]), **late}
            )
        file, begun = self._folder / "jobs.yaml", self._folder / "begun"
        file.write_text(json.dumps({"jobs": jobs}))
        begun.unlink(missing_ok=True)
        command = [sys.executable, "-m", "headgate"]
        hogs = self._hogs(beside) if beside is not None and beside is not JOB else None
        try:
            asked = [*command, "run", str(file), "--policy", policy]
            subprocess.run(
                asked, env=self.variables, check=True, stdout=subprocess.DEVNULL, timeout=600
            )
        finally:
            if hogs is not None:
                with suppress(ProcessLookupError):
                    os.killpg(hogs.pid, signal.SIGKILL)
                hogs.wait()
        asked = [*command, "explain", "--json"]
        told = subprocess.run(asked, env=self.variables, check=True, capture_output=True, text=True)
        found: dict[str, Any] = next(
            job for job in json.loads(told.stdout)["jobs"] if job["job"] == "victim"
        )
        return found

    def _hogs(self, beside: Neighbour) -> subprocess.Popen[bytes]:
        after, lasts = (f"{part * self._seconds:g}" for part in (beside.after, beside.lasts))
        words = [beside.kind, "--count", str(beside.count), "--after", after, "--seconds", lasts]
        if beside.bursts is not None:
            words += ["--on", str(beside.bursts[0]), "--off", str(beside.bursts[1])]
        command = ["nice", "-n", str(beside.nice), sys.executable, str(PLAIN / "hog.py"), *words]
        return subprocess.Popen(
            command, env=self.variables, stdout=subprocess.DEVNULL, start_new_session=True
        )


def _job(name: str, script: str, words: Sequence[str]) -> dict[str, Any]:
    return {
        "name": name,
        "script": str(PLAIN / script),
        "python": sys.executable,
        "args": list(words),
    }


def seconds_of(job: dict[str, Any]) -> float:
    """Seconds from its start to its end."""
    return float(job["elapsed"] - job["account"]["waiting"]["seconds"])


def lost(job: dict[str, Any]) -> tuple[float, float, float]:
    """Seconds, with the ends of their band, that it lost to neighbours."""
    part = job["account"]["neighbours"]
    return part["seconds"], part["low"], part["high"]


def main() -> None:
    made = _frame.parser("Seconds lost to neighbours, told and measured.", 1)
    made.add_argument(
        "--cases", type=int, default=len(CASES), help=f"the first of {len(CASES)} (default: all)"
    )
    made.add_argument(
        "--seconds", type=float, default=8.0, help="that a job takes alone, about (default: 8)"
    )
    made.add_argument(
        "--policy",
        choices=("none", "headgate", "both"),
        default="both",
        help="only its cases (default: both)",
    )
    options = made.parse_args()
    _frame.heading(options.repetitions, "torch", "numpy")
    columns = "".join(f"{name:>8}" for name in ("shared", "alone", "differ", "lost", "told"))
    print(f"{'job':28}{'beside':22}{'policy':9}{columns}   {'band':16}{'held':6}verdict")
    rows: list[dict[str, Any]] = []
    cases = [case for case in CASES[: options.cases] if options.policy in ("both", case[2])]
    with tempfile.TemporaryDirectory() as place, _frame.leaving():
        lab = Lab(Path(place), options.seconds)
        try:
            for victim, group in groupby(cases, key=lambda case: case[0]):
                before = lab.ran(victim)
                shared = [
                    (beside, policy, lab.ran(victim, beside, policy)) for _, beside, policy in group
                ]
                after = lab.ran(victim)
                rows += [_row(victim, *each, (before, after)) for each in shared]
        finally:
            _frame.end_hubs(lab.variables)
    _frame.write(
        options.json, "seconds_lost", {"rows": rows, "summary": _summary(rows)}, "torch", "numpy"
    )


def _row(
    victim: Victim,
    beside: Neighbour,
    policy: str,
    shared: dict[str, Any],
    controls: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Print a line of the table."""
    alone = statistics.mean(map(seconds_of, controls))
    differ = abs(seconds_of(controls[1]) - seconds_of(controls[0]))
    truly, (told, low, high) = seconds_of(shared) - alone, lost(shared)
    held, verdict = low <= max(truly, 0.0) <= high, shared["verdict"]["name"]
    times = f"{seconds_of(shared):>8.1f}{alone:>8.1f}{differ:>8.1f}{truly:>8.1f}{told:>8.1f}"
    band = f"{low:.1f} to {high:.1f}"
    print(
        (
            f"{victim!s:28}{beside.name:22}{policy:9}{times}   "
            f"{band:16}{'yes' if held else 'no':6}{verdict}"
        ),
        flush=True,
    )
    return {
        "job": str(victim),
        "beside": beside.name,
        "policy": policy,
        "costs": beside.costs,
        "shared": seconds_of(shared),
        "alone": list(map(seconds_of, controls)),
        "differ": differ,
        "lost": truly,
        "told": told,
        "low": low,
        "high": high,
        "held": held,
        "held_but_for_noise": low - differ <= max(truly, 0.0) <= high + differ,
        "verdict": verdict,
        "blamed_alone": max(lost(control)[0] / seconds_of(control) for control in controls),
        "losses": shared["lost"],
    }


def _summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Print the errors of all rows."""
    sure = [row for row in rows if row["lost"] >= SLIGHT * row["shared"]]
    errors = [abs(row["told"] - row["lost"]) / row["lost"] for row in sure]
    blamed = [row for row in rows if row["verdict"].startswith("neighbour")]
    summary = {
        "rows": len(rows),
        "lost": len(sure),
        "median_error": statistics.median(errors) if errors else None,
        "held": sum(row["held"] for row in rows),
        "held_but_for_noise": sum(row["held_but_for_noise"] for row in rows),
        "blamed_without_loss": sum(row["lost"] < SLIGHT / 2 * row["shared"] for row in blamed),
        "blamed_alone": len({row["job"] for row in rows if row["blamed_alone"] > SLIGHT / 2}),
    }
    middle = (
        f"median error {summary['median_error']:.0%} of what was lost"
        if errors
        else "nothing was lost"
    )
    print(f"\n{len(sure)} of {len(rows)} lost 10 % or more: {middle}")
    print(
        f"bands of 90 % held {summary['held']} of {len(rows)}, {summary['held_but_for_noise']} but "
        "for what the same job alone differs by (aim 85 to 95 %)"
    )
    print(f"neighbours blamed for less than 5 %: {summary['blamed_without_loss']} (aim 0)")
    print(f"jobs alone that lost 5 % or more to somebody: {summary['blamed_alone']} (aim 0)")
    return summary


if __name__ == "__main__":
    main()
