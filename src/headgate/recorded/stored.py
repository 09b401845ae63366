"""Jobs, plans and profiles in a store: JSON of their fields.

Stores of earlier versions lack later fields, and may have fields that no longer exist.
"""

from __future__ import annotations

from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.profiles import Profile
from headgate.model.records import read

_NOT_KNOWN = ""
"""Command of a job whose record is damaged."""


def job_or_name(name: str, text: str | None) -> Job:
    """The job as submitted; one without a command if its record is damaged."""
    try:
        return read(Job, text)
    except ValueError:
        return Job(name=name, run=_NOT_KNOWN)


def plan_of(text: str | None) -> Plan | None:
    """A job's plan; None: it has none yet, or its record is damaged."""
    try:
        return read(Plan, text) if text else None
    except ValueError:
        return None


def profile_of(text: str | None) -> Profile | None:
    """A job's profile; None: it has none yet, or its record is damaged."""
    try:
        return read(Profile, text) if text else None
    except ValueError:
        return None
