"""How tasks and jobs end: by which status, what they answered when they were asked to, and what is
saved of them.
"""

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
    """

    path: str
    step: int
    epoch: int
    position: int | None

    @property
    def where(self) -> str:
        """The step; of one whose user named a file from which that cannot be told, the file."""
        return f"step {self.step}" if self.step else os.path.basename(self.path)


@dataclass(frozen=True, slots=True)
class OutsideFiles:
    """Files that a task wrote to its container alone.

    Args:
        paths: Some of them, as the task named them.
        count: How many there are.
        size: Bytes of those that were looked at.
        kept: Folder that copies were put in; empty: none were.
        copied: How many were copied.
        unsized: How many paths of these were not looked at, because they are too many.
        astray: Some of the symbolic links among them that lead to none of the copies.
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
        code: Exit status; None when a signal ended it.
        signal: Number of that signal.
        memory_peak_bytes: Most memory it held; None where that cannot be told.
        over_memory: It ran out of memory: the kernel killed it for being over its limit, or its
            output says so.
        on_gpu: It was the memory of a GPU that it ran out of.
        reason: What ended it in words, where Headgate knows more than the status says.
        cpu_seconds: CPU time that it used from its start to its end; None where that cannot be
            told.
        lost: It did not end by itself, but with its node, its agent, its daemon or its container.
        kills: How many of its processes the kernel killed for want of memory, whether or not that
            ended it.
        port_taken: Another program listened at the port that it was told to listen at.
        outside: What it wrote to its container alone; None: nothing.
        overdue_seconds: It was killed, for it had not ended so long after it was asked to; None: it
            was not.
        left: Commands of processes that it had started, and that were at work when it had ended
            well.
        last_failure: The failure that its output ends with though it ended well; empty: none.
        limit_bytes: The memory limit that it was killed for being over; None: it was not.
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

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def shell_code(self) -> int:
        """The code that a shell would give: 128 more than the signal that ended it; 127 when it
        could not be started.
        """
        if self.code is not None:
            return self.code
        return 128 + self.signal if self.signal is not None else 127

    def because(self) -> Reason:
        """How the task ended."""
        return Reason.of(ReasonKind.EXIT, code=self.code, signal=self.signal, text=self.reason)

    def in_words(self) -> str:
        """How the task ended: its reason, the name of its signal, or its exit code."""
        if self.reason is not None:
            return self.reason
        if self.signal is None:
            return f"exit code {self.code}"
        known = self.signal in set(signal.Signals)
        return f"killed by {signal.Signals(self.signal).name if known else f'signal {self.signal}'}"


class StopAnswer(StrEnum):
    """What a job did that was asked to end."""

    ENDED = "ended"
    """It ended in its time."""
    NONE = "none"
    """It did not, and was killed."""
    KILLED = "killed"
    """It was killed at once, as its user wanted."""


class Saved(StrEnum):
    """What there is of a job that was asked to end."""

    THEN = "then"
    """A checkpoint that it saved when it was asked."""
    BEFORE = "before"
    """An earlier checkpoint: what it did after that is lost."""
    NOTHING = "nothing"
    BY_ITSELF = "by-itself"
    """Its script goes on from what it saves itself (`resumes`), and Headgate is not told of
    that.
    """


class Doubt(StrEnum):
    """Why a job whose command ended well may not have done what it was to do."""

    LEFT_PROCESSES = "left-processes"
    """Processes that it had started were still at work, and were ended with it."""
    FAILURE_IN_OUTPUT = "failure-in-output"
    """The last that it printed is a failure, which its exit status does not tell."""
    NO_ANSWER = "no-answer"
    """It was to end because it had reached its goal, and did not answer."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ended.

    Args:
        answer: What it did when it was asked to end; None: it was not asked.
        grace_seconds: How long it had for that, where it did not end in time.
        saved: What is saved of it; None: it was not asked to end.
        checkpoint: The latest one; None: there is none.
        doubt: Why it may not have done what it was to do, though it is done; None: nothing tells.
        left: Commands of the processes that it left behind.
        failure: The failure that its output ends with; empty: none.
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
        """Of a job that was asked to end.

        Args:
            grace_seconds: How long it had, where it did not end in that time; None: it did.
            checkpoint: Its latest one.
            killed: It was killed at once.
            saved_then: It saved that when it was asked.
            resumes: Its script saves for itself.
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
        """Of a job whose last task ended so, and well; None: there is nothing to say of it."""
        if exit.left:
            return cls(doubt=Doubt.LEFT_PROCESSES, left=exit.left, failure=exit.last_failure)
        if exit.last_failure:
            return cls(doubt=Doubt.FAILURE_IN_OUTPUT, failure=exit.last_failure)
        return None
