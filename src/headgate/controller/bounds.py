"""Bounds of how many jobs run at once: those that users state, and those that are measured."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.controller.at_once import CoresInUse, JobsOfScript, one_per_core
from headgate.controller.hill_climb import HillClimb
from headgate.controller.records import JobRecord
from headgate.controller.slots import ALL, Group, Slots, groups_of, script_group
from headgate.model.actions import BoundRun
from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind


class Bounds:
    """Sets the slots of runs and sweeps, and of all jobs without slots of their own.

    Args:
        slots: The slots.
        per_core: Jobs for each core that run at once, whatever they use; None: any number.
        by_script: Whether those of one script in a run are fewer.
    """

    def __init__(self, slots: Slots, per_core: int | None, by_script: bool) -> None:
        self._slots = slots
        self._cores = CoresInUse(per_core) if per_core is not None else None
        self._by_script = by_script and per_core is not None
        self._of_script: dict[Group, JobsOfScript] = {}
        self._have = 0.0
        self._scripts: dict[JobId, str] = {}  # of running jobs
        self._stated: int | None = None
        self._climbs: dict[Group, HillClimb] = {}
        self._decided: list[BoundRun] = []

    def have(self, cores: float) -> bool:
        """Set the cores of all nodes together. Returns whether more jobs may run than before, as
        all methods below do.
        """
        self._have = cores
        if self._cores is not None:
            self._cores.have(cores)
        return self._all()

    def busy(self, node: str, cores: float | None, of_jobs: float = 0.0) -> None:
        """All programs of a node use this many cores, its jobs `of_jobs` of them; None: not known
        from now on.
        """
        if self._cores is not None:
            self._cores.busy(node, cores, of_jobs)

    def state_all(self, jobs: int | None) -> bool:
        """State how many jobs of all runs together run at once; None: as the cores are for."""
        if jobs == self._stated:
            return False
        self._stated = jobs
        for group in self._of_script:
            self._slots.limit(group, None)
        return self._all() or self._by_script

    def state(self, group: Group, jobs: int | str | None, best: int | None = None) -> bool:
        """State how many jobs of a run or a sweep run at once; None: it has no slots of its own.

        Args:
            group: The run or the sweep.
            jobs: The number; `auto`: as many as make the most steps a second together.
            best: How many those were in an earlier run; None: not known.
        """
        if jobs == "auto":
            climb = self._climbs.setdefault(group, HillClimb(best))
            return self._slots.limit(group, climb.most)
        self._climbs.pop(group, None)
        return self._slots.limit(group, jobs if isinstance(jobs, int) else None)

    def forget(self, run: str) -> None:
        """Drop the slots of an ended run, of its sweeps and of its scripts."""
        for group in [group for group in self._of_script if JobId(group.name).run == run]:
            del self._of_script[group]
            self._slots.limit(group, None)
        for group in [group for group in self._slots.own if JobId(group.name).run == run]:
            self.state(group, None)

    def started(self, now: float, job: JobRecord) -> None:
        """A job has started."""
        self._scripts[job.id] = job.script
        if self._cores is not None:
            self._cores.started(now, job.id, job.script)
            self._all()
        if self._is_alike(job):
            alike = self._of_script.setdefault(script_group(job), JobsOfScript())
            alike.started(now, job.id)
        for _, climb in self._measured(job):
            climb.started(now, job)

    def uses(self, now: float, job: JobRecord) -> bool:
        """A reading of a running job."""
        if self._cores is not None:
            used = (task.used for task in job.tasks.values())
            self._cores.use(now, job.id, sum(use.cpu_cores for use in used if use is not None))
        raised = self._all(), self._alike(now, job)
        more = any(raised)
        beside = frozenset(self._scripts.values()), self._have
        for group, climb in self._measured(job):
            before = climb.decided
            if not climb.look(now, beside):
                continue
            more = self._slots.limit(group, climb.most) or more
            if climb.settled and (before is None or before != climb.decided):
                self._decide(job, climb, group)
        return more

    def left(
        self, now: float, job: JobRecord, done: bool = False, cpu_seconds: float | None = None
    ) -> None:
        """A job runs no more.

        Args:
            now: Time (s).
            job: Which.
            done: Whether it has come to its end; else it was stopped, has failed, or is frozen.
            cpu_seconds: CPU time that it took since it started; None: not known.
        """
        self._scripts.pop(job.id, None)
        if self._cores is not None:
            self._cores.left(now, job.id, cpu_seconds)
            self._all()
        if (alike := self._of_script.get(script_group(job))) is not None:
            alike.left(now, job.id, done)
            self._alike(now, job)
        for _, climb in self._measured(job):
            climb.ended(now, job)

    def decided(self) -> list[BoundRun]:
        """The measured bounds since the last call."""
        decided, self._decided = self._decided, []
        return decided

    def _measured(self, job: JobRecord) -> Iterator[tuple[Group, HillClimb]]:
        return (
            (group, self._climbs[group]) for group, _ in groups_of(job) if group in self._climbs
        )

    def _alike(self, now: float, job: JobRecord) -> bool:
        """Set the slots of a job's script in its run."""
        group = script_group(job)
        alike = self._of_script.get(group)
        if alike is None or self._stated is not None:
            return False
        return self._slots.limit(group, alike.most(now, self._have))

    def _is_alike(self, job: JobRecord) -> bool:
        """Whether a job is bounded beside others of its script."""
        has_own = any(group in self._slots.own for group, _ in groups_of(job))
        return self._by_script and bool(job.script) and not has_own

    def _all(self) -> bool:
        """Set the slots of all jobs without slots of their own, and of each of their scripts."""
        usual = self._cores.most if self._cores is not None else None
        has_usual = self._by_script and self._stated is None
        self._slots.of_script = one_per_core(self._have) if has_usual else None
        before = self._slots.idle_for
        self._slots.idle_for = self._cores.idle_for if self._cores is not None else 0
        more = self._slots.limit(ALL, usual if self._stated is None else self._stated)
        return more or self._slots.idle_for > before

    def _decide(self, job: JobRecord, climb: HillClimb, group: Group) -> None:
        facts: dict[str, object] = {"jobs": climb.most}
        if climb.best is not None:
            facts["rate"] = round(climb.best.rate, 3)
        if climb.next is not None:
            facts |= {"more": climb.next.jobs, "rate_of_more": round(climb.next.rate, 3)}
        if group.kind == "slots-of-sweep":
            facts["sweep"] = JobId(group.name).name
        reason = Reason.of(ReasonKind.AT_ONCE_MEASURED, **facts)
        self._decided.append(BoundRun(job.id, job.script, climb.most, reason))
