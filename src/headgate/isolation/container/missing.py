"""What a task in a container did not find and this machine has: the cure is a mount."""

from __future__ import annotations

import os
import re
from pathlib import Path

from headgate.isolation.base import HOST_IMAGE
from headgate.isolation.container.files import SYSTEM
from headgate.jobs import Job, Mount

_MISSING = re.compile(
    r"FileNotFoundError|No such file|Errno 2\b|not found|does(n't| not) exist|[Uu]nable to open|[Cc]an'?t open"
)
_READ_ONLY = re.compile(r"Read-only file system|Errno 30\b")
_PATH = re.compile(r"""(["'`])(?P<quoted>[~/][^"'`]*)\1|(?<![\w./~])(?P<plain>~?/[^\s"'`,;:()\[\]]+)""")


def hint(job: Job, said: str) -> str:
    """What to do about an error that names a file which the job's container does not see, or may not write; empty where
    that is not the cause.

    Args:
        job: One in a container on this machine, with absolute paths.
        said: The error.
    """
    if not (_MISSING.search(said) or _READ_ONLY.search(said)):
        return ""
    for found in _PATH.finditer(said):
        path = os.path.expanduser(found["quoted"] or found["plain"])
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        if folder == "/" or not os.path.isdir(folder):
            continue
        sees = _sees(job, path)
        if _READ_ONLY.search(said) and (sees is None or not sees.writable):
            return f'; its container may not write {folder}: --mount {folder}:rw, or `mounts: ["{folder}:rw"]`'
        if sees is None:
            cure = f"--mount {folder}, or `mounts: [{folder}]`"
            return f"; {folder} is there on this machine, and its container does not see it: {cure}"
    return ""


def _sees(job: Job, path: str) -> Mount | None:
    """What shows a path to the job's container; None: nothing that is known."""
    shown = [Mount(job.workdir, job.workdir, writable=True), *map(Mount.of, job.mounts)]
    if job.script is not None:
        folder = os.path.dirname(os.path.join(job.workdir, job.script))
        shown.append(Mount(folder, folder))
    if job.image in (None, HOST_IMAGE):
        shown += [Mount(each, each) for each in SYSTEM]
    around = [mount for mount in shown if Path(path).is_relative_to(mount.target)]
    return max(around, key=lambda mount: len(mount.target), default=None)
