"""Run a study: measure each cell of each block once, as an ordinary run of the hub."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from headgate.client import submitting
from headgate.client.run import Run
from headgate.client.watching import RunEvent, Watch
from headgate.hub.submission import reach
from headgate.model.errors import HeadgateError, HubError, StorageError
from headgate.model.job_states import ENDED
from headgate.model.units import say_seconds
from headgate.recorded import runs
from headgate.studies import journal
from headgate.studies.grid import Cell, CellRun, PlannedTime, cell_run, cells
from headgate.studies.journal import Journal, Measurement
from headgate.studies.lab_keeper import LabKeeper
from headgate.studies.measuring import NotMeasuredError, NotTogetherError, measured
from headgate.studies.statistics import shuffled_blocks
from headgate.studies.studyfile import Study

_MOST_FAILURES = 2
"""A cell that failed this often without a measurement is not tried again until the study is
resumed.
"""
_MOST_DISTURBED = 2
"""After this many successive blocks that were disturbed twice, blocks are no longer repeated."""
_TICK_SECONDS = 1.0
_MOST_STARTS, _MOST_LEAD_SECONDS = 4, 600.0
"""Most starts of a cell until its jobs are warm together, and the longest wait of one job for
others.
"""


class StudyRun:
    """Measures what a study lacks.

    Args:
        kept: Journal of the measurements, already entered.
        planned: What is measured, how often, and its approximate time.
        repeats: Whether disturbed blocks are repeated.
        say: Takes a line about the progress.
    """

    def __init__(
        self,
        study: Study,
        kept: Journal,
        planned: PlannedTime,
        repeats: bool,
        say: Callable[[str], None],
    ) -> None:
        self._study = study
        self._journal = kept
        self._planned = planned
        self._repeats = repeats
        self._say = say
        self._machine = journal.machine()
        known = (
            measurement
            for measurement in kept.measurements()
            if measurement.machine == self._machine
        )
        # failed measurements are repeated
        self._done = {_place(cell): cell for cell in known if cell.state == "measured"}
        # second at which each job starts
        self._at: dict[tuple[str, ...], Mapping[str, float]] = {}
        self._keys: dict[Cell, str] = {}
        self._orphans: dict[str, Path] = {}
        self._tried: dict[Cell, list[Measurement]] = {}  # in this process
        self._seconds: dict[Cell, list[float]] = {}
        self._labs = LabKeeper()

    def run(self) -> None:
        """Measure all cells.

        Raises:
            KeyboardInterrupt: The current run was ended; earlier measurements are kept.
            HubError, StorageError: No hub runs, or the disk is full.
        """
        with closing(self._labs):
            self._run()

    def _run(self) -> None:
        about = self._journal.about
        if about["machine_last"] == self._machine:
            self._orphans = dict(self._started_before())
        self._journal.describe({**about, "machine_last": self._machine})
        blocks = shuffled_blocks(cells(self._study), self._planned.repetitions, self._study.seed)
        every = [(block, cell) for block, order in enumerate(blocks) for cell in order]
        disturbed = 0
        for number, order in enumerate(blocks):
            self._block(number, 0, order, every)
            if (
                not self._repeats
                or disturbed >= _MOST_DISTURBED
                or not self._is_disturbed(number, 0, order)
            ):
                continue
            self._say(
                f"block {number + 1} was disturbed by others: it is done again, and both are kept"
            )
            self._block(number, 1, order, every)
            disturbed = disturbed + 1 if self._is_disturbed(number, 1, order) else 0
            if disturbed == _MOST_DISTURBED:
                self._say(
                    "others use this machine all the time: disturbed blocks are no longer "
                    "done again"
                )

    def _block(
        self, number: int, attempt: int, order: list[Cell], every: list[tuple[int, Cell]]
    ) -> None:
        for cell in order:
            if (self._key(cell), number, attempt) in self._done:
                continue
            missing = [
                cell_of_block
                for block, cell_of_block in every
                if (self._key(cell_of_block), block, 0) not in self._done
            ]
            left = sum(map(self._expected, missing)) + (self._expected(cell) if attempt else 0.0)
            place = f"{len(every) - len(missing) + (not attempt)}/{len(every)}"
            self._say(
                f"[{place}] block {number + 1}: {cell.name}; about {say_seconds(round(left))} left"
            )
            result = self._measure(number, attempt, cell)
            self._journal.add(result)
            self._done[_place(result)] = result
            self._tried.setdefault(cell, []).append(result)
            if result.state != "measured":
                self._say(f"  {result.state}: {result.reason}")

    def _key(self, cell: Cell) -> str:
        if cell not in self._keys:
            try:
                self._keys[cell] = cell_run(self._study, cell).key
            except HeadgateError:  # reported when it is measured
                self._keys[cell] = cell.name
        return self._keys[cell]

    def _expected(self, cell: Cell) -> float:
        """Expected seconds of a cell: as measured before, else as planned, corrected by the error
        for others.
        """
        took = self._seconds.get(cell)
        if took:
            return sum(took) / len(took)
        known = sum(
            self._planned.cell(cell_seconds) * len(took)
            for cell_seconds, took in self._seconds.items()
        )
        return self._planned.cell(cell) * (
            sum(map(sum, self._seconds.values())) / known if known else 1.0
        )

    def _is_disturbed(self, block: int, attempt: int, order: Iterable[Cell]) -> bool:
        places = ((self._key(cell), block, attempt) for cell in order)
        return any(
            self._done[place].figures.get("disturbed") for place in places if place in self._done
        )

    def _measure(self, block: int, attempt: int, cell: Cell) -> Measurement:
        content = {**asdict(cell), "name": cell.name}
        made = Measurement(
            self._key(cell),
            content,
            block,
            attempt,
            "not measured",
            "",
            self._machine,
            time.time(),
            {},
        )
        before = self._tried.get(cell, [])
        if any(measurement.state == "not measured" for measurement in before):
            return replace(made, reason=before[-1].reason)
        if len(before) >= _MOST_FAILURES and all(
            measurement.state == "failed" for measurement in before
        ):
            return replace(made, state="failed", reason=before[-1].reason)
        began = time.monotonic()
        try:
            run = cell_run(self._study, cell)
            figures = self._figures(run, self._mark(run.key, block, attempt))
        except NotMeasuredError as error:
            return replace(made, state="failed", reason=str(error))
        except (HubError, StorageError):
            raise
        except HeadgateError as error:
            # errors of the hub itself
            if error.exit_code in (StorageError.exit_code, HubError.exit_code):
                raise
            return replace(made, reason=str(error))
        took = time.monotonic() - began
        self._seconds.setdefault(cell, []).append(took)
        return replace(made, state="measured", figures={**figures, "took": took})

    def _figures(self, run: CellRun, mark: tuple[str, ...]) -> Mapping[str, Any]:
        """Run a cell and read its figures. Jobs that start faster than others are started later
        from then on.
        """
        for start in range(1, _MOST_STARTS + 1):
            folder = self._ran(run, mark)
            try:
                return measured(folder, [job.name for job in run.measured], self._study.warm)
            except NotTogetherError as error:
                latest = max(error.at.values())
                if start == _MOST_STARTS or latest > _MOST_LEAD_SECONDS:
                    raise
                self._at[_company(run.cell)] = error.at
                first = next(name for name, at in error.at.items() if at == latest)
                self._say(f"  {error.why}: from now on {first} starts after {latest:.0f} s")
        raise AssertionError("a cell is started at least once")

    def _ran(self, run: CellRun, mark: tuple[str, ...]) -> Path:
        """Run a cell, or wait for its run under way. Returns the run's folder."""
        names = [job.name for job in run.measured]
        folder = self._orphans.pop(" ".join(mark), None)
        if folder is not None and runs.alive(folder):
            self._say("  this cell was under way when the study was interrupted: waiting for it")
            self._attach(folder, names)
        if folder is None or any(
            job.state != "done" for job in runs.summary(folder).jobs if job.name in names
        ):
            folder = self._submitted(run, names, mark)
        return folder

    def _submitted(self, run: CellRun, names: list[str], mark: tuple[str, ...]) -> Path:
        """Run a cell. Returns the run's folder."""
        with self._lab_of(run) as where:
            later = self._at.get(_company(run.cell), {})
            # a background starts as fast beside another workload
            usual = max(later.values(), default=0.0)
            measured_jobs = [
                replace(job, at=max(job.at, later.get(job.name, usual))) for job in run.measured
            ]
            jobs = submitting.submission([*measured_jobs, *run.background], **where)
            command = ("headgate", "study", *mark)
            jobs = replace(jobs, command=command, label=" ".join(mark))
            with submitting.submitted(jobs, run.policy, kill=True) as watch:
                _follow(watch, names, [job.name for job in run.background])
        return watch.path

    @contextmanager
    def _lab_of(self, run: CellRun) -> Iterator[Mapping[str, Any]]:
        """Placement of a cell as fields of `Submission`; its lab is up within the context."""
        if run.lab is None:
            yield {}
            return
        file = self._journal.folder / f"lab-{run.key}.yaml"
        file.write_text(run.lab, encoding="utf-8")
        with self._labs.up(yaml.safe_load(run.lab)["name"], str(file)) as lab:
            name, nodes = reach(lab)
            # A background on another node would slow nothing; its workload is then compared with a
            # solo job on that node too.
            yield {
                "cluster": name,
                "nodes": nodes[:1] if run.cell.scenario in ("solo", "shared") else nodes,
            }

    def _attach(self, folder: Path, names: list[str]) -> None:
        """Wait for the end of a run that this study started before it was killed."""
        with Run(folder).watched() as watch:
            if watch is not None:
                states = {job.name: job.state for job in runs.summary(folder).jobs}
                background = [name for name in states if name not in names]
                _follow(watch, names, background, states)

    def _mark(self, key: str, block: int, attempt: int) -> tuple[str, ...]:
        """The label by which a cell's run is found."""
        return self._journal.folder.name, key, str(block), str(attempt)

    def _started_before(self) -> Iterator[tuple[str, Path]]:
        """Runs by label that this study may have started before it was killed, without known
        ones.
        """
        known = {measurement.figures.get("run") for measurement in self._journal.measurements()}
        for folder in runs.listing():
            if folder.name not in known:
                with suppress(HeadgateError):  # an unreadable run is measured again
                    yield runs.describe(folder).label, folder


def _company(cell: Cell) -> tuple[str, ...]:
    """The jobs that start together. The background is the same beside each workload and has the
    same lead.
    """
    return (cell.scenario, *(cell.workloads if cell.scenario != "shared" else ()))


def _place(measurement: Measurement) -> tuple[str, int, int]:
    return measurement.key, measurement.block, measurement.attempt


def _follow(
    watch: Watch,
    names: list[str],
    background: list[str],
    states: Mapping[str, str] | None = None,
) -> None:
    """Wait until a run has ended; its background is ended after all other jobs."""
    left = {name for name in names if (states or {}).get(name) not in ENDED}
    asked = False
    for news in watch.follow(_TICK_SECONDS):
        if isinstance(news, RunEvent) and news.kind in ENDED and news.job is not None:
            left.discard(news.job)
        if background and not left and not asked:
            watch.stop(background, kill=True)
            asked = True
