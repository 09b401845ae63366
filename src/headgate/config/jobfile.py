"""Job files: YAML in, `Job`s out; every problem at once, each with its line, the value and the
cure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    ValidationInfo,
)

from headgate.config import planfile, sparkfile, userfile
from headgate.config.fields import (
    Command,
    Count,
    Forerunners,
    Memory,
    Name,
    Plain,
    Seconds,
    Share,
    StopSignal,
    Text,
    Variable,
    Workers,
)
from headgate.config.planfile import PlanEntry
from headgate.config.rolefile import ReadyEntry, RoleEntry
from headgate.config.sparkfile import SparkEntry
from headgate.config.userfile import Entry, Number, Place, UserFile, Whole, suggestion
from headgate.model import goals, roles
from headgate.model.forerunners import cycle
from headgate.model.jobs import (
    MOST_PRIORITY,
    NAME_PATTERN,
    Allowed,
    BatchRule,
    Job,
    Launched,
    Limits,
    ProgressRule,
    VerifyRule,
    against_plan,
)
from headgate.model.mounts import Mount, against_isolation
from headgate.model.roles import Role
from headgate.output.expressions import check_pattern
from headgate.scripts.program import python_name


def _pattern(value: str | None, info: ValidationInfo) -> str | None:
    reason = check_pattern(value, info.data.get("metric", "loss")) if value is not None else None
    if reason is not None:
        raise ValueError(reason)
    return value


def _goal(value: float | None, info: ValidationInfo) -> float | None:
    wrong = goals.against(info.data.get("metric", "loss"), value, info.data.get("better"))
    if wrong is not None and "better" in info.data:
        raise ValueError("; ".join(wrong))
    return value


def _on_a_gpu(value: Any, info: ValidationInfo) -> Any:
    if value and info.data.get("gpus") == 0:
        raise ValueError("the job has `gpus: 0`; leave one of them out")
    return value


class LimitsEntry(Entry):
    """The most that the job may take."""

    cores: Annotated[Number, Field(gt=0)] | None = None
    """The most CPU cores that the job may use; fractions are allowed; without it, no limit."""
    memory: Memory | None = None
    """The most memory, in bytes or with a unit such as `2GiB`; a job that takes more is ended."""
    gpus: Annotated[Whole, Field(ge=0)] | None = None
    """How many GPUs the job gets to see."""
    gpu_memory: Annotated[Memory | None, AfterValidator(_on_a_gpu)] = None
    """The memory of each of its GPUs that each worker is expected to hold; the job waits until that
    is free.
    """
    exclusive: Annotated[bool, AfterValidator(_on_a_gpu)] = False
    """Whether no other job of Headgate's may compute on its GPUs; without `gpus` it has one."""
    workers: Workers = (1, None)
    """The fewest and the most workers that a plan may have: `4`, `1..8` or `2..`."""


class ProgressEntry(Entry):
    """How the job's progress is read from its output."""

    metric: str = "loss"
    """The name of the metric that tells the job's progress, as the script prints or reports it."""
    pattern: Annotated[str | None, AfterValidator(_pattern)] = None
    """A regular expression that finds the metric in a line of output; it has a group for the
    value.
    """
    better: goals.Better | None = None
    """Whether the metric gets better as it falls (`lower`) or rises (`higher`); without it, the
    name decides.
    """
    goal: Annotated[Number | None, AfterValidator(_goal)] = None
    """The value of the metric at which the job has reached its goal."""
    patience: Annotated[Whole, Field(gt=0)] | None = None
    """After so many epochs without a gain the script ends by itself (early stopping)."""
    min_delta: Annotated[Number, Field(ge=0)] = 0.0
    """The least change of the metric that early stopping counts as a gain."""


class JobEntry(Entry):
    """One job; all but its command is optional."""

    name: Name | None = None
    """The job's name, unique in its file; without it, the script's name."""
    script: Plain | None = None
    """A Python script, relative to `workdir`; give either this, `run` or `roles`."""
    run: Command | None = None
    """A command: text goes to `/bin/sh`, a list of words is started as it is; instead of
    `script`.
    """
    roles: list[RoleEntry] = []
    """The commands of a job that has several, such as a server and its clients; instead of `script`
    and `run`.
    """
    spark: SparkEntry | None = None
    """A Spark application, the short form of the roles that it takes; instead of `script`, `run`
    and `roles`.
    """
    args: list[Text] = []
    """Arguments of the script or command."""
    python: Plain | None = None
    """The Python interpreter of `script`: a name on the PATH, or a path relative to `workdir`."""
    env: dict[Variable, Text] = {}
    """Variables that are added to the environment of whoever submits the job."""
    workdir: Plain = "."
    """The folder that the job runs in, relative to the file."""
    at: Seconds = 0.0
    """How long the job waits after it was submitted, or after `after` ended: seconds, or with a
    unit: `2m`.
    """
    after: Forerunners | None = None
    """The name of a job in this file that has to end well before this one starts, or a list of
    names.
    """
    priority: Annotated[Number, Field(gt=0, le=MOST_PRIORITY)] = 1.0
    """The job's claim on what is contended, relative to the others; above 0, at most 100."""
    share: Share | None = None
    """A fixed part of the CPU and GPU time of its nodes, such as `1/3`; without it, the policy
    decides.
    """
    limits: LimitsEntry = LimitsEntry()
    """Limits of cores, memory, GPUs and workers."""
    allow: list[Allowed] = []
    """Changes to the mathematics that a plan may make: `async`, `weak`."""
    progress: ProgressEntry = ProgressEntry()
    """Which metric tells the job's progress, and how it is read."""
    retries: Annotated[Whole, Field(ge=0, le=1000)] = 0
    """How often the job is started again after it failed."""
    timeout: Annotated[Seconds, Field(gt=0)] | None = None
    """The longest that one attempt may run, in seconds or with a unit such as `2h`."""
    stop_signal: StopSignal = "SIGTERM"
    """The signal that asks a script to end if it uses none of Headgate's libraries: a name or a
    number.
    """
    tty: bool = False
    """Whether the job prints to a pseudo-terminal, as progress bars of Rich want; only with
    isolation `process`.
    """
    grace: Annotated[Seconds, Field(gt=0, le=3600)] = 60.0
    """How long the job's tasks have to save once they are asked to end, in seconds or with a unit
    such as `5m`.
    """
    moves: Annotated[Whole, Field(ge=0, le=1000)] = 2
    """How often Headgate may restart the job under a better plan, where it chose the plan
    itself.
    """
    launch: Launched | None = None
    """The launcher whose variables workers get: `torchrun`, `deepspeed`, `tensorflow`, `jax`,
    `mpi`; or `none`.
    """
    evaluator: bool = False
    """Whether one more task, TensorFlow's `evaluator`, evaluates what the workers save."""
    resumes: bool = False
    """Whether the script goes on from a checkpoint of its own when it is started again."""
    batch: BatchRule | None = None
    """What another launcher's script does with its batch: `per-worker`, each worker has all of it;
    `global`, a part.
    """
    parameters: Count | None = None
    """How many parameters the script trains, such as `124M`; without it, as many as a profile of it
    saw.
    """
    plan: PlanEntry | None = None
    """How the job is laid out in tasks; without it, as one task."""
    encrypt: bool = True
    """Whether the traffic between the job's tasks is encrypted."""
    isolation: Text | None = None
    """What the job's tasks are boxed in: `process`, `container`, `vm`, `vm+container`, or the name
    of a plug-in.
    """
    image: Text | None = None
    """The image of the job's containers; `host` stands for what is installed on the machine."""
    runtime: Text | None = None
    """What runs the job's containers, as the Docker daemon calls it, such as `runsc`; without it,
    its default.
    """
    mounts: list[Text] = []
    """Files and folders that the job's containers see: `/data`, `~/data:/mnt`, `/data:rw`."""
    prove: bool = False
    """Whether Headgate proves who slows the job, by holding each neighbour for moments of at most a
    second.
    """
    pausable: bool = True
    """Whether the job may be held for such moments to prove whom it slows."""
    verify: VerifyRule = "auto"
    """Whether several workers are compared with one: `auto` warns of a difference, `strict` stops
    it, `off`: no.
    """


class JobFile(Entry):
    """A job file."""

    jobs: Annotated[list[JobEntry], Field(min_length=1)]
    """The jobs, in the order in which they are submitted."""


MODELS: Mapping[str, type[Entry]] = {
    "": JobFile,
    "jobs": JobEntry,
    "limits": LimitsEntry,
    "progress": ProgressEntry,
    "plan": PlanEntry,
    "roles": RoleEntry,
    "spark": SparkEntry,
    "ready": ReadyEntry,
}
TEXTS = {
    "name",
    "isolation",
    "image",
    "runtime",
    "mounts",
    "script",
    "run",
    "args",
    "python",
    "env",
    "workdir",
    "after",
    "launch",
    "batch",
    "metric",
    "pattern",
    "nodes",
    "line",
    "application",
    "conf",
    *planfile.TEXTS,
}


def field_of_a_job(name: str) -> str:
    """How a job file has a field of this name, of a job or of what is below it; empty: there is
    none.
    """
    if name in JobEntry.model_fields:
        return f"{name}: ..."
    for below in ("limits", "progress", "plan"):
        if name in MODELS[below].model_fields:
            return f"{below}: {{{name}: ...}}"
    return ""


def _is_text(place: Place) -> bool:
    return place[:1] == ("jobs",) and not TEXTS.isdisjoint(
        part for part in place if isinstance(part, str)
    )


def schema() -> dict[str, Any]:
    """The JSON schema of a job file."""
    return userfile.json_schema(JobFile, "Headgate job file")


def load(path: str) -> list[Job]:
    """The jobs of a file, in its order; paths are resolved against the file's folder.

    Raises:
        InvalidFileError: With every problem found.
        UsageError: The file cannot be read.
    """
    file = UserFile(path, _is_text)
    entries, wrong = file.well(JobFile, MODELS, "jobs")
    drafts = [
        JobDraft(file, wrong, "jobs", i, JobEntry.model_validate(entry))
        for i, entry in entries.items()
    ]
    check(drafts)
    file.check()
    return [draft.job() for draft in drafts]


def check(drafts: Sequence[JobDraft]) -> None:
    """Note what is wrong with jobs of a file, one by one and with each other."""
    _name_by_commands(drafts)
    for draft in drafts:
        draft.check_paths()
        draft.check_plan()
        draft.check_roles()
        draft.check_isolation()
    _check_names(drafts)
    _check_order(drafts)


_COMMANDS = ("script", "run", "roles", "spark")
"""What a job runs is said by one of them."""


class JobDraft:
    """A job of a file on its way to a `Job`.

    Args:
        file: The file.
        wrong: Places of it that are not well.
        listed: Key of the list that it is in.
        index: Its place in the list.
        entry: What is well of it.
    """

    def __init__(
        self, file: UserFile, wrong: set[Place], listed: str, index: int, entry: JobEntry
    ) -> None:
        self._file = file
        self._all_wrong = wrong
        self._wrong = {place[:3] for place in wrong}
        self._listed = listed
        self.index = index
        self.entry = entry
        self.workdir = Path(os.path.realpath(Path(file.path).absolute().parent / entry.workdir))
        self.script = str(self.workdir / entry.script) if entry.script is not None else None
        stem = Path(self.script).stem if self.script is not None else ""
        self.name = entry.name or (stem if NAME_PATTERN.fullmatch(stem) else f"job-{index + 1}")

    def well(self, *keys: str) -> bool:
        """Whether nothing was wrong with the values of these keys."""
        return not any((self._listed, self.index, key) in self._wrong for key in keys)

    @property
    def forerunners(self) -> tuple[str, ...]:
        """Names of the jobs that it comes after."""
        after = self.entry.after
        if after is None:
            return ()
        return (after,) if isinstance(after, str) else after

    def line(self, key: str) -> int | None:
        return self._file.line((self._listed, self.index, key))

    def problem(self, key: str, found: str, cure: str) -> None:
        self._file.problem((self._listed, self.index, key), found, cure)

    def check_paths(self) -> None:
        entry = self.entry
        given = [f"`{key}`" for key in _COMMANDS if getattr(entry, key)]
        if self.well(*_COMMANDS) and len(given) != 1:
            found = "found neither `script`, `run`, `roles` nor `spark`"
            if given:
                found = f"found {'both ' if len(given) == 2 else ''}{' and '.join(given)}"
            self.problem("script", found, "give exactly one of them")
        if not self.well("workdir"):
            return
        if not os.path.isdir(self.workdir):
            self.problem(
                "workdir", f"found {entry.workdir!r}, which is not a folder", "correct the path"
            )
        elif self.script is not None and not os.path.isfile(self.script):
            found = f"found {entry.script!r}, which is not a file in {self.workdir}"
            self.problem("script", found, "correct the path, or `workdir`")
        if self._interpreter(entry.python) == "":
            found = f"found {entry.python!r}, which is not a program"
            self.problem("python", found, "give the path of a Python interpreter")

    def check_plan(self) -> None:
        place = (self._listed, self.index, "plan")
        data = self._file.data[self._listed][self.index].get("plan")
        if not planfile.check(self._file, place, data, self._all_wrong) or self.entry.plan is None:
            return
        if self.well("limits", "allow"):
            for key, found, cure in against_plan(
                self.entry.plan.plan(), self._limits(), self.entry.allow
            ):
                self._file.problem((*place, key), found, cure)

    def check_roles(self) -> None:
        if self.entry.spark is not None:
            self._check_spark(self.entry.spark)
            return
        given = self._roles()
        place = (self._listed, self.index, "roles")
        for at, key, found, cure in roles.problems(given):
            self._file.problem(place if at is None else (*place, at, key), found, cure)
        for key, found, cure in roles.against_others(self.entry):
            self.problem(key, found, cure)
        for at, role in enumerate(given):
            if role.script is not None and not os.path.isfile(self.workdir / role.script):
                found = f"found {role.script!r}, which is not a file in {self.workdir}"
                self._file.problem((*place, at, "script"), found, "correct the path, or `workdir`")
            if role.python == "":
                found = f"found {self.entry.roles[at].python!r}, which is not a program"
                self._file.problem(
                    (*place, at, "python"), found, "give the path of a Python interpreter"
                )

    def _check_spark(self, entry: SparkEntry) -> None:
        place = (self._listed, self.index, "spark")
        if not os.path.isfile(self.workdir / entry.application):
            found = f"found {entry.application!r}, which is not a file in {self.workdir}"
            self._file.problem((*place, "application"), found, "correct the path, or `workdir`")
        python = self._interpreter(self.entry.python) or "python"
        if (lacks := sparkfile.against(python, {**os.environ, **self.entry.env})) is not None:
            self._file.problem(place, *lacks)
        for key, found, cure in roles.against_others(self.entry):
            self.problem(key, found, cure)

    def _roles(self) -> tuple[Role, ...]:
        entry = self.entry
        if entry.spark is None:
            return tuple(role.role(self._interpreter(role.python)) for role in entry.roles)
        python = self._interpreter(entry.python) or "python"
        tools = sparkfile.tools(python, {**os.environ, **entry.env})
        return entry.spark.roles(tools, python) if tools is not None else ()

    def check_isolation(self) -> None:
        entry = self.entry
        if self.well("isolation", "image", "runtime", "mounts", "tty"):
            boxed = entry.isolation, entry.image, entry.runtime, self._mounts(), entry.tty
            for key, found, cure in against_isolation(*boxed):
                self.problem(key, found, cure)

    def _mounts(self) -> tuple[str, ...]:
        """Its mounts; a path resolved against its folder, or below the user's home."""
        return tuple(str(Mount.of(mount, str(self.workdir))) for mount in self.entry.mounts)

    def _limits(self) -> Limits:
        limits = self.entry.limits
        own = limits.cores, limits.memory, limits.gpus, limits.workers, limits.gpu_memory
        return Limits(*own, exclusive=limits.exclusive)

    def _interpreter(self, python: str | None) -> str | None:
        """Its interpreter, a path resolved against its folder (a link, as of a virtual environment,
        stays one); empty where there is none of that name.
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
        entry = self.entry
        return Job(
            name=self.name,
            script=self.script,
            run=entry.run,
            args=tuple(entry.args),
            python=self._interpreter(entry.python),
            roles=self._roles(),
            env=entry.env,
            workdir=str(self.workdir),
            at=entry.at,
            after=entry.after,
            priority=entry.priority,
            share=entry.share,
            limits=self._limits(),
            allow=frozenset(entry.allow),
            progress=ProgressRule(**entry.progress.model_dump()),
            retries=entry.retries,
            timeout=entry.timeout,
            stop_signal=entry.stop_signal,
            tty=entry.tty,
            grace=entry.grace,
            moves=entry.moves,
            launch=entry.launch,
            evaluator=entry.evaluator,
            resumes=entry.resumes,
            batch=entry.batch,
            parameters=entry.parameters,
            plan=entry.plan.plan() if entry.plan is not None else None,
            encrypt=entry.encrypt,
            isolation=entry.isolation,
            image=entry.image,
            runtime=entry.runtime,
            mounts=self._mounts(),
            prove=entry.prove,
            pausable=entry.pausable,
            verify=entry.verify,
        )


def _name_by_commands(drafts: Sequence[JobDraft]) -> None:
    """Name the jobs that run a Python program by a command, and have no name of their own, after
    it.
    """
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


def _check_order(drafts: Sequence[JobDraft]) -> None:
    forerunners: dict[str, tuple[str, ...]] = {}
    for draft in drafts:  # of one name there may be several, which is a problem of its own
        forerunners[draft.name] = (*forerunners.get(draft.name, ()), *draft.forerunners)
    names = sorted({draft.name for draft in drafts})
    told: set[str] = set()
    for draft in drafts:
        unknown = [wanted for wanted in draft.forerunners if wanted not in names]
        if unknown and all(other.well("name", "script") for other in drafts):
            draft.problem(
                "after",
                f"found {unknown[0]!r}, which is no job here",
                suggestion(unknown[0], names),
            )
        elif draft.name not in told and (chain := cycle(draft.name, forerunners)) is not None:
            told.update(chain)
            draft.problem("after", f"found a cycle: {' after '.join(chain)}", "break it")
