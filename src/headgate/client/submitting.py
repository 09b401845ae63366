"""What this process hands in to the hub: jobs, with its environment, folder and command line."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from headgate.client.starting import clean, connect_or_start
from headgate.engines.launch import is_foreign
from headgate.hub.connection import ANSWER_SECONDS, TAKE_IN_SECONDS, HubConnection
from headgate.hub.submission import Submission
from headgate.isolation.process_attributes import Attributes
from headgate.model.errors import UsageError
from headgate.model.forerunners import cycle
from headgate.model.jobs import Job
from headgate.scripts import launchers, variables
from headgate.scripts.program import source


def submission(jobs: Sequence[Job], **more: Any) -> Submission:
    """Jobs as handed in by this process: its environment, folder and command line; relative paths
    are made absolute.

    Raises:
        UsageError: There is no job, two have one name, something is no job, or a script does not
            exist.
    """
    for job in jobs:
        check_kind(job)
    if not jobs:
        raise UsageError("found no job; expected at least one")
    names = [job.name for job in jobs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"found {names.count(name)} jobs named {name!r}; give each a name of its own"
            )
    _check_order({job.name: job.forerunners for job in jobs}, resumed="resumed_from" in more)
    program = Path(sys.argv[0]).name
    command = (
        "headgate" if program == "__main__.py" else program,
        *variables.without_secrets(sys.argv[1:]),
    )
    more = {"attributes": Attributes.of_this_process(), **more}
    return launched(
        Submission(tuple(map(_absolute, jobs)), dict(os.environ), os.getcwd(), command, **more)
    )


def launched(submission: Submission) -> Submission:
    """A submission whose jobs find their workers by contracts that are settled, and that tells of
    these.

    Raises:
        UsageError: What a job says of that does not go together.
    """
    settled = [launchers.resolved(job) for job in submission.jobs]
    notes = {job.name: text for job, text in settled if text}
    doubts = {job.name: text for job, _ in settled if (text := launchers.doubt(job))}
    return replace(
        submission,
        jobs=tuple(job for job, _ in settled),
        notes={**submission.notes, **notes},
        warnings={**doubts, **submission.warnings},
    )


def check_kind(job: object) -> None:
    """
    Raises:
        UsageError: This is no job.
    """
    if not isinstance(job, Job):
        raise UsageError(
            f"found {type(job).__name__} {job!r:.80}; expected a job, such as "
            "headgate.Job(name='a', script='a.py')"
        )


def _check_order(forerunners: Mapping[str, Sequence[str]], resumed: bool) -> None:
    """Whether every job's turn will come; those which a resumed one comes after may have been done
    before.
    """
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
        # False too where its name is longer than a name may be
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


@contextmanager
def submitted(
    jobs: Submission, policy: str | None, kill: bool
) -> Iterator[tuple[HubConnection, Mapping[str, Any]]]:
    """Submit jobs, to be followed to their end. Gives the hub, with its answer (`run`, `path`).

    Args:
        jobs: What to run.
        policy: As of `run`.
        kill: A Ctrl-C meanwhile ends them at once; else with a checkpoint.

    Raises:
        HubError: No hub could be started.
        UsageError: It refuses the jobs.
    """
    clean()
    with connect_or_start() as hub:
        answer: Mapping[str, Any] | None = None
        try:
            answer = hub.submit(jobs.plain(), policy, attach=True)
            yield hub, answer
        except KeyboardInterrupt:
            # what is handed in already may have begun
            answer = answer or hub.receive(TAKE_IN_SECONDS) or {}
            if "run" in answer:
                hub.send("stop", run=answer["run"], kill=kill)
                # The hub may not read what was sent by one that has closed the connection.
                while (hub.receive(ANSWER_SECONDS) or {}).get("type") in ("snapshot", "event"):
                    pass
            raise
