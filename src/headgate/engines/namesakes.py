"""Detects another package called `headgate` in the environment of a task, which its script may
import.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from glob import glob
from pathlib import Path

from headgate.engines.launch import interpreter, is_foreign
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.scripts.facts import ScriptFacts

_ASK_SECONDS = 20.0
_OURS = os.path.join("task", "channel.py")
"""A file that only Headgate has."""
_LOOK = """
import importlib.machinery, sys
spec = importlib.machinery.PathFinder.find_spec("headgate", [path for path in sys.path if path])
places = [] if spec is None else list(spec.submodule_search_locations or [spec.origin])
sys.stdout.write(str(places[0]) if places else "")
"""


Known = dict[tuple[str, str, frozenset[tuple[str, str]]], str]
"""Answers of `namesake` by interpreter, folder, and the variables of a job."""


def kept_out_by(
    job: Job, facts: ScriptFacts, environment: Mapping[str, str], known: Known | None = None
) -> str:
    """The path of another package called `headgate` that the job's tasks may import, so that
    Headgate must not hide it. Empty: there is none, or the job needs Headgate.

    Args:
        job: A job with absolute paths.
        facts: Facts about its script.
        environment: The submitter's environment.
        known: Answers for jobs of the same submission, to which new ones are added: asking an
            interpreter takes its time.
    """
    uses_ours = bool(facts.source.libraries)
    served = job.plan is not None and job.plan.strategy == "ps"
    if uses_ours or served or job.contract == "mpi" or job.roles or is_foreign(job):
        return ""
    env = {**environment, **job.env}
    try:
        python = interpreter(job, env.get("PATH"))
    except UsageError:  # which is told where it is started
        return ""
    beside = str(facts.file.parent) if facts.file is not None else job.workdir
    swept = job.trial.parameters if job.trial is not None else {}
    own = {pair for pair in job.env.items() if pair[0] not in swept or pair[0][:6] == "PYTHON"}
    key, known = (python, beside, frozenset(own)), known if known is not None else {}
    if key not in known:
        known[key] = namesake(python, env, beside)
    return known[key]


def namesake(python: str, environment: Mapping[str, str], beside: str) -> str:
    """The path of another package called `headgate` that an interpreter finds; empty: there is
    none.

    The interpreter is only asked if its usual folders hold something of that name.

    Args:
        python: The interpreter.
        environment: The task's environment, without Headgate's additions.
        beside: The folder of its script, which it searches first.
    """
    for path in (os.path.join(beside, "headgate.py"), os.path.join(beside, "headgate")):
        if os.path.exists(path):
            return _if_foreign(path)
    if not any(_may_have_one(folder) for folder in _folders(python, environment)):
        return ""
    try:
        stdout = subprocess.run(
            [python, "-c", _LOOK],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=_ASK_SECONDS,
            check=True,
        ).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    return _if_foreign(stdout)


def _if_foreign(path: str) -> str:
    """The path if it is that of another package; otherwise empty."""
    return "" if not path or os.path.exists(os.path.join(path, _OURS)) else path


def _folders(python: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Folders where an interpreter may have packages."""
    yield from filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    prefixes = {
        Path(python).absolute().parents[1],
        Path(os.path.realpath(python)).parents[1],
        Path("/usr/local"),
    }
    with suppress(OSError):  # it is no virtual environment
        about = (Path(python).absolute().parents[1] / "pyvenv.cfg").read_text(
            encoding="utf-8", errors="replace"
        )
        homes = [
            line.partition("=")[2].strip() for line in about.splitlines() if line.startswith("home")
        ]
        prefixes |= {Path(home).parent for home in homes if home}
    if home := environment.get("HOME"):
        prefixes.add(Path(home, ".local"))
    for prefix in prefixes:
        for kind in ("site-packages", "dist-packages"):
            yield from glob(os.path.join(prefix, "lib*", "python3*", kind))


def _may_have_one(folder: str) -> bool:
    """Whether a folder may hold a package of that name, or a link to one."""
    with suppress(OSError):
        return any(
            name.startswith(("headgate", "__editable__.headgate")) for name in os.listdir(folder)
        )
    return False
