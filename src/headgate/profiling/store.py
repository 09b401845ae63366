"""Profiles that were measured before, by what they depend on."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from headgate.cluster import Node
from headgate.errors import UsageError
from headgate.jobs import Job
from headgate.profiles import Profile

_ADAPTER = TypeAdapter(Profile)


def key(job: Job, node: Node, arguments: bool = True) -> str:
    """What a job's profile is stored under: its script's text (or its command), arguments, variables, interpreter,
    and the kind of node: CPU model, cores and GPUs.

    Args:
        arguments: Whether jobs of other arguments and variables have another one.

    Raises:
        UsageError: The script cannot be read.
    """
    try:
        script = Path(job.script).read_bytes() if job.script is not None else repr(job.run).encode()
    except OSError as error:
        raise UsageError(f"job {job.name!r}: cannot read {job.script}: {error.strerror}") from error
    parts = (
        script,
        *((repr(job.args).encode(), repr(sorted(job.env.items())).encode()) if arguments else ()),
        repr(job.python).encode(),
        repr((node.cpu_model, node.cores, [gpu.name for gpu in node.gpus])).encode(),
    )
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


def parse(data: dict[str, Any]) -> Profile:
    """A profile as the task library sent it.

    Raises:
        ValueError: It is not one.
    """
    return _ADAPTER.validate_python(data)


def dump(profile: Profile) -> str:
    """As JSON."""
    return _ADAPTER.dump_json(profile).decode()


def load(folder: Path, key: str) -> Profile | None:
    """The stored profile, None where there is none that can be read."""
    try:
        return _ADAPTER.validate_json((folder / f"{key}.json").read_bytes())
    except (OSError, ValidationError):
        return None


def save(folder: Path, key: str, profile: Profile) -> None:
    """Store a profile. One of a run's own first steps does not replace one that was measured on purpose with the
    same version of the framework.

    Raises:
        OSError: It cannot be written.
    """
    known = load(folder, key)
    same = known is not None and known.framework_version == profile.framework_version
    if same and known is not None and known.source == "profile" and profile.source == "run":
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    fresh = folder / f"{key}.{os.getpid()}"
    fresh.write_text(dump(profile))
    fresh.replace(folder / f"{key}.json")
