"""Recordings of a job beside a neighbour of which it is known what they cost: the job's own course,
and the neighbour's coming and going, are drawn, and both go through the scheduler of a made-up
machine (`tests.diagnosis.scheduled`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.diagnosis.made_up import MadeUp, recording
from tests.diagnosis.scheduled import Course, Machine, Neighbour, Trace, Training

from headgate.recorded.recording import Recording

_SECONDS = 26.0
"""Of a job alone."""
_APART = 0.1
"""Seconds between two reports."""


def _walk(seed: int) -> Course:
    draw = random.Random(seed)
    levels = [0.0]
    for _ in range(100):
        levels.append(levels[-1] + draw.gauss(0.0, 0.06))
    return lambda at: math.exp(levels[int(at * 100.0)])


def _jumps(seed: int) -> Course:
    draw = random.Random(seed)
    times, levels = (
        sorted(draw.random() for _ in range(5)),
        [math.exp(draw.gauss(0.0, 0.3)) for _ in range(6)],
    )
    return lambda at: levels[sum(time < at for time in times)]


COURSES: Mapping[str, Course] = {
    "steady": lambda at: 1.0,
    "dearer half way": lambda at: 1.6 if at > 0.5 else 1.0,
    "cheaper half way": lambda at: 1.0 if at > 0.5 else 1.6,
    "ever longer sequences": lambda at: 1.0 + at,
    "ever fewer layers": lambda at: 2.0 - at,
    "warm-up": lambda at: 1.0 + 1.5 * math.exp(-at / 0.15),
    "long in the middle": lambda at: 1.5 if 0.35 < at < 0.65 else 1.0,
    "phases": lambda at: 1.4 if at * 7.0 % 1.0 > 0.6 else 1.0,
    "layers thaw": lambda at: 1.0 + 0.25 * math.floor(at * 4.0),
    "epochs that begin slowly": lambda at: 1.0 + 0.4 * math.exp(-(at * 5.0 % 1.0) / 0.2),
    "buckets of lengths": lambda at: 1.0 + 0.6 * (at * 6.0 % 1.0),
    "waves": lambda at: 1.0 + 0.4 * math.sin(at * 20.0),
    "a curriculum": lambda at: (1.0, 1.3, 1.15, 1.7, 1.4, 2.0)[min(int(at * 6.0), 5)],
    "growing ever faster": math.exp,
    "cheap at the end": lambda at: 1.0 if at < 0.8 else 0.5,
    "a few long steps": lambda at: 3.0 if 0.45 < at < 0.5 else 1.0,
    "evaluations": lambda at: 3.0 if at * 4.0 % 1.0 > 0.9 else 1.0,
    "frozen, then all": lambda at: 1.8 if at < 0.3 else 0.85 + 0.5 * at,
    "a walk": _walk(1),
    "jumps": _jumps(2),
}
"""What a step costs, 1 being usual, by the part of all steps that came before it."""


def presences(seconds: float, draw: random.Random) -> dict[str, tuple[float, ...]]:
    """When a neighbour comes and goes, in turn: at odd times."""
    first = draw.uniform(0.2, 0.4) * seconds
    bursts, at = [], draw.uniform(4.0, 8.0)
    while at < seconds - 3.0:
        bursts.append(at)
        at += draw.uniform(3.0, 7.0)
    return {
        "half way on": (0.5 * seconds,),
        "from the begin to half way": (0.0, 0.5 * seconds),
        "in the middle": (0.35 * seconds, 0.65 * seconds),
        "late": (draw.uniform(0.6, 0.75) * seconds,),
        "once": (first, first + draw.uniform(0.25, 0.4) * seconds),
        "twice": (first, first + 0.15 * seconds, first + 0.3 * seconds, first + 0.5 * seconds),
        "bursts": tuple(bursts),
        "always": (0.0,),
    }


@dataclass(frozen=True)
class Kind:
    """A job, and what runs beside it."""

    job: Training
    beside: Neighbour


_SLEEPS = Training(threads=2, regions=10, patience=0.0003, refill=0.0003)
_SPINS = Training(threads=2, patience=math.inf, refill=0.0002)
KINDS: Mapping[str, Kind] = {
    "nothing": Kind(Training(), Neighbour()),
    "memory": Kind(Training(), Neighbour(memory=0.4)),
    "core of one thread": Kind(Training(), Neighbour(threads=2)),
    "core of one thread by many processes": Kind(Training(), Neighbour(threads=4, lives=0.04)),
    "cores of two threads": Kind(_SLEEPS, Neighbour(threads=2)),
    "core of two threads": Kind(_SLEEPS, Neighbour()),
    "core of two threads, at nice 19": Kind(_SLEEPS, Neighbour(threads=2, nice=19)),
    "cores of two threads by many processes": Kind(_SLEEPS, Neighbour(threads=4, lives=0.04)),
    "cores of threads that spin": Kind(_SPINS, Neighbour(threads=2)),
    "a core of threads that spin": Kind(_SPINS, Neighbour()),
}
"""What a neighbour takes of a job; when it does is drawn."""


def drawn(path: Path, kind: str, course: str, presence: str, seed: int) -> tuple[Recording, float]:
    """A recording of such a job, and the seconds that it lost to the neighbour: the same steps take
    that much less without it.
    """
    draw, cost = random.Random(seed), COURSES[course]
    job, beside = KINDS[kind].job, KINDS[kind].beside
    steps = round(_SECONDS / job.step / (sum(cost(at / 200.0) for at in range(200)) / 200.0))
    alone = Machine(job, steps, cost, beside, (), seed).run()
    shared = Machine(job, steps, cost, beside, presences(alone.end, draw)[presence], seed).run()
    return recorded(path, shared, draw), shared.end - alone.end


def recorded(path: Path, trace: Trace, draw: random.Random) -> Recording:
    """What would be recorded of it, read once a second: CPU time a little off, and a little of
    other programs'.
    """
    seconds = len(trace.seconds)
    off = [draw.gauss(1.0, 0.015) for _ in range(seconds + 1)]
    others = [second.others + draw.uniform(0.0, 0.06) for second in trace.seconds]
    reports: list[tuple[float, int]] = []
    for at, step in trace.reports:
        if not reports or at - reports[-1][0] >= _APART:
            reports.append((at, step))
    job = MadeUp(
        ran=lambda t: trace.seconds[t - 1].ran * off[t],
        waited=lambda t: trace.seconds[t - 1].waited,
        ready=lambda t: trace.seconds[t - 1].ready,
        readings={"any_ready": lambda t: float(trace.seconds[t - 1].any_ready)},
        reports=reports,
        end=seconds,
    )
    return recording(path, {"a": job}, outside=lambda t: others[t - 1])
