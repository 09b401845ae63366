"""How tasks and jobs end: exit status, answer to a stop request, and what is saved."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from enum import StrEnum

from headgate.model.reasons import Reason, ReasonKind


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A saved state of a job.

    Args:
        path: Its file.
        step: The step in which it was saved.
        epoch: The epoch in which it was saved.
        position: Batches of that epoch that were done; None: a resume starts the epoch again.
        own: Whether the script saved it by itself, in a form of its own.
        node: The node that alone has it; empty: the hub's machine sees it too.
    """

    path: str
    step: int
    epoch: int
    position: int | None
    own: bool = False
    node: str = ""

    @property
    def where(self) -> str:
        """The step; the file if its step is not known, as when a user named the file."""
        return f"step {self.step}" if self.step else os.path.basename(self.path)


@dataclass(frozen=True, slots=True)
class OutsideFiles:
    """Files that a task wrote only to its container.

    Args:
        paths: Some of them, as the task named them.
        count: How many there are.
        size: Bytes of those that were looked at.
        kept: Folder with copies of them; empty: none were copied.
        copied: How many were copied.
        unsized: How many of these paths were not looked at, because there are too many.
        astray: Some of the symbolic links among them that point outside the copies.
        links: How many such links there are.
    """

    paths: tuple[str, ...]
    count: int
    size: int
    kept: str = ""
    copied: int = 0
    unsized: int = 0
    astray: tuple[str, ...] = ()
    links: int = 0


@dataclass(frozen=True, slots=True)
class Exit:
    """How a task ended.

    Args:
        code: Exit status; None: a signal ended it.
        signal: Number of that signal.
        memory_peak_bytes: Most memory that it held; None: not known.
        over_memory: Whether it ran out of memory: killed over its limit, or by its own output.
        on_gpu: Whether it ran out of GPU memory.
        reason: What ended it, in words, if Headgate knows more than the status says.
        cpu_seconds: CPU time from its start to its end; None: not known.
        lost: Whether it ended only because its node, agent, daemon or container was lost.
        kills: How many of its processes the kernel's OOM killer killed, whether or not that ended
            it.
        port_taken: Whether another program listened on its assigned port.
        outside: What it wrote only to its container; None: nothing.
        overdue_seconds: It was killed because it had not ended this long after a stop request;
            None: it was not.
        left: Commands of processes that it left running after it succeeded.
        last_failure: The failure at the end of its output although it succeeded; empty: none.
        limit_bytes: The memory limit for which it was killed; None: it was not.
        cure: What to do about `reason`, in words, if Headgate knows; empty: it does not.
    """

    code: int | None
    signal: int | None = None
    memory_peak_bytes: int | None = None
    over_memory: bool = False
    reason: str | None = None
    cpu_seconds: float | None = None
    lost: bool = False
    kills: int = 0
    port_taken: bool = False
    on_gpu: bool = False
    outside: OutsideFiles | None = None
    overdue_seconds: float | None = None
    left: tuple[str, ...] = ()
    last_failure: str = ""
    limit_bytes: int | None = None
    cure: str = ""

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def shell_code(self) -> int:
        """The exit code of a shell: 128 plus the signal number; 127 if the task could not be
        started.
        """
        if self.code is not None:
            return self.code
        return 128 + self.signal if self.signal is not None else 127

    def because(self) -> Reason:
        return Reason.of(
            ReasonKind.EXIT,
            code=self.code,
            signal=self.signal,
            text=self.reason,
            cure=self.cure,
        )

    def in_words(self) -> str:
        """How the task ended: its reason, the name of its signal, or its exit code."""
        if self.reason is not None:
            return self.reason
        if self.signal is None:
            return f"exit code {self.code}"
        known = self.signal in set(signal.Signals)
        return f"killed by {signal.Signals(self.signal).name if known else f'signal {self.signal}'}"


class StopAnswer(StrEnum):
    """How a job answered a stop request."""

    ENDED = "ended"
    """It ended in time."""
    NONE = "none"
    """It did not end in time and was killed."""
    KILLED = "killed"
    """It was killed at once, as the user wanted."""


class Saved(StrEnum):
    """What is saved of a job that was asked to end."""

    THEN = "then"
    """A checkpoint saved at the stop request."""
    BEFORE = "before"
    """An earlier checkpoint; later progress is lost."""
    NOTHING = "nothing"
    BY_ITSELF = "by-itself"
    """The script's own checkpoints (`resumes`), which Headgate does not see."""


class Doubt(StrEnum):
    """Why a job that exited successfully may have failed."""

    LEFT_PROCESSES = "left-processes"
    """Processes that it had started still ran, and were ended with it."""
    FAILURE_IN_OUTPUT = "failure-in-output"
    """Its output ends with a failure although its exit status is 0."""
    NO_ANSWER = "no-answer"
    """It was asked to end at its goal and did not answer."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ended.

    Args:
        answer: Its answer to a stop request; None: there was none.
        grace_seconds: How long it had to end, if it did not end in time.
        saved: What is saved of it; None: it was not asked to end.
        checkpoint: Its latest checkpoint; None: there is none.
        doubt: Why it may have failed although it exited successfully; None: no sign of failure.
        left: Commands of the processes that it left running.
        failure: The failure at the end of its output; empty: none.
    """

    answer: StopAnswer | None = None
    grace_seconds: float | None = None
    saved: Saved | None = None
    checkpoint: Checkpoint | None = None
    doubt: Doubt | None = None
    left: tuple[str, ...] = ()
    failure: str = ""

    @classmethod
    def asked(
        cls,
        grace_seconds: float | None,
        checkpoint: Checkpoint | None,
        *,
        killed: bool,
        saved_then: bool,
        resumes: bool,
    ) -> Ending:
        """The ending of a job that was asked to end.

        Args:
            grace_seconds: How long it had, if it did not end in time; None: it did.
            checkpoint: Its latest checkpoint.
            killed: Whether it was killed at once.
            saved_then: Whether it saved that checkpoint at the stop request.
            resumes: Whether its script saves its own checkpoints.
        """
        if checkpoint is not None:
            saved = Saved.THEN if saved_then else Saved.BEFORE
        else:
            saved = Saved.BY_ITSELF if resumes else Saved.NOTHING
        if killed:
            return cls(StopAnswer.KILLED, saved=saved, checkpoint=checkpoint)
        answer = StopAnswer.ENDED if grace_seconds is None else StopAnswer.NONE
        return cls(answer, grace_seconds, saved, checkpoint)

    @classmethod
    def of(cls, exit: Exit) -> Ending | None:
        """The ending of a job whose last task succeeded with this exit; None: nothing to note."""
        if exit.left:
            return cls(doubt=Doubt.LEFT_PROCESSES, left=exit.left, failure=exit.last_failure)
        if exit.last_failure:
            return cls(doubt=Doubt.FAILURE_IN_OUTPUT, failure=exit.last_failure)
        return None
