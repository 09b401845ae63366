"""Stored verdicts, by the conditions that they depend on: script, arguments, versions, and how its
workers learn together.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from headgate import __version__
from headgate.engines.launch import interpreter
from headgate.model.errors import HeadgateError
from headgate.model.jobs import Job
from headgate.model.paths import write_whole
from headgate.model.plans import Plan
from headgate.model.records import read, text_of
from headgate.verification import folders
from headgate.verification.verdict import Verification

FOLDER = "verified"
"""Folder of verdicts in Headgate's folder."""
_FRAMEWORKS = ("torch", "keras", "tensorflow", "jax", "jaxlib", "flax")


def key(job: Job, profile_key: str, plan: Plan, path: str | None) -> str:
    """The key under which a verdict is stored.

    Args:
        job: The job.
        profile_key: Key of its profile, which covers the script, its arguments and variables.
        plan: How its workers learn together. The number of workers does not matter.
        path: The PATH for its interpreter.
    """
    try:
        versions = _versions(interpreter(job, path))
    except HeadgateError:
        versions = ()
    text = repr((profile_key, plan.strategy, plan.synchronous, job.batch, versions, __version__))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:24]


def load(folder: Path, key: str, job: Job) -> Verification | None:
    """The stored verdict on a job. None if it cannot be read, or if a module of its script has
    changed.
    """
    try:
        known = read(Verification, (folder / f"{key}.json").read_text())
        return known if folders.is_as_it_was(job, known.sources) else None
    except (OSError, ValueError):
        return None


def save(folder: Path, key: str, verification: Verification) -> None:
    """Store a verdict.

    Raises:
        OSError: It cannot be written.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    write_whole(folder / f"{key}.json", text_of(verification))


def _versions(python: str) -> tuple[str, ...]:
    """The frameworks installed with an interpreter, with their versions, as in the names of their
    folders.
    """
    places = Path(python).parent.parent.glob("lib/python3*/*-packages")
    names: list[str] = []
    for place in places:
        for framework in _FRAMEWORKS:
            names += [folder.name for folder in place.glob(f"{framework}-*.dist-info")]
    return tuple(sorted(names))
