"""Names of the cgroups of tasks, which all users of a machine can read."""

from __future__ import annotations

import hashlib
import re

from headgate.model.identifiers import TaskId

PREFIX = "headgate-"
"""Prefix of every folder with the boxes of a group. Nothing outside such a folder is ever
removed.
"""
_PRIVATE = "~"
_BOX = re.compile(rf"/{PREFIX}[^/\n]+/[^/:\n]+:([^/:\n]+):[^/:\n]+")


def box_name(task: TaskId, private: bool) -> str:
    """The name of a task's cgroup in the folder of its group; of a private job without its name."""
    if not private:
        return task.replace("/", ":")
    digest = hashlib.blake2b(task.job.encode(), digest_size=6).hexdigest()
    return f"{task.run}:{_PRIVATE}{digest}:{task.name}"


def job_in(cgroups: str) -> str | None:
    """The name of the job that a process belongs to, whoever runs it.

    Args:
        cgroups: Text of its `/proc/PID/cgroup`.

    Returns:
        Empty: a private job's. None: the process is in no box.
    """
    box = _BOX.search(cgroups)
    if box is None:
        return None
    return "" if box[1].startswith(_PRIVATE) else box[1]
