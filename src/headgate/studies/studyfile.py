"""Study files: read a `Study` from YAML, and report all problems at once with line, value and
cure.
"""

from __future__ import annotations

import importlib.resources
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr

from headgate import isolation, policies, workloads
from headgate.config import jobfile, userfile
from headgate.config.fields import Name, Plain, Seconds, Text
from headgate.config.jobfile import JobDraft, JobEntry
from headgate.config.userfile import Entry, Place, UserFile, Whole, suggestion
from headgate.model import units
from headgate.model.errors import UsageError
from headgate.model.job_checks import NAME_PATTERN
from headgate.model.jobs import Job

Scenario = Literal["solo", "distributed", "shared", "simultaneous", "pairs"]
UNLIMITED = "none"
"""Value of an axis that removes a limit or leaves something out."""
STRATEGIES = ("allreduce", "ps", "async")
OF_LAB = frozenset({"nic", "disk", "overlay"})
"""Axes that are properties of a lab."""
ARGUMENTS = ("framework", "batch", "data")
"""Axes that become arguments of a workload."""
OVERLAY = "+overlay"
"""Suffix of an isolation: an overlay network between the nodes of the lab."""
_PLACEHOLDER = re.compile(r"\{(" + "|".join(ARGUMENTS) + r")\}")
_Values = Annotated[list[Text], Field(min_length=1)]


_DECIDED = ("after", "plan", "sweep")
"""Keys of a job whose part a study takes."""


class WorkloadEntry(JobEntry):
    """A workload to measure: a job as in a job file, or a workload that comes with Headgate.
    Everything except its command is optional.
    """

    workload: Text | None = None
    """A workload that comes with Headgate, such as `alexnet`; give either this, `script` or
    `run`.
    """
    framework: Text = "torch"
    """The framework of `workload`: `torch`, `keras`, `tensorflow`, `jax`, `numpy` or `spark`."""
    size: Text = "small"
    """The size of `workload`: `small`, or `full` as in its paper."""
    steps: Annotated[Whole, Field(gt=0)] | None = None
    """How many steps `workload` makes after its warm-up; by default its own number."""
    batch: Annotated[Whole, Field(gt=0)] | None = None  # a study states every plan
    """How many samples a step of `workload` has; by default its own number."""
    takes: Annotated[Seconds, Field(gt=0)] | None = None
    """Approximate time of one run, for the planned time: seconds, or with a unit: `40s`."""
    _job: Job = PrivateAttr()

    @property
    def job(self) -> Job:
        """The job as it runs alone without variation."""
        return self._job

    def with_job(self, job: Job) -> WorkloadEntry:
        """This workload with its job, once the whole file is checked."""
        entry: WorkloadEntry = self.model_copy()
        entry._job = job
        return entry

    def arguments(self) -> dict[str, Any]:
        """Arguments of `headgate.workloads.command`, for a workload that comes with Headgate."""
        names = ("workload", "framework", "size", "steps", "batch")
        return {**{name: getattr(self, name) for name in names}, "more": tuple(self.args)}


class VaryEntry(Entry):
    """The axes, each with its values. The first value of each is the basis of comparisons."""

    isolation: _Values = []
    """Isolation of tasks: `process`, `container`, `vm`, `vm+container`, or the name of a plug-in.
    `+overlay` adds a VXLAN between the nodes, as in `container+overlay`. Without KVM, guests are
    reported as not measured.
    """
    overlay: _Values = []
    """Overlay network between the nodes of the lab: `none` or `vxlan`."""
    data: _Values = []
    """Input data: `synthetic` or `real`; in the arguments of a script, `{data}` is replaced."""
    framework: _Values = []
    """Frameworks of the workloads; in the arguments of a script, `{framework}` is replaced."""
    batch: _Values = []
    """Samples of a step; in the arguments of a script, `{batch}` is replaced."""
    args: _Values = []
    """Arguments added to those of each workload: `--lr 0.1`."""
    policy: _Values = []
    """Policies that move shares between jobs."""
    strategy: _Values = []
    """How the workers of the scenario `distributed` synchronize: `allreduce`, `ps`, or `async`,
    which is `ps` without waiting.
    """
    nic: _Values = []
    """NIC rates of the lab's nodes: `200Mbit`, or `none` for no limit."""
    disk: _Values = []
    """Disk rates of the lab's nodes: `40MB/s`, or `none` for no limit."""
    cores: _Values = []
    """Core limits of each workload."""

    def axes(self) -> dict[str, tuple[str, ...]]:
        """The axes with values."""
        return {axis: tuple(values) for axis, values in self.model_dump().items() if values}


class SkipEntry(VaryEntry):
    """Cells that are left out: those with one of the values for each key. Other axes do not
    matter.
    """

    scenario: list[Scenario] = []
    """Scenarios."""
    workload: list[Text] = []
    """Names of workloads."""
    mitigation: list[Literal["cores", "threads", "policy"]] = []
    """Measures for better sharing, among those that `mitigate` tries."""


class PublishedEntry(Entry):
    """A published figure, to be compared with the study's measurement."""

    says: Text
    """The published statement."""
    source: Text
    """Where it was measured: hardware, and the year."""
    scenario: Scenario
    """The scenario of its cells."""
    workload: list[Text] = []
    """Names of its workloads; by default all."""
    of: dict[Text, Text] = {}
    """The compared axis and value: `{isolation: container}`."""
    against: dict[Text, Text] = {}
    """The value that it is compared with: `{isolation: process}`, or `{scenario: solo}`. It has to
    be the first of its axis.
    """
    where: dict[Text, Text] = {}
    """Values of other axes."""
    figure: Literal["step", "elapsed", "cpu", "received", "sent"] = "step"
    """The compared figure: seconds of a step, of the whole run, or of CPU time, relative to those
    of `against`. Or bytes that a worker receives or sends in a step, relative to the model's bytes.
    """
    low: Annotated[float, Field(gt=0)] | None = None
    """The least value for which the statement holds."""
    high: Annotated[float, Field(gt=0)] | None = None
    """The greatest value for which it holds."""
    differs: Text = ""
    """Why it may not hold here, as far as known."""


class Study(Entry):
    """A study file."""

    name: Name | None = None
    """The study's name; by default the file's."""
    workloads: Annotated[list[WorkloadEntry], Field(min_length=1)]
    """The workloads to measure."""
    scenarios: Annotated[list[Scenario], Field(min_length=1)] = ["solo"]
    """The scenarios: each workload alone (`solo`), with several workers (`distributed`), beside the
    `background` (`shared`), all at once (`simultaneous`), or each pair at once (`pairs`).
    """
    background: list[WorkloadEntry] = []
    """Jobs beside each workload in the scenario `shared`. They have to outlast the workload; then
    they are ended.
    """
    vary: VaryEntry = VaryEntry()
    """The axes and their values."""
    skip: list[SkipEntry] = []
    """Combinations that are left out: `{scenario: [solo], overlay: [vxlan]}`."""
    mitigate: bool = False
    """Whether the scenario `simultaneous` is repeated with a core limit, fewer threads, and another
    policy.
    """
    repetitions: Annotated[Whole, Field(ge=1, le=1000)] = 5
    """How often each cell is measured. With fewer than 5 there are no intervals and no findings."""
    seed: Whole = 0
    """The seed of the order of cells."""
    warm: Annotated[Whole, Field(ge=0)] = 10
    """How many first steps of each job are left out as its warm-up."""
    workers: Annotated[Whole, Field(ge=2)] = 2
    """How many workers a job has in the scenario `distributed`."""
    policy: Text = "equal"
    """The policy that moves shares between jobs, unless it is varied."""
    cluster: Plain | None = None
    """The file of a lab to run on, relative to this one. Headgate comes with `labs/pair.yaml` and
    `labs/three.yaml`. The study brings up its own lab for each cell.
    """
    budget: Annotated[Seconds, Field(gt=0)] | None = None
    """The most time that the study may take; a longer plan is refused."""
    published: list[PublishedEntry] = []
    """Published figures. A table shows whether each holds here."""

    @property
    def title(self) -> str:
        """Its name, or a default if neither the file nor its path has one."""
        return self.name or "study"

    def workload(self, name: str) -> WorkloadEntry:
        """The workload of that name."""
        return next(entry for entry in self.workloads if entry.job.name == name)


def schema() -> dict[str, Any]:
    """The JSON schema of a study file."""
    return userfile.json_schema(Study, "Headgate study file")


_BUNDLED = Path(str(importlib.resources.files("headgate.studies"))) / "bundled"


def bundled() -> dict[str, Path]:
    """The files of Headgate's own studies, by name."""
    return {path.stem: path for path in sorted(_BUNDLED.glob("*.yaml"))}


def path_of(named: str) -> str:
    """The path of a study's file.

    Args:
        named: A path, or the name of a study that comes with Headgate. An existing file takes
            precedence.

    Raises:
        UsageError: It is neither.
    """
    files = bundled()
    if os.path.exists(named) or (named not in files and ("/" in named or "." in named)):
        return named
    if named not in files:
        raise UsageError(
            f"no file {named!r}, and no study of that name; {suggestion(named, list(files))}"
        )
    return str(files[named])


def load(path: str) -> Study:
    """Read the study of a file. Paths are resolved against the file's folder.

    Raises:
        InvalidFileError: The file has problems; the error lists them all.
        UsageError: The file cannot be read.
    """
    file = UserFile(path, Study)
    entries, wrong = file.valid_entries("workloads")
    beside, _ = file.valid_entries("background")
    drafts = _drafts(file, wrong, "workloads", entries)
    background = _drafts(file, wrong, "background", beside)
    jobfile.check([draft for draft, _ in (*drafts, *background)])
    top = file.data if isinstance(file.data, dict) else {}
    bad = {place[0] for place in wrong if place}
    study = Study.model_validate(
        {**{k: v for k, v in top.items() if k not in bad}, "workloads": [{}]}
    )
    folder = Path(path).absolute().parent
    cluster = os.path.normpath(folder / study.cluster) if study.cluster is not None else None
    if (
        cluster is not None
        and not os.path.exists(cluster)
        and (_BUNDLED / str(study.cluster)).is_file()
    ):
        # for a study that is a copy of a bundled one
        cluster = str(_BUNDLED / str(study.cluster))
    _check(file, study, cluster, [entry for _, entry in drafts])
    file.check()
    stem = Path(path).stem
    return study.model_copy(
        update={
            "name": study.name or (stem if NAME_PATTERN.fullmatch(stem) else None),
            "workloads": [entry.with_job(draft.job()) for draft, entry in drafts],
            "scenarios": list(dict.fromkeys(study.scenarios)),
            "background": [entry.with_job(draft.job()) for draft, entry in background],
            "cluster": cluster,
        }
    )


def _drafts(
    file: UserFile, wrong: set[Place], listed: str, entries: Mapping[int, Mapping[str, Any]]
) -> list[tuple[JobDraft, WorkloadEntry]]:
    drafts = []
    for index, data in entries.items():
        entry = WorkloadEntry.model_validate(data)
        place = (listed, index)
        if entry.workload is not None:
            if entry.script is not None or entry.run is not None:
                file.problem(
                    (*place, "workload"),
                    "found `workload` with a command of its own",
                    "give one of them",
                )
            try:
                words = workloads.command(**entry.arguments())
            except workloads.WorkloadError as error:
                file.problem((*place, "workload"), error.problem, error.cure)
                continue
            entry = entry.model_copy(update={"run": words, "name": entry.name or entry.workload})
        elif entry.script is None and entry.run is None:
            known = ", ".join(workloads.WORKLOADS)
            cure = f"give a `script`, a command below `run`, or one of these as `workload`: {known}"
            file.problem(place, "found no command", cure)
            continue
        if key := next((key for key in _DECIDED if getattr(entry, key) is not None), ""):
            file.problem((*place, key), f"found `{key}`", "a study decides that: remove it")
            continue
        # A job's batch settings are for plans chosen by Headgate.
        drafts.append(
            (JobDraft(file, wrong, listed, index, entry.model_copy(update={"batch": None})), entry)
        )
    return drafts


def bundled_command(bundled: Mapping[str, Any], job: Job) -> tuple[str, ...]:
    """The command of a workload of Headgate's: with this interpreter, unless the job names another.

    Raises:
        WorkloadError: It does not exist in that framework.
    """
    _, *words = workloads.command(**bundled)
    return (job.python or sys.executable, *words)


def _check(
    file: UserFile,
    study: Study,
    cluster: str | None,
    entries: Sequence[WorkloadEntry],
) -> None:
    """Record contradictions."""
    if "shared" in study.scenarios and not study.background:
        file.problem(
            ("scenarios",),
            "found `shared` without a `background`",
            "say what runs beside each workload",
        )
    _check_at_once(file, study.scenarios, len(entries))
    if study.mitigate and "simultaneous" not in study.scenarios:
        file.problem(
            ("mitigate",),
            "found no scenario `simultaneous`",
            "add it to `scenarios`: no other is mitigated",
        )
    _check_skip(file, study, entries)
    _check_published(file, study, entries)
    vary = study.vary.axes()
    is_bundled = all(entry.workload is not None for entry in entries)
    overlaid = any(value.endswith(OVERLAY) for value in vary.get("isolation", ()))
    for axis in sorted(OF_LAB & vary.keys()) + ["isolation"] * overlaid:
        if cluster is None:
            file.problem(
                ("vary", axis), "found no `cluster`", "name the file of a lab: `cluster: lab.yaml`"
            )
    if cluster is not None and not os.path.isfile(cluster):
        file.problem(
            ("cluster",), f"found {study.cluster!r}, which is not a file", "correct the path"
        )
    for axis, values in vary.items():
        if len(set(values)) < len(values):
            file.problem(("vary", axis), "a value is given twice", "keep one")
        for index, value in enumerate(values):
            wrong = _wrong(axis, value, is_bundled)
            if wrong is not None:
                file.problem(("vary", axis, index), f"found {value!r}", wrong)
    for entry in entries:
        if entry.workload is None:
            text = " ".join([*entry.args, *map(str, [entry.run or ""]), *entry.env.values()])
            for axis in ARGUMENTS:
                if axis in vary and axis not in _PLACEHOLDER.findall(text):
                    name = entry.name or entry.script or "a command"
                    cure = f"write {{{axis}}} into its `args`, `run` or `env`"
                    file.problem(
                        ("vary", axis), f"nothing says how {name} is told its {axis}", cure
                    )


def _check_skip(file: UserFile, study: Study, entries: Sequence[WorkloadEntry]) -> None:
    """Record exclusions that match nothing."""
    values_by_axis: dict[str, Sequence[str]] = {**study.vary.axes(), "scenario": study.scenarios}
    values_by_axis["mitigation"] = ("cores", "threads", "policy") if study.mitigate else ()
    values_by_axis["workload"] = [
        name for entry in entries if (name := entry.name or entry.workload) is not None
    ]
    for index, skipped in enumerate(study.skip):
        for key, values in skipped.model_dump().items():
            for value in values:
                if value not in values_by_axis.get(key, ()):
                    known = ", ".join(values_by_axis.get(key, ()))
                    cure = (
                        f"expected one of {known}" if known else f"nothing varies {key}: remove it"
                    )
                    file.problem(("skip", index, key), f"found {value!r}", cure)


def _check_published(file: UserFile, study: Study, entries: Sequence[WorkloadEntry]) -> None:
    """Record published figures that match nothing in the study."""
    vary = study.vary.axes()
    names = [name for entry in entries if (name := entry.name or entry.workload) is not None]
    for index, published_entry in enumerate(study.published):
        place = ("published", index)
        axes_of_entry: list[tuple[str, Sequence[str], Sequence[str]]]
        axes_of_entry = [
            ("scenario", [published_entry.scenario], study.scenarios),
            ("workload", published_entry.workload, names),
        ]
        for key, values in (("of", published_entry.of), ("where", published_entry.where)):
            axes_of_entry += [(key, [value], vary.get(axis, ())) for axis, value in values.items()]
        for axis, value in published_entry.against.items():
            axes_of_entry.append(
                ("against", [value], ["solo"] if axis == "scenario" else vary.get(axis, ())[:1])
            )
        for key, some, known in axes_of_entry:
            for value in (value for value in some if value not in known):
                file.problem(
                    (*place, key), f"found {value!r}", f"expected one of {', '.join(known)}"
                )
        if published_entry.low is None and published_entry.high is None:
            file.problem(place, "found neither `low` nor `high`", "say between what it holds")
        if (published_entry.figure in ("received", "sent")) == bool(published_entry.against) or len(
            published_entry.against
        ) > 1:
            cure = "compare times `against` one value, and bytes with those of the model alone"
            file.problem((*place, "figure"), f"found {published_entry.figure!r}", cure)


def _check_at_once(file: UserFile, scenarios: Sequence[str], workloads: int) -> None:
    for scenario in ("simultaneous", "pairs"):
        if scenario in scenarios and workloads == 1:
            file.problem(
                ("scenarios",), f"found `{scenario}` with one workload", "give at least two"
            )
    if {"simultaneous", "pairs"} <= {*scenarios} and workloads > 2:
        cure = "make two studies: their parts of the cores differ"
        file.problem(("scenarios",), "found `simultaneous` and `pairs`", cure)


def _one_of(*names: str) -> Callable[[str], str | None]:
    return lambda value: None if value in names else suggestion(value, names)


def _wrong(axis: str, value: str, is_bundled: bool) -> str | None:
    """The correction of an axis's value; None: it is valid.

    Args:
        is_bundled: Whether all workloads come with Headgate, so that their valid arguments are
            known.
    """
    match axis:
        case "isolation":
            return _one_of(*isolation.names())(value.removesuffix(OVERLAY))
        case "framework" if is_bundled:
            return _one_of(*workloads.FRAMEWORKS)(value)
        case "data" if is_bundled:
            return _one_of("synthetic", "real")(value)
        case "batch" if is_bundled:
            return (
                None
                if value.isdecimal() and int(value)
                else "expected a whole number of samples from 1"
            )
        case "overlay":
            return _one_of(UNLIMITED, "vxlan")(value)
        case "strategy":
            return _one_of(*STRATEGIES)(value)
        case "cores":
            try:
                return None if 0.0 < float(value) < 1e6 else "expected a positive number"
            except ValueError:
                return "expected a number of cores"
        case "nic" | "disk" if value != UNLIMITED:
            try:
                units.rate(value)
            except ValueError as error:
                return f"{error}, or `{UNLIMITED}`"
        case "policy":
            try:
                policies.make(value)
            except UsageError as error:
                return str(error)
    return None


def filled(text: str, values: Mapping[str, str]) -> str:
    """A text with the names of axes replaced by their values."""
    return _PLACEHOLDER.sub(lambda value: values.get(value[1], value[0]), text)
