"""The hub on a machine that users share: states its jobs to the arbiter, and hears its grants."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from headgate.arbiter import asking
from headgate.arbiter.acts import Act, ActKind
from headgate.arbiter.events import JobIdles
from headgate.arbiter.records import (
    Demand,
    DiskMoved,
    HoldAsked,
    Hub,
    JobHeld,
    JobWaits,
    ResourceGrant,
    Resumes,
    UserPart,
)
from headgate.controller.core import Controller
from headgate.controller.records import JobRecord
from headgate.forecast.job_tracker import Trackers
from headgate.hub.arbiter_link import ArbiterLink, Heard
from headgate.hub.parts import Component
from headgate.hub.parts.forecasting import Forecasting
from headgate.hub.parts.holding import resumes
from headgate.hub.parts.holds import OthersHolds
from headgate.hub.parts.proof import Boxes
from headgate.hub.state.runs import LiveRuns
from headgate.model.actions import Action
from headgate.model.cluster import Node
from headgate.model.events import Event, JobSubmitted, MachineShared, NodeJoined, StopRequested
from headgate.model.identifiers import JobId
from headgate.model.reasons import Facts, Reason, ReasonKind

_LEAST_CORES = 0.1


def name(folder: Path) -> str:
    """What tells a hub from others of its user, and not where its folder is. In two containers the
    same path may be two folders.
    """
    status = folder.stat()
    place = os.fsencode(folder.resolve()) + f" {status.st_dev} {status.st_ino}".encode()
    return hashlib.blake2b(place, digest_size=8).hexdigest()


def stated(
    hub: str, node: Node, controller: Controller, forecasting: Forecasting, live_runs: LiveRuns
) -> Demand:
    """What a hub states.

    Args:
        hub: Its name.
        node: This machine.
        controller: Its controller.
        forecasting: What is left of its jobs.
        live_runs: Its runs.
    """

    def cores(job: JobRecord) -> float:
        """All cores, or those for its part of the GPUs, where nobody knows better."""
        most, known = job.spec.limits.cores, forecasting.cores(job.id) or job.needed_cores()
        if known is None:
            gpus = (job.spec.limits.gpus or 0) * len(job.planned().worker_nodes)
            known = (
                node.cores * min(gpus / len(node.gpus), 1.0) if gpus and node.gpus else node.cores
            )
        return min(known, node.cores if most is None else most)

    def job_resumes(job: JobId) -> Resumes:
        return resumes(live_runs.find(job)[1])

    return asking.demand(Hub("", hub), controller, cores, forecasting.left, job_resumes)


class MachineSharing(Component):
    """Asks the arbiter of this machine before jobs start, once there is one.

    While the arbiter is away, jobs go on with what they have, and no other starts.

    Args:
        socket: The arbiter's socket; None: there is to be none. One that is not root's is not
            trusted.
        node: This machine.
        demand: What the hub states.
        step: Takes events to the controller.
        live_runs: The runs that are told of what is wrong with the arbiter.
        boxes: The boxes of the tasks here.
        moved: Takes what the arbiter read of processes on disks.
        tracker: The tracker of a running job.

    Attributes:
        holds: Holds jobs for proofs of others.
    """

    def __init__(
        self,
        socket: Path | None,
        node: Node,
        demand: Callable[[], Demand],
        step: Callable[[Event], None],
        live_runs: LiveRuns,
        boxes: Boxes,
        moved: Callable[[DiskMoved], None],
        tracker: Trackers,
    ) -> None:
        self._moved = moved
        self._node, self._step, self._live_runs = node, step, live_runs
        self._part: UserPart | None = None
        self._cores = node.cores
        self._trouble: Reason | None = None
        self._given_back: dict[JobId, Facts] = {}  # of jobs that wait for room again
        self._link = ArbiterLink(
            socket, demand, self._shared, self._take, self._troubled, live_runs.failed
        )

        self.holds = OthersHolds(live_runs, boxes, self._link.send, tracker)

    @property
    def is_shared(self) -> bool:
        """Whether the arbiter says when jobs start."""
        return self._link.is_shared

    def start(self) -> None:
        """Ask from now on, if there is an arbiter or as soon as there is."""
        self._link.start()

    def tell(self) -> None:
        """Tell a new controller whether users share the machine, and which part of it is theirs."""
        if self.is_shared:
            self._step(MachineShared(True, self._node.name))
            self._resize()

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, JobSubmitted) and self._trouble is not None:
            run = self._live_runs.find(event.job)[0]
            self._live_runs.event(run, "warning", self._trouble, event.job.name)
        self._link.changed()

    def forget(self, run: str) -> None:
        for job in [job for job in self._given_back if job.run == run]:
            del self._given_back[job]

    def close(self) -> None:
        self._link.close()

    def _shared(self, is_shared: bool) -> None:
        self._part = None
        self._step(MachineShared(is_shared, self._node.name))
        self._resize()

    def _take(self, heard: Heard) -> None:
        match heard:
            case ResourceGrant() as grant:
                self._given_back.pop(asking.job_of(grant.job.id), None)
                self._step(asking.granted(grant))
            case UserPart() as part:
                self._part = part
                self._resize()
            case JobWaits() as waits:
                self._waits(asking.job_of(waits.job.id), waits)
            case JobIdles(job):
                job_id = asking.job_of(job.id)
                self._tell_job(job_id, asking.idles(heard), stops=heard.ends)
            case Act() as act:
                self._ordered(act)
            case HoldAsked() | JobHeld():
                self.holds.hear(heard)
            case DiskMoved():
                self._moved(heard)

    def _ordered(self, act: Act) -> None:
        """An administrator has done something with a job, with this user, or with the machine; or
        the arbiter takes back what is another user's part.
        """
        if act.kind is ActKind.TAKE_BACK:
            self._give_back(act)
            return
        reason = Reason.of(ReasonKind.ADMINISTRATOR, by=act.by, act=str(act.kind))
        if act.job:
            self._tell_job(asking.job_of(act.job), reason, stops=act.kind is ActKind.STOP)
        else:
            self._live_runs.tell_all(reason)

    def _give_back(self, act: Act) -> None:
        job, reason = asking.job_of(act.job), asking.gives_back(act)
        self._tell_job(job, reason, stops=False)
        if job.run in self._live_runs.runs:
            if not act.ends:
                self._given_back[job] = reason.facts
            self._step(asking.given_back(act))

    def _tell_job(self, job: JobId, reason: Reason, stops: bool) -> None:
        """Tell a job's run, and stop the job if so ordered."""
        if job.run in self._live_runs.runs:
            self._live_runs.event(self._live_runs.runs[job.run], "warning", reason, job.name)
            if stops:
                self._step(StopRequested(job, reason=reason))

    def _waits(self, job: JobId, waits: JobWaits) -> None:
        """Say of a job why it waits."""
        if job.run in self._live_runs.runs:
            run, live = self._live_runs.find(job)
            if live.state == "waiting":
                lacks = {"kind": "grant", "why": str(waits.kind)}
                facts = {"expected_at": waits.at, "given_back": self._given_back.get(job)}
                live.reason = Reason.of(ReasonKind.NEEDS_ROOM, lacks=lacks, **facts)
                live.waits = lacks
                run.record_job(job.name)

    def _resize(self) -> None:
        """Have the controller divide this user's part of the machine."""
        cores = self._node.cores
        if self._part is not None:
            mine = self._part.hub_cores.get(self._link.name, self._part.cores)
            cores = min(max(round(mine, 1), _LEAST_CORES), cores)
        if cores != self._cores:
            self._cores = cores
            self._step(NodeJoined(replace(self._node, cores=cores)))

    def _troubled(self, trouble: str | None) -> None:
        """Tell the runs what is wrong, once."""
        reason = Reason.of(ReasonKind.ARBITER_AWAY, text=trouble) if trouble is not None else None
        if reason is not None and reason != self._trouble:
            self._live_runs.tell_all(reason)
        self._trouble = reason
