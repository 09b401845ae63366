"""Plans for jobs whose users state none, worked out beside the hub's loop."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from headgate.cluster import Cluster, Node
from headgate.engines import scripts
from headgate.errors import UsageError
from headgate.events import ENDED, Event, JobPlanned, PlanJob, StopRequested
from headgate.hub.parts.nodes import Nodes
from headgate.hub.state.live_runs import Component, LiveRuns
from headgate.identifiers import JobId
from headgate.planning.choosing import Choice, JobToPlan, choose, has_choice, starts_at_once
from headgate.plans import Plan
from headgate.profiles import Profile
from headgate.profiling import store
from headgate.profiling.calibration import calibrated

_MOST_AT_ONCE = 500
"""Jobs times nodes for which plans without a profile are made on the hub's loop: that takes up to some 50 ms."""


class Choosing(Component):
    """Answers `PlanJob`. The jobs of a run are planned together.

    Args:
        home: Headgate's folder.
        live_runs: Where the runs are.
        nodes: Where their tasks can go.
        machine: The node that stored profiles were measured on.
        step: Tells the controller.
    """

    def __init__(
        self, home: Path, live_runs: LiveRuns, nodes: Nodes, machine: Node, step: Callable[[Event], None]
    ) -> None:
        self._home = home
        self._live_runs = live_runs
        self._nodes = nodes
        self._machine = machine
        self._step = step
        self._loop = asyncio.get_running_loop()
        self._asked: list[PlanJob] = []
        self._plans: dict[JobId, Plan] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()  # whoever is planned later knows what went before

    def plan(self, action: PlanJob) -> None:
        """Take in a question."""
        if not self._asked:
            self._loop.call_soon(self._begin)
        self._asked.append(action)

    def moved(self, job: JobId, plan: Plan) -> None:
        """A job has another plan now."""
        self._plans[job] = plan

    def forget(self, run: str) -> None:
        self._plans = {job: plan for job, plan in self._plans.items() if job.run != run}

    def close(self) -> None:
        for task in self._work:
            task.cancel()

    def used(self, cluster: Cluster, besides: JobId | None = None) -> Counter[str]:
        """How many tasks jobs other than `besides` have on each node of these: those that run, or are about to."""
        names = {node.name for node in cluster.nodes}
        found: Counter[str] = Counter()
        for job, plan in self._plans.items():
            _, live = self._live_runs.find(job)
            soon = live.state == "waiting" and (live.attempt > 0 or starts_at_once(live.spec))
            if job != besides and (soon or live.state in ("running", "stopping")):
                found.update(name for name in (*plan.worker_nodes, *plan.server_nodes) if name in names)
        return found

    # --- answering --------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        by_run: dict[str, list[PlanJob]] = {}
        for action in self._asked:
            self._plans.pop(action.job, None)  # of one that is planned anew
            by_run.setdefault(action.job.run, []).append(action)
        self._asked = []
        for run, actions in by_run.items():
            if run not in self._live_runs.runs:
                continue
            try:
                self._plan(actions, self._nodes.cluster(self._live_runs.runs[run].submission))
            except UsageError as error:  # a node has gone since it was handed in
                self._refuse(actions, error)
            except Exception as error:  # noqa: BLE001  # these jobs cannot be planned, and others can
                self._give_up(actions, error)

    def _plan(self, actions: Sequence[PlanJob], cluster: Cluster) -> None:
        is_long = len(actions) * len(cluster.nodes) > _MOST_AT_ONCE
        if is_long or any(self._profiled(action, cluster) for action in actions):
            task = self._loop.create_task(self._try_to_answer(actions, cluster))
            self._work.add(task)
            task.add_done_callback(self._work.discard)
        else:  # at once, for there is nothing to search
            asked = [self._ask(action, None) for action in actions]
            self._told(actions, choose(asked, cluster, used=self.used(cluster)))

    def _profiled(self, action: PlanJob, cluster: Cluster) -> bool:
        run, live = self._live_runs.find(action.job)
        return run.submission.mode == "run" and live.profile is not None and has_choice(cluster, action.spec)

    def _ask(self, action: PlanJob, profile: Profile | None) -> JobToPlan:
        run, _ = self._live_runs.find(action.job)
        environment = {**run.submission.environment, **action.spec.env}
        return JobToPlan(action.spec, profile, scripts.other_cluster(action.spec, environment))

    async def _try_to_answer(self, actions: Sequence[PlanJob], cluster: Cluster) -> None:
        try:
            await self._answer(actions, cluster)
        except Exception as error:  # noqa: BLE001  # as above
            self._give_up(actions, error)

    async def _answer(self, actions: Sequence[PlanJob], cluster: Cluster) -> None:
        async with self._turn:
            asked = []
            for action in actions:
                if action.job.run not in self._live_runs.runs:
                    return  # it has ended while others were planned
                _, live = self._live_runs.find(action.job)
                known = live.profile if self._profiled(action, cluster) else None
                asked.append(self._ask(action, store.parse(json.loads(known)) if known is not None else None))
            run, _ = self._live_runs.find(actions[0].job)
            used = self.used(cluster)
            if run.submission.cluster:
                cluster = calibrated(run.submission.cluster, cluster, self._machine, self._home)
            search = partial(choose, used=used, measured_on=self._machine)
            try:
                found = await asyncio.to_thread(search, asked, cluster)
            except Exception as error:  # noqa: BLE001  # a profile is odd: its job runs all the same
                self._live_runs.failed("no plan was searched for", error, run.id)
                plain = [replace(each, profile=None) for each in asked]
                found = await asyncio.to_thread(partial(choose, used=used), plain, cluster)
            self._told(actions, found)

    def _told(self, actions: Sequence[PlanJob], found: Sequence[Choice | UsageError]) -> None:
        for action, each in zip(actions, found):
            if action.job.run not in self._live_runs.runs:
                continue
            if isinstance(each, UsageError):
                self._refuse([action], each)
                continue
            run, live = self._live_runs.find(action.job)
            if live.state in ENDED:
                continue
            self._plans[action.job] = each.plan
            live.spec, live.plan = action.spec, json.dumps(asdict(each.plan))
            if each.why and run.submission.mode == "run":
                self._live_runs.event(run, "plan", each.why, live.spec.name)
            self._step(JobPlanned(action.job, action.revision, each.plan))

    def _give_up(self, actions: Sequence[PlanJob], error: Exception) -> None:
        left = [action for action in actions if action.job.run in self._live_runs.runs]
        if left:
            self._live_runs.failed("no plan could be made", error, left[0].job.run)
            self._refuse(left, UsageError("no plan could be made"))

    def _refuse(self, actions: Sequence[PlanJob], error: UsageError) -> None:
        for action in actions:
            run, live = self._live_runs.find(action.job)
            self._live_runs.event(run, "warning", str(error), live.spec.name)
            self._step(StopRequested(action.job))
