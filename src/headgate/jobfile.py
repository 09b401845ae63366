"""Job files: YAML in, `Job`s out; every problem at once, each with its line, the value and the cure."""

from __future__ import annotations

import difflib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from headgate import units
from headgate.errors import InvalidFileError, Problem, UsageError
from headgate.jobs import NAME_PATTERN, Allowed, Job, Limits, ProgressRule
from headgate.telemetry.patterns import check_pattern


def _workers(value: object) -> tuple[int, int | None]:
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+)?)?", str(value).strip()) if not isinstance(value, bool) else None
    if match is None or int(match[1]) < 1:
        raise ValueError("expected a number of workers such as 4, or a range such as 1..8 or 2..")
    low = int(match[1])
    if ".." not in str(value):
        return low, low
    high = int(match[2]) if match[2] else None
    if high is not None and high < low:
        raise ValueError(f"the range ends before it begins; expected {high}..{low}")
    return low, high


def _text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _name(value: str) -> str:
    if not NAME_PATTERN.fullmatch(value):
        raise ValueError("expected letters, digits, '.', '_' and '-', at most 64, the first a letter or digit")
    return value


def _schema(kind: str | list[str], example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": kind, "examples": [example]})


Seconds = Annotated[float, BeforeValidator(units.seconds), Field(ge=0), _schema(["number", "string"], "5s")]
Bytes = Annotated[int, BeforeValidator(units.size), Field(gt=0), _schema(["integer", "string"], "2GiB")]
Workers = Annotated[tuple[int, int | None], BeforeValidator(_workers), _schema(["integer", "string"], "1..8")]
Text = Annotated[str, BeforeValidator(_text)]
Name = Annotated[str, BeforeValidator(_text), AfterValidator(_name)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")


class LimitsEntry(_Entry):
    """The most that the job may take."""

    cores: Annotated[float, Field(gt=0)] | None = None
    memory: Bytes | None = None
    gpus: Annotated[int, Field(ge=0)] | None = None
    workers: Workers = (1, None)


class ProgressEntry(_Entry):
    """How the job's progress is read from its output."""

    metric: str = "loss"
    pattern: str | None = None
    goal: float | None = None


class JobEntry(_Entry):
    """One job; all but its command is optional."""

    name: Name | None = None
    script: str | None = None
    run: str | list[Text] | None = None
    args: list[Text] = []
    python: str | None = None
    env: dict[str, Text] = {}
    workdir: str = "."
    at: Seconds = 0.0
    after: Text | None = None
    priority: Annotated[float, Field(gt=0, le=100)] = 1.0
    limits: LimitsEntry = LimitsEntry()
    allow: list[Allowed] = []
    progress: ProgressEntry = ProgressEntry()
    retries: Annotated[int, Field(ge=0, le=1000)] = 0
    timeout: Annotated[Seconds, Field(gt=0)] | None = None


class JobFile(_Entry):
    """A job file."""

    jobs: Annotated[list[JobEntry], Field(min_length=1)]


def schema() -> dict[str, Any]:
    """The JSON schema of a job file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Headgate job file",
    } | JobFile.model_json_schema()


def load(path: str) -> list[Job]:
    """The jobs of a file, in its order; paths are resolved against the file's folder.

    Raises:
        InvalidFileError: With every problem found.
        UsageError: The file cannot be read.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        found = getattr(error, "problem", None) or "this is not YAML"
        raise InvalidFileError(path, [Problem("file", line, found, "correct the YAML there")]) from error
    lines = _Lines(root)
    problems = [Problem(where, line, f"{key!r} is given twice", "keep one") for where, line, key in lines.repeated]
    try:
        entries = JobFile.model_validate(data if data is not None else {}).jobs
    except ValidationError as error:
        problems += [_problem(dict(e), lines) for e in error.errors()]
        raise InvalidFileError(path, _sorted(problems)) from None
    jobs, more = _jobs(entries, file.absolute().parent, lines)
    problems += more
    if problems:
        raise InvalidFileError(path, _sorted(problems))
    return jobs


class _Lines:
    """Line of each path of a YAML document, and keys given twice."""

    def __init__(self, root: yaml.Node | None) -> None:
        self.at: dict[tuple[str | int, ...], int] = {}
        self.repeated: list[tuple[str, int, str]] = []
        if root is not None:
            self._walk(root, ())

    def _walk(self, node: yaml.Node, path: tuple[str | int, ...]) -> None:
        self.at.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, value in node.value:
                name = str(key.value)
                if name in seen:
                    self.repeated.append((_where(path), key.start_mark.line + 1, name))
                seen.add(name)
                self.at[(*path, name)] = key.start_mark.line + 1
                self._walk(value, (*path, name))
        elif isinstance(node, yaml.SequenceNode):
            for i, value in enumerate(node.value):
                self._walk(value, (*path, i))

    def of(self, path: Sequence[str | int]) -> int | None:
        for end in range(len(path), -1, -1):
            if (line := self.at.get(tuple(path[:end]))) is not None:
                return line
        return None


def _where(path: Sequence[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "file"


_MODELS: Mapping[str, type[_Entry]] = {"limits": LimitsEntry, "progress": ProgressEntry}


def _problem(error: dict[str, Any], lines: _Lines) -> Problem:
    # A union's branch names end the location; the place in the file does not have them.
    path = [
        part
        for part in error["loc"]
        if not (isinstance(part, str) and re.search(r"[\[\](]|^(str|list|float|int)$", part))
    ]
    line, where, value = lines.of(path), _where(path), error["input"]
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        parent = path[-2] if len(path) > 1 else None
        model = (
            JobFile if parent is None else JobEntry if isinstance(parent, int) else _MODELS.get(str(parent), JobEntry)
        )
        known = sorted(model.model_fields)
        near = difflib.get_close_matches(str(path[-1]), known, 1)
        cure = f"did you mean {near[0]!r}?" if near else "expected one of " + ", ".join(known)
        return Problem(_where(path[:-1]), line, f"unknown key {path[-1]!r}", cure)
    if error["type"] == "missing":
        return Problem(where, line, "it is missing", "add it")
    cure = message[0].lower() + message[1:]
    return Problem(where, line, f"found {value!r}", cure.replace("input should be", "expected"))


def _sorted(problems: list[Problem]) -> list[Problem]:
    unique = {(p.where, p.line, p.found): p for p in problems}
    return sorted(unique.values(), key=lambda p: (p.line or 0, p.where))


def _jobs(entries: Sequence[JobEntry], folder: Path, lines: _Lines) -> tuple[list[Job], list[Problem]]:
    problems: list[Problem] = []
    jobs: list[Job] = []
    names: dict[str, int] = {}
    for i, entry in enumerate(entries):

        def problem(key: str, found: str, cure: str, i: int = i) -> None:
            path = ("jobs", i, key)
            problems.append(Problem(_where(path), lines.of(path), found, cure))

        if (entry.script is None) == (entry.run is None):
            found = "found neither `script` nor `run`" if entry.script is None else "found both `script` and `run`"
            problem("script", found, "give exactly one of them")
            continue
        workdir = (folder / entry.workdir).resolve()
        if not workdir.is_dir():
            problem("workdir", f"found {entry.workdir!r}, which is not a folder", "correct the path")
        script = str(workdir / entry.script) if entry.script is not None else None
        if script is not None and not Path(script).is_file():
            problem(
                "script", f"found {entry.script!r}, which is not a file in {workdir}", "correct the path, or `workdir`"
            )
        name = entry.name or (Path(script).stem if script else f"job-{i + 1}")
        if not NAME_PATTERN.fullmatch(name):
            name = f"job-{i + 1}"
        if name in names:
            first = lines.of(("jobs", names[name], "name"))
            problem("name", f"found {name!r}, as on line {first}", "give each job a `name` of its own")
            continue
        names[name] = i
        rule = entry.progress
        if rule.pattern is not None and (reason := check_pattern(rule.pattern, rule.metric)) is not None:
            found = f"found {rule.pattern!r}"
            problems.append(
                Problem(f"jobs[{i}].progress.pattern", lines.of(("jobs", i, "progress", "pattern")), found, reason)
            )
        if entry.python is not None and shutil.which(entry.python, path=None) is None:
            problem(
                "python", f"found {entry.python!r}, which is not a program", "give the path of a Python interpreter"
            )
        jobs.append(
            Job(
                name=name,
                script=script,
                run=tuple(entry.run) if isinstance(entry.run, list) else entry.run,
                args=tuple(entry.args),
                python=entry.python,
                env=entry.env,
                workdir=str(workdir),
                at=entry.at,
                after=entry.after,
                priority=entry.priority,
                limits=Limits(entry.limits.cores, entry.limits.memory, entry.limits.gpus, entry.limits.workers),
                allow=frozenset(entry.allow),
                progress=ProgressRule(entry.progress.metric, entry.progress.pattern, entry.progress.goal),
                retries=entry.retries,
                timeout=entry.timeout,
            )
        )
    after = {job.name: job.after for job in jobs if job.after is not None}
    for job in jobs:
        path = ("jobs", names[job.name], "after")
        if job.after is None:
            continue
        if job.after not in names:
            near = difflib.get_close_matches(job.after, names, 1)
            cure = f"did you mean {near[0]!r}?" if near else "expected one of " + ", ".join(sorted(names))
            problems.append(Problem(_where(path), lines.of(path), f"found {job.after!r}, which is no job here", cure))
        elif (cycle := _cycle(job.name, after)) is not None:
            problems.append(
                Problem(_where(path), lines.of(path), f"found a cycle: {' after '.join(cycle)}", "break it")
            )
    return jobs, problems


def _cycle(start: str, after: Mapping[str, str]) -> list[str] | None:
    path = [start]
    while (following := after.get(path[-1])) is not None:
        path.append(following)
        if following == start:
            return path
        if len(path) > len(after) + 1:
            return None
    return None
