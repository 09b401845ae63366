"""What a client hands in, and the nodes of labs that it names; it imports as little as it needs for that.

Labs, and the files that describe them, are imported only where there is one, and pydantic only where one is taken in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.cluster import Node
from headgate.engines.base import LOCAL, EngineSpec
from headgate.errors import HeadgateError, UsageError
from headgate.events import Checkpoint
from headgate.isolation.attributes import Attributes
from headgate.jobs import Job

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class Submission:
    """What a client hands in.

    Args:
        jobs: Jobs with absolute paths.
        environment: Of the person's shell.
        cwd: Where they stood.
        command: What they typed.
        mode: `run` or `profile`.
        resume: Where to go on from, by job.
        resumed_from: Id of the run that is gone on with.
        from_scratch: Names of those of its jobs that start from the beginning all the same.
        warnings: What the run is to warn of, by job.
        notes: What else the run is to tell of a job, by job.
        attributes: What the tasks have on this machine of whoever handed it in; None: of the hub.
        cluster: Name of the cluster that its jobs run on; empty: on this machine.
        nodes: The nodes of that cluster.
        engine: What starts its tasks.
        only: Names of the nodes of an engine other than this machine's that may be used; empty: all.
    """

    jobs: tuple[Job, ...]
    environment: Mapping[str, str]
    cwd: str
    command: tuple[str, ...]
    mode: str = "run"
    resume: Mapping[str, Checkpoint] = field(default_factory=dict)
    resumed_from: str | None = None
    from_scratch: tuple[str, ...] = ()
    warnings: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    attributes: Attributes | None = None
    cluster: str = ""
    nodes: tuple[Node, ...] = ()
    engine: EngineSpec = LOCAL
    only: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """It as JSON values, which `parse` reads."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self), default=sorted))  # of sets, there is no order
        return found


@cache
def _adapter() -> TypeAdapter[Submission]:
    from pydantic import TypeAdapter

    return TypeAdapter(Submission)


def parse(data: object) -> Submission:
    """A submission as it came from a client.

    Raises:
        UsageError: It makes no sense.
    """
    try:
        return _adapter().validate_python(data)
    except (TypeError, ValueError) as error:
        raise UsageError(f"this submission makes no sense: {error}") from error


def reach(cluster: str, names: Sequence[str] | None = None) -> tuple[str, tuple[Node, ...]]:
    """Name and nodes of a lab that is up.

    Args:
        cluster: Its name, or its file.
        names: Only these of its nodes; None: all.

    Raises:
        HeadgateError: There is none such, or it is a cluster of other machines.
    """
    from headgate import clusterfile, lab

    name = cluster
    if Path(cluster).suffix in (".yaml", ".yml"):
        file = clusterfile.read(cluster)
        if not file.lab:
            machines = ", ".join(node.name for node in file.cluster.nodes)
            raise UsageError(
                f"{cluster} describes other machines ({machines}), which engine `local` cannot reach; expected a lab: "
                "a file with `lab: true`, brought up by headgate lab up"
            )
        name = file.name
    known = {node.name: node for node in lab.nodes(name).nodes}
    for each in names or ():
        if each not in known:
            raise UsageError(f"cluster {name} has no node {each!r}; expected some of {', '.join(known)}")
    return name, tuple(known[each] for each in (known if names is None else dict.fromkeys(names)))


def nodes_there(cluster: str) -> frozenset[str]:
    """Names of the nodes of a lab that are there, and are not being taken away."""
    from headgate.lab import record

    try:
        known = record.read(cluster)
    except HeadgateError:
        known = None
    if known is None or not known.complete:
        return frozenset()
    made = [name for name, each in known.nodes.items() if each.stage != "making"]
    return frozenset(name for name in made if Path(known.place(name).namespace).exists())
