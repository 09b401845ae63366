"""What is measured of steps, and how a profile tells it: the same for every framework."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from headgate.task.fit import fit_line

FIRST_STEPS = 20
"""Steps at the start that are all sampled."""
_WARM = 2
_TOLD = 5
_EVERY = 50
_IN_A_ROW = 2

Timing = tuple[int, int, float]
"""Threads, samples of the step, compute seconds."""


@dataclass
class Step:
    """A measured step of a framework that does not part forward from backward.

    Args:
        number: Counts the steps of this process, from 1.
        samples: Samples that this worker computed; None where that is not known.
        spans: Seconds by span: `input` (reading and placing a batch), `compute` (from there until the step's results
            are there: forward, backward, exchange and optimizer are one program), `other`; or all of it as `step`,
            where its parts are not known.
        begins: Seconds from the step's start to the first of each span.
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

    def told(self) -> list[dict[str, Any]]:
        """Spans as the channel tells them."""
        return [
            {"name": name, "seconds": self.spans[name], "begin": self.begins[name]}
            for name in ("input", "compute", "other", "step")
            if name in self.spans
        ]


def is_sampled(number: int) -> bool:
    """Whether the step of that number, counted from 1, is measured: the first twenty, then two in every fifty."""
    return number <= FIRST_STEPS or number % _EVERY < _IN_A_ROW


def is_warm(number: int) -> bool:
    """Whether what is done once, as compiling and counting FLOPs, is over at the step of that number."""
    return number > _WARM


def is_told(number: int) -> bool:
    """Whether the spans of a step that is measured are told: of five of the first twenty, and of all after these."""
    return is_warm(number) and (number <= _WARM + _TOLD or number > FIRST_STEPS)


def step_times(device: str, timings: Iterable[Timing]) -> list[dict[str, Any]]:
    """The fields of `headgate.profiles.StepTime` for each thread count and batch size."""
    groups: dict[tuple[int, int], list[float]] = {}
    for threads, samples, seconds in timings:
        groups.setdefault((threads, samples), []).append(seconds)
    return [
        {"device": device, "threads": threads, "batch": samples, "seconds": median(found), "steps": len(found)}
        for (threads, samples), found in sorted(groups.items())
    ]


def fits(times: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fields of `headgate.profiles.TimeFit` for each thread count that was timed at two or more batch sizes."""
    found = []
    for threads in sorted({time["threads"] for time in times}):
        # The odd last batch of an epoch comes too seldom for its time to say anything.
        chosen = [time for time in times if time["threads"] == threads and time["steps"] >= 3]
        if len(chosen) < 2:
            continue
        line = fit_line([time["batch"] for time in chosen], [time["seconds"] for time in chosen])
        found.append(
            {
                "device": chosen[0]["device"],
                "threads": threads,
                "alpha_seconds": line.alpha,
                "beta_seconds_per_sample": line.beta,
                "relative_error": line.relative_error,
            }
        )
    return found


def memory_peak_bytes() -> int | None:
    """Most resident memory of this process so far; None where the kernel does not say."""
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
