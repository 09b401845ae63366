"""Which runs are kept, and which are deleted."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from headgate.model import defaults
from headgate.model.errors import HeadgateError, StorageError, UsageError
from headgate.recorded.folders import STORE, is_awaited, listing
from headgate.recorded.runs import CALLS, alive, describe, in_use, lineage, summary

READ = "result.read"
"""Empty file in the folder of a call whose caller has the result."""
_LONG_SECONDS = 600.0
"""Records of runs longer than this are never deleted automatically."""
_UNREAD_SECONDS = 7 * 86400.0
"""How long unread results of calls are kept."""


def check_removable(run: Path) -> None:
    """Check that no live run needs a run.

    Raises:
        UsageError: It is live, or a live run resumes from it.
    """
    if alive(run) or is_awaited(run):
        raise UsageError(
            f"run {run.name} is running; stop it first with: headgate stop --run {run.name}"
        )
    if (heir := in_use().get(run)) is not None:
        raise UsageError(
            f"run {heir.name} goes on from run {run.name} and may need its checkpoints; wait for "
            f"its end, or stop it first with: headgate stop --run {heir.name}"
        )


def remove(run: Path) -> None:
    """Delete an ended run.

    Raises:
        UsageError: As `check_removable`.
        StorageError: A file cannot be deleted.
    """
    check_removable(run)
    try:
        shutil.rmtree(run)
    except OSError as error:
        raise StorageError(f"cannot delete {run}: {error.strerror}") from error


def retain(keep: str | None = None) -> list[str]:
    """Delete the oldest ended runs beyond a number of newest ones. Long runs and runs with
    checkpoints stay.

    Args:
        keep: Value of `HEADGATE_KEEP_RUNS`: the number; None: 200.

    Returns:
        The ids of deleted runs.

    Raises:
        UsageError: The value is not a number.
    """
    text = str(defaults.KEEP_RUNS) if keep is None else keep
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"found HEADGATE_KEEP_RUNS={text!r}; expected a number of runs")
    gone = []
    for run in outdated(int(text)):
        if not _would_be_missed(run):
            shutil.rmtree(run, ignore_errors=True)
            gone += [] if run.exists() else [run.name]
    return gone


def outdated(keep: int) -> list[Path]:
    """Runs safe to delete: not among the newest `keep`, not live, and not needed to resume a live
    or an unfinished one. Runs of calls count apart, and stay until their results were read.
    """
    calls, others, needed = list[Path](), list[Path](), set(in_use())
    for run in listing():
        (calls if (run / CALLS).exists() else others).append(run)
    oldest = others[: max(len(others) - keep, 0)]
    for run in others[len(oldest) :]:
        if len(came_from := lineage(run)) > 1 and _is_unfinished(run):
            needed.update(came_from)
    oldest += [run for run in calls[: max(len(calls) - keep, 0)] if _is_read(run)]
    return sorted(path for path in oldest if path not in needed)


def _is_read(run: Path) -> bool:
    """Whether all results of a run of calls were read, or have waited too long."""
    if all((job / READ).exists() for job in (run / "jobs").iterdir()):
        return True
    return time.time() - (run / STORE).stat().st_mtime > _UNREAD_SECONDS


def _is_unfinished(run: Path) -> bool:
    try:
        return summary(run).state != "done"
    except HeadgateError:
        return True


def has_checkpoints(run: Path) -> bool:
    """Whether a run has a checkpoint of any of its jobs, or files that a script put beside them."""
    return next(run.glob("jobs/*/checkpoints/*"), None) is not None


def _would_be_missed(run: Path) -> bool:
    """Whether a run has checkpoints or records of a long training, or cannot be read."""
    try:
        ended = describe(run).ended
        return has_checkpoints(run) or ended is None or ended >= _LONG_SECONDS
    except HeadgateError:
        return True
