"""What clients ask of the jobs of live runs: to stop, to save a checkpoint, to change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headgate.hub.changes import Changes, check_resize
from headgate.hub.parts.engines import Engines
from headgate.hub.parts.nodes import Nodes
from headgate.hub.state.job import LiveJob
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.model.errors import UsageError
from headgate.model.events import ChangeRequested, Event, ResizeRequested, StopRequested
from headgate.model.identifiers import JobId
from headgate.model.job_states import ENDED
from headgate.model.jobs import Job
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
        jobs = self._live_runs.chosen(run, names).jobs
        stopping = [name for name, live in jobs.items() if live.state not in ENDED]
        for name in stopping:
            self._step(StopRequested(JobId.of(run, name), kill))
        return stopping

    def checkpoint(self, run: str, names: Sequence[str] | None) -> list[str]:
        """Ask jobs of a run (None: all) for a checkpoint at their next step boundary. Returns the
        names of those that can save one.

        Raises:
            UsageError: The run has no such job.
        """
        savers = {
            name: saver
            for name, live in sorted(self._live_runs.chosen(run, names).jobs.items())
            if (saver := live.saver) is not None
        }
        for name, saver in savers.items():
            self._engines.of(run).send(JobId.of(run, name).task(saver), {"type": "checkpoint"})
        return list(savers)

    def unconnected(self, run: str, names: Sequence[str] | None) -> list[str]:
        """Names of running jobs that import a library of Headgate's and have not connected."""
        return [
            name
            for name, live in sorted(self._live_runs.chosen(run, names).jobs.items())
            if live.state == "running" and live.is_unconnected
        ]

    def change(self, run: str, name: str, changes: Changes) -> list[str]:
        """Change the limits, fields or number of workers of a live job, or of each job of a sweep
        that has not ended. Returns their names.

        Raises:
            UsageError: A change is impossible. Nothing is changed.
        """
        chosen, live_run = self._live_runs.chosen(run, [name]), self._live_runs.runs[run]
        jobs = {
            name: live
            for name, live in chosen.jobs.items()
            if live.state not in ENDED or name in chosen.named
        }
        if not jobs:
            raise UsageError(f"each job of sweep {name!r} has ended; none can be changed")
        specs = {name: self._changed(live_run, live, changes) for name, live in jobs.items()}
        changed = [name for name, spec in specs.items() if spec != jobs[name].spec]
        for job in changed:
            jobs[job].spec = specs[job]
            live_run.record_job(job)
        if changed:
            of_sweep = {} if chosen.named else {"sweep": name}
            reason = Reason.of(ReasonKind.CHANGED_BY_USER, **changes.plain(), **of_sweep)
            self._live_runs.event(live_run, "note", reason, name if chosen.named else None)
        for job in changed:
            self._step(ChangeRequested(JobId.of(run, job), specs[job]))
        if changes.workers is not None:
            for job in jobs:
                self._step(ResizeRequested(JobId.of(run, job), changes.workers))
        return list(jobs)

    def _changed(self, run: LiveRun, live: LiveJob, changes: Changes) -> Job:
        """A job with its changes.

        Raises:
            UsageError: They are impossible.
        """
        name, cluster = live.spec.name, self._nodes.cluster(run.submission)
        spec = changes.applied(live.spec)
        if changes.workers is not None:
            check_resize(run.id, live, changes.workers, tasks_on(cluster))
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
            candidates(cluster, spec)
        return spec
