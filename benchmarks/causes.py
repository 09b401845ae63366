"""What `headgate explain` says of jobs with a known cause: a matrix of causes and verdicts.

    python benchmarks/causes.py [--draws 5] [--only NAME,...] [--plain] [--minutes 20]
        [--keep FOLDER] [--json PATH]

Each draw injects a cause with real jobs, real programs beside them, or nodes of a lab, of other
sizes and seeds than the draw before; runs it; and reads the verdict. Half of the draws are of plain
scripts where the cause allows. Needs a machine of two cores or more that does nothing else, and
root for the lab. A draw takes about fourteen seconds.

With `--plain` each draw is made twice, one after the other: with Headgate's calls, and as a plain
script. Causes on the lab are left out, because several workers with the same mathematics need the
calls. The first draws of all causes come before the second ones.

With `--minutes` no draw begins that is not likely to end by then.

The JSON is written after each draw. If the file is there already, only the draws that it lacks are
made.

Some causes may do nothing on some machines. Where that can be measured within the draw, it is:
steps before and after a program came beside them, or steps with and without. A cause that cost
hardly what a verdict asks for, or less, had no effect. It is not counted as a cause; but whoever is
blamed for nothing is counted as blamed without a cause.

A draw that begins while other programs use a third of a core or more is not counted either: it says
`busy`. A draw whose run failed is kept in the JSON with the reason.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import _frame
import psutil
from _causes import CAUSES, LAB, NODE_CORES, NODES, Cause, Hog, Trial, in_both_forms

from headgate.recorded.reader import RunReader

DRAW_SECONDS = 14.0
SETTLE_SECONDS, EDGE_SECONDS = 1.5, 0.3
"""The first steps, and those around the time at which a program comes, tell nothing of its
effect.
"""
LEAST_PART, LEAST_SECONDS = 0.05, 1.0
"""Of a job's time: what cost less is no cause to a verdict, as docs/explain.md says."""
SURE, NOTHING = 1.5, 0.5
"""Times that: a cause that cost more has to be told, and one that cost less is not to be. Between
these both is right, because two measures of one thing differ.
"""
MOST_BUSY, QUIET_SECONDS, QUIET_TRIES = 0.33, 1.0, 5
"""Cores that others may use before a draw, how long that is looked at, and how often."""
BLAMES = "neighbour-"
UNKNOWN = "not-known"


class Given(NamedTuple):
    """A verdict that was given.

    Args:
        cost: Seconds that the cause was measured to cost; None where that was not measured.
        seconds: Of the draw.
        busy: Cores that were in use before it began.
    """

    cause: str
    draw: int
    job: str
    name: str
    right: bool
    blames: bool
    cost: float | None
    why: str
    seconds: float
    told: Mapping[str, Any]
    busy: float = 0.0

    @property
    def _times(self) -> float:
        """What it cost, over the least that a verdict asks for."""
        least = max(LEAST_PART * float(self.told["elapsed"]), LEAST_SECONDS)
        return self.cost / least if self.cost is not None else SURE

    @property
    def is_busy(self) -> bool:
        return self.busy > MOST_BUSY

    @property
    def effect(self) -> bool:
        return self._times >= SURE and not self.is_busy

    @property
    def mark(self) -> str:
        if self.is_busy:
            return "busy"
        if not self.effect:
            return "blamed" if self.blames and self._times < NOTHING else "no effect"
        return "right" if self.right else "none" if self.name == UNKNOWN else "WRONG"


# --- runs -----------------------------------------------------------------------------------------

HEADGATE = [sys.executable, "-m", "headgate"]


class Failed(Exception):
    """A draw whose run did not end as it should."""


def explained(
    trial: Trial, folder: Path, variables: dict[str, str]
) -> tuple[list[dict[str, Any]], float | None]:
    """What `headgate explain --json` says of its jobs after they ran, and the seconds that the
    cause was measured to cost.

    Raises:
        Failed: The run failed, or lasted too long.
    """
    for name in ("started", "begun", "effect"):
        (folder / name).unlink(missing_ok=True)
    file = folder / "jobs.yaml"
    file.write_text(json.dumps({"jobs": trial.jobs}))
    with running(trial.hogs, variables) as first:
        asked = [*HEADGATE, "run", str(file), *trial.flags]
        with subprocess.Popen(
            asked, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as run:
            try:
                with changing(trial.changed, folder / "started", run, variables):
                    said, _ = run.communicate(timeout=_frame.SECONDS)
            except subprocess.TimeoutExpired:
                run.send_signal(signal.SIGINT)  # ends its jobs as well
                raise Failed(f"headgate run took more than {_frame.SECONDS:g} s") from None
    if run.returncode:
        raise Failed(f"headgate run ended with {run.returncode}: {said}")
    asked = [*HEADGATE, "explain", "--json"]
    told = json.loads(
        subprocess.run(asked, env=variables, check=True, capture_output=True, text=True).stdout
    )
    store = Path(variables["HEADGATE_HOME"]) / "runs" / told["run"] / "run.sqlite"
    return told["jobs"], measured(store, trial.jobs[0]["name"], first(), folder / "effect")


@contextmanager
def changing(
    changed: Sequence[str], started: Path, run: subprocess.Popen[str], variables: dict[str, str]
) -> Iterator[None]:
    """A node of the lab has other settings once the job has started, and those from before
    afterwards.
    """
    if not changed:
        yield
        return
    command = [*HEADGATE, "lab", "set", f"{LAB}/{changed[0]}"]
    _frame.until(lambda: started.exists() or run.poll() is not None, "the job starts")
    subprocess.run([*command, *changed[1:]], env=variables, check=True, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        subprocess.run(
            [*command, f"cores={NODE_CORES}"], env=variables, check=True, stdout=subprocess.DEVNULL
        )


@contextmanager
def running(hogs: Sequence[Hog], variables: dict[str, str]) -> Iterator[Callable[[], str]]:
    """These programs run, and are gone afterwards. The first is asked for what it printed."""
    started: list[subprocess.Popen[str]] = []
    said: list[str] = []
    try:
        for each in hogs:
            within = [*HEADGATE, "lab", "exec", f"{LAB}/{each.node}", "--"] if each.node else []
            command = [*within, *each.words]
            prints = subprocess.PIPE if "--after" in each.words else subprocess.DEVNULL
            started.append(
                subprocess.Popen(
                    command, env=variables, start_new_session=True, stdout=prints, text=True
                )
            )
        yield lambda: said[0] if said else ""
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGTERM)
            said.append(process.communicate()[0] or "")


def measured(store: Path, job: str, came: str, effect: Path) -> float | None:
    """Seconds that the cause cost a job, by its steps and not by what Headgate makes of them; None
    if that was not measured.

    Args:
        came: When a program came beside it, seconds since 1970, a line for each of its processes.
        effect: Where the script wrote which part of a step its cause costs.
    """
    with RunReader(store) as reader:
        began = float(reader.meta()["began"])
        rows = [
            row
            for row in reader.rows("progress", order="t, rowid")
            if row["task"].startswith(f"{job}/")
        ]
    told = [(float(row["t"]), float(row["step"])) for row in rows if row["step"] is not None]
    if not told:
        return None
    (first, _), (last, _) = told[0], told[-1]
    if effect.exists():
        return float(effect.read_text()) * (last - first)
    if not came.strip():
        return None
    at = float(came.split()[0]) - began
    alone = rate(told, first + SETTLE_SECONDS, at - EDGE_SECONDS)
    beside = rate(told, at + EDGE_SECONDS, last)
    return (1.0 - beside / alone) * (last - at) if alone and beside is not None else None


def rate(told: Sequence[tuple[float, float]], begin: float, end: float) -> float | None:
    """Steps a second between two times; None if nothing tells."""
    inside = [(t, step) for t, step in told if begin <= t <= end]
    if len(inside) < 3:
        return None
    (first, of_first), (last, of_last) = inside[0], inside[-1]
    return (of_last - of_first) / (last - first) if last > first else None


def blamed(job: Mapping[str, Any]) -> str:
    """To whom it lost most, itself and its node left out; empty: to nobody."""
    others = [loss for loss in job["lost"] if loss["to"] not in ("itself", "node")]
    return str(max(others, key=lambda loss: loss["seconds"])["to"]) if others else ""


def judged(
    cause: Cause,
    draw: int,
    trial: Trial,
    jobs: Sequence[Mapping[str, Any]],
    cost: float | None,
    seconds: float,
    busy: float,
) -> Iterator[Given]:
    names = [each["name"] for each in trial.jobs]
    for told in jobs:
        if cause.control or told["job"] == names[0]:
            name = told["verdict"]["name"]
            right = name in cause.right and (not trial.to or blamed(told) == trial.to)
            yield Given(
                cause=cause.name,
                draw=draw,
                job=told["job"],
                name=name,
                right=right,
                blames=name.startswith(BLAMES),
                cost=cost,
                why=told["verdict"]["why"],
                seconds=seconds,
                told=told,
                busy=busy,
            )


def busy_cores() -> float:
    """Cores in use now: what the run before leaves to do has some time."""
    cores, tries = math.inf, 0
    while cores > MOST_BUSY and tries < QUIET_TRIES:
        part = psutil.cpu_percent(QUIET_SECONDS) / 100.0
        cores, tries = min(cores, part * (psutil.cpu_count() or 1)), tries + 1
    return cores


# --- the matrix -----------------------------------------------------------------------------------


def print_matrix(causes: Sequence[Cause], given: Sequence[Given]) -> None:
    print(f"\n{'cause':32}{'right':>6}{'none':>6}{'wrong':>6}{'no effect':>11}  verdicts given")
    for cause in causes:
        mine = [each for each in given if each.cause == cause.name]
        marks = Counter(each.mark for each in mine)
        without = marks["no effect"] + marks["blamed"]
        counts = ", ".join(
            f"{name} {count}" for name, count in Counter(each.name for each in mine).most_common()
        )
        row = f"{marks['right']:>6}{marks['none']:>6}{marks['WRONG']:>6}{without:>11}"
        print(f"{cause.name:32}{row}  {counts}")
        if cause.why:
            print(f"{'':63}right is {' or '.join(cause.right)}: {cause.why}")


def summary(causes: Sequence[Cause], given: Sequence[Given]) -> dict[str, Any]:
    controls = {cause.name for cause in causes if cause.control}
    there = [each for each in given if each.effect]
    told = [each for each in there if each.name != UNKNOWN]
    found = {
        "verdicts": len(there),
        "right_of_given": sum(each.right for each in told) / len(told) if told else None,
        "none_given": 1.0 - len(told) / len(there) if there else None,
        "no_effect": sum(not draw.effect and not draw.is_busy for draw in given),
        "busy": sum(draw.is_busy for draw in given),
        "neighbours_blamed_in_controls": sum(
            each.blames for each in there if each.cause in controls
        ),
        "neighbours_blamed_without_effect": sum(each.mark == "blamed" for each in given),
    }

    def part(name: str) -> str:
        return f"{found[name]:.1%}" if found[name] is not None else "no draw"

    print(f"\nright of those given: {part('right_of_given')} (aim 95 %)")
    print(f"none given: {part('none_given')} (aim 10 % at most)")
    print(f"neighbours blamed in the controls: {found['neighbours_blamed_in_controls']} (aim 0)")
    print(
        f"draws whose cause had no effect: {found['no_effect']}, "
        f"neighbours blamed in these: {found['neighbours_blamed_without_effect']} (aim 0)"
    )
    print(f"draws begun on a busy machine, not counted: {found['busy']}")
    return found


class Draws:
    """The draws of a look: which are done, and how long the others will take.

    Args:
        path: Of the JSON, written after each draw; None: none is.
        seconds: That they may take; infinite: as long as they do.

    Raises:
        SystemExit: The file is of something else.
    """

    def __init__(
        self,
        causes: Sequence[Cause],
        draws: int,
        seed: int,
        path: Path | None,
        seconds: float = math.inf,
    ) -> None:
        self._causes, self.seed, self._path = causes, seed, path
        self._until = time.monotonic() + seconds
        self._kept: list[Given] = []
        self._failures: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self._kept = self._read(path)
        done = {(each.cause, each.draw) for each in self._kept}
        self.left = {
            cause.name: [n for n in range(draws) if (cause.name, n) not in done] for cause in causes
        }
        self._number = sum(map(len, self.left.values()))
        self._done = 0
        self._draws = draws

    @property
    def given(self) -> list[Given]:
        """Of the causes that were asked for."""
        names = {cause.name for cause in self._causes}
        return [each for each in self._kept if each.cause in names and each.draw < self._draws]

    def _read(self, path: Path) -> list[Given]:
        try:
            content = json.loads(path.read_text())
            found = [Given(**row) for row in content["rows"]]
        except (ValueError, TypeError, KeyError):
            raise SystemExit(f"{path} is no JSON of this benchmark; name another file") from None
        if content.get("seed") != self.seed:
            raise SystemExit(
                f"{path} is of seed {content.get('seed')}; give --seed {content.get('seed')}, "
                "or another file"
            )
        return found

    def add(self, given: Sequence[Given]) -> None:
        self._kept += given
        self._done += 1
        self.write({})

    def failed(self, cause: str, draw: int, why: str) -> None:
        self._failures.append({"cause": cause, "draw": draw, "why": why})
        self.write({})

    def write(self, figures: Mapping[str, Any]) -> None:
        rows = [each._asdict() for each in self._kept]
        content = {"seed": self.seed, **figures, "failed": self._failures, "rows": rows}
        _frame.write(self._path, "causes", content, "torch", "numpy")

    def has_time(self) -> bool:
        """Whether a draw of the usual length would end in time."""
        usual = max((each.seconds for each in self._kept), default=DRAW_SECONDS)
        return time.monotonic() + usual <= self._until

    def progress(self) -> str:
        """`12/125, 28 min left`, by how long the draws of each cause have taken so far."""
        took = {each.cause: each.seconds for each in self._kept}
        usual = sum(took.values()) / len(took) if took else DRAW_SECONDS
        seconds = sum(took.get(name, usual) * len(left) for name, left in self.left.items())
        return f"{self._done}/{self._number}, {seconds / 60:.0f} min left"


def chosen(only: str) -> list[Cause]:
    names = [name.strip() for name in only.split(",") if name.strip()]
    known = {cause.name: cause for cause in CAUSES}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"no cause {', '.join(unknown)}; there are: {', '.join(known)}")
    return [known[name] for name in names] or list(CAUSES)


def main() -> None:
    made = _frame.parser("Verdicts given for causes that are known.", 1)
    made.add_argument("--draws", type=int, default=5, help="of each cause (default: 5)")
    made.add_argument("--only", default="", metavar="NAME,...", help="these causes")
    made.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    made.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the runs, in this HEADGATE_HOME"
    )
    made.add_argument(
        "--plain", action="store_true", help="each draw with the calls, and as a plain script"
    )
    made.add_argument(
        "--minutes", type=float, default=math.inf, help="that the draws may take (default: any)"
    )
    options = made.parse_args()
    asked = chosen(options.only)
    groups: list[tuple[Cause, ...]] = [(cause,) for cause in asked]
    if options.plain:
        groups = [in_both_forms(cause) for cause in asked if not cause.rate]
    causes = [cause for group in groups for cause in group]
    draws = Draws(causes, options.draws, options.seed, options.json, 60.0 * options.minutes)
    print(f"{_frame.machine()}; {_frame.versions('torch', 'numpy')}")
    print(f"{len(causes)} causes, {options.draws} draws each: {draws.progress()}\n", flush=True)
    failed = 0
    with tempfile.TemporaryDirectory() as place, _frame.leaving():
        folder = Path(place)
        variables = _frame.environment(
            HEADGATE_HOME=str(options.keep or folder / "home"), CAUSES_FOLDER=place
        )
        try:
            rounds = [{n} for n in range(options.draws)]
            if not options.plain:  # a lab is set up for all draws of its cause
                rounds = [set(range(options.draws))]
            for numbers in rounds:
                for group in groups:
                    failed += look(group, draws, numbers, folder, variables)
        finally:
            _frame.end_hubs(variables)
    print_matrix(causes, draws.given)
    figures = summary(causes, draws.given)
    if options.plain:
        for form, members in zip(("with calls", "plain"), zip(*groups, strict=True), strict=True):
            print(f"\n--- {form}", end="")
            names = {cause.name for cause in members}
            given = [each for each in draws.given if each.cause in names]
            figures[form] = summary(members, given)
    draws.write(figures)
    if failed:
        raise SystemExit(
            f"{failed} draws failed; the same command with --json makes what is missing"
        )


def look(
    group: Sequence[Cause],
    draws: Draws,
    numbers: Set[int],
    folder: Path,
    variables: dict[str, str],
) -> int:
    """Make the draws of these numbers that are left of causes that share them, as far as there is
    time. Return how many failed.
    """
    failed = 0
    left = sorted(
        (index, place)
        for place, cause in enumerate(group)
        for index in numbers & set(draws.left[cause.name])
    )
    with ExitStack() as undo:
        if left and group[0].rate:
            rate = group[0].rate
            undo.enter_context(_frame.lab(folder, LAB, NODES, rate, variables, NODE_CORES))
        for index, place in left:
            if not draws.has_time():
                break
            cause = group[place]
            trial = cause.drawn(random.Random(f"{draws.seed} {cause.of or cause.name} {index}"))
            busy = busy_cores()
            begun = time.monotonic()
            draws.left[cause.name].remove(index)
            try:
                jobs, cost = explained(trial, folder, variables)
            except Failed as error:
                print(f"{cause.name:32}{index:>3}  FAILED {error}", flush=True)
                draws.failed(cause.name, index, str(error))
                failed += 1
                continue
            seconds = time.monotonic() - begun
            given = list(judged(cause, index, trial, jobs, cost, seconds, busy))
            draws.add(given)
            for each in given:
                print(
                    (
                        f"{cause.name:32}{index:>3}  {each.job:10}{each.mark:10} {each.name:20} "
                        f"{each.why}"
                    ),
                    flush=True,
                )
            print(f"[{draws.progress()}]", flush=True)
    return failed


if __name__ == "__main__":
    main()
