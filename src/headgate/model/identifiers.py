"""What jobs and tasks are called: `RUN/NAME` a job, `RUN/NAME/ROLE-INDEX` a task, and what is left
of that within a run and within a job.

Each is a `str` with properties, equal to the plain string of the same letters. So SQLite, JSON,
pickles and dictionaries take it unchanged. It is made once, where a string enters: from the wire,
from a store, or from what a person typed. Nothing checks it then. No other module takes such a
string apart.

The property `index` hides the method of `str`, for which an identifier has no use.
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
        """`worker`, `server` or `evaluator`, or what a job that is made of roles calls it."""
        return self.rpartition("-")[0]

    @property
    def index(self) -> int:  # type: ignore[override]
        """From 0.

        Raises:
            ValueError: It ends with none.
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
        """Sorts tasks: workers before all others, each by index."""
        role, _, index = self.rpartition("-")
        return role != "worker", role, int(index) if index.isdecimal() else 0


FIRST_WORKER = TaskName("worker-0")
EVALUATOR = TaskName("evaluator-0")
"""Of TensorFlow's: it evaluates what the workers save, and no other task waits for it."""


class TaskOfRun(str):
    """`JOB/ROLE-INDEX`: a task within its run, as the run's store and the command line name it."""

    __slots__ = ()

    @classmethod
    def of(cls, job: str, name: TaskName) -> TaskOfRun:
        """The task of this name of the job of this name."""
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
        """The job of this name of a run."""
        return cls(f"{run}/{name}")

    @property
    def run(self) -> str:
        """Id of its run."""
        return self.partition("/")[0]

    @property
    def name(self) -> str:
        return self.partition("/")[2]

    def task(self, name: TaskName) -> TaskId:
        """Its task of this name."""
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
        """The job that it is a task of."""
        return JobId(self.rpartition("/")[0])

    @property
    def name(self) -> TaskName:
        """`ROLE-INDEX`."""
        return TaskName(self.rpartition("/")[2])

    @property
    def index(self) -> int:  # type: ignore[override]
        """From 0.

        Raises:
            ValueError: It ends with none.
        """
        return self.name.index

    @property
    def of_run(self) -> TaskOfRun:
        """Its name within its run, `JOB/ROLE-INDEX`."""
        return TaskOfRun(self.partition("/")[2])


IDENTIFIERS = (JobId, TaskId, TaskName, TaskOfRun)
"""All of them, for who lets nothing else pass."""


def run_and_job(text: str) -> tuple[str, str]:
    """What a person means by `[RUN/]JOB`: the run's id or a part of it, empty where they named
    none, and the job.
    """
    run, _, job = text.rpartition("/")
    return run, job


def job_and_task(text: str) -> tuple[str, TaskName | None]:
    """What a person means by `[RUN/]JOB[/TASK]`: `[RUN/]JOB`, and the task; None where they named
    none.
    """
    job, _, task = text.rpartition("/")
    return (job, TaskName(task)) if job and _TASK.fullmatch(task) else (text, None)
