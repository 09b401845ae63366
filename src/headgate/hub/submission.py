"""Submissions of clients, and facts that they depend on: lab nodes, git commit, installed packages.

The module imports as little as possible: lab files only when needed.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.engines.base import LOCAL, EngineSpec
from headgate.isolation.process_attributes import Attributes
from headgate.model import records
from headgate.model.cluster import Node
from headgate.model.endings import Checkpoint
from headgate.model.errors import HeadgateError, UsageError
from headgate.model.jobs import Job
from headgate.model.paths import write_whole
from headgate.model.recipients import Recipient

ON_HUB_DEATH = "HEADGATE_ON_HUB_DEATH"
"""Variable in the submitting environment and in that of a task: `go-on` (default) or `stop`."""
GO_ON, STOP = "go-on", "stop"
_LIST_SECONDS = 60.0
_LISTS_KEPT = 20
_LIST_PACKAGES = """
import importlib.metadata, json, os, site, sys
os.nice(19)
found = list(importlib.metadata.distributions())
looked_at = [sys.executable, site.getusersitepackages(), *filter(None, sys.path)]
looked_at += [str(each._path) for each in found if getattr(each, "_path", None) is not None]
changed = {path: os.stat(path).st_mtime_ns if os.path.exists(path) else None for path in looked_at}
abouts = [each.metadata for each in found]
packages = sorted({"%s==%s" % (about["Name"], about["Version"]) for about in abouts})
print(json.dumps({"changed": changed, "packages": packages}))
"""


@dataclass(frozen=True, slots=True)
class Submission:
    """A client's request to run jobs.

    Args:
        jobs: Jobs with absolute paths.
        environment: Environment of the user's shell.
        cwd: Working directory of the user.
        command: Command line of the user.
        mode: `run`, `profile`, `verify`, or `call` for calls of an `Executor`.
        label: A key to find the run again, such as the cell of a study; empty: none.
        resume: Checkpoint to resume from, by job.
        resumed_from: Id of the resumed run.
        from_scratch: Names of its jobs that start from the beginning nevertheless.
        named: Names of jobs that resume from a checkpoint named by their user.
        warnings: Warnings for the run, by job.
        notes: Other notes for the run, by job.
        attributes: Attributes of the submitting process that tasks on this machine get; None: those
            of the hub.
        cluster: Name of the cluster of its jobs; empty: this machine.
        nodes: The nodes of that cluster.
        engine: Engine that starts its tasks.
        only: Names of the only nodes that may be used; empty: all.
        notify: Recipients of messages about the run beside those of its jobs. They may hold
            passwords.
    """

    jobs: tuple[Job, ...]
    environment: Mapping[str, str]
    cwd: str
    command: tuple[str, ...]
    mode: str = "run"
    label: str = ""
    resume: Mapping[str, Checkpoint] = field(default_factory=dict)
    resumed_from: str | None = None
    from_scratch: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    warnings: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    attributes: Attributes | None = None
    cluster: str = ""
    nodes: tuple[Node, ...] = ()
    engine: EngineSpec = LOCAL
    only: tuple[str, ...] = ()
    notify: tuple[Recipient, ...] = ()

    @property
    def outlives(self) -> bool:
        """Whether the run goes on if its hub dies: the next hub takes it up."""
        is_local = self.engine == LOCAL and not self.cluster
        return is_local and self.mode == "run" and self.environment.get(ON_HUB_DEATH) != STOP

    def check(self) -> None:
        """Check what the environment says of Headgate.

        Raises:
            UsageError: A value is none of those expected.
        """
        choice = self.environment.get(ON_HUB_DEATH) or GO_ON
        if choice not in (GO_ON, STOP):
            raise UsageError(f"found {ON_HUB_DEATH}={choice!r}; expected {GO_ON} or {STOP}")

    def plain(self) -> dict[str, Any]:
        """The submission as JSON values for `parse`."""
        data: dict[str, Any] = records.plain(self)
        return data


def parse(data: object) -> Submission:
    """Parse a submission from a client.

    Raises:
        UsageError: It is invalid.
    """
    try:
        return records.parse(Submission, data)
    except ValueError as error:
        raise UsageError(f"this submission makes no sense: {error}") from error


def reach(cluster: str, names: Sequence[str] | None = None) -> tuple[str, tuple[Node, ...]]:
    """Name and nodes of a running lab.

    Args:
        cluster: Its name, or its file.
        names: Only these of its nodes; None: all.

    Raises:
        HeadgateError: No such lab runs, or the file describes other machines.
    """
    from headgate import lab
    from headgate.config import clusterfile

    name = cluster
    if Path(cluster).suffix in (".yaml", ".yml"):
        file = clusterfile.read(cluster)
        if not file.lab:
            machines = ", ".join(node.name for node in file.cluster.nodes)
            raise UsageError(
                f"{cluster} describes other machines ({machines}), which engine `local` cannot "
                "reach; expected a lab: "
                "a file with `lab: true`, brought up by headgate lab up FILE"
            )
        name = file.name
    known = {node.name: node for node in lab.nodes(name).nodes}
    for node_name in names or ():
        if node_name not in known:
            raise UsageError(
                f"cluster {name} has no node {node_name!r}; expected some of {', '.join(known)}"
            )
    return name, tuple(
        known[node_of_lab] for node_of_lab in (known if names is None else dict.fromkeys(names))
    )


def nodes_there(cluster: str) -> frozenset[str]:
    """Names of a lab's nodes that exist and are not being removed; none of no lab."""
    if not cluster:
        return frozenset()
    from headgate.lab import record

    try:
        known = record.read(cluster)
    except HeadgateError:
        known = None
    if known is None or not known.complete:
        return frozenset()
    made = [name for name, node in known.nodes.items() if node.stage != "making"]
    return frozenset(name for name in made if Path(known.place(name).namespace).exists())


def git_commit(folder: str) -> str:
    """The git commit of a folder, with `+changes` if files differ from it; empty outside a
    repository.
    """
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+changes", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def packages(python: str, cache: Path) -> list[str] | None:
    """Installed packages of an interpreter, as `name==version`; None: the interpreter gives no
    answer.

    A process of its own lists them in some tenths of a CPU second. The answer is cached as long as
    its search path does not change.

    Args:
        python: The interpreter.
        cache: A JSON file of earlier answers.
    """
    key = f"{python}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    known = _known(cache)
    with suppress(KeyError, TypeError, AttributeError):  # the cached value is invalid
        if _is_unchanged(known[key]["changed"]):
            return list(known[key]["packages"])
    try:
        asked = [python, "-c", _LIST_PACKAGES]
        answer = subprocess.run(
            asked, capture_output=True, text=True, timeout=_LIST_SECONDS, check=True
        ).stdout
        packages_known: dict[str, Any] = json.loads(answer)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    known.pop(key, None)
    known[key] = packages_known
    with suppress(OSError):  # ask again
        write_whole(cache, json.dumps(dict(list(known.items())[-_LISTS_KEPT:])))
    return list(packages_known["packages"])


def _known(cache: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(cache.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _is_unchanged(before: dict[str, int | None]) -> bool:
    return all(_changed(path) == changed for path, changed in before.items())


def _changed(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None
