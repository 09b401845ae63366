"""This task's identity, as its engine set it in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TaskEnvironment:
    """The `HEADGATE_*` variables of a task; every field is empty under plain `python`.

    Args:
        channel: Path of the engine's Unix socket; None when no engine started this process.
        task: Id of the task, `RUN/JOB/ROLE-INDEX`.
        key: Secret of the task on the channel.
        checkpoints: Folder for the job's checkpoints; None: none are saved.
        away: Whether that folder is not in the run's folder. Reported checkpoints are copied to the
            run, and the folder disappears with its node.
        resume: Checkpoint to resume from; None on a fresh start.
        mode: `run`, or `profile`: measure, report the profile, end.
        outlives: Whether this task goes on if its hub dies, and connects to the next.
        steps: Steps before the checkpoint of its script's own that it resumes from.
    """

    channel: str | None = None
    task: str = ""
    key: str = ""
    checkpoints: str | None = None
    away: bool = False
    resume: str | None = None
    mode: str = "run"
    steps: int = 0
    outlives: bool = False

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> TaskEnvironment:
        """The task that `variables` describe, by default this process's environment.

        A channel of a kind that this version does not know counts as none.
        """
        environment = os.environ if variables is None else variables
        scheme, _, path = environment.get("HEADGATE_CHANNEL", "").partition(":")
        return cls(
            channel=path if scheme == "unix" and path else None,
            task=environment.get("HEADGATE_TASK", ""),
            key=environment.get("HEADGATE_KEY", ""),
            checkpoints=environment.get("HEADGATE_CHECKPOINTS") or None,
            away=bool(environment.get("HEADGATE_CHECKPOINTS_AWAY")),
            resume=environment.get("HEADGATE_RESUME") or None,
            mode=environment.get("HEADGATE_MODE") or "run",
            steps=int(environment.get("HEADGATE_STEPS") or 0),
            outlives=environment.get("HEADGATE_ON_HUB_DEATH") == "go-on",
        )

    @classmethod
    def claim(cls) -> TaskEnvironment:
        """Read this process's environment, and remove the channel from it.

        A task has one connection. Child processes inherit the environment. They must neither
        connect as the same task nor hold its key.
        """
        environment = cls.read()
        for name in ("HEADGATE_CHANNEL", "HEADGATE_KEY", "HEADGATE_RESUME"):
            os.environ.pop(name, None)
        return environment
