"""Checks of a job's values; each conflict is a field, what was found, and the cure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, get_args

from headgate.model import goals, roles
from headgate.model.declarations import against_bounds, against_kinds, are_texts
from headgate.model.job_choices import Allowed
from headgate.model.limits import Limits, against_plan
from headgate.model.mounts import against_isolation
from headgate.model.plans import Plan
from headgate.model.progress_rule import ProgressRule
from headgate.model.recipients import Recipient
from headgate.model.roles import Role
from headgate.model.shares import FRACTIONS, is_fraction
from headgate.model.trackers import Destination

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Valid job names: each names a folder and a cgroup."""
NO_NUL = "leave out the NUL: no program can be given one"
VARIABLES = "the name of a variable is not empty and holds no '='"


def is_variable(name: str) -> bool:
    """Whether a text is a valid name of an environment variable."""
    return name != "" and "=" not in name


def check_values(job: Any) -> None:
    """Check each value of a job by itself.

    Raises:
        ValueError: One is invalid.
    """
    if not NAME_PATTERN.fullmatch(job.name):
        raise ValueError(
            f"job name {job.name!r}: expected letters, digits, '.', '_' and '-', at most 64, "
            "the first a letter or digit"
        )
    if [job.script is not None, job.run is not None, bool(job.roles)].count(True) != 1:
        raise ValueError(f"job {job.name!r}: expected exactly one of `script`, `run` and `roles`")
    for name, value, expected in against_bounds(job):
        raise ValueError(f"job {job.name!r}: `{name}` is {value!r}; expected {expected}")
    if job.share is not None and not is_fraction(job.share):
        raise ValueError(f"job {job.name!r}: `share` is {job.share!r}; expected {FRACTIONS}")


def check_together(job: Any) -> None:
    """Check values of a job that may contradict each other.

    Raises:
        ValueError: Two do.
    """
    progress = job.progress
    goal = goals.against(progress.metric, progress.goal, progress.better)
    for field, fault, cure in chain(
        _wrong_roles(job),
        roles.against_others(job),
        _against_launch(job),
        [("progress.goal", *goal)] if goal is not None else [],
        against_isolation(job.isolation, job.image, job.runtime, job.mounts, job.tty),
        against_plan(job.plan, job.limits, job.allow) if job.plan is not None else [],
    ):
        raise ValueError(f"job {job.name!r}: `{field}`: {fault}; {cure}")


def normalize(job: Any, field: str, read: Callable[[Any], object]) -> None:
    """Take a field's value as `read` has it.

    Raises:
        ValueError: `read` refuses the value.
    """
    if (value := getattr(job, field)) is None:
        return
    try:
        object.__setattr__(job, field, read(value))
    except ValueError as error:
        raise ValueError(f"job {job.name!r}: `{field}`: {error}") from None


def destinations(job: Any) -> tuple[str, ...]:
    """Where its figures go, each place once."""
    try:
        return tuple(dict.fromkeys(str(Destination.of(text)) for text in job.track))
    except ValueError as error:
        raise ValueError(f"job {job.name!r}: `track`: {error}") from None


def recipients(job: Any) -> tuple[Recipient, ...]:
    """Recipients of its messages, each once; texts are read as in a job file."""
    given = [job.notify] if isinstance(job.notify, str | Recipient) else job.notify
    try:
        parsed = [Recipient.of(to) if isinstance(to, str) else to for to in given]
    except ValueError as error:
        raise ValueError(f"job {job.name!r}: `notify`: {error}") from None
    for recipient in parsed:
        if not isinstance(recipient, Recipient):
            raise TypeError(
                f"job {job.name!r}: `notify` has {recipient!r}; expected a text, or a "
                "headgate.model.recipients.Recipient"
            )
    return tuple(dict.fromkeys(parsed))


def _wrong_roles(job: Any) -> Iterator[tuple[str, str, str]]:
    for at, key, fault, cure in roles.problems(job.roles):
        yield key if at is None else f"roles.{job.roles[at].name}.{key}", fault, cure


def _against_launch(job: Any) -> Iterator[tuple[str, str, str]]:
    """Conflicts among a job's texts: those that no program can be given."""
    for name in job.env:
        if not is_variable(name):
            yield "env", f"found {name!r}", VARIABLES
    words = (job.run,) if isinstance(job.run, str) else job.run or ()
    for field_name, texts in (
        ("script", (job.script or "",)),
        ("run", words),
        ("args", job.args),
        ("python", (job.python or "",)),
        ("env", (*job.env, *job.env.values())),
        ("workdir", (job.workdir,)),
        ("mounts", job.mounts),
    ):
        for text in texts:
            if "\0" in text:
                yield field_name, f"found {text!r}", NO_NUL
            elif not _is_spellable(text):
                yield (
                    field_name,
                    f"found {text!r}",
                    "leave out the half of a surrogate pair: no program can be given one",
                )


def _is_spellable(text: str) -> bool:
    """Whether the system can encode a text. File names that are not UTF-8 use surrogate escapes."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def check_types(job: Any) -> None:
    """Check the type of each field: jobs written in Python have not been checked as a job file."""
    allowed = get_args(Allowed)
    for name, value, expected in against_kinds(job):
        raise TypeError(f"job {job.name!r}: `{name}` is {value!r}; expected {expected}")
    for name, fits, expected in (
        (
            "after",
            isinstance(job.after, str | None) or are_texts(job.after),
            "the name of a job, a list of names, or None",
        ),
        (
            "run",
            isinstance(job.run, str | None) or (are_texts(job.run) and len(job.run) > 0),
            "a text for the shell, or a list of the command's words",
        ),
        (
            "roles",
            isinstance(job.roles, list | tuple)
            and all(isinstance(role, Role) for role in job.roles),
            "a list of headgate.model.roles.Role",
        ),
        ("stop_signal", isinstance(job.stop_signal, str | int), "a signal, such as 'SIGINT'"),
        ("limits", isinstance(job.limits, Limits), "limits, such as headgate.Limits(cores=1)"),
        (
            "allow",
            isinstance(job.allow, list | tuple | set | frozenset)
            and all(change in allowed for change in job.allow),
            f"a set of {' and '.join(allowed)}",
        ),
        ("progress", isinstance(job.progress, ProgressRule), "a ProgressRule"),
        ("plan", isinstance(job.plan, Plan | None), "a headgate.Plan, or None"),
    ):
        if not fits:
            raise TypeError(
                f"job {job.name!r}: `{name}` is {getattr(job, name)!r}; expected {expected}"
            )
