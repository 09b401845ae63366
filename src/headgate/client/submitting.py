"""Prepare and submit jobs from this process, with its environment, folder and command line."""

from __future__ import annotations

import errno
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from headgate.client.starting import clean, connect_or_start
from headgate.client.watching import Watch
from headgate.config import settings
from headgate.engines.launch import is_foreign
from headgate.exports import addresses
from headgate.hub.connection import TAKE_IN_SECONDS, HubConnection
from headgate.hub.standard_input import StandardInput
from headgate.hub.submission import Submission
from headgate.isolation.process_attributes import Attributes
from headgate.model.errors import UsageError
from headgate.model.forerunners import cycle
from headgate.model.jobs import Job
from headgate.scripts import launchers, variables
from headgate.scripts.facts import facts_of
from headgate.scripts.program import source


def submission(jobs: Sequence[Job], **more: Any) -> Submission:
    """A submission of jobs, with this process's environment, folder and command line. Relative
    paths are made absolute.

    Raises:
        UsageError: There is no job, two have the same name, an argument is not a job, or a script
            does not exist.
    """
    for job in jobs:
        check_kind(job)
    if not jobs:
        raise UsageError("found no job; expected at least one")
    for name, count in Counter(job.name for job in jobs).items():
        if count > 1:
            raise UsageError(f"found {count} jobs named {name!r}; give each a name of its own")
    _check_order({job.name: job.forerunners for job in jobs}, resumed="resumed_from" in more)
    program = Path(sys.argv[0]).name
    command = (
        "headgate" if program == "__main__.py" else program,
        *variables.without_secrets(sys.argv[1:]),
    )
    more = {"attributes": Attributes.of_this_process(), **more}
    return launched(
        Submission(
            tuple(map(_absolute, jobs)), settings.environment(), os.getcwd(), command, **more
        )
    )


def launched(submission: Submission) -> Submission:
    """A submission whose jobs have settled launcher contracts, with notes on these, and the user's
    usual recipients where neither it nor its jobs name any. They are private if the user's settings
    say so.

    Raises:
        UsageError: A job's launcher settings contradict each other.
    """
    jobs: list[Job] = []
    notes, warnings = dict(submission.notes), dict(submission.warnings)
    for given in submission.jobs:
        facts = facts_of(given)
        job, note = launchers.resolved(given, facts)
        jobs.append(job)
        if note:
            notes[job.name] = note
        if doubt := launchers.doubt(job, facts):
            warnings.setdefault(job.name, doubt)
    if submission.environment.get("HEADGATE_PRIVATE") == "on":
        jobs = [replace(job, private=True) for job in jobs]
    notify = submission.notify
    if not notify and not any(to.of_run for job in jobs for to in job.notify):
        notify = settings.usual_recipients()
    addresses.check((*notify, *(to for job in jobs for to in job.notify)))
    return replace(submission, jobs=tuple(jobs), notes=notes, warnings=warnings, notify=notify)


def check_kind(job: object) -> None:
    """Check that an object is a job.

    Raises:
        UsageError: It is not.
    """
    if not isinstance(job, Job):
        raise UsageError(
            f"found {type(job).__name__} {job!r:.80}; expected a job, such as "
            "headgate.Job(name='a', script='a.py')"
        )


def _check_order(forerunners: Mapping[str, Sequence[str]], resumed: bool) -> None:
    """Check that every job's turn will come. In a resumed run, earlier jobs may already be done."""
    for name, names in forerunners.items():
        for first in names:
            if first not in forerunners and not resumed:
                expected = list(forerunners)
                raise UsageError(
                    f"job {name!r} comes after {first!r}, which is no job here; expected one of "
                    f"{expected}"
                )
        if (chain := cycle(name, forerunners)) is not None:
            raise UsageError(f"found a cycle: {' after '.join(chain)}; break it")


def _absolute(job: Job) -> Job:
    workdir = Path(job.workdir).absolute()

    def script(given: str | None) -> str | None:
        if given is None:
            return None
        # also False if the name is longer than a file name may be
        if not os.path.isfile(workdir / given):
            raise UsageError(
                f"job {job.name!r}: found no file {given!r} in {workdir}; expected a script"
            )
        return str(workdir / given)

    roles = tuple(replace(role, script=script(role.script)) for role in job.roles)
    absolute = replace(job, workdir=str(workdir), script=script(job.script), roles=roles)
    for part in (absolute, *map(absolute.of_role, roles)):
        file = source(part)
        if file is not None and not is_foreign(absolute) and not os.access(file, os.R_OK):
            raise UsageError(
                f"job {job.name!r}: cannot read {file}: {os.strerror(errno.EACCES)}; chmod +r it"
            )
    return absolute


def hand_in(
    hub: HubConnection, jobs: Submission, policy: str | None, given: StandardInput | None = None
) -> Watch:
    """Submit jobs to a hub, and watch their run over that connection.

    Args:
        hub: The hub.
        jobs: The jobs to run.
        policy: Policy that moves shares between jobs; None: that of the jobs that run already.
        given: Standard input of their only task.

    Raises:
        HubError: The hub is gone.
        UsageError: The hub refuses the jobs.
    """
    return Watch(hub, hub.submit(jobs.plain(), policy, attach=True, given=given)["run"])


@contextmanager
def submitted(jobs: Submission, policy: str | None, kill: bool) -> Iterator[Watch]:
    """Submit jobs and follow them to their end.

    Args:
        jobs: The jobs to run.
        policy: As of `hand_in`.
        kill: Whether a Ctrl-C stops the jobs at once; otherwise they save a checkpoint.

    Raises:
        HubError: No hub could be started.
        UsageError: The hub refuses the jobs.
    """
    clean()
    with connect_or_start() as hub:
        watch: Watch | None = None
        try:
            watch = hand_in(hub, jobs, policy)
            yield watch
        except KeyboardInterrupt:
            # submitted jobs may have started already
            if watch is None and "run" in (answer := hub.receive(TAKE_IN_SECONDS) or {}):
                watch = Watch(hub, answer["run"])
            if watch is not None:
                watch.leave_stopped(kill=kill)
            raise
