"""Measures steps, and puts the measurements into a profile. All frameworks share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import log
from statistics import fmean, median, quantiles
from time import monotonic, perf_counter
from typing import Any, NamedTuple, TypeVar

from headgate.task.core_wait import CALM
from headgate.task.fit import fit_line
from headgate.task.progress import whole
from headgate.task.spans import StepSpans

FIRST_STEPS = 20
"""Number of steps at the start that are all measured."""
_WARM = 2
_TOLD = 5
_EVERY, _MOST = 50, 50 * 2**10
_IN_A_ROW = 2
_LEAST_SECONDS = 0.25
"""Time between two groups of measured steps. Measuring one costs about as much as a short step of a
small model.
"""

BUSY = 0.1
"""Fraction of time that threads wait for a core above which step times are unreliable."""
OTHERS = 0.25
"""Fraction of a machine's cores used by other programs above which step times are unreliable, even
if no thread waits.
"""
FEWEST = 3
"""Fewest steps for a median time, if there are that many."""


class Timing(NamedTuple):
    """A timed step: threads, samples, compute seconds, and the fraction of time that threads waited
    for a core.
    """

    threads: int
    samples: int
    seconds: float
    waited: float | None = None

    @property
    def calm(self) -> bool:
        """Whether no other program slowed it."""
        return self.waited is None or self.waited <= CALM


class Read(NamedTuple):
    """Samples that the training process read itself: seconds per sample, and the fraction of time
    that threads waited for a core.
    """

    seconds: float
    waited: float | None = None


_Measured = TypeVar("_Measured", Timing, Read)


@dataclass
class Step:
    """A measured step of a framework that does not separate forward from backward, or the mean of
    several steps.

    Args:
        number: Number among the measured steps of this process, from 1.
        samples: Samples that this worker computed; None if unknown.
        spans: Seconds by span. `input`: reading and placing a batch. `compute`: from there until
            the step's results are ready; forward, backward, exchange and optimizer are one program.
            `other`: the rest. Or only `step`, if the parts are unknown.
        begins: Seconds from the step's start to the first start of each span.
    """

    number: int
    samples: int | None
    spans: dict[str, float] = field(default_factory=dict)
    begins: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return sum(self.spans.values())

    @property
    def compute_seconds(self) -> float:
        """Seconds without waiting for input."""
        return self.seconds - self.spans.get("input", 0.0)

    def as_message(self) -> dict[str, Any]:
        """The spans as the channel sends them."""
        names = [name for name in ("input", "compute", "other", "step") if name in self.spans]
        return {
            "spans": [{"name": n, "seconds": self.spans[n], "begin": self.begins[n]} for n in names]
        }


class StepSampling:
    """Selects the steps to measure: the first twenty, then two in every fifty.

    If fifty steps take less than a quarter of a second, it selects two in every 100, 200, and so
    on. These are a subset of the two in every fifty. So workers that step together measure the same
    steps, even if their clocks differ.

    Args:
        every_step: Measure all steps.
        clock: Seconds of a monotonic clock.
    """

    def __init__(self, every_step: bool = False, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._every = 1 if every_step else _EVERY
        self._row, self._row_began = 0, 0.0

    def takes(self, number: int) -> bool:
        """Whether step `number`, counted from 1, is measured."""
        place = number % self._every
        if place >= _IN_A_ROW:
            return number <= FIRST_STEPS
        # a dropped step is asked for again
        if place == 0 and self._every > 1 and number != self._row:
            self._adapt(number)
        return True

    def _adapt(self, number: int) -> None:
        now = self._clock()
        if self._row:
            of_a_step = (now - self._row_began) / (number - self._row)
            self._every = _EVERY
            while self._every * of_a_step < _LEAST_SECONDS and self._every < _MOST:
                self._every *= 2
        self._row, self._row_began = number, now


def is_warm(number: int) -> bool:
    """Whether one-time work, such as compiling and counting FLOPs, is over at step `number`."""
    return number > _WARM


def is_told(number: int) -> bool:
    """Whether the spans of a measured step are sent: those of five of the first twenty steps, and
    of all later ones.
    """
    return is_warm(number) and (number <= _WARM + _TOLD or number > FIRST_STEPS)


def read_seconds(reads: Iterable[Read]) -> float | None:
    """Median seconds to read a sample, from the reads that waited least, as in `step_times`. None
    without reads.
    """
    chosen = _calmest(list(reads))
    return median(read.seconds for read in chosen) if chosen else None


class StepMeter:
    """Times the steps of a framework that does not separate forward from backward, selected by
    `StepSampling`. Other steps cost a comparison per mark, and are not waited for.

    A script may report several steps at once, for example every tenth. Then their mean is measured.

    Args:
        deliver: Takes each measured step.
        wait: Waits for a step's results.
        every_step: Measure all steps.
        clock: Seconds of a monotonic clock.

    Attributes:
        steps: How often steps ended so far.
        sampled: Whether the running step is measured.
        samples: Samples of the running step, if known.
    """

    def __init__(
        self,
        deliver: Callable[[Step], None],
        wait: Callable[[Any], object],
        every_step: bool = False,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._deliver = deliver
        self._wait = wait
        self._sampling = StepSampling(every_step)
        self._spans = StepSpans(clock)
        self._open = self._waited = self._dropped = False
        self._told: Any = None
        self.steps = 0
        self.sampled = False
        self.samples: int | None = None

    def begin(self, done: Any, span: str = "other") -> None:
        """Begin a step in the span `span`.

        Args:
            done: The results of the previous step. If this step is measured, the meter waits for
                them.
        """
        self._open, self.samples = True, None
        self.sampled = self._sampling.takes(self.steps + 1)
        if self.sampled:
            if not self._waited:
                self._wait(done)
            self._spans.begin(span)

    def mark(self, name: str) -> None:
        """Begin the span `name` of the running step."""
        if self.sampled:
            self._spans.enter(name)

    def leave_out(self, seconds: float) -> None:
        """Take the latest seconds out of the running span: measuring took them."""
        if self.sampled:
            self._spans.leave_out(seconds)

    def pass_over(self) -> None:
        """Do not measure the running step."""
        self.sampled = False

    def end(self, done: Any, steps: int = 1, more: Any = None) -> None:
        """End the running step, once `done` is computed.

        Args:
            steps: Number of steps since `begin`.
            more: The script's own number of the last step, which may be a tensor; None: not given.
                Its increase is the number of steps.
        """
        before, self._told = self._told, more
        if not self._open:
            return
        self.steps += 1
        self._waited, samples, dropped = self.sampled, self.samples, self._dropped
        self.drop()
        self._dropped = False
        if not self._waited:
            return
        self._wait(done)
        spans, begins = self._spans.end(), self._spans.begins
        if more is not None and before is not None:
            grown = whole(more, 0) - whole(before, 0)
            # the script restarted its count, or took steps before `begin`: the number of steps is
            # unknown
            if grown < 0 or (dropped and grown > 1):
                return
            steps = max(grown, 1)
        if list(spans) == ["other"]:  # nothing tells its parts
            spans, begins = {"step": spans["other"]}, {"step": begins["other"]}
        spans, begins = (
            {name: seconds / steps for name, seconds in some.items()} for some in (spans, begins)
        )
        self._deliver(Step(self.steps, samples and samples // steps, spans, begins))

    def drop(self) -> None:
        """Discard the running measurement: an epoch ends in it."""
        self._open = self.sampled = False
        self._dropped = True


def are_calm(timings: Iterable[Timing]) -> bool:
    """Whether there are enough calm steps at each batch size and thread count that was timed
    often.
    """
    groups: dict[tuple[int, int], list[bool]] = {}
    for timing in timings:
        groups.setdefault((timing.threads, timing.samples), []).append(timing.calm)
    return all(sum(group) >= FEWEST for group in groups.values() if len(group) >= FEWEST)


def busy_notes(times: Sequence[dict[str, Any]], others: float) -> list[str]:
    """Notes for readers of a profile on these `step_times`. `others` is the fraction of cores that
    other programs used.
    """
    waited = max((time["waited"] or 0.0 for time in times), default=0.0)
    if waited <= BUSY and others <= OTHERS:
        return []
    parts = (
        f"others used {others * 100:.0f} % of the machine's cores, and threads waited "
        f"{waited * 100:.0f} % of the time for one"
    )
    if others <= OTHERS * waited:  # as a loader's workers do
        return [f"{parts}: its own processes and threads are more than the cores"]
    return [f"{parts}: steps may take much less on a calm machine"]


def step_times(device: str, timings: Iterable[Timing]) -> list[dict[str, Any]]:
    """The fields of `headgate.model.profiles.StepTime` for each thread count and batch size.

    It uses calm steps if there are any, otherwise the calmest quarter.
    """
    groups: dict[tuple[int, int], list[Timing]] = {}
    for timing in timings:
        groups.setdefault((timing.threads, timing.samples), []).append(timing)
    times = []
    for (threads, samples), of_group in sorted(groups.items()):
        chosen = _calmest(of_group)
        seconds = [timing.seconds for timing in chosen]
        waited = [timing.waited for timing in chosen if timing.waited is not None]
        times.append(
            {
                "device": device,
                "threads": threads,
                "batch": samples,
                "seconds": median(seconds),
                "steps": len(seconds),
                "spread": _spread(seconds),
                "waited": fmean(waited) if waited else None,
            }
        )
    return times


def _calmest(measured: Sequence[_Measured]) -> Sequence[_Measured]:
    """The calm steps, otherwise the quarter that waited least."""
    calm = [timing for timing in measured if timing.waited is None or timing.waited <= CALM]
    if len(calm) >= FEWEST:
        return calm
    return sorted(measured, key=lambda timing: timing.waited or 0.0)[
        : max(FEWEST, len(measured) // 4)
    ]


def _spread(seconds: Sequence[float]) -> float | None:
    """Standard deviation of the logarithm, from the quartiles, so that a single pause does not
    count.
    """
    if len(seconds) < FEWEST or min(seconds) <= 0:
        return None
    first, _, third = quantiles(seconds, n=4, method="inclusive")
    return log(third / first) / 1.349


def fits(times: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fields of `headgate.model.profiles.TimeFit` for each thread count that was timed at two
    or more batch sizes.
    """
    fitted = []
    for threads in sorted({time["threads"] for time in times}):
        # The odd last batch of an epoch comes too seldom for its time to be reliable.
        chosen = [time for time in times if time["threads"] == threads and time["steps"] >= 3]
        if len(chosen) < 2:
            continue
        line = fit_line([time["batch"] for time in chosen], [time["seconds"] for time in chosen])
        fitted.append(
            {
                "device": chosen[0]["device"],
                "threads": threads,
                "alpha_seconds": line.alpha,
                "beta_seconds_per_sample": line.beta,
                "relative_error": line.relative_error,
            }
        )
    return fitted


def memory_peak_bytes() -> int | None:
    """Peak resident memory of this process, in bytes. None if the kernel does not report it."""
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
