"""A trial that trains a script with one worker and with several, in folders of its own."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headgate.client import submitting
from headgate.model.endings import Checkpoint
from headgate.model.identifiers import TaskName
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.progress_rule import ProgressRule
from headgate.recorded import runs
from headgate.recorded.reader import RunReader
from headgate.recorded.rows import CheckpointRow, JobRow
from headgate.task import landlock
from headgate.task.recording import VARIABLE, Recipe
from headgate.verification import comparing, folders, network, records
from headgate.verification.verdict import LeftOut, Sameness, StopPlace, Verification, Why

SINGLE = Plan(strategy="single", workers=1, batch_per_worker=None)


_OFFLINE = {
    "WANDB_MODE": "offline",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
"""Variables that keep libraries from uploading results or downloading data."""
_ALIKE = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
_CACHES = ("~/.cache", "~/.keras", "~/.nv", "~/.triton")
_CACHE_VARIABLES = (
    *("XDG_CACHE_HOME", "HF_HOME", "HF_DATASETS_CACHE", "TORCH_HOME", "KERAS_HOME", "MPLCONFIGDIR"),
    "JAX_COMPILATION_CACHE_DIR",
)
_FOLDERS = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "WANDB_DIR")
"""Variables that name a folder for the files of one run."""
_ASIDE_PRIORITY = 0.1
_LANDLOCK_FOR_TCP = 4
"""The first version of Landlock that refuses TCP connections."""
ALONE, AGAIN, ROUNDED, WORKERS = "alone", "again", "rounded", "workers"
WHOLE, STOPPED, RESUMED = "whole", "stopped", "resumed"


@dataclass(frozen=True, slots=True)
class EndedTrial:
    """How a run ended.

    Args:
        records: The training record of each worker.
        state: State of its job.
        reason: Reason of that state.
        run: Folder of the run.
        checkpoint: Checkpoint saved at the stop, if any.
        slow: Whether the run took too long.
        reached_out: Whether its programs tried to reach a network.
    """

    records: tuple[records.TrainingRecord, ...]
    state: str
    reason: str
    run: Path
    checkpoint: Checkpoint | None = None
    slow: bool = False
    reached_out: bool = False

    @property
    def is_whole(self) -> bool:
        return bool(self.records) and all(record.ended for record in self.records)


class VerificationTrial:
    """The runs of one verification, and the files that they write."""

    def __init__(self, asked: Asked, watcher: Callable[[str], None]) -> None:
        self._job = asked.job
        self._asked = asked
        self._watcher = watcher
        self._kept = list[Path]()
        self._made = list[Path]()
        self._leaving = ExitStack()
        self._sources = dict[str, str]()

    def __enter__(self) -> VerificationTrial:
        place = runs.home() / "verifying"
        place.mkdir(mode=0o700, exist_ok=True)
        folders.remove_abandoned(place)
        self._network = self._leaving.enter_context(network.apart())
        self._scratch = self._leaving.enter_context(folders.scratch(place))
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.close()
        for folder in self._made:
            if folder not in self._kept:
                shutil.rmtree(folder, ignore_errors=True)

    # --- the two questions ------------------------------------------------------------------------

    def plan(self) -> Verification:
        """Check whether the script trains under the plan as it does alone."""
        workers = self._job.plan.workers if self._job.plan is not None else 2
        verification = Verification(Sameness.UNKNOWN, workers, cause=Why.NO_STEP)
        if (
            self._asked.aside
            and not self._network.folder
            and landlock.version() < _LANDLOCK_FOR_TCP
        ):
            return replace(verification, cause=Why.OPEN)
        for double in (True, False):
            alone = self._run({ALONE: replace(self._job, plan=self._alone())}, double)[ALONE]
            if not alone.is_whole and alone.state != "done":
                verification = self._failed(
                    alone, Verification(Sameness.UNKNOWN, workers, double=double), Why.FAILED
                )
                if alone.slow:
                    break
                continue
            if not alone.records[0].steps:
                return replace(verification, double=double, cause=Why.NO_STEP)
            others = {ROUNDED: replace(self._job, plan=self._alone()), WORKERS: self._job}
            ended = self._run(others, double)
            verification = self._compared(
                alone, ended[ROUNDED], ended[WORKERS], double and alone.records[0].double
            )
            if verification.cause is not Why.WORKERS_FAILED:
                break
        return verification

    def resume(self) -> Verification:
        """Check whether the script goes on after a stop as if it had not been stopped."""
        workers = self._job.plan.workers if self._job.plan is not None else 1
        verification = Verification(Sameness.UNKNOWN, workers, cause=Why.NO_STEP)
        for double in (True, False):
            uninterrupted = self._run({WHOLE: self._job}, double)[WHOLE]
            if not uninterrupted.is_whole and uninterrupted.state != "done":
                verification = self._failed(
                    uninterrupted,
                    Verification(Sameness.UNKNOWN, workers, double=double),
                    Why.FAILED,
                )
                continue
            return self._resumed(uninterrupted, double)
        return verification

    def _resumed(self, whole: EndedTrial, double: bool) -> Verification:
        seed = self._asked.seed if self._asked.seed is not None else random.randrange(10_000)
        answer = Verification(Sameness.UNKNOWN, len(whole.records), double=double, seed=seed)
        if not whole.records[0].steps:
            return replace(answer, cause=Why.NO_STEP)
        chosen = stop_place(whole.records[0], seed)
        if chosen is None:
            return replace(answer, cause=Why.NOT_STOPPED)
        place, number = chosen
        answer = replace(answer, stopped_in=place, stopped_at=number)
        copy = self._copy(STOPPED)
        stopped = self._run({STOPPED: self._job}, double, stop_at=number, copy=copy)[STOPPED]
        if stopped.checkpoint is None:
            cause = Why.NOT_STOPPED if stopped.is_whole or stopped.state == "done" else Why.FAILED
            return self._failed(stopped, answer, cause)
        going_on = {RESUMED: stopped.checkpoint}
        resumed = self._run({RESUMED: self._job}, double, resume=going_on, copy=copy)[RESUMED]
        if not resumed.records[0].steps or (not resumed.is_whole and resumed.state != "done"):
            return self._failed(resumed, answer, Why.FAILED)
        double = double and whole.records[0].double
        verification = comparing.compared_resume(whole.records, resumed.records, double)
        verification = self._with_facts(verification, (*whole.records, *resumed.records))
        return replace(verification, stopped_in=place, stopped_at=number, seed=seed)

    def _alone(self) -> Plan:
        """The plan of one worker."""
        plan = self._job.plan
        if plan is None or self._job.contract is None:
            return SINGLE
        return replace(plan, workers=1, batch_per_worker=None, worker_nodes=())

    def _compared(
        self, alone: EndedTrial, rounded: EndedTrial, workers: EndedTrial, double: bool
    ) -> Verification:
        """Compare the training records of three runs."""
        count = len(workers.records)
        answer = Verification(Sameness.UNKNOWN, count, double=double)
        if (
            workers.records[0].refused is not None
            and not workers.is_whole
            and workers.state != "done"
        ):
            return self._failed(workers, answer, Why.FAILED)
        if not workers.records[0].steps or not (workers.is_whole or workers.state == "done"):
            return self._failed(workers, answer, Why.WORKERS_FAILED)
        # If one worker coordinates the others, it alone has steps.
        trained = tuple(record for record in workers.records if record.steps)
        all_records = comparing.Records(alone.records[0], rounded.records[0], trained, double)
        if self._job.contract is not None and self._job.batch != "global":
            return comparing.compared_among(all_records)
        verification = comparing.compared(all_records)
        if verification.cause is Why.SENSITIVE:
            again = self._run({AGAIN: replace(self._job, plan=self._alone())}, double)[AGAIN]
            if not comparing.repeats(alone.records[0], again.records[0]):
                verification = replace(verification, cause=Why.VARIES)
        return self._with_facts(verification, (*alone.records, *workers.records))

    def _with_facts(
        self, verification: Verification, recorded: Sequence[records.TrainingRecord]
    ) -> Verification:
        """Add what was left out and what was held back, as the records say."""
        first = recorded[0]
        left_out = {omission for record in recorded for omission in record.left_out}
        if self._asked.without_gpus:
            left_out.add(LeftOut.GPUS)
        return replace(
            verification,
            left_out=tuple(sorted(left_out)),
            cut_off=first.cut_off,
            fenced=first.fenced,
            outside=tuple(dict.fromkeys(first.outside)),
            network=tuple(dict.fromkeys(first.network)),
            sources=self._sources,
        )

    def _failed(self, ended: EndedTrial, answer: Verification, cause: Why) -> Verification:
        """The answer if a run did not reach its end."""
        answer = self._with_facts(answer, ended.records)
        refused = next(
            (record.refused for record in ended.records if record.refused is not None), None
        )
        outside = answer.outside
        detail: tuple[str, ...] = (ended.reason,)
        if cause is not Why.NOT_STOPPED:
            if refused is Why.OUTSIDE:
                cause, detail = Why.OUTSIDE, outside[-1:]
            elif refused is Why.NETWORK or (
                ended.reached_out and cause is Why.FAILED and not ended.slow
            ):
                cause, detail = Why.NETWORK, (*answer.network[-1:], ended.reason)
            elif ended.slow:
                cause = Why.SLOW
            elif self._asked.without_gpus:
                cause = Why.GPU
        if self._asked.aside:
            return replace(answer, cause=cause, detail=detail)
        self._kept = [ended.run]
        return replace(answer, cause=cause, detail=detail, output=ended.run.name)

    # --- running ----------------------------------------------------------------------------------

    def _copy(self, name: str) -> folders.Copied:
        place = self._scratch / f"{name}-{len(self._made)}"
        place.mkdir()
        return folders.copied(self._job, place)

    def _run(
        self,
        jobs: Mapping[str, Job],
        double: bool,
        stop_at: int | None = None,
        resume: Mapping[str, Checkpoint] | None = None,
        copy: folders.Copied | None = None,
    ) -> dict[str, EndedTrial]:
        """Run jobs side by side until each has recorded enough steps. Returns how each ended, by
        name.
        """
        self._watcher(f"{', '.join(jobs)} ({'float64' if double else 'as it is'})")
        prepared, places, copies = list[Job](), dict[str, Path](), dict[str, folders.Copied]()
        for name, job in jobs.items():
            at = copies[name] = copy or self._copy(name)
            places[name] = at.scratch / f"record-{name}"
            places[name].mkdir()
            recipe = Recipe(
                str(places[name]),
                self._asked.steps,
                double=double,
                perturbed=name == ROUNDED,
                writable=self._writable(at),
                as_workers=not self._asked.resume,
                stop_at=stop_at,
                namespaces=self._network.folder,
                folders=(*at.places.values(), *at.places),
            )
            prepared.append(self._prepared(name, at.job(job), at, recipe, list(jobs)))
        more = {"mode": "verify", "resume": dict(resume or {})}
        handed_in = submitting.submission(prepared, **more)
        with submitting.submitted(handed_in, None, kill=True) as watch:
            folder = watch.path
            self._made.append(folder)
            for _ in watch.follow(1.0):
                pass
        reached_out = self._network.tried()
        ended = {job.name: _ended(folder, job, places[job.name], reached_out) for job in prepared}
        for name, result in ended.items():
            for record in result.records:
                self._sources |= copies[name].sources(record.sources)
        return ended

    def _prepared(
        self, name: str, job: Job, copy: folders.Copied, recipe: Recipe, names: Sequence[str]
    ) -> Job:
        temporary = str(copy.scratch / "tmp")
        env = {
            **_ALIKE,
            **job.env,
            **_OFFLINE,
            **dict.fromkeys(_FOLDERS, temporary),
            VARIABLE: recipe.text(),
        }
        env["MLFLOW_TRACKING_URI"] = Path(temporary, "mlruns").as_uri()
        at = names.index(name)
        first = names[at - 1] if self._asked.aside and at else None
        return replace(
            job,
            name=name,
            env=env,
            at=0.0,
            after=first,
            retries=0,
            moves=0,
            timeout=min(job.timeout or self._asked.seconds, self._asked.seconds),
            grace=1.0,
            progress=ProgressRule(),
            prove=False,
            verify="off",
            **self._little(job),
        )

    def _little(self, job: Job) -> dict[str, Any]:
        """Fields that keep a run small beside other jobs: no GPU, because those jobs hold its
        memory.
        """
        if not self._asked.aside:
            return {}
        return {
            "priority": _ASIDE_PRIORITY,
            "limits": replace(job.limits, gpus=0, gpu_memory_bytes=None),
        }

    def _writable(self, copy: folders.Copied) -> tuple[str, ...]:
        named = [value for name in _CACHE_VARIABLES if (value := os.environ.get(name))]
        caches = [os.path.expanduser(folder) for folder in (*_CACHES, *named)]
        return (str(copy.scratch), str(runs.home() / "runs"), *caches, *self._asked.writable)


def _ended(folder: Path, job: Job, place: Path, reached_out: bool) -> EndedTrial:
    workers = job.plan.workers if job.plan is not None else 1
    task_records = tuple(
        records.read(place, TaskName.of("worker", index)) for index in range(workers)
    )
    with RunReader(folder / runs.STORE) as reader:
        [row] = reader.records(JobRow, "name = ?", [job.name])
        saved = list(reader.records(CheckpointRow, "why = 'stop'"))
    checkpoint = None
    if saved:
        last = saved[-1]
        checkpoint = Checkpoint(last.path, last.step, last.epoch, last.position)
    took = (row.ended or 0.0) - (row.started or 0.0)
    slow = row.state != "done" and job.timeout is not None and took >= job.timeout
    return EndedTrial(
        task_records, row.state, row.reason or "", folder, checkpoint, slow, reached_out
    )


def stop_place(record: records.TrainingRecord, seed: int) -> tuple[StopPlace, int] | None:
    """Draw a place to stop a script: first a kind of place, then the number of a forward pass. None
    if the script has no such place.

    Args:
        record: Training record of an uninterrupted run.
        seed: Seed of the draw.
    """
    last = max((number for optimizer, number in record.steps if optimizer == 0), default=0)
    places: dict[StopPlace, list[int]] = {}
    for at, after in zip(record.passes, [*record.passes[1:], None]):
        if at.steps < 1 or at.steps >= last - 1:
            continue
        if not at.trains:
            kind = StopPlace.VALIDATION
        elif after is not None and after.trains and after.steps == at.steps:
            kind = StopPlace.ACCUMULATION
        elif after is not None and (after.epoch != at.epoch or not after.trains):
            kind = StopPlace.EPOCH_END
        else:
            kind = StopPlace.TRAINING
        places.setdefault(kind, []).append(at.number)
    if not places:
        return None
    draw = random.Random(seed)
    kind = draw.choice(sorted(places))
    return kind, draw.choice(places[kind])


STEPS = 6
SECONDS = 120.0
"""Most seconds of each run."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to verify a job.

    Args:
        job: The job, with the plan to verify.
        steps: How many steps to compare.
        resume: Verify a stop and a resume instead of the plan.
        seed: Decides where the script is stopped; None: random.
        seconds: Most seconds of each run.
        writable: Folders that the script may write to as in a normal run.
        aside: Whether other jobs run. If so, the runs follow one another and take few resources.
        without_gpus: Run without the GPUs of the job.
    """

    job: Job
    steps: int = STEPS
    resume: bool = False
    seed: int | None = None
    seconds: float = SECONDS
    writable: tuple[str, ...] = ()
    aside: bool = False
    without_gpus: bool = False
