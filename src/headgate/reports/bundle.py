"""A file for a bug report: a run's events, the versions, the doctor's output, last lines of
logs.
"""

from __future__ import annotations

import io
import json
import os
import platform
import shlex
import sqlite3
import subprocess
import sys
import tarfile
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import headgate
from headgate.model.errors import NotFoundError, StorageError
from headgate.model.jobs import Job
from headgate.model.roles import Role
from headgate.recorded import runs
from headgate.recorded.events import read_controller
from headgate.recorded.reader import RunReader
from headgate.recorded.rows import EventRow, JobRow
from headgate.reports.anonymous import Anonymous, of_this_machine
from headgate.scripts import variables

LINES = 200
"""Lines from the end of each log."""
_DOCTOR_SECONDS = 120.0
_TOLD = ("id", "state", "policy", "mode", "headgate", "ended", "engine", "resumed_from", "only")
"""Facts of a run in a bundle."""
_PACKAGES = ("click", "numpy", "psutil", "pydantic", "pyzmq", "scipy", "torch", "tensorflow", "jax")


def write(run: Path, bundle: Path, with_paths: bool = False) -> Path:
    """Write the file.

    Args:
        run: The run's folder.
        bundle: The file to write.
        with_paths: Whether to keep paths, arguments, variables, hosts and users.

    Raises:
        StorageError: It cannot be written.
    """
    anonymous = None if with_paths else _anonymous(run)
    try:
        with tarfile.open(bundle, "w:gz") as archive:
            for name, text in _files(run, anonymous):
                data = text.encode("utf-8", "replace")
                member = tarfile.TarInfo(f"headgate-{run.name}/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    except OSError as error:
        raise StorageError(f"cannot write {bundle}: {error.strerror}") from error
    return bundle


def _files(run: Path, anonymous: Anonymous | None) -> Iterator[tuple[str, str]]:
    def shown(text: str) -> str:
        return text if anonymous is None else anonymous.text(text)

    def listed(value: Any) -> Any:
        return value if anonymous is None else anonymous.value(value)

    yield "about.json", json.dumps(listed(_about(run)), indent=2)
    lines = (json.dumps(listed(entry)) for entry in _log(run))
    yield "events.jsonl", "".join(f"{line}\n" for line in lines)
    with RunReader(run / runs.STORE) as reader:
        happened = "".join(
            f"{event.t:.3f} {event.job or '-'} {event.kind}: {event.text}\n"
            for event in reader.records(EventRow)
        )
    yield "happened.txt", shown(happened)
    yield "doctor.txt", shown(_doctor())
    for log in sorted((run / "jobs").glob("*/*.log")):
        yield f"logs/{log.parent.name}/{log.stem}.txt", shown(_last_lines(log))
    yield "hub.txt", shown(_last_lines(runs.hub() / "hub.log"))


def _about(run: Path) -> dict[str, Any]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    facts = asdict(runs.describe(run))
    return {
        "headgate": headgate.__version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "packages": versions,
        "facts": {name: facts[name] for name in _TOLD if facts[name]},
    }


def _log(run: Path) -> Iterator[dict[str, Any]]:
    try:
        for entry in read_controller(run).values():
            yield {"run": entry.run, **entry.as_json()}
    except NotFoundError:  # a run of an earlier version
        return


def _doctor() -> str:
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "headgate", "doctor"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DOCTOR_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_DOCTOR_SECONDS:g} s\n"
    return answer.stdout + answer.stderr


def _last_lines(log: Path) -> str:
    try:
        with open(log, errors="replace") as lines:
            return "".join(deque(lines, LINES))
    except OSError:
        return ""


def _anonymous(run: Path) -> Anonymous:
    """Replacements for all identifying names in the run's record."""
    anonymous, facts = Anonymous(), runs.describe(run)
    environment = {**os.environ, **(variables.read(run) or {})}
    of_this_machine(anonymous, facts.host or runs.host(), environment)
    anonymous.hide("path", str(runs.home()), facts.cwd or None, os.getcwd())
    for node in facts.nodes:
        anonymous.hide("host", node.name, node.address or None)
    anonymous.hide_arguments("argument", shlex.split(facts.command)[2:])
    with RunReader(run / runs.STORE) as reader:
        jobs = [row.job() for row in reader.records(JobRow)]
    for job in jobs:
        parts: list[Job | Role] = [job, *job.roles]
        for part in parts:
            command = part.run or ()
            words = [command] if isinstance(command, str) else command
            anonymous.hide_arguments("argument", [*words, *part.args])
            anonymous.hide_arguments("value", part.env.values())
            _hide_paths(anonymous, part.script, part.python)
        _hide_paths(anonymous, job.workdir)
    return anonymous


def _hide_paths(anonymous: Anonymous, *paths: str | None) -> None:
    for path in paths:
        if path and path != ".":
            anonymous.hide("path", path, os.path.basename(path))
