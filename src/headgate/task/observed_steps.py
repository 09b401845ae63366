"""Recognises the steps of a training loop that calls none of Headgate's libraries, from what hooks
see of it: batches that are fetched, backward passes, and steps of optimizers.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

EVALUATION = "evaluation"
_MOST_MARKS = 4096
"""Most marks of a step that are kept one by one."""
_LEAST_OTHERS, _TIMES = 8, 4
"""Another optimizer leads after this many steps of others, and this many times the most between two
steps of the leader.
"""


@dataclass
class Marks:
    """What happened from the end of one step to the end of the next.

    Args:
        begin: When it began, in seconds of the clock.
        names: The span that ended at each mark.
        times: The time of each mark.
        moments: The moments on a device: of the beginning, and of each mark; empty: not taken.
        samples: Samples that were trained on; None: unknown.
        are_whole: Whether all parts of the step were marked.
        folded: Seconds of spans before `begin`, if there were too many to keep.
    """

    begin: float
    names: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    moments: list[Any] = field(default_factory=list)
    samples: int | None = None
    are_whole: bool = True
    folded: dict[str, float] = field(default_factory=dict)

    def fold(self) -> None:
        """Keep the sums of all spans so far in place of their marks."""
        sums: dict[str, float] = {}
        self.add_to(sums)
        self.folded, self.begin = sums, self.times[-1]
        self.names, self.times, self.moments = [], [], []

    def join(self, first: int, name: str) -> None:
        """Make one span of all from the mark `first` on, and of those of this name before it. An
        evaluation of very many batches then takes no memory.
        """
        while first and self.names[first - 1] == name:
            first -= 1
        self.names[first:] = [name]
        self.times[first:] = self.times[-1:]
        if self.moments:
            self.moments[first + 1 :] = self.moments[-1:]

    def leave_out(self, seconds: float) -> None:
        """The last seconds are no part of the step."""
        self.begin += seconds
        self.times = [moment + seconds for moment in self.times]

    def add_to(self, sums: dict[str, float]) -> None:
        """Add the seconds of each span, by the clock of this process."""
        before = self.begin
        for name, seconds in self.folded.items():
            sums[name] = sums.get(name, 0.0) + seconds
        for name, now in zip(self.names, self.times):
            sums[name] = sums.get(name, 0.0) + now - before
            before = now


class LeadingOptimizer:
    """Selects the optimizer whose steps are the steps of the script.

    It is the first that takes a step. If it takes no more, or is gone, another one follows it.
    """

    def __init__(self) -> None:
        self._leader: Callable[[], Any] = lambda: None
        self._others: dict[int, int] = {}
        self._most = 0

    def steps(self, optimizer: Any) -> int:
        """Steps of the script that end with a step of this optimizer: 0 or 1, and more if it has
        followed another one unnoticed.
        """
        leader = self._leader()
        if leader is optimizer:
            if self._others:
                self._most = max(self._most, sum(self._others.values()))
                self._others = {}
            return 1
        number = id(optimizer)
        if leader is not None:
            self._others[number] = self._others.get(number, 0) + 1
            if sum(self._others.values()) <= max(_LEAST_OTHERS, _TIMES * self._most):
                return 0
        steps = self._others.get(number, 1)
        self._leader, self._others, self._most = weakref.ref(optimizer), {}, 0
        return steps


class ObservedSteps:
    """Divides the time of a training loop into steps, and these into spans.

    A step ends with that of the leading optimizer. A batch is evaluated, not trained on, if it was
    fetched without gradients, between `eval()` and `train()`, or from a loader that feeds no
    backward pass, and the next one is fetched before any backward pass. Where an evaluation
    computes no gradients, the first batch for training that is fetched with gradients ends it.

    Args:
        ended: Called at the end of each step, with the number of steps that end and their marks.
        clock: Seconds of a monotonic clock.

    Attributes:
        moment: Takes a moment on a device at each mark; None: none is taken.
    """

    def __init__(
        self,
        ended: Callable[[int, Marks], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.moment: Callable[[], Any] | None = None
        self._ended = ended
        self._clock = clock
        self._leading = LeadingOptimizer()
        self._loaders: dict[int, Any] = {}  # references to known loaders
        self._training: set[int] = set()  # those that feed backward passes
        self._source = 0  # the loader of the undecided batches
        self._undecided: int | None = None  # the mark at which the first of these was fetched
        self._unused: list[int | None] = []  # sizes of the undecided batches
        self._gradients = True
        self._evaluates = False
        self._infers = False  # the evaluation computes no gradients
        self._depth = 0  # of backward passes
        self._are_computed = False  # the gradients of the running backward pass
        self._optimizing = False
        self.begin()

    def begin(self) -> None:
        """Begin a step now, after a pause that is no part of it."""
        self._marks = Marks(self._clock())
        if self.moment is not None:
            self._marks.moments.append(self.moment())
        self._undecided = None

    def take(self) -> Marks:
        """Take what was marked since the last step."""
        marks = self._marks
        self._decide()
        self.begin()
        return marks

    def _mark(self, name: str) -> None:
        marks = self._marks
        marks.names.append(name)
        marks.times.append(self._clock())
        if self.moment is not None:
            marks.moments.append(self.moment())

    # --- what hooks see ---------------------------------------------------------------------------

    def fetching(self) -> None:
        """A batch is about to be fetched."""
        if self._undecided is not None:
            self._mark("other")
            self._decide()
        else:
            self._mark(EVALUATION if self._evaluates else "other")

    def fetched(self, loader: object, size: int | None, gradients: bool) -> None:
        """A batch was fetched.

        Args:
            loader: Stands for its loader.
            size: Its number of samples; None: unknown.
            gradients: Whether gradients are computed.
        """
        self._mark("input")
        if self._undecided is None:
            self._undecided = len(self._marks.names) - 1
        source = id(loader)
        if source not in self._loaders:
            self._know(source, loader)
        self._source, self._gradients = source, gradients
        self._unused.append(size)
        if self._evaluates:
            self._infers = self._infers or not gradients
            if gradients and self._infers and source in self._training:
                self._evaluates = self._infers = False

    def _know(self, source: int, loader: object) -> None:
        """Know a loader by its number until it is gone: another one may have the number then."""

        def forget(_: object) -> None:
            self._loaders.pop(source, None)
            self._training.discard(source)

        try:
            self._loaders[source] = weakref.ref(loader, forget)
        except TypeError:  # as of a list
            return

    def exhausted(self) -> None:
        """A loader has no more batches."""
        self._mark(EVALUATION if self._evaluates else "input")

    def backward_begins(self) -> None:
        """A backward pass begins, perhaps within another one."""
        self._depth += 1
        if self._depth > 1:
            return
        self._trains()
        closure = self._optimizing and self._marks.names[-1:] in (["backward"], ["wait"])
        self._mark("optimizer" if closure else "forward")

    def gradients_computed(self) -> None:
        """The running backward pass has computed all gradients. It may wait for those of others."""
        if self._depth == 1:
            self._mark("backward")
            self._are_computed = True

    @property
    def is_in_backward(self) -> bool:
        """Whether a backward pass runs, perhaps in threads of its own."""
        return self._depth > 0

    def breaks_off(self) -> None:
        """A wait for other workers, or a copy to a device, begins within a span."""
        if not self._depth:
            apart = "other" if self._undecided is None else "forward"
            self._mark("optimizer" if self._optimizing else apart)
        else:
            self._mark("wait" if self._are_computed else "backward")

    def exchanged(self) -> None:
        """A wait for other workers has ended."""
        self._mark("wait")

    def copied(self) -> None:
        """A copy to a device has ended."""
        self._mark("copy")

    def tells_apart(self) -> bool:
        """Whether waits and copies are told apart: not those of an evaluation, nor very many."""
        return not self._evaluates and len(self._marks.names) < _MOST_MARKS

    def backward_ends(self) -> None:
        """A backward pass has ended."""
        self._depth = max(self._depth - 1, 0)
        if not self._depth:
            self._mark("wait" if self._are_computed else "backward")
            self._are_computed = False
            # a script that updates its weights by itself takes no step that is seen
            if len(self._marks.names) > _MOST_MARKS:
                self._marks.fold()
                self.moment = None

    def optimizer_begins(self) -> None:
        """An optimizer begins its step."""
        self._mark("other" if self._undecided is None else "forward")
        self._trains()
        self._optimizing = True

    def optimizer_ended(self, optimizer: Any) -> None:
        """An optimizer has ended its step."""
        self._optimizing, self._depth = False, 0
        self._mark("optimizer")
        steps = self._leading.steps(optimizer)
        if steps:
            self._ended(steps, self._marks)
            self.begin()

    def trains_on(self, samples: int) -> None:
        """The running step trains on this number of samples, unless its batches tell it."""
        if self._marks.samples is None:
            self._marks.samples = samples

    def computes(self) -> None:
        """A compiled call that trains begins."""
        self._mark("other")
        self._trains()

    def leaves_out(self, seconds: float) -> None:
        """The last seconds went to observation."""
        self._marks.leave_out(seconds)

    def computed(self) -> None:
        """A compiled call that trains, or a part of it, has ended."""
        self._trains()
        self._mark("compute")

    def call_ended(self, program: Any = None, steps: int = 1, are_whole: bool = True) -> None:
        """A compiled call that trains has ended.

        Args:
            program: Stands for an optimizer; None: each of its calls counts.
            steps: The number of steps that it took.
            are_whole: As of `Marks`.
        """
        self.computed()
        if program is not None:
            steps = self._leading.steps(program)
        if steps:
            self._marks.are_whole = are_whole
            self._ended(steps, self._marks)
            self.begin()

    def evaluates(self, evaluates: bool) -> None:
        """A model was set to evaluation mode, or back to training mode."""
        if evaluates != self._evaluates:
            self._mark(EVALUATION if self._evaluates else "other")
            self._evaluates, self._infers = evaluates, False

    # --- which batches train ----------------------------------------------------------------------

    def _trains(self) -> None:
        """The latest batch is trained on."""
        self._evaluates = False
        if self._undecided is None:
            return
        self._training.add(self._source)
        known = [size for size in self._unused if size is not None]
        if known:
            self._marks.samples = (self._marks.samples or 0) + sum(known)
        self._undecided, self._unused = None, []

    def _decide(self) -> None:
        """Decide on fetched batches that no backward pass has followed."""
        evaluated = not self._gradients or self._evaluates or self._source not in self._training
        if self._undecided is not None and evaluated:
            self._marks.join(self._undecided, EVALUATION)
            self._unused = []
            self._undecided = None
