"""Measure what a job costs: `headgate.profile`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from headgate.client.submitting import check_kind, submission, submitted
from headgate.client.watching import RunNews, RunSnapshot
from headgate.model.errors import HeadgateError, UsageError
from headgate.model.jobs import Job
from headgate.model.profiles import Profile
from headgate.recorded import runs
from headgate.recorded.reader import RunReader
from headgate.recorded.rows import JobRow
from headgate.scripts.program import program, unprofiled

PROFILE_SECONDS = 300.0
"""Most seconds of a profiling run whose job has no timeout."""


def profile(
    job: Job, *, again: bool = False, watcher: Callable[[RunNews | None], None] = lambda _: None
) -> Profile:
    """Measure what a job's model costs in a short run, or read the stored profile.

    Args:
        job: A script that uses `headgate.torch`, `.keras` or `.jax`, trains with PyTorch, or prints
            its steps.
        again: Measure even if a profile is stored. A profile taken on a busy machine is always
            measured again.
        watcher: Called with news of the profiling run; None after each second without any.

    Returns:
        The new profile, or the stored one if it is better.

    Raises:
        UsageError: The input is invalid.
        HeadgateError: The script ended without a profile; the message names its log.
    """
    from headgate.profiling import printed, store  # no other run needs it
    from headgate.sampling import machine

    check_kind(job)
    if program(job) is None:
        raise UsageError(unprofiled(job))
    # Without a timeout a script that never prepares a model would run to its end.
    job = replace(job, timeout=job.timeout or PROFILE_SECONDS)
    handed_in = submission([job], mode="profile")
    node = machine.detect(runs.home() / "node.json")
    stored = store.load(runs.home() / "profiles", store.key(handed_in.jobs[0], node))
    if stored is not None and stored.source == "profile" and not stored.is_busy and not again:
        return stored
    [handed] = handed_in.jobs
    shown = printed.ShownSteps(time.monotonic()) if printed.tells_by_printing(handed) else None
    with submitted(handed_in, None, kill=True) as watch:
        for news in watch.follow(1.0):
            watcher(news)
            step = news.jobs[0].step if isinstance(news, RunSnapshot) else None
            if shown is not None and shown.enough(time.monotonic(), step):
                watch.stop(kill=True)
                shown = None
    folder = watch.path
    with RunReader(folder / runs.STORE) as reader:
        [row] = reader.records(JobRow)
        measured = row.cost()
        if measured is None or measured.source != "profile":
            measured = printed.of_printed(reader, handed, node)
    if measured is None:
        why = "" if row.state == "done" else f" ({row.reason})"
        raise HeadgateError(
            f"the script ended without a profile{why}; it has to train by an optimizer of PyTorch, "
            "to call `prepare` of headgate.torch, .keras or .jax, or, with `--launch tensorflow`, "
            "`jax` or `mpi`, to print the number of each step. Its output: headgate logs "
            f"{folder.name}/{row.name}"
        )
    measured = measured.with_parameters(handed.parameters)
    store.save(runs.home() / "profiles", store.key(handed, node), measured)
    if stored is None or not store.is_better(stored, measured):
        return measured
    kept = "measured again, while others used the machine more: the calmer one of before was kept"
    return replace(stored, notes=(*stored.notes, kept))
