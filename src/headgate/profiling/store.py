"""Stored profiles, by the conditions that they depend on."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from headgate.model import records
from headgate.model.cluster import Node
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.model.paths import opened, write_whole
from headgate.model.profiles import Profile
from headgate.scripts.facts import read
from headgate.scripts.program import program, source

_HALF = 16


def key(job: Job, node: Node) -> str:
    """The key that a job's profile is stored under.

    Its first half, that of `script_of`, covers the text of the program (or its command), the
    interpreter, and the kind of node: CPU model, cores and GPUs. The second half covers arguments
    and variables.

    Raises:
        UsageError: The script cannot be read.
    """
    program_run, file = program(job), Path(job.script) if job.script is not None else source(job)
    try:
        text = read(file).text if file is not None else repr(job.run or job.roles).encode()
    except OSError as error:
        raise UsageError(f"job {job.name!r}: cannot read {file}: {error.strerror}") from error
    arguments, python = (
        (job.args, job.python)
        if program_run is None or file is None
        else (program_run.args, program_run.python)
    )
    kind = repr((node.cpu_model, node.cores, [gpu.name for gpu in node.gpus]))
    return _digest(text, repr(python), kind) + _digest(
        repr(arguments), repr(sorted(job.env.items()))
    )


def script_of(key: str) -> str:
    """The part of a key that is the same with other arguments and variables."""
    return key[:_HALF]


def script_name(key: str, script: str | None) -> str:
    """Names the script of a job, whose arguments may differ, by its key and path."""
    return f"{script_of(key)} {script or ''}"


def others(folder: Path, key: str) -> dict[str, Profile]:
    """The stored profiles of the same script with other arguments and variables, by key."""
    keys = sorted(path.stem for path in folder.glob(f"{script_of(key)}*.json") if path.stem != key)
    return {other: profile for other in keys if (profile := load(folder, other)) is not None}


def _digest(*parts: str | bytes) -> str:
    data = b"\0".join(
        part.encode(errors="surrogateescape") if isinstance(part, str) else part for part in parts
    )
    return hashlib.sha256(data).hexdigest()[:_HALF]


def load(folder: Path, key: str) -> Profile | None:
    """The stored profile. None if there is none, or it cannot be read."""
    try:
        with opened(folder / f"{key}.json") as file:
            return records.read(Profile, file.read())
    except (OSError, ValueError):
        return None


def is_better(known: Profile, other: Profile) -> bool:
    """Whether a profile is better than a later one of the same job.

    It is better if its machine was calm and the other's was busy. Otherwise it is better if it was
    measured on purpose, and the other in the first steps of a run. No profile is better than one of
    another framework version or another model, which a variable may have changed.
    """
    if _trained_model(known) != _trained_model(other):
        return False
    if known.is_busy or other.is_busy:
        return known.disturbance < other.disturbance
    return known.source == "profile" and other.source == "run"


def _trained_model(profile: Profile) -> tuple[object, ...]:
    """The trained model and data, as far as a profile describes them."""
    return profile.framework_version, profile.parameters_dense, profile.parameters_sparse


def merged(known: Profile | None, profile: Profile) -> Profile:
    """A profile with the facts that only a run with changing threads can measure."""
    if (
        known is None
        or profile.thread_power is not None
        or _trained_model(known) != _trained_model(profile)
    ):
        return profile
    return replace(profile, thread_power=known.thread_power)


def save(folder: Path, key: str, profile: Profile) -> None:
    """Store a profile. A better stored one stays (`is_better`).

    Raises:
        OSError: The profile cannot be written.
    """
    known = load(folder, key)
    if known is not None and is_better(known, profile):
        return
    _write(folder, key, merged(known, profile))


def keep_power(folder: Path, key: str, power: float) -> None:
    """Store with a job's profile what more threads bring it. Nothing is stored without a profile.

    Raises:
        OSError: The profile cannot be written.
    """
    known = load(folder, key)
    if known is not None:
        _write(folder, key, replace(known, thread_power=power))


def _write(folder: Path, key: str, profile: Profile) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    write_whole(folder / f"{key}.json", records.text_of(profile))
