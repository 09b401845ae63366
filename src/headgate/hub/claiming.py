"""At most one live resume of each run, across all terminals and hubs."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from headgate.hub.submission import Submission
from headgate.model.errors import HubError
from headgate.recorded import resuming

LOCK = "resuming.lock"
_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.02


@asynccontextmanager
async def claimed(home: Path, submission: Submission) -> AsyncIterator[None]:
    """Keep other hubs of this home from resuming runs while a resume is submitted; no effect on
    other submissions.

    Args:
        home: Headgate's folder.
        submission: The submission.

    Raises:
        UsageError: The run is already resumed, or nothing is left to do.
        HubError: Another hub has been busy with a resume for too long.
    """
    former = submission.resumed_from
    if former is None:
        yield
        return
    names = [job.name for job in submission.jobs]
    again = (*submission.from_scratch, *submission.named)
    lock = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        await _locked(lock)
        await asyncio.to_thread(_check, home / "runs" / former, names, again)
        yield
    finally:
        os.close(lock)


def _check(former: Path, names: Sequence[str], again: Sequence[str]) -> None:
    resuming.check_ended(former)
    resuming.check_left(former, names, again)


async def _locked(lock: int) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if loop.time() > deadline:
                waited = f"{_PATIENCE_SECONDS:g} s"
                raise HubError(
                    f"another hub has been taking in a resume for {waited}; try again"
                ) from error
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            return
