"""Readings of a job beside a neighbour of which it is known what they cost: the job's own course, and the neighbour's
coming and going, are drawn."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.analysis.made_up import MadeUp, recording

from headgate.reports.recording import Recording

_EACH = 10
"""Moments of a second."""
RATE = 20.0
"""Steps a second of the job when it begins, without a neighbour."""

Course = Callable[[float], float]
"""Of the time, 0 at the begin and 1 at the end: what a step costs, 1 being usual."""
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
}


class Presence:
    """When a neighbour runs: seconds that it comes and goes at."""

    def __init__(self, *switches: float) -> None:
        self.switches = switches

    def __call__(self, t: float) -> bool:
        return sum(at <= t for at in self.switches) % 2 == 1


def presences(seconds: float, draw: random.Random) -> dict[str, Presence]:
    """When a neighbour runs: at odd times."""
    first = draw.uniform(0.2, 0.4) * seconds
    bursts, at = [], draw.uniform(4.0, 8.0)
    while at < seconds - 3.0:
        bursts.append(at)
        at += draw.uniform(3.0, 7.0)
    return {
        "half way on": Presence(0.5 * seconds),
        "from the begin to half way": Presence(0.0, 0.5 * seconds),
        "in the middle": Presence(0.35 * seconds, 0.65 * seconds),
        "late": Presence(draw.uniform(0.6, 0.75) * seconds),
        "once": Presence(first, first + draw.uniform(0.25, 0.4) * seconds),
        "twice": Presence(first, first + 0.15 * seconds, first + 0.3 * seconds, first + 0.5 * seconds),
        "bursts": Presence(*bursts),
        "always": Presence(0.0),
    }


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A job beside a neighbour, on two cores.

    Args:
        course: A name of `COURSES`.
        threads: Of the job.
        spins: Whether they spin until all are there.
        present: When the neighbour runs.
        cores: That it would use alone.
        memory: By how much a core of it makes steps longer that have a core for themselves.
        noise: Of the time of a step, from second to second.
    """

    course: str = "steady"
    threads: int = 1
    spins: bool = False
    present: Presence
    cores: float = 1.0
    memory: float = 0.0
    noise: float = 0.03
    seconds: int = 50
    seed: int = 0


def drawn(path: Path, case: Drawn) -> tuple[Recording, float]:
    """A recording of it, and the seconds that the job lost to the neighbour: those that the same steps would not have
    needed without it."""
    draw = random.Random(case.seed)
    ran, waited, steps, beside = ([0.0] * (case.seconds + 1) for _ in range(4))
    lost = 0.0
    for t in range(1, case.seconds + 1):
        luck = math.exp(draw.gauss(0.0, case.noise))
        share_of_second = draw.gauss(1.0, 0.03)
        for moment in range(_EACH):
            now = t - 1 + (moment + 0.5) / _EACH
            there = now > 1.0 and case.present(now)
            used, missed, speed = _moment(case, there)
            cost = COURSES[case.course](now / case.seconds) * luck
            ran[t] += used / _EACH
            waited[t] += missed / _EACH
            steps[t] += RATE * speed / cost / _EACH
            beside[t] += (_neighbour(case, used) * min(max(share_of_second, 0.9), 1.0) if there else 0.0) / _EACH
            lost += (1.0 - speed) / _EACH
    job = MadeUp(
        ran=lambda t: ran[t],
        waited=lambda t: waited[t],
        ready=1.0 if case.threads == 1 or case.spins else 0.95,
        steps=lambda t: steps[t],
        end=case.seconds,
    )
    outside = [each + draw.uniform(0.0, 0.06) for each in beside]
    return recording(path, {"a": job}, outside=lambda t: outside[t]), lost


def _moment(case: Drawn, there: bool) -> tuple[float, float, float]:
    """Cores that the job uses, threads of it that wait, and its speed over that without the neighbour."""
    wanted = float(case.threads) if case.threads == 1 or case.spins else 0.93 * case.threads
    if not there:
        return wanted, 0.0, 1.0
    used = min(wanted, 2.0 * wanted / (wanted + case.cores)) if wanted + case.cores > 2.0 else wanted
    missed = wanted - used
    part = missed / wanted  # of the time that each thread waits
    some = 1.0 - (1.0 - part) ** case.threads
    if case.threads == 1:
        speed = 1.0 - part
    elif case.spins:
        speed = max(1.0 - 0.5 * (some + min(case.threads * part, 1.0)), 0.01)
    else:
        speed = 1.0 - (0.8 * part + 0.2 * some)
    speed /= 1.0 + case.memory * _neighbour(case, used)
    return used, missed, speed


def _neighbour(case: Drawn, used: float) -> float:
    """Cores that the neighbour gets."""
    return min(case.cores, 2.0 - used)


NEVER = Presence()
KINDS: Mapping[str, Drawn] = {
    "nothing": Drawn(present=NEVER),
    "nothing of two threads": Drawn(present=NEVER, threads=2, cores=0.0),
    "memory": Drawn(present=NEVER, memory=0.4),
    "core of one thread": Drawn(present=NEVER, cores=2.0),
    "cores of two threads": Drawn(present=NEVER, threads=2, cores=2.0),
    "core of two threads": Drawn(present=NEVER, threads=2),
    "cores of threads that spin": Drawn(present=NEVER, threads=2, cores=2.0, spins=True),
    "a core of threads that spin": Drawn(present=NEVER, threads=2, spins=True),
}
"""What a neighbour takes of a job; when it does is drawn."""
