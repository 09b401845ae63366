"""What clients ask of the jobs of live runs: to stop, to save a checkpoint, to change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headgate.hub.changes import Changes, check_resize
from headgate.hub.parts.engines import Engines
from headgate.hub.parts.nodes import Nodes
from headgate.hub.state.runs import LiveRuns
from headgate.model.errors import UsageError
from headgate.model.events import ChangeRequested, Event, ResizeRequested, StopRequested
from headgate.model.identifiers import JobId
from headgate.model.job_states import ENDED
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.units import say_bytes
from headgate.planning.candidates import candidates, tasks_on
from headgate.policies import Policy


class JobRequests:
    """Checks requests, and hands them to the controller or to tasks.

    Args:
        live_runs: The runs of the jobs.
        engines: What reaches their tasks.
        nodes: The nodes that the runs may use.
        policy: The present policy.
        step: Hands the controller an event.
    """

    def __init__(
        self,
        live_runs: LiveRuns,
        engines: Engines,
        nodes: Nodes,
        policy: Callable[[], Policy],
        step: Callable[[Event], None],
    ) -> None:
        self._live_runs = live_runs
        self._engines = engines
        self._nodes = nodes
        self._policy = policy
        self._step = step

    def stop(self, run: str, names: Sequence[str] | None, kill: bool) -> list[str]:
        """Stop jobs of a run (None: all). Returns the names of those that had not ended.

        Raises:
            UsageError: The run has no such job.
        """
        jobs = self._live_runs.named(run, names)
        stopping = [name for name, live in jobs.items() if live.state not in ENDED]
        for name in stopping:
            self._step(StopRequested(JobId.of(run, name), kill))
        return stopping

    def checkpoint(self, run: str, names: Sequence[str] | None) -> list[str]:
        """Ask jobs of a run (None: all) for a checkpoint at their next step boundary. Returns the
        names of those that can save one.
        """
        savers = {
            name: saver
            for name, live in sorted(self._live_runs.runs[run].jobs.items())
            if (names is None or name in names) and (saver := live.saver) is not None
        }
        for name, saver in savers.items():
            self._engines.of(run).send(JobId.of(run, name).task(saver), {"type": "checkpoint"})
        return list(savers)

    def unconnected(self, run: str, names: Sequence[str] | None) -> list[str]:
        """Names of running jobs that import a library of Headgate's and have not connected."""
        return [
            name
            for name, live in sorted(self._live_runs.runs[run].jobs.items())
            if (names is None or name in names) and live.state == "running" and live.is_unconnected
        ]

    def change(self, run: str, name: str, changes: Changes) -> None:
        """Change the limits, fields or number of workers of a live job.

        Raises:
            UsageError: A change is impossible. Nothing is changed.
        """
        live, id = self._live_runs.named(run, [name])[name], JobId.of(run, name)
        live_run = self._live_runs.runs[run]
        spec = changes.applied(live.spec)
        if changes.workers is not None:
            most = tasks_on(self._nodes.cluster(live_run.submission))
            check_resize(run, live, changes.workers, most)
        elif live.state in ENDED:
            raise UsageError(
                f"job {name!r} is {live.state}; only one that has not ended can be changed"
            )
        policy = self._policy()
        if changes.priority is not None and not policy.grants:
            raise UsageError(f"policy {policy.name!r} moves no shares, whatever a job's priority")
        if changes.priority is not None and spec.share is not None:
            raise UsageError(f"job {name!r} has a `share` of its own, whatever its priority")
        if changes.memory is not None:
            if changes.memory < (held := live.most_held):
                raise UsageError(
                    f"found memory {say_bytes(changes.memory)}; job {name!r} holds "
                    f"{say_bytes(held)}"
                )
            candidates(self._nodes.cluster(live_run.submission), spec)
        if spec != live.spec:
            live.spec = spec
            live_run.record_job(name)
            reason = Reason.of(ReasonKind.CHANGED_BY_USER, **changes.plain())
            self._live_runs.event(live_run, "note", reason, name)
            self._step(ChangeRequested(id, spec))
        if changes.workers is not None:
            self._step(ResizeRequested(id, changes.workers))
