"""The cells of a study: what each runs, its key, and the planned time."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from headgate import isolation, policies, workloads
from headgate.config import clusterfile
from headgate.config.userfile import Loader
from headgate.model.errors import IsolationError, UsageError
from headgate.model.job_choices import Allowed
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.units import say_seconds
from headgate.recorded import runs
from headgate.studies.statistics import LEAST_REPETITIONS
from headgate.studies.studyfile import (
    ARGUMENTS,
    OF_LAB,
    OVERLAY,
    UNLIMITED,
    Study,
    WorkloadEntry,
    bundled_command,
    filled,
)
from headgate.workloads import WorkloadError

CellScenario = Literal["solo", "distributed", "shared", "simultaneous", "slice"]
"""A `slice` is a workload alone on its part of all cores."""
QUICK_REPETITIONS = 2
_BACKGROUND_SECONDS = 3600.0
"""Orphaned background jobs stop after this many seconds."""
_GUESSED_SECONDS = 30.0
MITIGATION = "mitigation"
"""Axis: a measure for better sharing among jobs that run at once."""
_ONLY_IN: Mapping[str, CellScenario] = {"strategy": "distributed", MITIGATION: "simultaneous"}
"""Axes that matter to one scenario only."""
_THREADS = ("OMP_NUM_THREADS", "NPROC")
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Cell:
    """A point of a study.

    Args:
        workloads: Names of the measured workloads.
        values: Values of the axes that matter to it.
        is_repeat: Whether it measures another cell again, for the noise floor.
    """

    scenario: CellScenario
    workloads: tuple[str, ...]
    values: tuple[tuple[str, str], ...]
    is_repeat: bool = False

    @property
    def name(self) -> str:
        """In words: `small solo, cores 1`."""
        axes = "".join(f", {axis} {value}" for axis, value in self.values)
        return (
            f"{' + '.join(self.workloads)} "
            f"{self.scenario}{axes}{' (again)' if self.is_repeat else ''}"
        )


@dataclass(frozen=True, slots=True)
class CellRun:
    """What a cell runs.

    Args:
        measured: Jobs that are measured.
        background: Jobs that run beside them.
        lab: Text of its lab's file; None: this machine.
    """

    cell: Cell
    measured: tuple[Job, ...]
    background: tuple[Job, ...]
    policy: str
    lab: str | None

    @property
    def key(self) -> str:
        """A digest of all that it runs, including scripts; equal across studies that run the
        same.
        """
        jobs = [
            asdict(job) | {"digest": _digest(job.script)}
            for job in (*self.measured, *self.background)
        ]
        content = [jobs, len(self.measured), self.policy, self.lab, self.cell.is_repeat]
        return hashlib.sha256(
            json.dumps(content, sort_keys=True, default=sorted).encode()
        ).hexdigest()[:_DIGITS]


def cells(study: Study) -> list[Cell]:
    """All cells, baselines before the cells that are compared with them."""
    all_cells = list(_cells(study))
    return [
        *all_cells,
        *(replace(cell, is_repeat=True) for cell in all_cells if is_baseline(study, cell)),
    ]


def is_baseline(study: Study, cell: Cell) -> bool:
    """Whether each axis has its first value, the basis of comparisons."""
    first = axes(study)
    if cell.scenario == "slice" or (
        cell.scenario == "simultaneous" and len(cell.workloads) < len(study.workloads)
    ):
        return False  # none of many pairs is repeated
    return all(first[axis][0] == value for axis, value in cell.values)


def axes(study: Study) -> dict[str, tuple[str, ...]]:
    """All axes with their values; the first value is the basis of comparisons."""
    if not study.mitigate:
        return study.vary.axes()
    part = _cores(study) / len(study.workloads)
    other = "equal" if study.policy != "equal" else policies.DEFAULT
    ways = (f"cores {part:g}", f"threads {max(int(part), 1)}", f"policy {other}")
    return {**study.vary.axes(), MITIGATION: (UNLIMITED, *ways)}


def _cells(study: Study) -> Iterator[Cell]:
    names = tuple(workload.job.name for workload in study.workloads)
    scenarios: dict[CellScenario, None] = {}
    for asked in study.scenarios:
        if asked == "simultaneous" or asked == "pairs":
            # Compared with each job alone, on all cores and on its part of them.
            scenarios |= dict.fromkeys(("solo", "slice", "simultaneous"))
        else:
            scenarios[asked] = None
    at_once = list(itertools.combinations(names, 2)) if "pairs" in study.scenarios else [names]
    every = axes(study)
    for scenario in scenarios:
        axes_here = [axis for axis in every if _ONLY_IN.get(axis, scenario) == scenario]
        for values in itertools.product(*(every[axis] for axis in axes_here)):
            for group in at_once if scenario == "simultaneous" else [(name,) for name in names]:
                cell = Cell(scenario, group, tuple(zip(axes_here, values, strict=True)))
                if not any(_matches(cell, left_out.axes()) for left_out in study.skip):
                    yield cell


def _matches(cell: Cell, left_out: Mapping[str, Sequence[str]]) -> bool:
    """Whether a cell has one of the values for each key."""
    has = {"scenario": (cell.scenario,), "workload": cell.workloads}
    has |= {
        axis: (value.partition(" ")[0] if axis == MITIGATION else value,)
        for axis, value in cell.values
    }
    return all(not set(values).isdisjoint(has.get(key, ())) for key, values in left_out.items())


def cell_run(study: Study, cell: Cell) -> CellRun:
    """What a cell runs.

    Raises:
        UsageError: It cannot run: a workload does not exist in a framework, or the lab's file is
            invalid.
    """
    values = dict(cell.values)
    if (box := values.get("isolation", "")).removesuffix(OVERLAY) in isolation.IN_GUESTS:
        _check_kvm()
    if box.endswith(OVERLAY):
        values |= {"isolation": box.removesuffix(OVERLAY), "overlay": "vxlan"}
    lab = _lab(study, values) if study.cluster is not None else None
    measured = [_job(study.workload(name), values, ("measured", name)) for name in cell.workloads]
    if "cores" in values:
        measured = [_at_most(job, float(values["cores"])) for job in measured]
    if cell.scenario == "slice":
        parts = 2 if "pairs" in study.scenarios else len(study.workloads)
        measured = [_at_most(job, _cores(study) / parts) for job in measured]
    if cell.scenario == "distributed":
        plan = _plan(values.get("strategy", "allreduce"), study.workers)
        allow: frozenset[Allowed] = frozenset({"async"} if not plan.synchronous else ())
        measured = [replace(job, plan=plan, allow=job.allow | allow) for job in measured]
    way, _, value = values.get(MITIGATION, UNLIMITED).partition(" ")
    if way == "cores":
        measured = [_at_most(job, float(value)) for job in measured]
    if way == "threads":
        measured = [
            replace(job, env={**dict.fromkeys(_THREADS, value), **job.env}) for job in measured
        ]
    policy = value if way == "policy" else values.get("policy", study.policy)
    background = study.background if cell.scenario == "shared" else ()
    beside = tuple(
        replace(job, name=f"background-{job.name}"[:64], timeout=job.timeout or _BACKGROUND_SECONDS)
        for job in (
            _job(job_file, values, ("background", job_file.job.name)) for job_file in background
        )
    )
    return CellRun(cell, tuple(measured), beside, policy, lab)


def _check_kvm() -> None:
    """Check that figures of guests are meaningful here, regardless of allowed emulation.

    Raises:
        UsageError: They are not.
    """
    from headgate.isolation.vm import probe

    try:
        probe.accelerated()
    except IsolationError as error:
        raise UsageError(f"guests: {error}") from None


def _job(workload: WorkloadEntry, values: Mapping[str, str], copy: tuple[str, str]) -> Job:
    """A workload with the values of axes.

    Args:
        copy: Names the job's own copy of real data: two readers of one copy would warm each other's
            cache.
    """
    job = workload.job
    added = tuple(shlex.split(values.get("args", "")))
    if workload.workload is not None:
        arguments = workload.arguments()
        given: dict[str, Any] = {name: values[name] for name in ARGUMENTS if name in values}
        if "data" in given:
            folder = runs.home() / "studies" / "data" / "-".join(copy)
            given["data"] = None if given["data"] == "synthetic" else str(folder)
        if (
            lack := workloads.lack(given.get("framework") or workload.framework)
        ) and job.python is None:
            raise UsageError(lack)
        more = (*arguments["more"], *added)
        try:
            job = replace(
                job, run=bundled_command({**arguments, **given, "more": more}, job), args=()
            )
        except WorkloadError as error:
            raise UsageError(str(error)) from None
    else:
        run = job.run
        words = (
            filled(run, values)
            if isinstance(run, str)
            else run and tuple(filled(word, values) for word in run)
        )
        args = (*(filled(word, values) for word in job.args), *added)
        env = {name: filled(value, values) for name, value in job.env.items()}
        job = replace(job, run=words, args=args, env=env)
    return replace(job, isolation=values.get("isolation", job.isolation))


def _at_most(job: Job, cores: float) -> Job:
    return replace(job, limits=replace(job.limits, cores=min(cores, job.limits.cores or cores)))


def _plan(strategy: str, workers: int) -> Plan:
    servers = 0 if strategy == "allreduce" else 1
    return Plan(
        strategy="ps" if servers else "allreduce",
        workers=workers,
        batch_per_worker=None,
        servers=servers,
        synchronous=strategy != "async",
    )


def _cores(study: Study) -> float:
    """Cores of the machine, or of the lab."""
    if study.cluster is not None:
        return sum(node.cores for node in clusterfile.read(study.cluster).cluster.nodes)
    return float(len(os.sched_getaffinity(0)))


def _lab(study: Study, values: Mapping[str, str]) -> str:
    """The lab's file, with the values of axes and a name of its own."""
    assert study.cluster is not None
    if not clusterfile.read(study.cluster).lab:
        raise UsageError(
            f"{study.cluster} describes other machines; a study needs a lab: `lab: true`"
        )
    cluster_data = yaml.load(Path(study.cluster).read_text(encoding="utf-8"), Loader)  # noqa: S506  # a safe one
    for axis in OF_LAB & values.keys():
        for part in [cluster_data] if axis == "overlay" else cluster_data["nodes"]:
            part.pop(axis, None)
            if values[axis] != UNLIMITED:
                part[axis] = values[axis]
    cluster_data.pop("name", None)
    named = hashlib.sha256(json.dumps(cluster_data, sort_keys=True).encode()).hexdigest()[:6]
    return str(yaml.safe_dump({**cluster_data, "name": f"study-{named}"}, sort_keys=False))


def _digest(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class PlannedTime:
    """The planned time of a study.

    Args:
        seconds: Seconds of one run, by workload.
        guessed: Workloads whose time was neither stated nor measured.
        lacking: Cells known to be impossible here, which take no time.
    """

    cells: Sequence[Cell]
    repetitions: int
    seconds: Mapping[str, float]
    guessed: tuple[str, ...]
    lacking: frozenset[Cell] = frozenset()

    @property
    def total(self) -> float:
        return self.of(self.cells) * self.repetitions

    def of(self, some: Sequence[Cell]) -> float:
        """Seconds of these cells, once each."""
        return sum(self.cell(cell) for cell in some)

    def cell(self, cell: Cell) -> float:
        """Seconds of a cell. Jobs that share the cores take as long as one after the other."""
        return 0.0 if cell in self.lacking else sum(self.seconds[name] for name in cell.workloads)

    def __str__(self) -> str:
        text = (
            f"{len(self.cells)} cells × {self.repetitions}, about {say_seconds(round(self.total))}"
        )
        if self.lacking:
            text += f" ({len(self.lacking)} cannot be measured here)"
        if self.guessed:
            text += f" (guessed for {', '.join(self.guessed)}: `takes:` would say)"
        return text


def planned_time(study: Study, repetitions: int, known: Mapping[str, float]) -> PlannedTime:
    """The planned time of a study.

    Args:
        study: The study.
        repetitions: Number of repetitions.
        known: Measured seconds of a run, by workload.
    """
    takes = {workload.job.name: workload.takes for workload in study.workloads}
    seconds = {
        name: known.get(name, seconds_each or _GUESSED_SECONDS)
        for name, seconds_each in takes.items()
    }
    guessed = tuple(
        name for name, seconds_each in takes.items() if name not in known and seconds_each is None
    )
    every = cells(study)
    return PlannedTime(
        every,
        repetitions,
        seconds,
        guessed,
        frozenset(cell for cell in every if _lacks(study, cell)),
    )


def _lacks(study: Study, cell: Cell) -> bool:
    try:
        cell_run(study, cell)
    except UsageError:
        return True
    return False


def check_budget(study: Study, planned: PlannedTime) -> None:
    """Refuse a study whose planned time exceeds its budget.

    Raises:
        UsageError: It names what to cut: the smallest cut that meets the budget, or else the
            largest.
    """
    if study.budget is None or planned.total <= study.budget:
        return
    shorter = {
        name: planned_time(less, planned.repetitions, planned.seconds).total
        for name, less in _cuts(study)
    }
    if planned.repetitions > LEAST_REPETITIONS:
        shorter[f"`repetitions` to {LEAST_REPETITIONS}"] = (
            planned.of(planned.cells) * LEAST_REPETITIONS
        )
    fits = {name: total for name, total in shorter.items() if total <= study.budget}
    if fits:
        name, total = max(fits.items(), key=lambda cell_time: cell_time[1])
        cure = f"cut {name}: then it takes {say_seconds(round(total))}"
    elif not shorter:
        cure = "raise `budget`, or give the workloads fewer steps"
    else:
        name, total = min(shorter.items(), key=lambda cell_time: cell_time[1])
        cure = (
            f"cut {name} first: then it takes {say_seconds(round(total))}, still too long; "
            "or raise `budget`"
        )
    raise UsageError(
        f"the study is planned to take {planned}; its budget is {say_seconds(study.budget)}: {cure}"
    )


def _cuts(study: Study) -> Iterator[tuple[str, Study]]:
    """The study with only the first value of each axis in turn, and with fewer scenarios and
    workloads.
    """
    for axis, values in study.vary.axes().items():
        if len(values) > 1:
            yield (
                f"`{axis}` ({len(values)} values) to one",
                study.model_copy(
                    update={"vary": study.vary.model_copy(update={axis: [values[0]]})}
                ),
            )
    if len(study.scenarios) > 1:
        fewer = study.model_copy(update={"scenarios": study.scenarios[:1]})
        yield f"`scenarios` to {study.scenarios[0]}", fewer
    if len(study.workloads) > 1 and not {"simultaneous", "pairs"} & {*study.scenarios}:
        yield (
            f"`workloads` to {study.workloads[0].job.name}",
            study.model_copy(update={"workloads": study.workloads[:1]}),
        )
