"""Verdicts of before, by what they depend on: the script, its arguments, versions, how its workers
learn together.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from headgate import __version__
from headgate.engines.launch import interpreter
from headgate.model.errors import HeadgateError
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.verification import folders
from headgate.verification.verdict import Verification

_ADAPTER = TypeAdapter(Verification)
FOLDER = "verified"
"""Where verdicts are, in Headgate's folder."""
_FRAMEWORKS = ("torch", "keras", "tensorflow", "jax", "jaxlib", "flax")


def key(job: Job, profile_key: str, plan: Plan, path: str | None) -> str:
    """The key that a verdict is stored under.

    Args:
        job: The job.
        profile_key: That of its profile: it stands for the script, its arguments and variables.
        plan: How its workers learn together; how many there are does not matter.
        path: The PATH that its interpreter is found on.
    """
    try:
        versions = _versions(interpreter(job, path))
    except HeadgateError:
        versions = ()
    text = repr((profile_key, plan.strategy, plan.synchronous, job.batch, versions, __version__))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:24]


def load(folder: Path, key: str, job: Job) -> Verification | None:
    """The stored verdict on a job; None where there is none that can be read, or a module of its
    script is another.
    """
    try:
        known = _ADAPTER.validate_json((folder / f"{key}.json").read_text())
        return known if folders.is_as_it_was(job, known.sources) else None
    except (OSError, ValueError):
        return None


def save(folder: Path, key: str, verification: Verification) -> None:
    """Store a verdict.

    Raises:
        OSError: It cannot be written.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    fresh = folder / f"{key}.{os.getpid()}"
    fresh.write_text(dump(verification))
    fresh.replace(folder / f"{key}.json")


def dump(verification: Verification) -> str:
    """As JSON."""
    return json.dumps(asdict(verification))


def parse(text: str) -> Verification:
    """From JSON.

    Raises:
        ValueError: It is none.
    """
    return _ADAPTER.validate_json(text)


def _versions(python: str) -> tuple[str, ...]:
    """Frameworks that are installed beside an interpreter, with their versions, as their folders
    are called.
    """
    places = Path(python).parent.parent.glob("lib/python3*/*-packages")
    names: list[str] = []
    for place in places:
        for framework in _FRAMEWORKS:
            names += [folder.name for folder in place.glob(f"{framework}-*.dist-info")]
    return tuple(sorted(names))
