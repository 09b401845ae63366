"""What policies by weight know of a job that is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from headgate.forecast.job_tracker import JobTracker
from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind
from headgate.policies.base import Predicted, Reported, Used

TYPICAL_WORK = 60.0
"""Core-seconds that a job is taken to need where nothing is known of it or any other."""
SPREAD = (0.25, 0.5, 1.0, 2.0, 4.0)
"""What jobs need, over what is typical, where too few are known."""
STARTUP_WORK = 4.0
"""Core-seconds until the first prediction of a job, where none has come yet: what it takes to
import a framework.
"""
TRIAL_CORES = 2.0
"""That a job is tried on, to find out whether it puts them to good use."""
_KNOWN_WORK = 5.0
"""Core-seconds after the first prediction of a job in which it is known what its steps cost on one
core (`headgate.forecast.scaling`),
"""
_TRIAL_WORK = 20.0
_TRIAL_SECONDS = 60.0
"""and those in which it is found out what they cost on two, in so many seconds, or never."""


@dataclass(slots=True, eq=False)
class RunningJob:
    """A job that is running, as a policy sees it.

    Args:
        tracker: What is known of it.
        cores_limit: Most cores it may use.
        arrived: When it started.
        number: How many had arrived before it.
        workers: Among which its cores are divided.
        nodes: Cores of each node that it is on. Empty: it shares one with all other jobs whose
            nodes are not told.
        on_gpus: These are GPUs.
        used: The latest that it was said to use; None: not known.
        attained: CPU time it was served with in this attempt, core-seconds.
        last_because: Why others go before it, whatever is left of it; None: they do not.
        foretold: What it had attained when something was predicted of it for the first time; None:
            nothing was yet.
        told_nobody: Before that it reported while it was alone, and nobody asked for a prediction.
        prediction: The latest that says when it ends, and what had been attained when it came.
        curve: The latest of any kind, and the same.
        told_cores: That it was last told to put to good use while others want them; None: never.
        on_trial: It is tried on two cores, to find out whether it puts them to good use.
        follows: Whether its threads become as many as it is granted: else no trial tells anything.
        trial_cost: Core-seconds that its trial took from other jobs, where there were no more than
            two; 0: none did.
        needs: What jobs here need, core-seconds, the least first.
        tells_after: Core-seconds that they have had when the first prediction of them comes.
    """

    id: JobId
    tracker: JobTracker
    priority: float
    cores_limit: float | None
    arrived: float
    number: int
    workers: int = 1
    nodes: Mapping[str, float] = field(default_factory=dict)
    on_gpus: bool = False
    used: Used | None = None
    attained: float = 0.0
    last_because: Reason | None = field(init=False)
    prediction: tuple[Predicted, float] | None = None
    curve: tuple[Predicted, float] | None = None
    told_cores: float | None = None
    on_trial: bool = False
    follows: bool = True
    trial_cost: float = 0.0
    needs: Sequence[float] = tuple(TYPICAL_WORK * part for part in SPREAD)
    tells_after: float = STARTUP_WORK
    foretold: float | None = None
    told_nobody: bool = False
    _before: float = field(init=False)
    _trial_work: float = 0.0
    _trial_seconds: float = 0.0
    _seen: tuple[float, float] = (0.0, 0.0)  # seconds and core-seconds at the latest reading
    # what its loss was when it was looked at last: jumps, whether it diverges and has stalled; step
    _loss: tuple[int, bool, bool] = (0, False, False)
    _step: float = 0.0

    def __post_init__(self) -> None:
        used = self.tracker.used
        self._before, self._seen = used.cpu, (used.seconds, used.cpu)
        self._look()

    def _look(self) -> None:
        tracker = self.tracker
        self._loss = tracker.jumps, tracker.diverging, tracker.stalled
        self.last_because = None
        if tracker.diverging:
            self.last_because = Reason(ReasonKind.DIVERGES)
        elif tracker.stalled:
            self.last_because = Reason(ReasonKind.STALLED)

    @property
    def served(self) -> float:
        """CPU time it was served with in all its attempts, core-seconds."""
        return self.tracker.used.cpu

    @property
    def gpus_per_core(self) -> float:
        """GPU-seconds that a core-second of it takes; 1 for a job without GPUs. Each worker keeps
        one core busy while its GPUs are its own.
        """
        return len(self.nodes) / self.workers if self.on_gpus else 1.0

    @property
    def node_cores_per_core(self) -> float:
        """Core-seconds of its nodes that a core-second of it takes, where GPUs stand for nodes."""
        return sum(self.nodes.values()) / self.workers if self.on_gpus else 1.0

    @property
    def done_since(self) -> float:
        """Core-seconds attained since the latest prediction."""
        return self.attained - self.prediction[1] if self.prediction is not None else 0.0

    def remaining(self) -> float:
        """Core-seconds left, the likeliest.

        A job without a prediction is taken to need what is typical. Once it has had that, the
        likeliest is that it lasts as long again as it has (Gott, Nature 1993).
        """
        if self.prediction is None:
            last = len(self.needs) - 1
            typical = (self.needs[last // 2] + self.needs[(last + 1) // 2]) / 2
            return max(typical - self.attained, self.attained)
        return self._left(self.prediction[0].work)

    def rank(self) -> float:
        """Core-seconds by which it is ranked among the others, the least first: those left, where
        they are predicted.

        A job without a prediction is worth beginning with. It soon tells what it needs, and where
        that is little it is done soon. It is ranked by the inverse of the Gittins index (1979): the
        core-seconds that are spent on such jobs for each one that ends. Jobs that turn out to need
        more than the best bound are left for later. A job that was seen to say nothing of its end
        is found out only by its end.
        """
        if self.prediction is not None:
            return self.remaining()
        had = self.attained
        longer = [need - had for need in self.needs if need > had]
        if self.curve is not None:
            # served until a bound: those that end by then, and the others for as long
            most = len(longer)
            ended = zip(longer, accumulate(longer), strict=True)
            spent = (
                (done + bound * (most - count)) / count
                for count, (bound, done) in enumerate(ended, 1)
            )
            return min(spent, default=self.remaining())
        until_told = self.tells_after - had if had < self.tells_after else had
        extra = accumulate(max(left - until_told, 0.0) for left in longer)
        tried = until_told * len(longer)
        return min(
            ((tried + spent) / done for done, spent in enumerate(extra, 1)),
            default=self.remaining(),
        )

    def _left(self, predicted: float) -> float:
        # What lasts longer than was predicted is about to end, or was predicted wrongly: not to be
        # told, so not zero.
        return max(predicted - self.done_since, 0.05 * self.done_since)

    def ranked(self, ahead: int, is_shortest: bool = False) -> Reason:
        """Why it has its place: so many are `ahead`, by what is left of each. Of a job without a
        prediction it is what it has had.
        """
        if self.last_because is not None:
            return self.last_because
        place: dict[str, object] = {"ahead": ahead}
        if is_shortest and not ahead:
            place["is_shortest"] = True
        if self.prediction is None:
            used, has_curve = self.attained, self.curve is not None
            facts = {**place, "has_curve": has_curve, "used_core_seconds": used}
            return Reason(ReasonKind.WORK_UNKNOWN, facts)
        prediction = self.prediction[0]
        left, low, high = map(self._left, (prediction.work, prediction.low, prediction.high))
        facts = {**place, "core_seconds": left, "low": low, "high": high}
        return Reason(ReasonKind.WORK_LEFT, facts)

    def good_cores(self, cores: float) -> float:
        """Cores of its nodes that it puts to good use while others want them.

        Where that is not known it is one for each of its workers. A job of one worker is tried on
        two for a while, where there are more. A job on GPUs puts all of their time to good use.
        """
        most = self.most_cores(cores)
        if self.on_gpus:
            return most
        if self.told_cores is not None:
            return min(most, self.told_cores)
        return min(most, TRIAL_CORES if self.on_trial else float(self.workers))

    @property
    def is_to_be_tried(self) -> bool:
        """Whether it is to be found out what it would do with two cores."""
        if self.workers > 1 or self.foretold is None or self.told_cores is not None:
            return False
        if self.on_gpus or not self.follows:
            return False
        known = self.attained - self.foretold >= _KNOWN_WORK
        return known and self._trial_work < _TRIAL_WORK and self._trial_seconds < _TRIAL_SECONDS

    def most_cores(self, cores: float) -> float:
        """That it may use of its nodes' cores, or of all there are; of GPUs all."""
        most = sum(self.nodes.values()) if self.nodes else cores
        return (
            min(most, self.cores_limit)
            if self.cores_limit is not None and not self.on_gpus
            else most
        )

    def use(self, change: Used) -> bool:
        """Look at what it used since the last time; whether it is to be tried now and was not, or
        is no longer.
        """
        used, (seconds, work) = self.tracker.used, self._seen
        tried = self.is_to_be_tried
        if self.on_trial:
            self._trial_work += used.cpu - work
            self._trial_seconds += used.seconds - seconds
        self._seen, self.used = (used.seconds, used.cpu), change
        self.attained = used.cpu - self._before
        return self.is_to_be_tried != tried

    def report(self, change: Reported) -> bool:
        """Look at its loss; whether it calls for acting at once: another phase, divergence or its
        end, an end of a stall.
        """
        before, step = self._loss, self._step
        self._look()
        self._step = self.tracker.losses.step
        if self._loss[0] != before[0] and (change.epochs is None or self._step < step):
            # what is left by epochs stays, unless it begins them again
            self.prediction = self.curve = None
        return self._loss != before

    def stall(self) -> None:
        """Note that it has stalled."""
        self._look()
