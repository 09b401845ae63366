"""Command-line options for the nodes of jobs, and for their layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headgate.engines.base import LOCAL, EngineSpec
from headgate.engines.engine_options import takers, usual
from headgate.hub.submission import reach
from headgate.model.cluster import Node
from headgate.model.errors import UsageError
from headgate.model.job_choices import Allowed
from headgate.model.jobs import Job
from headgate.model.plans import Plan, Strategy
from headgate.scripts.facts import facts_of
from headgate.scripts.launchers import has_launcher, without_strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOptions:
    """The options for nodes and layout; None or False: not given."""

    engine: str | None = None
    address: str | None = None
    shared_files: bool = False
    cluster: str | None = None
    nodes: str | None = None
    plan_file: str | None = None
    strategy: Strategy | None = None
    workers: int | None = None
    servers: int | None = None
    asynchronous: bool = False
    staleness: int | None = None
    backup_workers: int | None = None

    @property
    def states_plan(self) -> bool:
        """Whether an option states a job's plan."""
        return self.plan_file is not None or self._flagged

    @property
    def _flagged(self) -> bool:
        flags = (self.strategy, self.workers, self.servers, self.staleness, self.backup_workers)
        return self.asynchronous or any(flag is not None for flag in flags)

    def applied(self, job: Job) -> Job:
        """A job with the stated plan.

        Raises:
            UsageError: The plan is invalid.
        """
        if not self.states_plan:
            return job
        try:
            plan = self._plan(job)
            # An option on the command line implies permission.
            extra: frozenset[Allowed] = frozenset(() if plan.synchronous else {"async"})
            return replace(job, plan=plan, allow=job.allow | extra)
        except ValueError as error:
            raise UsageError(str(error)) from None

    def _plan(self, job: Job) -> Plan:
        before = job.plan
        if self.plan_file is not None:
            if self._flagged:
                raise UsageError(
                    "found --plan with options that state a plan too; give one of them"
                )
            from headgate.config import planfile

            return planfile.load(self.plan_file)
        strategy = before.strategy if before is not None else None
        if self.strategy is not None:
            strategy = self.strategy
        elif self.servers is not None:
            strategy = "ps"
        if strategy is None:
            facts = facts_of(job)
            if not has_launcher(job, facts):
                raise UsageError(without_strategy(facts))
            strategy = "allreduce"
        if before is None or before.strategy != strategy:
            before = Plan(
                strategy=strategy, workers=1, batch_per_worker=None, servers=int(strategy == "ps")
            )
        plan: dict[str, Any] = {
            "workers": self.workers,
            "servers": self.servers,
            "backup_workers": self.backup_workers,
        }
        changes = {name: value for name, value in plan.items() if value is not None}
        if self.asynchronous or self.staleness is not None:
            changes |= {"synchronous": False, "staleness": self.staleness}
        if "workers" in changes and isinstance(before.batch_per_worker, tuple):
            changes["batch_per_worker"] = None
        return replace(before, **changes, worker_nodes=(), server_nodes=())

    def place(self, before: Where | None = None) -> Where:
        """Where jobs run, according to the options, or else as `before`.

        Raises:
            HeadgateError: The cluster or a node does not exist or is out of reach, or the options
                contradict each other.
        """
        before = before or Where()
        name = self.engine or (before.engine.name if self.cluster is None else LOCAL.name)
        names = self.nodes.split(",") if self.nodes is not None else None
        if name != LOCAL.name:
            if self.cluster is not None:
                raise UsageError(
                    f"found --cluster with --engine {name}, which has nodes of its own; give "
                    "one of them"
                )
            engine = self._engine(name, before.engine)
            same = before.only if engine == before.engine else ()
            return Where(engine=engine, only=same if names is None else tuple(names))
        if self.address is not None or self.shared_files:
            option = "address" if self.address is not None else "shared_files"
            raise UsageError(
                f"found --{option.replace('_', '-')} for engine local, which starts tasks on this "
                f"machine; add --engine {' or '.join(takers(option))}"
            )
        wanted = self.cluster or (before.cluster if self.engine is None else "")
        if not wanted:
            if names is not None:
                raise UsageError(
                    "found --nodes without --cluster; name the lab whose nodes they are"
                )
            return Where()
        cluster, nodes = reach(wanted, names)
        if names is None and self.cluster is None:
            names = [node.name for node in nodes if node.name in before.only]
            nodes = tuple(node for node in nodes if node.name in names) or nodes
        return Where(cluster, nodes, only=tuple(names or ()))

    def _engine(self, name: str, before: EngineSpec) -> EngineSpec:
        if before.name != name:
            before = EngineSpec(name, usual(name, "address"))
        address = before.address if self.address is None else self.address
        return EngineSpec(name, address, self.shared_files or before.shared_files)


@dataclass(frozen=True, slots=True)
class Where:
    """Where jobs run, as in `Submission`."""

    cluster: str = ""
    nodes: tuple[Node, ...] = ()
    engine: EngineSpec = LOCAL
    only: tuple[str, ...] = ()

    def fields(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "nodes": self.nodes,
            "engine": self.engine,
            "only": self.only,
        }
