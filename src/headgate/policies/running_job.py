"""What policies by weight know of a running job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from headgate.forecast.core_need import Need
from headgate.forecast.job_tracker import JobTracker
from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind
from headgate.policies.base import Predicted, Reported, Used

TYPICAL_WORK = 60.0
"""Assumed core-seconds of a job when nothing is known of any job."""
SPREAD = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Assumed needs of jobs relative to the typical, when too few are known."""
STARTUP_WORK = 4.0
"""Core-seconds until a job's first prediction, before any has come: importing a framework takes as
much.
"""
TRIAL_CORES = 2.0
"""Cores of a trial."""
_KNOWN_WORK = 5.0
"""Core-seconds after the first prediction that show the cost of steps on one core
(`headgate.forecast.scaling`).
"""
_HEADROOM = 1.1
"""Cores granted for each that a job needs: its need varies, and steps that wait for a core are
late.
"""
_STARVES = 1.2
"""A job starves whose steps would come this many times as often with enough cores."""
_CLEARLY_MORE = 1.2
"""A need above this many times what it is known to use efficiently counts."""
_TRIAL_WORK = 20.0
_TRIAL_SECONDS = 60.0
"""Longest trial on two cores."""


@dataclass(slots=True, eq=False)
class RunningJob:
    """A running job, as a policy sees it.

    Args:
        tracker: Its tracker.
        cores_limit: Most cores it may use.
        arrived: When it started.
        number: How many had arrived before it.
        workers: Number of workers that divide its cores.
        nodes: Cores of each of its nodes. Empty: it shares one with all other jobs of unknown
            nodes.
        on_gpus: Whether the nodes are GPUs.
        used: Its latest use reading; None: unknown.
        attained: Core-seconds of CPU time in this attempt.
        last_because: Why other jobs go first regardless of its remaining work; empty: they do not.
        foretold: Its attained service at its first prediction; None: there was none yet.
        told_nobody: It reported before that while alone, when nobody asked for a prediction.
        prediction: Its latest prediction with an end, and the attained service then.
        curve: Its latest prediction of any kind, and the attained service then.
        told_cores: Last known cores that it uses efficiently while others want them; None: unknown.
        need: What cores do to its steps; None: unknown.
        on_trial: It is on trial with two cores.
        follows: Whether its thread count follows its grant; otherwise no trial shows anything.
        trial_cost: Core-seconds that its trial took from other jobs on a two-core machine; 0: no
            such trial.
        needs: Total core-seconds of known jobs, ascending.
        tells_after: Their attained core-seconds at the first prediction.
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
    need: Need | None = None
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
    # its loss at the last look: jumps, diverging, stalled
    _loss: tuple[int, bool, bool] = (0, False, False)
    _step: float = 0.0

    def __post_init__(self) -> None:
        used = self.tracker.used
        self._before, self._seen = used.cpu, (used.seconds, used.cpu)
        self.look()

    def look(self) -> None:
        """Take in what its tracker says of its loss: jumps, divergence, stall."""
        tracker = self.tracker
        self._loss = tracker.jumps, tracker.diverging, tracker.stalled
        self.last_because = None
        if tracker.diverging:
            self.last_because = Reason(ReasonKind.DIVERGES)
        elif tracker.stalled:
            self.last_because = Reason(ReasonKind.STALLED)

    @property
    def served(self) -> float:
        """Core-seconds of CPU time over all attempts."""
        return self.tracker.used.cpu

    @property
    def gpus_per_core(self) -> float:
        """GPU-seconds for each of its core-seconds; 1 without GPUs. Each worker keeps one core busy
        while it has its GPUs.
        """
        return len(self.nodes) / self.workers if self.on_gpus else 1.0

    @property
    def node_cores_per_core(self) -> float:
        """Core-seconds of its nodes for each of its core-seconds, if GPUs are its nodes."""
        return sum(self.nodes.values()) / self.workers if self.on_gpus else 1.0

    @property
    def done_since(self) -> float:
        """Core-seconds attained since the latest prediction."""
        return self.attained - self.prediction[1] if self.prediction is not None else 0.0

    def remaining(self) -> float:
        """Most likely core-seconds left.

        Without a prediction, a job is assumed to need the typical work. Beyond that, it is expected
        to last as long again as so far (Gott, Nature 1993).
        """
        if self.prediction is None:
            last = len(self.needs) - 1
            typical = (self.needs[last // 2] + self.needs[(last + 1) // 2]) / 2
            return max(typical - self.attained, self.attained)
        return self._left(self.prediction[0].work)

    def rank(self) -> float:
        """Core-seconds by which it is ranked, least first: the remaining ones, if predicted.

        A job without a prediction is worth starting: it soon shows its need, and may soon be done.
        It is ranked by the inverse of the Gittins index (1979): the core-seconds spent on such jobs
        for each one that ends. Jobs that need more than the best bound come later. A job known not
        to reveal its end is judged only by its end.
        """
        if self.prediction is not None:
            return self.remaining()
        had = self.attained
        longer = [need - had for need in self.needs if need > had]
        if self.curve is not None:
            # service up to a bound: some jobs end by then, the others are served to the bound
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
        # A job beyond its prediction is about to end, or was predicted wrongly: unknown, so not
        # zero.
        return max(predicted - self.done_since, 0.05 * self.done_since)

    def ranked(self, ahead: int, is_shortest: bool = False) -> Reason:
        """The reason of its rank: `ahead` jobs have less remaining work. Without a prediction, its
        service so far counts.
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

    @property
    def _waits_on(self) -> Need | None:
        """Its need, if its steps wait for other things than cores once they have these."""
        need = self.need
        return need if need is not None and need.waits and not self.on_gpus else None

    def good_cores(self, cores: float) -> float:
        """Cores of its nodes that it uses efficiently while others want them.

        These are the cores that its steps need, or those that more threads use efficiently. If
        unknown, it is one for each worker. A job of one worker gets two for a trial, if there are
        more. A job on GPUs uses all of their time efficiently.
        """
        most = self.most_cores(cores)
        if self.on_gpus:
            return most
        if self._waits_on is not None:
            return self.usable_cores(cores)
        good = TRIAL_CORES if self.on_trial else float(self.workers)
        if self.told_cores is not None:
            good = self.told_cores
        if self.need is not None and self.need.cores > _CLEARLY_MORE * good:
            good = _HEADROOM * self.need.cores
        return min(most, good)

    def usable_cores(self, cores: float) -> float:
        """Most cores that it may use and can put to any use, with some room."""
        most, need = self.most_cores(cores), self._waits_on
        return min(most, _HEADROOM * need.cores) if need is not None else most

    def fastest_cores(self, cores: float) -> float:
        """Cores with which it is as fast as it can be, or all that it may use."""
        most, need = self.most_cores(cores), self._waits_on
        return min(most, need.cores) if need is not None else most

    def gains_little(self, cores: float) -> bool:
        """Whether it is known to gain little from more than it uses efficiently."""
        little = self._waits_on is not None or self.told_cores is not None
        return little and self.good_cores(cores) < self.most_cores(cores)

    @property
    def is_to_be_tried(self) -> bool:
        """Whether a trial on two cores is due."""
        if self.workers > 1 or self.foretold is None or self.told_cores is not None:
            return False
        if self.on_gpus or not self.follows or self._waits_on is not None:
            return False
        known = self.attained - self.foretold >= _KNOWN_WORK
        return known and self._trial_work < _TRIAL_WORK and self._trial_seconds < _TRIAL_SECONDS

    def most_cores(self, cores: float) -> float:
        """Most cores that it may use of its nodes, or of all; all of its GPUs."""
        most = sum(self.nodes.values()) if self.nodes else cores
        return (
            min(most, self.cores_limit)
            if self.cores_limit is not None and not self.on_gpus
            else most
        )

    def use(self, change: Used) -> bool:
        """Process its use. Returns whether its need for cores or for a trial has changed."""
        used, (seconds, work) = self.tracker.used, self._seen
        tried = self.is_to_be_tried
        if self.on_trial:
            self._trial_work += used.cpu - work
            self._trial_seconds += used.seconds - seconds
        self._seen, self.used = (used.seconds, used.cpu), change
        self.attained = used.cpu - self._before
        return self._take_need() or self.is_to_be_tried != tried

    def _take_need(self) -> bool:
        """Take in its present need. Returns whether it differs."""
        before, need = self.need, self.tracker.core_need.need
        self.need = need
        if need is None or before is None:
            return need is not before
        return (need.cores, need.waits) != (before.cores, before.waits)

    def told(self, rank: Reason) -> Reason:
        """The reason of its rank, with what cores do to its steps if that counts."""
        need = self._waits_on
        if need is None or self.last_because is not None:
            return rank
        if need.times < _STARVES:
            return Reason(ReasonKind.FEW_CORES_DO, {"cores": need.cores, "rank": rank})
        facts = {"cores": need.cores, "times": need.times, "rank": rank}
        return Reason(ReasonKind.CORES_BUY_STEPS, facts)

    def report(self, change: Reported) -> bool:
        """Process its loss. Returns whether that requires action at once: a new phase, a change of
        divergence, or the end of a stall.
        """
        before, step = self._loss, self._step
        self.look()
        self._step = self.tracker.losses.step
        if self._loss[0] != before[0] and (change.epochs is None or self._step < step):
            # the prediction from epochs stays, unless it starts them over
            self.prediction = self.curve = None
        return self._loss != before
