"""Running jobs from Python: `headgate.run`."""

from __future__ import annotations

from pathlib import Path

from headgate.client.submitting import submission, submitted
from headgate.engines.base import LOCAL, EngineSpec
from headgate.engines.engine_options import usual
from headgate.hub.submission import reach
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.recorded import runs


def run(
    *jobs: Job,
    policy: str | None = None,
    cluster: str | None = None,
    engine: str = LOCAL.name,
    address: str = "",
    shared_files: bool = False,
) -> runs.RunSummary:
    """Run jobs side by side, and wait until they have ended.

    Args:
        jobs: What to run.
        policy: What moves shares between them; None: what the jobs that run already have, else
            `headgate`.
        cluster: Name or file of a lab that is up, to run on its nodes; None: on this machine.
        engine: What starts tasks: `local`, or another of those that `headgate doctor` lists.
        address: Where the cluster of an engine is reached; empty: where the environment says, else
            a cluster that is started on this machine.
        shared_files: The nodes of that cluster see this machine's files, so that none are sent
            there.

    Returns:
        How the run and each of its jobs ended; `path` is the run's folder, with its logs and
        `report.html`.

    Raises:
        UsageError: Bad input.
        HubError: No hub could be started, or it died.

    Example:
        >>> import headgate
        >>> trains = headgate.Job(name="a", script="a.py")
        >>> headgate.run(trains, headgate.Job(name="b", run="make b"))
    """
    name, nodes = reach(cluster) if cluster is not None else ("", ())
    where = EngineSpec(engine, address or usual(engine, "address"), shared_files)
    if cluster is not None and where != LOCAL:
        raise UsageError(
            f"found cluster={cluster!r} with engine {engine!r}, which has nodes of its "
            "own; give one"
        )
    with submitted(
        submission(jobs, cluster=name, nodes=nodes, engine=where), policy, kill=False
    ) as (hub, answer):
        for _ in hub.follow(60.0):
            pass
    return runs.summary(Path(answer["path"]))
