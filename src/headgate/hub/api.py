"""Running and measuring jobs from Python: `headgate.run` and `headgate.profile`."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from headgate.engines.base import LOCAL, EngineSpec
from headgate.engines.engine_options import usual
from headgate.engines.launch import is_foreign
from headgate.hub.client import ANSWER_SECONDS, TAKE_IN_SECONDS, Hub, clean, connect_or_start
from headgate.hub.submission import Submission, reach
from headgate.isolation.process_attributes import Attributes
from headgate.model.errors import HeadgateError, UsageError
from headgate.model.forerunners import cycle
from headgate.model.jobs import Job
from headgate.model.profiles import Profile
from headgate.recorded import runs
from headgate.recorded.store import RunReader
from headgate.scripts import launchers, variables
from headgate.scripts.program import program, source, unprofiled

PROFILE_SECONDS = 300.0
"""How long a run for a profile may take, where its job has no timeout."""


def submission(jobs: Sequence[Job], **more: Any) -> Submission:
    """Jobs as handed in by this process: its environment, folder and command line; relative paths
    are made absolute.

    Raises:
        UsageError: There is no job, two have one name, something is no job, or a script does not
            exist.
    """
    for job in jobs:
        _check_kind(job)
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
    found = [launchers.resolved(job) for job in submission.jobs]
    told = {job.name: text for job, text in found if text}
    warned = {job.name: text for job, _ in found if (text := launchers.doubt(job))}
    return replace(
        submission,
        jobs=tuple(job for job, _ in found),
        notes={**submission.notes, **told},
        warnings={**warned, **submission.warnings},
    )


def _check_kind(job: object) -> None:
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
    found = replace(job, workdir=str(workdir), script=script(job.script), roles=roles)
    for each in (found, *map(found.of_role, roles)):
        file = source(each)
        if file is not None and not is_foreign(found) and not os.access(file, os.R_OK):
            raise UsageError(
                f"job {job.name!r}: cannot read {file}: {os.strerror(errno.EACCES)}; chmod +r it"
            )
    return found


@contextmanager
def submitted(
    jobs: Submission, policy: str | None, kill: bool
) -> Iterator[tuple[Hub, Mapping[str, Any]]]:
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


def run(
    *jobs: Job,
    policy: str | None = None,
    cluster: str | None = None,
    engine: str = LOCAL.name,
    address: str = "",
    shared_files: bool = False,
) -> runs.RunSummary:
    """Run jobs side by side, and wait until they have ended.

    Args:
        jobs: What to run.
        policy: What moves shares between them; None: what the jobs that run already have, else
            `headgate`.
        cluster: Name or file of a lab that is up, to run on its nodes; None: on this machine.
        engine: What starts tasks: `local`, or another of those that `headgate doctor` lists.
        address: Where the cluster of an engine is reached; empty: where the environment says, else
            a cluster that is started on this machine.
        shared_files: The nodes of that cluster see this machine's files, so that none are sent
            there.

    Returns:
        How the run and each of its jobs ended; `path` is the run's folder, with its logs and
        `report.html`.

    Raises:
        UsageError: Bad input.
        HubError: No hub could be started, or it died.

    Example:
        >>> import headgate
        >>> trains = headgate.Job(name="a", script="a.py")
        >>> headgate.run(trains, headgate.Job(name="b", run="make b"))
    """
    name, nodes = reach(cluster) if cluster is not None else ("", ())
    where = EngineSpec(engine, address or usual(engine, "address"), shared_files)
    if cluster is not None and where != LOCAL:
        raise UsageError(
            f"found cluster={cluster!r} with engine {engine!r}, which has nodes of its "
            "own; give one"
        )
    with submitted(
        submission(jobs, cluster=name, nodes=nodes, engine=where), policy, kill=False
    ) as (hub, answer):
        for _ in hub.follow(60.0):
            pass
    return runs.summary(Path(answer["path"]))


def profile(
    job: Job, *, again: bool = False, watcher: Callable[[dict[str, Any]], None] = lambda _: None
) -> Profile:
    """Measure what a job's model costs, in a short run of its own; or read it from the last time.

    Args:
        job: A script that uses `headgate.torch`, `.keras` or `.jax`, trains by PyTorch, or prints
            its steps.
        again: Measure, though there is a stored profile; one that was taken on a busy machine is
            measured again anyway.
        watcher: Called with what the hub says of the run meanwhile.

    Returns:
        What was measured, or what is stored where that is the better one.

    Raises:
        UsageError: Bad input.
        HeadgateError: The script ended without a profile; the message says where its output is.
    """
    from headgate.profiling import printed, store  # what no other run needs
    from headgate.sampling import machine

    _check_kind(job)
    if program(job) is None:
        raise UsageError(unprofiled(job))
    # A script that never prepares a model would run to its end.
    job = replace(job, timeout=job.timeout or PROFILE_SECONDS)
    handed_in = submission([job], mode="profile")
    node = machine.detect(runs.home() / "node.json")
    stored = store.load(runs.home() / "profiles", store.key(handed_in.jobs[0], node))
    if stored is not None and stored.source == "profile" and not stored.is_busy and not again:
        return stored
    [handed] = handed_in.jobs
    shown = printed.ShownSteps(time.monotonic()) if printed.tells_by_printing(handed) else None
    with submitted(handed_in, None, kill=True) as (hub, answer):
        for message in hub.follow(1.0):
            watcher(message or {})
            if shown is not None and shown.enough(time.monotonic(), message):
                hub.send("stop", run=answer["run"], kill=True)
                shown = None
    folder = Path(answer["path"])
    with RunReader(folder / runs.STORE) as reader:
        [row] = reader.rows("jobs")
        found = store.parse(json.loads(row["profile"])) if row["profile"] else None
        if found is None or found.source != "profile":
            found = printed.of_printed(reader, handed, node)
    if found is None:
        why = "" if row["state"] == "done" else f" ({row['reason']})"
        raise HeadgateError(
            f"the script ended without a profile{why}; it has to train by an optimizer of "
            "PyTorch, to call `prepare` "
            "of headgate.torch, .keras or .jax, or, with `--launch tensorflow`, `jax` or "
            "`mpi`, to print the number of "
            f"each step. Its output: headgate logs {folder.name}/{row['name']}"
        )
    found = found.with_parameters(handed.parameters)
    store.save(runs.home() / "profiles", store.key(handed, node), found)
    if stored is None or not store.is_better(stored, found):
        return found
    kept = "measured again, while others used the machine more: the calmer one of before was kept"
    return replace(stored, notes=(*stored.notes, kept))
