"""The form in which a store keeps a run's jobs, plans and profiles: JSON of their fields.

Stores of earlier versions lack fields that came later, and may have some that are gone.
"""

from __future__ import annotations

import json

from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.profiles import Profile
from headgate.model.records import parse, plain

_NOT_KNOWN = ""
"""The command of a job whose record is damaged."""


def text_of(record: Job | Plan | Profile) -> str:
    """What the store keeps of a record; `json` spells names that are no UTF-8."""
    return json.dumps(plain(record))


def job_of(text: str | None) -> Job:
    """A job as it was handed in.

    Raises:
        ValueError: Its record is damaged.
    """
    return parse(Job, json.loads(text or ""))


def job_or_name(name: str, text: str | None) -> Job:
    """A job as it was handed in; one without a command where its record is damaged."""
    try:
        return job_of(text)
    except ValueError:
        return Job(name=name, run=_NOT_KNOWN)


def plan_of(text: str | None) -> Plan | None:
    """A job's plan; None before it has one, and where its record is damaged."""
    try:
        return parse(Plan, json.loads(text)) if text else None
    except ValueError:
        return None


def profile_of(text: str | None) -> Profile | None:
    """A job's profile; None before it has one, and where its record is damaged."""
    try:
        return parse(Profile, json.loads(text)) if text else None
    except ValueError:
        return None
