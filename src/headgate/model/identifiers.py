"""Identifiers of jobs and tasks: `RUN/NAME` a job, `RUN/NAME/ROLE-INDEX` a task.

Within a run or a job the leading parts are left out. Each identifier is a `str` with properties,
equal to the plain string. So SQLite, JSON, pickles and dictionaries take it unchanged. It is made
once, where a string enters: from the wire, a store, or user input. It is not validated then. No
other module splits such strings.

The property `index` hides the method of `str`, which an identifier does not need.
"""

from __future__ import annotations

import re
from typing import Literal

Role = Literal["worker", "server", "evaluator"]

_TASK = re.compile(r"[a-z][a-z0-9_-]*-\d+")


class TaskName(str):
    """`ROLE-INDEX`: a task within its job, such as `worker-0`."""

    __slots__ = ()

    @classmethod
    def of(cls, role: Role, index: int) -> TaskName:
        """The name of the task with this role and index."""
        return cls(f"{role}-{index}")

    @property
    def role(self) -> str:
        """`worker`, `server`, `evaluator`, or a role that the job defines."""
        return self.rpartition("-")[0]

    @property
    def index(self) -> int:  # type: ignore[override]
        """Counted from 0.

        Raises:
            ValueError: The name does not end with an index.
        """
        return int(self.rpartition("-")[2])

    @property
    def is_worker(self) -> bool:
        return self.startswith("worker-")

    @property
    def is_server(self) -> bool:
        return self.startswith("server-")

    @property
    def order(self) -> tuple[bool, str, int]:
        """Sort key: workers first, each role by index."""
        role, _, index = self.rpartition("-")
        return role != "worker", role, int(index) if index.isdecimal() else 0


FIRST_WORKER = TaskName("worker-0")
EVALUATOR = TaskName("evaluator-0")
"""TensorFlow's evaluator: it evaluates the workers' checkpoints, and no other task waits for it."""


class TaskOfRun(str):
    """`JOB/ROLE-INDEX`: a task within its run, as in the run's store and on the command line."""

    __slots__ = ()

    @classmethod
    def of(cls, job: str, name: TaskName) -> TaskOfRun:
        """The task of this job and name."""
        return cls(f"{job}/{name}")

    @property
    def job(self) -> str:
        """Name of its job."""
        return self.partition("/")[0]

    @property
    def name(self) -> TaskName:
        return TaskName(self.rpartition("/")[2])


class JobId(str):
    """`RUN/NAME`: a job."""

    __slots__ = ()

    @classmethod
    def of(cls, run: str, name: str) -> JobId:
        """The job of this run and name."""
        return cls(f"{run}/{name}")

    @property
    def run(self) -> str:
        """Id of its run."""
        return self.partition("/")[0]

    @property
    def name(self) -> str:
        return self.partition("/")[2]

    def task(self, name: TaskName) -> TaskId:
        """The job's task of this name."""
        return TaskId(f"{self}/{name}")


class TaskId(str):
    """`RUN/NAME/ROLE-INDEX`: a task of the job `RUN/NAME`."""

    __slots__ = ()

    @property
    def run(self) -> str:
        """Id of its run."""
        return self.partition("/")[0]

    @property
    def job(self) -> JobId:
        """Id of its job."""
        return JobId(self.rpartition("/")[0])

    @property
    def name(self) -> TaskName:
        """`ROLE-INDEX`."""
        return TaskName(self.rpartition("/")[2])

    @property
    def index(self) -> int:  # type: ignore[override]
        """Counted from 0.

        Raises:
            ValueError: The id does not end with an index.
        """
        return self.name.index

    @property
    def of_run(self) -> TaskOfRun:
        """Its name within its run, `JOB/ROLE-INDEX`."""
        return TaskOfRun(self.partition("/")[2])


IDENTIFIERS = (JobId, TaskId, TaskName, TaskOfRun)
"""All identifier types, for checks of what may pass."""


def run_and_job(text: str) -> tuple[str, str]:
    """Split `[RUN/]JOB` as a user types it.

    Returns:
        The run's id or a part of it (empty: not given), and the job's name.
    """
    run, _, job = text.rpartition("/")
    return run, job


def job_and_task(text: str) -> tuple[str, TaskName | None]:
    """Split `[RUN/]JOB[/TASK]` as a user types it.

    Returns:
        `[RUN/]JOB`, and the task; None: not given.
    """
    job, _, task = text.rpartition("/")
    return (job, TaskName(task)) if job and _TASK.fullmatch(task) else (text, None)
