"""Job files: read `Job`s from YAML, and report all problems at once with line, value and cure."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from headgate.config import planfile, sparkfile, userfile
from headgate.config.fields import AtOnce, Trackers
from headgate.config.notifyfile import Recipients, recipients
from headgate.config.planfile import PlanEntry
from headgate.config.records import entry_of
from headgate.config.sparkfile import SparkEntry
from headgate.config.userfile import Entry, Place, UserFile, suggestion
from headgate.model import goals, roles
from headgate.model.forerunners import cycle
from headgate.model.job_checks import NAME_PATTERN
from headgate.model.jobs import Job
from headgate.model.limits import Limits, against_plan
from headgate.model.mounts import Mount, against_isolation
from headgate.model.plans import Plan
from headgate.model.progress_rule import ProgressRule
from headgate.model.recipients import Recipient
from headgate.model.roles import Ready, Role
from headgate.model.sweeps import StopEarly, Sweep
from headgate.output.expressions import check_pattern
from headgate.scripts.program import python_name


class LimitsEntry(entry_of(Limits)):  # type: ignore[misc]  # its keys are the fields of Limits
    """The most that the job may take."""

    @field_validator("gpu_memory", "exclusive")
    @classmethod
    def _on_a_gpu(cls, value: Any, info: ValidationInfo) -> Any:
        if value and info.data.get("gpus") == 0:
            raise ValueError("the job has `gpus: 0`; leave one of them out")
        return value


class ProgressEntry(entry_of(ProgressRule)):  # type: ignore[misc]  # as above, of ProgressRule
    """How the job's progress is read from its output."""

    @field_validator("pattern")
    @classmethod
    def _pattern(cls, value: str | None, info: ValidationInfo) -> str | None:
        metric = info.data.get("metric", "loss")
        if value is not None and (reason := check_pattern(value, metric)) is not None:
            raise ValueError(reason)
        return value

    @field_validator("goal")
    @classmethod
    def _goal(cls, value: float | None, info: ValidationInfo) -> float | None:
        wrong = goals.against(info.data.get("metric", "loss"), value, info.data.get("better"))
        if wrong is not None and "better" in info.data:
            raise ValueError("; ".join(wrong))
        return value


class ReadyEntry(entry_of(Ready)):  # type: ignore[misc]  # as above, of Ready
    """When a task of a role is ready; give either `port` or `line`."""


class RoleEntry(entry_of(Role, {Ready: ReadyEntry})):  # type: ignore[misc]  # as above, of Role
    """The tasks of a job that run one command."""


class StopEarlyEntry(entry_of(StopEarly)):  # type: ignore[misc]  # as above, of StopEarly
    """Ends jobs of a sweep that will not be among its best."""


class SweepEntry(entry_of(Sweep, {StopEarly: StopEarlyEntry})):  # type: ignore[misc]  # as above
    """A job for each combination of parameters."""


_NESTED = {Limits: LimitsEntry, ProgressRule: ProgressEntry, Plan: PlanEntry, Role: RoleEntry}


class JobEntry(entry_of(Job, _NESTED, name=None)):  # type: ignore[misc]  # as above, of Job
    """One job; everything except its command is optional."""

    notify: Recipients = []
    """Recipients of messages when the job ends, fails, hangs or reaches its goal: a command, a URL,
    or an address of Apprise.
    """
    spark: SparkEntry | None = None
    """A Spark application, as a short form of its roles; instead of `script`, `run` and `roles`."""
    sweep: SweepEntry | None = None
    """Parameters; each combination of their values becomes a job."""


class JobFile(Entry):
    """A job file."""

    jobs: Annotated[list[JobEntry], Field(min_length=1)]
    """The jobs, in the order in which they are submitted."""
    track: Trackers = ()
    """Trackers of the jobs that name none of their own."""
    at_once: AtOnce | None = None
    """How many jobs of the file may run at once: a number, or `auto`."""
    notify: Recipients = []
    """Recipients of messages about the run of this file: when a job fails or hangs, and at its end.
    """


def field_of_a_job(name: str) -> str:
    """How a job file spells a field of a job or of its parts; empty: it has no such field."""
    if name in JobEntry.model_fields:
        return f"{name}: ..."
    models = userfile.models(JobEntry)
    for section in ("limits", "progress", "plan"):
        if name in models[section].model_fields:
            return f"{section}: {{{name}: ...}}"
    return ""


def schema() -> dict[str, Any]:
    """The JSON schema of a job file."""
    return userfile.json_schema(JobFile, "Headgate job file")


def load(path: str) -> list[Job]:
    """Read the jobs of a file, in its order. Paths are resolved against the file's folder.

    Raises:
        InvalidFileError: The file has problems; the error lists them all.
        UsageError: The file cannot be read.
    """
    file = UserFile(path, JobFile)
    entries, wrong = file.valid_entries("jobs")
    above = {
        key: file.data[key]
        for key in ("track", "at_once")
        if isinstance(file.data, dict) and key in file.data
        if not any(place[:1] == (key,) for place in wrong)
    }
    of_file = JobEntry.model_validate(above).at_once
    drafts = [
        JobDraft(file, wrong, "jobs", i, JobEntry.model_validate({**above, **entry}), of_file)
        for i, entry in entries.items()
    ]
    check(drafts)
    file.check()
    swept = {draft.name: draft.jobs() for draft in drafts}
    jobs = [_after_sweeps(job, swept) for jobs in swept.values() for job in jobs]
    _check_swept_names(file, drafts, jobs)
    of_run = _recipients_of_run(file, wrong)
    return [replace(job, notify=(*job.notify, *of_run)) for job in jobs] if of_run else jobs


def _recipients_of_run(file: UserFile, wrong: set[Place]) -> tuple[Recipient, ...]:
    if not isinstance(file.data, dict) or any(place[:1] == ("notify",) for place in wrong):
        return ()
    return recipients(file.data.get("notify", []), of_run=True)


def check(drafts: Sequence[JobDraft]) -> None:
    """Record the problems of a file's jobs, one by one and together."""
    _name_by_commands(drafts)
    for draft in drafts:
        draft.check_paths()
        draft.check_plan()
        draft.check_roles()
        draft.check_isolation()
        draft.check_sweep()
    _check_names(drafts)
    _check_order(drafts)
    _check_at_once(drafts)


_COMMANDS = ("script", "run", "roles", "spark")
"""Keys for a job's command; exactly one is given."""


class JobDraft:
    """A job of a file on its way to a `Job`.

    Args:
        file: The file.
        wrong: Places of invalid values in the file.
        listed: Key of the list of jobs.
        index: Its place in the list.
        entry: Its valid values.
        at_once: How many jobs of the file may run at once, or `auto`; None: nothing is stated.
    """

    def __init__(
        self,
        file: UserFile,
        wrong: set[Place],
        listed: str,
        index: int,
        entry: JobEntry,
        at_once: Any = None,
    ) -> None:
        self._file = file
        self._all_wrong = wrong
        self._wrong = {place[:3] for place in wrong}
        self._listed = listed
        self.index = index
        self.entry = entry
        self._at_once = at_once
        self.workdir = Path(os.path.realpath(Path(file.path).absolute().parent / entry.workdir))
        self.script = str(self.workdir / entry.script) if entry.script is not None else None
        stem = Path(self.script).stem if self.script is not None else ""
        self.name = entry.name or (stem if NAME_PATTERN.fullmatch(stem) else f"job-{index + 1}")

    def well(self, *keys: str) -> bool:
        """Whether the values of these keys are all valid."""
        return not any((self._listed, self.index, key) in self._wrong for key in keys)

    @property
    def forerunners(self) -> tuple[str, ...]:
        """Names of the jobs that must end before this one starts."""
        after = self.entry.after
        if after is None:
            return ()
        return (after,) if isinstance(after, str) else after

    def line(self, key: str) -> int | None:
        return self._file.line((self._listed, self.index, key))

    def problem(self, key: str, text: str, cure: str) -> None:
        self._file.problem((self._listed, self.index, key), text, cure)

    def check_paths(self) -> None:
        entry = self.entry
        given = [f"`{key}`" for key in _COMMANDS if getattr(entry, key)]
        if self.well(*_COMMANDS) and len(given) != 1:
            fault = "found neither `script`, `run`, `roles` nor `spark`"
            if given:
                fault = f"found {'both ' if len(given) == 2 else ''}{' and '.join(given)}"
            self.problem("script", fault, "give exactly one of them")
        if not self.well("workdir"):
            return
        if not os.path.isdir(self.workdir):
            self.problem(
                "workdir", f"found {entry.workdir!r}, which is not a folder", "correct the path"
            )
        elif self.script is not None and not os.path.isfile(self.script):
            fault = f"found {entry.script!r}, which is not a file in {self.workdir}"
            self.problem("script", fault, "correct the path, or `workdir`")
        if self._interpreter(entry.python) == "":
            fault = f"found {entry.python!r}, which is not a program"
            self.problem("python", fault, "give the path of a Python interpreter")

    def check_plan(self) -> None:
        place = (self._listed, self.index, "plan")
        data = self._file.data[self._listed][self.index].get("plan")
        if not planfile.check(self._file, place, data, self._all_wrong) or self.entry.plan is None:
            return
        if self.well("limits", "allow"):
            for key, fault, cure in against_plan(
                self.entry.plan.record(), self.entry.limits.record(), self.entry.allow
            ):
                self._file.problem((*place, key), fault, cure)

    def check_roles(self) -> None:
        if self.entry.spark is not None:
            self._check_spark(self.entry.spark)
            return
        given = self._roles()
        place = (self._listed, self.index, "roles")
        for at, key, fault, cure in roles.problems(given):
            self._file.problem(place if at is None else (*place, at, key), fault, cure)
        for key, fault, cure in roles.against_others(self.entry):
            self.problem(key, fault, cure)
        for at, role in enumerate(given):
            if role.script is not None and not os.path.isfile(self.workdir / role.script):
                fault = f"found {role.script!r}, which is not a file in {self.workdir}"
                self._file.problem((*place, at, "script"), fault, "correct the path, or `workdir`")
            if role.python == "":
                fault = f"found {self.entry.roles[at].python!r}, which is not a program"
                self._file.problem(
                    (*place, at, "python"), fault, "give the path of a Python interpreter"
                )

    def _check_spark(self, entry: SparkEntry) -> None:
        place = (self._listed, self.index, "spark")
        if not os.path.isfile(self.workdir / entry.application):
            fault = f"found {entry.application!r}, which is not a file in {self.workdir}"
            self._file.problem((*place, "application"), fault, "correct the path, or `workdir`")
        python = self._interpreter(self.entry.python) or "python"
        if (lacks := sparkfile.against(python, {**os.environ, **self.entry.env})) is not None:
            self._file.problem(place, *lacks)
        for key, fault, cure in roles.against_others(self.entry):
            self.problem(key, fault, cure)

    def _roles(self) -> tuple[Role, ...]:
        entry = self.entry
        if entry.spark is None:
            return tuple(role.record(python=self._interpreter(role.python)) for role in entry.roles)
        python = self._interpreter(entry.python) or "python"
        tools = sparkfile.tools(python, {**os.environ, **entry.env})
        return entry.spark.roles(tools, python) if tools is not None else ()

    def check_isolation(self) -> None:
        entry = self.entry
        if self.well("isolation", "image", "runtime", "mounts", "tty"):
            boxed = entry.isolation, entry.image, entry.runtime, self._mounts(), entry.tty
            for key, fault, cure in against_isolation(*boxed):
                self.problem(key, fault, cure)

    def check_sweep(self) -> None:
        if self.entry.sweep is None or not self.well("sweep"):
            return
        sweep = self.entry.sweep.record()
        if (self.entry.roles or self.entry.spark) and sweep.passing != "environment":
            fault = f"found {sweep.passing!r} with several commands"
            self._problem_of_sweep("as", fault, "expected `as: environment`")
        for problem in sweep.problems():
            self._problem_of_sweep(*problem)
        if self.well("progress"):
            for problem in self.entry.progress.record().against(sweep):
                self._problem_of_sweep(*problem)

    def _problem_of_sweep(self, key: str, fault: str, cure: str) -> None:
        self._file.problem((self._listed, self.index, "sweep", key), fault, cure)

    def _mounts(self) -> tuple[str, ...]:
        """Its mounts, with paths resolved against its folder or the user's home."""
        return tuple(str(Mount.of(mount, str(self.workdir))) for mount in self.entry.mounts)

    def _interpreter(self, python: str | None) -> str | None:
        """Its interpreter, with a path resolved against its folder; empty: no such program. A link
        stays a link, as in a virtual environment.
        """
        if python is None or os.sep not in python:
            return (
                python
                if python is None or shutil.which(python, path=self.entry.env.get("PATH"))
                else ""
            )
        path = os.path.normpath(self.workdir / python)
        return path if os.path.isfile(path) and os.access(path, os.X_OK) else ""

    def job(self) -> Job:
        job: Job = self.entry.record(
            name=self.name,
            script=self.script,
            python=self._interpreter(self.entry.python),
            roles=self._roles(),
            workdir=str(self.workdir),
            mounts=self._mounts(),
            notify=recipients(self.entry.notify),
        )
        return job

    def jobs(self) -> list[Job]:
        """The job, or those of its sweep."""
        job = self.job()
        if self.entry.sweep is None:
            return [job]
        sweep, own = self.entry.sweep.record(), self.at_once_of_sweep
        jobs: list[Job] = sweep.jobs(
            job if own is None else replace(job, at_once=self._at_once), own
        )
        return jobs

    @property
    def at_once_of_sweep(self) -> Any:
        """How many jobs of its sweep may run at once; None: as many as of the file."""
        is_own = self.entry.sweep is not None and self.entry.at_once != self._at_once
        return self.entry.at_once if is_own else None


def _after_sweeps(job: Job, swept: Mapping[str, Sequence[Job]]) -> Job:
    """A job that comes after all jobs of each sweep that its `after` names."""
    names = [first.name for name in job.forerunners for first in swept[name]]
    return replace(job, after=names) if names != list(job.forerunners) else job


def _check_swept_names(file: UserFile, drafts: Sequence[JobDraft], jobs: Sequence[Job]) -> None:
    twice = [name for name, count in Counter(job.name for job in jobs).items() if count > 1]
    for draft in drafts:
        if draft.name in twice:
            fault = f"found {draft.name!r}, as a job of a sweep is called"
            draft.problem("name", fault, "give it another name")
    file.check()


def _name_by_commands(drafts: Sequence[JobDraft]) -> None:
    """Name unnamed jobs after the Python program that their command runs."""
    taken = {draft.name for draft in drafts}
    for draft in drafts:
        entry = draft.entry
        if entry.name is not None or not entry.run or not draft.well("run", "name"):
            continue
        job = Job(name="job", run=entry.run, workdir=str(draft.workdir))
        stem = python_name(job)
        if NAME_PATTERN.fullmatch(stem):
            draft.name = next(
                n
                for n in (stem, *(f"{stem}-{i}" for i in range(2, len(drafts) + 2)))
                if n not in taken
            )
            taken.add(draft.name)


def _check_names(drafts: Sequence[JobDraft]) -> None:
    first: dict[str, JobDraft] = {}
    for draft in drafts:
        other = first.setdefault(draft.name, draft)
        if other is not draft and draft.well("name") and other.well("name"):
            draft.problem(
                "name",
                f"found {draft.name!r}, as on line {other.line('name')}",
                "give each job its own",
            )


def _check_at_once(drafts: Sequence[JobDraft]) -> None:
    of_file = [draft for draft in drafts if draft.at_once_of_sweep is None]
    stated = [
        draft for draft in of_file if draft.entry.at_once is not None and draft.well("at_once")
    ]
    for draft in stated[1:]:
        if draft.entry.at_once != stated[0].entry.at_once:
            fault = f"found {draft.entry.at_once}, but {stated[0].entry.at_once} of another job"
            draft.problem("at_once", fault, "state one for the file, above `jobs`")


def _check_order(drafts: Sequence[JobDraft]) -> None:
    forerunners: dict[str, tuple[str, ...]] = {}
    for draft in drafts:  # duplicate names are reported elsewhere
        forerunners[draft.name] = (*forerunners.get(draft.name, ()), *draft.forerunners)
    names = sorted({draft.name for draft in drafts})
    reported: set[str] = set()
    for draft in drafts:
        unknown = [wanted for wanted in draft.forerunners if wanted not in names]
        if unknown and all(other.well("name", "script") for other in drafts):
            draft.problem(
                "after",
                f"found {unknown[0]!r}, which is no job here",
                suggestion(unknown[0], names),
            )
        elif draft.name not in reported and (chain := cycle(draft.name, forerunners)) is not None:
            reported.update(chain)
            draft.problem("after", f"found a cycle: {' after '.join(chain)}", "break it")
