"""Plans for jobs whose users state none, computed off the hub's loop.

`InitialPlanner` finds a plan before a job starts. `Replanning` moves a running job to a better plan
if its remaining work is worth a restart. Scripts for other launchers save when they are asked to
end, so they are not asked for a checkpoint before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from headgate.hub.parts import Component
from headgate.hub.parts.nodes import Nodes
from headgate.hub.state.runs import LiveRuns
from headgate.model.actions import PlanJob
from headgate.model.cluster import Cluster, Node
from headgate.model.errors import UsageError
from headgate.model.events import Event, JobPlanned, StopRequested
from headgate.model.identifiers import JobId
from headgate.model.job_states import ENDED
from headgate.model.plans import Plan
from headgate.model.profiles import Profile
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.records import read, text_of
from headgate.model.refused import RefusedError
from headgate.planning.choosing import (
    Choice,
    JobToPlan,
    choose,
    has_choice,
    in_words,
    starts_at_once,
)
from headgate.planning.interference import StoredPairs
from headgate.profiling.calibration import calibrated
from headgate.scripts import inspection
from headgate.verification.verdict import Verification
from headgate.verification.wording import kept_alone

_AT_A_TIME = 100  # jobs that are told of their plans before clients are answered


_MOST_AT_ONCE = 500
"""Jobs times nodes up to which plans without a profile are made on the hub's loop, within about 50
ms.
"""


class InitialPlanner(Component):
    """Answers `PlanJob`. The jobs of a run are planned together.

    Args:
        home: Headgate's folder.
        live_runs: The runs.
        nodes: Nodes for their tasks.
        machine: The node that stored profiles were measured on.
        step: Sends an event to the controller.
        barred: Gives the verdict that keeps a job from a plan of several workers; None: none does.

    Attributes:
        pairs: Known slowdowns of jobs by each other, from studies.
    """

    def __init__(
        self,
        home: Path,
        live_runs: LiveRuns,
        nodes: Nodes,
        machine: Node,
        step: Callable[[Event], None],
        barred: Callable[[JobId, Plan], Verification | None],
    ) -> None:
        self.pairs = StoredPairs(home)
        self._home = home
        self._live_runs = live_runs
        self._nodes = nodes
        self._machine = machine
        self._step = step
        self._barred = barred
        self._loop = asyncio.get_running_loop()
        self._asked: list[PlanJob] = []
        self._plans: dict[JobId, Plan] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()  # later plans account for earlier ones

    def plan(self, action: PlanJob) -> None:
        """Accept a request."""
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

    def used(self, cluster: Cluster, besides: JobId | None = None) -> dict[str, list[str]]:
        """Names of jobs other than `besides` on each node, one for each running or starting
        task.
        """
        names = {node.name for node in cluster.nodes}
        jobs_by_node: dict[str, list[str]] = {}
        for job, plan in self._plans.items():
            _, live = self._live_runs.find(job)
            soon = live.state == "waiting" and (live.attempt > 0 or starts_at_once(live.spec))
            if job != besides and (soon or live.state in ("running", "stopping")):
                for name in (*plan.worker_nodes, *plan.server_nodes):
                    if name in names:
                        jobs_by_node.setdefault(name, []).append(job.name)
        return jobs_by_node

    # --- answering --------------------------------------------------------------------------------

    def _begin(self) -> None:
        by_run: dict[str, list[PlanJob]] = {}
        for action in self._asked:
            self._plans.pop(action.job, None)  # the previous plan, if it is planned again
            by_run.setdefault(action.job.run, []).append(action)
        self._asked = []
        for run, actions in by_run.items():
            if run not in self._live_runs.runs:
                continue
            try:
                self._plan(actions, self._nodes.cluster(self._live_runs.runs[run].submission))
            except UsageError as error:  # a node was lost since submission
                self._refuse(actions, error)
            except Exception as error:  # noqa: BLE001  # these jobs cannot be planned, and others can
                self._give_up(actions, error)

    def _plan(self, actions: Sequence[PlanJob], cluster: Cluster) -> None:
        predicts = self.pairs.is_new or (len(cluster.nodes) > 1 and bool(self.pairs.known))
        is_long = len(actions) * len(cluster.nodes) > _MOST_AT_ONCE or predicts
        if is_long or any(self._profiled(action, cluster) for action in actions):
            task = self._loop.create_task(self._try_to_answer(actions, cluster))
            self._work.add(task)
            task.add_done_callback(self._work.discard)
        else:  # at once: there is nothing to search
            asked = [self._ask(action, None) for action in actions]
            self._told(actions, choose(asked, cluster, used=self.used(cluster)))

    def _profiled(self, action: PlanJob, cluster: Cluster) -> bool:
        run, live = self._live_runs.find(action.job)
        return (
            run.submission.mode == "run"
            and live.profile is not None
            and has_choice(cluster, action.spec)
        )

    def _ask(self, action: PlanJob, profile: Profile | None) -> JobToPlan:
        run, live = self._live_runs.find(action.job)
        environment = {**run.submission.environment, **action.spec.env}
        other_cluster = inspection.other_cluster(action.spec, environment)
        return JobToPlan(action.spec, profile, other_cluster, live.facts)

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
                    return  # it ended while others were planned
                _, live = self._live_runs.find(action.job)
                known = live.profile if self._profiled(action, cluster) else None
                profile = read(Profile, known) if known is not None else None
                asked.append(self._ask(action, profile))
            run, _ = self._live_runs.find(actions[0].job)
            used = self.used(cluster)
            if run.submission.cluster:
                cluster = calibrated(run.submission.cluster, cluster, self._machine, self._home)
            pairs = await asyncio.to_thread(self.pairs.read)
            search = partial(choose, used=used, measured_on=self._machine, interference=pairs)
            try:
                thread = await asyncio.to_thread(search, asked, cluster)
            except Exception as error:  # noqa: BLE001  # a profile is odd: its job runs all the same
                self._live_runs.failed("no plan was searched for", error, run.id)
                plain = [replace(asked_job, profile=None) for asked_job in asked]
                thread = await asyncio.to_thread(
                    partial(choose, used=used, interference=pairs), plain, cluster
                )
            choices = [
                self._allowed(*question_and_choice, cluster, used)
                for question_and_choice in zip(actions, asked, thread)
            ]
            for first in range(0, len(actions), _AT_A_TIME):
                some = slice(first, first + _AT_A_TIME)
                self._told(actions[some], choices[some])
                await asyncio.sleep(0)

    def _allowed(
        self,
        action: PlanJob,
        asked: JobToPlan,
        choice: Choice | UsageError,
        cluster: Cluster,
        used: Mapping[str, Sequence[str]],
    ) -> Choice | UsageError:
        """The chosen plan. A plan of several unverified workers is replaced by one worker; the job
        may move later.
        """
        if (
            not isinstance(choice, Choice)
            or choice.plan.workers == 1
            or action.spec.plan is not None
        ):
            return choice
        if (verdict := self._barred(action.job, choice.plan)) is None:
            return choice
        [alone] = choose([replace(asked, profile=None)], cluster, used=used)
        if isinstance(alone, UsageError):
            return alone
        return replace(alone, why=f"{in_words(alone.plan)}, {kept_alone(verdict)}")

    def _told(self, actions: Sequence[PlanJob], choices: Sequence[Choice | UsageError]) -> None:
        for action, choice in zip(actions, choices):
            if action.job.run not in self._live_runs.runs:
                continue
            if isinstance(choice, UsageError):
                self._refuse([action], choice)
                continue
            run, live = self._live_runs.find(action.job)
            if live.state in ENDED:
                continue
            self._plans[action.job] = choice.plan
            live.spec, live.plan = action.spec, text_of(choice.plan)
            if choice.why and run.submission.mode == "run":
                planned = Reason.of(
                    ReasonKind.PLANNED,
                    strategy=choice.plan.strategy,
                    workers=choice.plan.workers,
                    nodes=choice.plan.worker_nodes,
                    text=choice.why,
                )
                self._live_runs.event(run, "plan", planned, live.spec.name)
            self._step(JobPlanned(action.job, action.revision, choice.plan))

    def _give_up(self, actions: Sequence[PlanJob], error: Exception) -> None:
        left = [action for action in actions if action.job.run in self._live_runs.runs]
        if left:
            self._live_runs.failed("no plan could be made", error, left[0].job.run)
            self._refuse(left, UsageError("no plan could be made"))

    def _refuse(self, actions: Sequence[PlanJob], error: UsageError) -> None:
        for action in actions:
            run, live = self._live_runs.find(action.job)
            reason = Reason.of(ReasonKind.NO_PLAN, text=str(error))
            if isinstance(error, RefusedError):
                reason = Reason.of(ReasonKind.NO_PLAN, refusal=error.refusal)
            self._live_runs.event(run, "warning", reason, live.spec.name)
            self._step(StopRequested(action.job))
