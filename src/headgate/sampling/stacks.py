"""Reads the stacks of Python processes from outside by py-spy. Scripts need no change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from headgate.model.errors import HeadgateError
from headgate.model.extras import install

_SECONDS = 20.0
"""Longest time for one process. It usually takes some hundredths of a second."""
_REFUSED = "Permission"
_NO_PYTHON = "find python version"
_NOT_THE_SCRIPT = ("-packages/", "/lib/python", "/inject/", "<frozen")
"""Parts of file names of code that no user wrote."""
_AROUND = ("headgate.task.mpi", "headgate.task.rendezvous", "headgate.torch.rendezvous_store")
"""Headgate's own processes around a worker of another launcher's script."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A call: function, file and line."""

    function: str
    file: str
    line: int

    @property
    def of_script(self) -> bool:
        """Whether it is a user's code, and not a library's."""
        return not any(part in self.file for part in _NOT_THE_SCRIPT)


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """A thread's stack, innermost call first."""

    process: int
    thread: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class TaskStacks:
    """The threads of all Python processes of a task, its main thread first.

    Args:
        trouble: Why a process could not be read; empty: all were read.
    """

    task: str
    threads: tuple[ThreadStack, ...]
    trouble: str = ""

    @property
    def place(self) -> tuple[Frame, ...]:
        """The stack of its main thread; empty if unknown."""
        return self.threads[0].frames if self.threads else ()


def py_spy() -> str:
    """Path of py-spy.

    Raises:
        HeadgateError: It is not installed.
    """
    beside = os.path.join(sysconfig.get_path("scripts"), "py-spy")
    program = beside if os.access(beside, os.X_OK) else shutil.which("py-spy")
    if program is None:
        raise HeadgateError(
            f"stacks are read by py-spy, which is not installed: {install('explain')}"
        )
    return program


def read(task: str, first: int) -> TaskStacks:
    """The stacks of a task with this first process, and of all Python processes below it.

    Raises:
        HeadgateError: py-spy is not installed, or may not read processes of this user.
    """
    program = py_spy()
    threads: list[ThreadStack] = []
    trouble = ""
    pids = _processes(first)
    names = _programs(pids)  # as of now: they may end meanwhile
    for pid in pids:
        stacks, error = _dump(program, pid)
        threads += stacks
        if error and _REFUSED in error:
            raise HeadgateError(
                f"py-spy may not read process {pid}: run it as root, or allow it (sysctl "
                "kernel.yama.ptrace_scope=0)"
            )
        if not stacks and (not trouble or _NO_PYTHON in trouble):
            trouble = error or trouble
    if _NO_PYTHON in trouble:
        trouble = f"it has no Python process: it runs {' and '.join(names)}"
    main = threads[0].process if threads else first
    threads.sort(key=lambda thread: (thread.process != main, thread.thread != "MainThread"))
    return TaskStacks(
        task, tuple(threads), "" if threads else trouble or "it has no Python process"
    )


def grouped(tasks: Iterable[TaskStacks]) -> list[list[TaskStacks]]:
    """Tasks grouped by the calls of their main threads, the largest group first. Lines may differ,
    so that a loop is one place.
    """
    groups: dict[tuple[tuple[str, str], ...], list[TaskStacks]] = {}
    for task in tasks:
        groups.setdefault(tuple((frame.file, frame.function) for frame in task.place), []).append(
            task
        )
    return sorted(groups.values(), key=len, reverse=True)


def shortened(frames: Sequence[Frame], most: int) -> list[Frame | int]:
    """At most `most` calls of a stack, with the number of calls left out between them.

    It keeps the innermost half, and the innermost calls of the script, which show how it came
    there.
    """
    if len(frames) <= most:
        return list(frames)
    half = most // 2
    kept = [number for number in range(half, len(frames)) if frames[number].of_script][
        : most - half
    ]
    inner = most - len(kept)
    kept = sorted({*range(inner), *kept})
    shown: list[Frame | int] = []
    for number, following in zip(kept, [*kept[1:], len(frames)], strict=True):
        shown.append(frames[number])
        if following - number > 1:
            shown.append(following - number - 1)
    return shown


def differing(groups: Sequence[Sequence[TaskStacks]]) -> list[str]:
    """Tasks at another place than most tasks, which the others may be waiting for. None if no place
    has most.
    """
    if len(groups) < 2 or len(groups[0]) == len(groups[1]):
        return []
    return [task.task for group in groups[1:] for task in group]


def _processes(first: int) -> list[int]:
    """The processes of a task, without those that Headgate put around a worker."""
    try:
        top = psutil.Process(first)
        return [
            process.pid for process in (top, *top.children(recursive=True)) if not _is_own(process)
        ]
    except psutil.Error:
        return []


def _programs(pids: Iterable[int]) -> list[str]:
    """The programs of these processes, each once."""
    names: dict[str, None] = {}
    for pid in pids:
        with suppress(psutil.Error):  # it has ended
            names[psutil.Process(pid).name()] = None
    return list(names)


def _is_own(process: psutil.Process) -> bool:
    try:
        own = (*_AROUND, *(f"{name.replace('.', '/')}.py" for name in _AROUND))
        return any(word.endswith(own) for word in process.cmdline()[:3])
    except psutil.Error:  # it has ended
        return True


def _dump(program: str, pid: int) -> tuple[list[ThreadStack], str]:
    """The threads of a process, or why there are none."""
    command = [program, "dump", "--json", "--pid", str(pid)]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return [], f"process {pid} could not be read within {_SECONDS:g} s"
    if asked.returncode != 0:
        # py-spy's own stack is of no use to a user
        error = asked.stderr.partition("Stack backtrace:")[0].strip()
        return [], error.removeprefix("Error: ")
    return [_thread(pid, thread_data) for thread_data in json.loads(asked.stdout)], ""


def _thread(pid: int, thread_data: Mapping[str, object]) -> ThreadStack:
    frames = thread_data.get("frames")
    return ThreadStack(
        process=pid,
        thread=str(
            thread_data.get("thread_name")
            or thread_data.get("os_thread_id")
            or thread_data.get("thread_id")
        ),
        frames=tuple(
            Frame(str(frame["name"]), str(frame["filename"]), int(frame["line"]))
            for frame in (frames if isinstance(frames, list) else ())
        ),
    )
