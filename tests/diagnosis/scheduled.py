"""A machine of two cores, thread by thread: run queues, time slices, wake-ups, barriers. It knows
nothing of what the analysis takes for true of jobs beside neighbours: what one lost, comes of the
same work done without the other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

SLICE, WAKES_BEFORE = 0.003, 0.001
"""Seconds that a thread runs while others wait, and that one which wakes up has to be behind the
one that runs.
"""
CORES = 2
_NICE_WEIGHT = {0: 1.0, 10: 110 / 1024, 19: 15 / 1024}
_BALANCED = (0.05, 0.4)
"""Seconds after which the kernel evens out its queues."""
_OWN = 1e-9

Course = Callable[[float], float]


@dataclass(eq=False)
class _Thread:
    """One that works until its work is done, and then spins, sleeps or goes on, as its owner says.

    Args:
        weight: Its share of a core.
        left: Seconds of a core that its work still takes; infinite: it never ends.
        spins: Seconds that it still spins; 0: it works.
    """

    ours: bool
    weight: float = 1.0
    left: float = 0.0
    spins: float = 0.0
    asleep: bool = True
    core: int = 0
    virtual: float = 0.0
    ran: float = 0.0
    waited: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Training:
    """A job: each step is a part of one thread and then regions in which all threads work, and meet
    at the end.

    Args:
        step: Seconds of a step alone, at the begin.
        serial: Part of it in one thread.
        regions: In which all threads work.
        uneven: Of the parts of a region.
        noise: Of what a step costs.
        patience: Seconds that a thread spins at a barrier before it sleeps.
        refill: Seconds that a thread takes to fill its caches again after another one had its core.
    """

    threads: int = 1
    step: float = 0.05
    serial: float = 0.15
    regions: int = 6
    uneven: float = 0.1
    patience: float = 0.0
    noise: float = 0.03
    refill: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """Threads that never sleep while they are there.

    Args:
        memory: By how much a core of it makes longer what runs beside it.
        lives: Seconds of a core after which each gives way to a new process; 0: they stay.
    """

    threads: int = 1
    nice: int = 0
    memory: float = 0.0
    lives: float = 0.0


@dataclass
class Second:
    """What was read at the end of a second."""

    ran: float
    waited: float
    ready: float
    any_ready: bool
    others: float


@dataclass
class Trace:
    """What was read of it, when it came to each step, and when it ended. The last reading is of
    less than a second.
    """

    seconds: list[Second] = field(default_factory=list)
    reports: list[tuple[float, int]] = field(default_factory=list)
    end: float = 0.0


class Machine:
    """Runs a job of so many steps, beside a neighbour that comes and goes at some times.

    Args:
        course: What a step costs, 1 being usual, by the part of all steps that came before it.
    """

    def __init__(
        self,
        job: Training,
        steps: int,
        course: Course,
        neighbour: Neighbour,
        switches: Sequence[float],
        seed: int,
    ) -> None:
        self._job, self._steps, self._course, self._neighbour = job, steps, course, neighbour
        self._work, self._luck = random.Random(seed), random.Random(seed + 1)
        self._switches = sorted(switches)
        self._now, self._step, self._region = 0.0, 0, -1
        self._queues: list[list[_Thread]] = [[] for _ in range(CORES)]
        self._until = [math.inf] * CORES
        self._ours = [_Thread(True) for _ in range(job.threads)]
        self._others: list[_Thread] = []
        self.trace = Trace()
        self._read = [0.0] * job.threads, [0.0] * job.threads, 0.0
        self._used_by_others = 0.0
        self._cost = 1.0

    def run(self) -> Trace:
        self._begin_step()
        balance = self._luck.uniform(*_BALANCED)
        second = 1.0
        while self._step < self._steps:
            switch = self._switches[0] if self._switches else math.inf
            outer = min(switch, balance, second)
            self._advance(min(outer, self._now + self._next()))
            if self._now >= switch - _OWN:
                self._switches.pop(0)
                self._come_or_go()
            if self._now >= balance - _OWN:
                self._even_out()
                balance = self._now + self._luck.uniform(*_BALANCED)
            if self._now >= second - _OWN:
                self._take_reading()
                second += 1.0
            self._act()
        self._take_reading()
        self.trace.end = self._now
        return self.trace

    # --- the machine ------------------------------------------------------------------------------

    def _rate(self, core: int) -> float:
        """Work of the thread on a core in a second of it."""
        if not self._neighbour.memory or not self._queues[core][0].ours:
            return 1.0
        beside = sum(
            bool(queue) and not queue[0].ours for at, queue in enumerate(self._queues) if at != core
        )
        return 1.0 / (1.0 + self._neighbour.memory * beside)

    def _next(self) -> float:
        """Seconds until a thread that runs is done, or its slice is."""
        soon = math.inf
        for core, queue in enumerate(self._queues):
            if not queue:
                continue
            thread = queue[0]
            if len(queue) > 1:
                soon = min(soon, self._until[core] - self._now)
            if thread.spins > 0.0:
                soon = min(soon, thread.spins)
            elif thread.left < math.inf:
                soon = min(soon, thread.left / self._rate(core))
        return max(soon, 0.0)

    def _advance(self, to: float) -> None:
        passed = to - self._now
        rates = [self._rate(core) if queue else 1.0 for core, queue in enumerate(self._queues)]
        for core, queue in enumerate(self._queues):
            for waiting in queue[1:]:
                waiting.waited += passed
            if queue:
                thread = queue[0]
                thread.ran += passed
                thread.virtual += passed / thread.weight
                if not thread.ours:
                    self._used_by_others += passed
                    thread.left -= passed
                elif thread.spins > 0.0:
                    thread.spins = max(thread.spins - passed, 0.0)
                    if thread.spins <= _OWN:
                        thread.spins, thread.left = 0.0, -1.0  # it goes to sleep
                else:
                    thread.left -= passed * rates[core]
        self._now = to

    def _act(self) -> None:
        for core in range(CORES):
            queue = self._queues[core]
            if queue and queue[0].spins <= 0.0 and queue[0].left <= _OWN:
                thread = queue[0]
                if not thread.ours:
                    self._follow(core, thread)
                else:
                    self._done(core, thread)
            if len(queue) > 1 and self._now >= self._until[core] - _OWN:
                self._switch(core)
        for core in range(CORES):
            if not self._queues[core]:
                self._steal(core)

    def _switch(self, core: int) -> None:
        queue = self._queues[core]
        before = queue[0]
        queue.sort(key=lambda thread: thread.virtual)
        self._until[core] = self._now + SLICE
        if queue[0] is not before and not before.ours:
            self._refill(queue[0])

    def _refill(self, thread: _Thread) -> None:
        if thread.ours and thread.spins <= 0.0:
            thread.left += self._job.refill

    def _steal(self, core: int) -> None:
        longest = max(self._queues, key=len)
        if len(longest) > 1:
            self._put(longest.pop(), core)

    def _put(self, thread: _Thread, core: int) -> None:
        queue = self._queues[core]
        if queue:  # what it had on another core counts little here
            least = min(other.virtual for other in queue)
            thread.virtual = min(max(thread.virtual, least - SLICE), least + SLICE / thread.weight)
        thread.core = core
        queue.append(thread)
        if len(self._queues[core]) <= 2:
            self._until[core] = self._now + SLICE

    def _wake(self, thread: _Thread) -> None:
        """On a core that is idle, else where it was, before the one that runs if that had much
        more.
        """
        thread.asleep = False
        free = [core for core in (thread.core, *range(CORES)) if not self._queues[core]]
        core = free[0] if free else thread.core
        queue = self._queues[core]
        self._put(thread, core)
        if len(queue) > 1 and thread.virtual < queue[0].virtual - WAKES_BEFORE / thread.weight:
            before = queue[0]
            queue.remove(thread)
            queue.insert(0, thread)
            self._until[core] = self._now + SLICE
            if not before.ours:
                self._refill(thread)

    def _leave(self, thread: _Thread) -> None:
        queue = self._queues[thread.core]
        queue.remove(thread)
        thread.asleep = True
        if queue:
            self._switch(thread.core)

    def _even_out(self) -> None:
        short, long = sorted(range(CORES), key=lambda core: len(self._queues[core]))
        many, few = len(self._queues[long]), len(self._queues[short])
        if many - few > 1 or (many - few == 1 and many > 1 and self._luck.random() < 0.3):
            self._put(self._queues[long].pop(), short)

    # --- the neighbour ----------------------------------------------------------------------------

    def _come_or_go(self) -> None:
        if self._others:
            for thread in self._others:
                self._leave(thread)
            self._others = []
            return
        for _ in range(self._neighbour.threads):
            thread = _Thread(
                False, _NICE_WEIGHT[self._neighbour.nice], core=self._luck.randrange(CORES)
            )
            thread.left = self._neighbour.lives * self._luck.uniform(0.7, 1.3) or math.inf
            self._others.append(thread)
            self._wake(thread)

    def _follow(self, core: int, thread: _Thread) -> None:
        """A new process in place of one that has ended."""
        self._leave(thread)
        thread.left = self._neighbour.lives * self._luck.uniform(0.7, 1.3)
        thread.virtual, thread.core = 0.0, self._luck.randrange(CORES)
        self._wake(thread)

    # --- the job ----------------------------------------------------------------------------------

    def _begin_step(self) -> None:
        part = self._step / self._steps
        self._cost = (
            self._course(part) * math.exp(self._work.gauss(0.0, self._job.noise)) * self._job.step
        )
        self._region = -1
        main = self._ours[0]
        main.left = self._cost * (self._job.serial if self._job.threads > 1 else 1.0)
        main.spins = 0.0
        if main.asleep:
            self._wake(main)

    def _done(self, core: int, thread: _Thread) -> None:
        """One of the job's threads has come to the end of its part, or to the end of its
        patience.
        """
        job = self._job
        if job.threads == 1 or (self._region == job.regions - 1 and self._all_done(thread)):
            self._end_step(thread)
            return
        if self._region >= 0 and not self._all_done(thread):
            if thread.left < -0.5 or not job.patience:  # it has spun enough
                thread.left = 0.0
                self._leave(thread)
            else:
                thread.left, thread.spins = 0.0, job.patience
            return
        self._region += 1
        work = self._cost * (1.0 - job.serial) / job.regions
        for each in self._ours:
            each.left = work * max(1.0 + self._work.gauss(0.0, job.uneven), 0.1)
            each.spins = 0.0
            if each.asleep:
                self._wake(each)

    def _all_done(self, thread: _Thread) -> bool:
        return all(each is thread or each.left <= _OWN for each in self._ours)

    def _end_step(self, thread: _Thread) -> None:
        self._step += 1
        self.trace.reports.append((self._now, self._step))
        if self._step >= self._steps:
            return
        main = self._ours[0]
        for each in self._ours:
            if each is not main and not each.asleep:
                each.left, each.spins = 0.0, self._job.patience
                if not self._job.patience:
                    self._leave(each)
        self._begin_step()

    def _take_reading(self) -> None:
        ran, waited, others = self._read
        now_ran, now_waited = (
            [each.ran for each in self._ours],
            [each.waited for each in self._ours],
        )
        new_ran = [new - old for new, old in zip(now_ran, ran, strict=True)]
        new_waited = [new - old for new, old in zip(now_waited, waited, strict=True)]
        ready = max(one + two for one, two in zip(new_ran, new_waited, strict=True))
        awake = any(not each.asleep for each in self._ours)
        self.trace.seconds.append(
            Second(
                sum(new_ran), sum(new_waited), min(ready, 1.0), awake, self._used_by_others - others
            )
        )
        self._read = now_ran, now_waited, self._used_by_others
