"""The present state of a job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from headgate.forecast.job_tracker import JobTracker
from headgate.hub.checking import InspectedJob
from headgate.hub.state.attempt import Attempt
from headgate.hub.taking_up import FormerJob
from headgate.model.endings import Checkpoint, Ending
from headgate.model.identifiers import TaskName
from headgate.model.job_states import ENDED, JobState
from headgate.model.jobs import Job
from headgate.model.progress import Progress
from headgate.model.reason_text import in_words
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.units import say_text
from headgate.profiling.store import script_of
from headgate.scripts.arguments import TrainingLength
from headgate.scripts.facts import FileState, ScriptFacts
from headgate.task import saving, script_saves

MOST_METRICS = 500
"""Most metric names accepted of a job, because every snapshot has them all."""


@dataclass(slots=True)
class Broken:
    """When all tasks of an attempt were lost, their step, and the first step of the next
    attempt.
    """

    at: float
    step: int
    again_from: int | None = None


@dataclass(slots=True)
class LiveJob:
    """The present state of a job."""

    spec: Job
    position: int
    submitted: float
    current: Attempt | None = None  # the latest attempt; None before the first
    begun: bool = False  # a task of that attempt has started
    opening: Reason | None = None  # the reason for its running state
    state: JobState = "waiting"
    reason: Reason = field(default_factory=lambda: Reason(ReasonKind.BEING_PLANNED))
    exit_code: int | None = None
    ending: Ending | None = None
    started: float | None = None
    ended: float | None = None
    expected: float | None = None  # while it waits for room: its expected start
    # what it waits for: kind, facts, and holders
    waits: Mapping[str, object] | None = None
    plan: str | None = None
    profile: str | None = None
    observed_costs: str | None = None  # JSON of a profile that plans do not use
    profile_key: str = ""  # of the script at submission
    script_key: str = ""  # the same regardless of arguments
    length: TrainingLength = field(default_factory=TrainingLength)  # by its arguments
    step: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    steps: int | None = None  # in all
    loss: float | None = None
    verified: str | None = None  # JSON of the Verification of its present plan
    metrics: dict[str, float] = field(default_factory=dict)
    least_workers: int = 1
    # path of another package called `headgate` that its tasks may import
    namesake: str = ""
    names: set[str] = field(default_factory=set)  # names of its metrics
    names_left_out: bool = False
    not_a_number: bool = False
    unseen_told: bool = False
    broke: Broken | None = None  # until it has caught up
    # the latest checkpoints, and the one it resumed from
    saved: list[Checkpoint] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)  # of its script's own, by path
    # the latest that its script saved, if nothing tells how it resumes from that
    unasked: Checkpoint | None = None
    # its latest checkpoint holds per-worker state: only as many workers can resume from it
    own_states: bool = False
    left_box: Mapping[str, Any] | None = None  # of its task that outlived its hub
    unseen_end: float | None = None  # when that ended, if no hub saw it
    unsaved: int = 0  # failed checkpoints since the last saved one
    # at submission, or at the last start
    files: Mapping[Path, FileState] = field(default_factory=dict)
    facts: ScriptFacts = field(default_factory=ScriptFacts)  # facts of these files

    def take_in(self, inspected: InspectedJob) -> None:
        """Keep what was found out about it before it starts."""
        self.facts, self.files = inspected.facts, inspected.files
        self.length, self.namesake = inspected.length, inspected.namesake
        self.profile_key = inspected.profile_key
        self.script_key = script_of(inspected.profile_key)

    def restore(self, former: FormerJob) -> None:
        """Restore it as it stood when its hub died."""
        row, then = former.row, former.then
        self.state = then.state if then.lost is None else "running"
        self.reason = row.because() or self.reason
        self.exit_code, self.ending = row.exit_code, then.ending
        self.started, self.ended = row.started, row.ended
        if then.lost is not None and self.started is None:
            starts = (task["started"] or 0.0 for task in former.tasks.values())
            self.started = min(starts, default=0.0)
        self.plan, self.profile, self.verified = row.plan, row.profile, row.verified
        for name, value in former.steps.items():
            setattr(self, name, value)
        if former.checkpoint is not None:
            self.saved = [former.checkpoint]
        self.left_box, self.unseen_end = former.box, former.ended

    def mark(
        self,
        state: JobState,
        reason: Reason,
        exit_code: int | None,
        now: float,
        ending: Ending | None = None,
    ) -> None:
        """Enter a new state at `now` on the run's clock."""
        self.ending = ending
        self.state, self.reason, self.expected, self.waits = state, reason, None, None
        if exit_code is not None:
            self.exit_code = exit_code
        if state == "running" and self.started is None:
            self.started = now
        if state in ENDED:
            self.ended = now if self.unseen_end is None else self.unseen_end

    @property
    def text(self) -> str:
        """The reason of its state, in words."""
        return say_text(in_words(self.reason))

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint that it would resume from."""
        return self.saved[-1] if self.saved else None

    def keep(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint, and drop earlier ones whose files are gone by now."""
        self.saved = [*self.saved[-saving.KEPT :], checkpoint]

    def keep_own(self, checkpoint: Checkpoint, size: int) -> None:
        """Add a checkpoint of its script's. Of several of one step, the largest one holds most: it
        stays the latest.
        """
        self.saved = [former for former in self.saved if former.path != checkpoint.path]
        self.keep(checkpoint)
        known = {**self.sizes, checkpoint.path: size}
        self.sizes = {saved.path: known.get(saved.path, 0) for saved in self.saved}
        former = self.saved[-2] if len(self.saved) > 1 else None
        if former is None or not former.own or not former.step or former.step != checkpoint.step:
            return
        if self.sizes[former.path] > size and (former.node or not script_saves.damage(former.path)):
            self.saved[-2:] = [checkpoint, former]

    def resumable(self, checkpoint: Checkpoint | None, node: str) -> Checkpoint | None:
        """What to resume from on a node in place of this checkpoint: if its script saved it, the
        newest one that is whole; None: none is.
        """
        if checkpoint is None or not checkpoint.own:
            return checkpoint
        for own in reversed(self.saved):
            if own.own and (own.node == node if own.node else not script_saves.damage(own.path)):
                return own
        return None

    def give_up(self, name: str) -> Checkpoint | None:
        """Drop a damaged checkpoint by its file name. Returns the one before it."""
        self.saved = [
            saved_checkpoint
            for saved_checkpoint in self.saved
            if Path(saved_checkpoint.path).name != name and Path(saved_checkpoint.path).exists()
        ]
        return self.checkpoint

    @property
    def most_held(self) -> float:
        """Bytes that its largest task holds now; 0: unknown."""
        tasks = self.current.tasks.values() if self.current is not None else ()
        return max((task.usage.get("memory_bytes", 0.0) for task in tasks if task.usage), default=0)

    @property
    def is_unconnected(self) -> bool:
        """Whether its script imports a library of Headgate's, and its first task has not
        connected.
        """
        current = self.current
        if current is None or self.namesake or current.is_connected(self.spec.first_task):
            return False
        return bool(self.facts.named_libraries)

    @property
    def unseen_frameworks(self) -> tuple[str, ...]:
        """The frameworks of its script, if it is observed and only its output tells its steps."""
        task = self.current.tasks[self.spec.first_task] if self.current is not None else None
        if task is None or task.observed is not None or task.reports_itself:
            return ()
        if self.step is None and self.epoch is None:
            return ()  # its output tells nothing either
        is_observed = self.spec.observe and not self.spec.roles and not self.namesake
        return self.facts.source.frameworks if is_observed else ()

    @property
    def saver(self) -> TaskName | None:
        """The task that would save a checkpoint now; None: none can."""
        lowest = self.current.lowest if self.current is not None else None
        if self.current is None or lowest is None or not self.current.is_connected(lowest):
            return None
        return lowest

    @property
    def attempt(self) -> int:
        """Number of the latest attempt; 0 before the first."""
        return self.current.number if self.current is not None else 0

    def begin(self, attempt: Attempt, step: int) -> None:
        """Note that an attempt starts, after this many steps of earlier ones."""
        self.current = attempt
        self.begun, self.opening = False, None
        self.not_a_number = False
        if self.broke is not None:
            self.broke.again_from = step

    def placed(self, opening: Reason, now: float) -> bool:
        """Note that tasks are being started. `opening` is announced when the first has started,
        because the engine may have them wait. Returns whether the job's state changes.
        """
        is_first, self.opening = self.opening is None, opening
        if is_first:
            self.mark("waiting", Reason(ReasonKind.BEING_STARTED), None, now)
        return is_first

    def starts(self, now: float) -> bool:
        """Note that a task has started. Returns whether the job runs from now on."""
        runs, self.begun = not self.begun and self.state == "waiting", True
        if runs:
            self.mark("running", self.opening or Reason(ReasonKind.BEING_STARTED), None, now)
        return runs

    def interrupt(self, now: float) -> None:
        """Note that all its tasks are lost; the cost is known once it has caught up."""
        if self.broke is None:
            self.broke = Broken(now, self.step or 0)

    def caught_up(self, now: float) -> tuple[float, int] | None:
        """Seconds and steps that the loss of all its tasks cost, once it has caught up; returned
        once.
        """
        broke = self.broke
        if broke is None or broke.again_from is None or self.step is None or self.step < broke.step:
            return None
        self.broke = None
        return now - broke.at, max(broke.step - broke.again_from, 0)

    def within_limits(self, progress: Progress) -> tuple[Progress, Reason | None]:
        """A report without metrics beyond the first `MOST_METRICS` names, and a warning once."""
        fresh = [name for name in progress.metrics if name not in self.names]
        left_out = set(fresh[max(MOST_METRICS - len(self.names), 0) :])
        self.names.update(name for name in fresh if name not in left_out)
        if not left_out:
            return progress, None
        warning = (
            None
            if self.names_left_out
            else Reason.of(ReasonKind.METRICS_LEFT_OUT, most=MOST_METRICS)
        )
        self.names_left_out = True
        kept = {name: value for name, value in progress.metrics.items() if name not in left_out}
        return replace(progress, metrics=kept), warning

    def progressed(self, progress: Progress) -> Reason | None:
        """Note a report. Returns a warning once."""
        for name in ("step", "epoch", "epochs", "steps"):
            if (value := getattr(progress, name)) is not None:
                setattr(self, name, value)
        if progress.loss is not None:
            self.loss = progress.loss
        self.metrics |= progress.metrics
        if progress.loss is None or math.isfinite(progress.loss) or self.not_a_number:
            return None
        self.not_a_number = True
        return Reason.of(ReasonKind.LOSS_NOT_A_NUMBER, loss=str(progress.loss), step=self.step)

    def stops_after(self, patience: int | None, min_delta: float = 0.0, monitor: str = "") -> None:
        """Note the script's early stopping.

        Args:
            patience: Epochs without a gain after which the script stops; None: it does not.
            min_delta: The least gain that counts.
            monitor: The metric of that gain, which may have another scale than the job's metric.
        """
        rule = self.spec.progress
        least = min_delta if monitor in (rule.metric, f"val_{rule.metric}") else 0.0
        stopping = (max(patience, 1), least) if patience is not None else None
        self.spec = replace(self.spec, progress=replace(rule, script_stopping=stopping))

    def snapshot(self, name: str, tracker: JobTracker | None) -> dict[str, Any]:
        """What a live view shows of the job; use and shares are totals over running tasks."""
        tasks = list(self.current.tasks.values()) if self.current is not None else []
        running = [task for task in tasks if task.state != "ended"]
        read = [task.usage for task in running if task.usage is not None]
        return {
            "name": name,
            "state": self.state,
            "reason": self.text,
            "why": self.reason.plain(),
            "exit_code": self.exit_code,
            "ending": asdict(self.ending) if self.ending is not None else None,
            "started": self.started,
            "ended": self.ended,
            "attempt": self.attempt,
            "saves": self.saver is not None,
            "strategy": self.current.plan.strategy if self.current is not None else None,
            "priority": self.spec.priority,
            "urgent": self.spec.urgent,
            "most_cores": self.spec.limits.cores,
            "step": self.step,
            "epoch": self.epoch,
            "epochs": self.epochs,
            "steps": self.steps,
            "loss": None if self.loss is None or not math.isfinite(self.loss) else self.loss,
            "nan": self.loss is not None and not math.isfinite(self.loss),
            "losses": tracker.course.means if tracker is not None else [],
            "metrics": self.metrics,
            "threads": sum(task.threads for task in running),
            "entitled_cores": sum(task.entitled_cores for task in running),
            "cpu_cores": sum(used.get("cpu_cores", 0.0) for used in read) if read else None,
            "memory_bytes": sum(used.get("memory_bytes", 0.0) for used in read) if read else None,
            "gpus": sorted({gpu for task in running for gpu in task.held_gpus or task.gpus}),
            "gpu_busy": max(
                (used["gpu_busy"] for used in read if "gpu_busy" in used), default=None
            ),
            "gpu_memory_bytes": sum(used.get("gpu_memory_bytes", 0.0) for used in read) or None,
            "tasks": [task.snapshot() for task in tasks],
        }
