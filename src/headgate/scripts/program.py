"""The Python program that a job's command runs: a script, or what a command such as `python -m
package.train` names.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import headgate
from headgate.isolation.signals import SHELLS
from headgate.model.jobs import Job

_PYTHON = re.compile(r"python(\d+(\.\d+)*t?)?|pypy\d*(\.\d+)*")
_OF_A_SHELL = re.compile(r"[|&;<>()$`\\*?\[\]#~{}\n]")
"""Characters with a meaning for a shell. Commands with one are not parsed."""
_STARTED = re.compile(
    r"(?:^|[\s/])python[\d.]*\s+(?:-[bBdEIOPqsSuvx]+\s+|-[WX]\s?\S+\s+)*(?:-m\s?(?P<module>[\w.]+)|(?P<script>[\w./-]+\.py)\b)"
)
_MOST_WRAPPERS = 12  # words before the interpreter: `env A=1 nice -n 5 python`
_TAKES_A_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})


@dataclass(frozen=True, slots=True)
class Program:
    """A Python program and its arguments.

    Args:
        python: The interpreter as it is named; None: the first `python` on the PATH.
        file: Its source; None if a module is found neither in its working folder nor on its
            PYTHONPATH.
        module: Its name if it is started as a module; otherwise empty.
        args: Its arguments.
    """

    python: str | None
    file: Path | None
    module: str
    args: tuple[str, ...]

    @property
    def named(self) -> str:
        """The program as a command line names it."""
        if self.module:
            return f"-m {self.module}"
        return self.file.name if self.file is not None else ""


def is_python(name: str) -> bool:
    """Whether a program of this name is a Python interpreter."""
    return _PYTHON.fullmatch(name) is not None


def program(job: Job) -> Program | None:
    """The Python program that a job runs. None if it runs another command, or one that a shell
    parses.
    """
    if job.script is not None:
        return Program(job.python, Path(job.workdir, job.script), "", job.args)
    words = words_of(job)
    if not words or not is_python(Path(words[0]).name):
        return None
    python, arguments = None if words[0] == "python" else words[0], iter(words[1:])
    for word in arguments:
        if word == "-m" or (word.startswith("-m") and not word.startswith("--")):
            module = word[2:] or next(arguments, "")
            return (
                Program(python, _module_file(module, job), module, tuple(arguments))
                if module
                else None
            )
        if word in _TAKES_A_VALUE:
            next(arguments, None)
        elif word == "-" or word.startswith("-c"):
            return None
        elif not word.startswith("-"):
            return Program(python, Path(job.workdir, word), "", tuple(arguments))
    return None


def python_name(job: Job) -> str:
    """The Python module or script that a job's command runs, whatever starts the interpreter;
    empty: unknown.
    """
    words = words_of(job)
    if not words:
        named = _STARTED.search(job.run) if isinstance(job.run, str) else None
        return "" if named is None else named["module"] or Path(named["script"]).stem
    for start in range(min(len(words), _MOST_WRAPPERS)):
        if _PYTHON.fullmatch(Path(words[start]).name):
            run = program(Job(name="job", run=words[start:], workdir=job.workdir, env=job.env))
            if run is not None:
                return run.module or (run.file.stem if run.file is not None else "")
    return ""


def is_of_a_shell(job: Job) -> bool:
    """Whether a shell runs the job's command. Then the exit status is only that of the last
    program.
    """
    return isinstance(job.run, str) or (
        job.run is not None and os.path.basename(job.run[0]) in SHELLS
    )


def unprofiled(job: Job) -> str:
    """Why a job without a known program has no profile."""
    if job.roles:
        return (
            f"job {job.name!r} is made of roles, and Headgate measures no profile of these; "
            "`headgate run --dry-run` says which node each task goes to"
        )
    return f"job {job.name!r} runs no Python program, and only of those there are profiles"


def source(job: Job) -> Path | None:
    """The file of the Python program that a job runs; None if it is unknown or missing."""
    run = program(job)
    return run.file if run is not None and run.file is not None and run.file.is_file() else None


def words_of(job: Job) -> tuple[str, ...]:
    """The words of a job's command, or of its script's arguments; empty if a shell parses them."""
    if job.script is not None:
        return job.args
    if not isinstance(job.run, str):
        return (*(job.run or ()), *job.args)
    return (*words, *job.args) if (words := _split(job.run)) else ()


@lru_cache(maxsize=1024)
def _split(line: str) -> tuple[str, ...]:
    """The words of a line; empty if a shell has to parse it."""
    try:
        return () if _OF_A_SHELL.search(line) else tuple(shlex.split(line))
    except ValueError:  # a quote that nothing closes: the shell's to complain of
        return ()


def _module_file(module: str, job: Job) -> Path | None:
    """The file that `python -m` runs for a module."""
    relative = Path(*module.split("."))
    # the working folder is on every task's path
    own = [Path(headgate.__file__).parents[1]] if relative.parts[0] == headgate.__name__ else []
    for folder in (*_folders(job), *own):
        for file in (folder / relative / "__main__.py", folder / relative.with_suffix(".py")):
            if file.is_file():
                return file
    return None


def _folders(job: Job) -> Iterator[Path]:
    yield Path(job.workdir)
    yield from (
        Path(job.workdir, folder)
        for folder in job.env.get("PYTHONPATH", "").split(os.pathsep)
        if folder
    )
