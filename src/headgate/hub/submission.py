"""What a client hands in; it imports as little as it needs for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from headgate.cluster import Node
from headgate.engines.base import LOCAL, EngineSpec
from headgate.errors import UsageError
from headgate.events import Checkpoint
from headgate.isolation.attributes import Attributes
from headgate.jobs import Job


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
        warnings: What the run is to tell of a job, by job.
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
    attributes: Attributes | None = None
    cluster: str = ""
    nodes: tuple[Node, ...] = ()
    engine: EngineSpec = LOCAL
    only: tuple[str, ...] = ()


SUBMISSION = TypeAdapter(Submission)


def parse(data: object) -> Submission:
    """A submission as it came from a client.

    Raises:
        UsageError: It makes no sense.
    """
    try:
        return SUBMISSION.validate_python(data)
    except (TypeError, ValueError) as error:
        raise UsageError(f"this submission makes no sense: {error}") from error
