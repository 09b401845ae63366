"""A proof of what one job costs another, while it is under way."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from headgate.forecast.job_tracker import StepTimes, Trackers
from headgate.hub.state.attempt import Attempt
from headgate.hub.state.run import LiveRun
from headgate.isolation.base import Box
from headgate.model.errors import IsolationError
from headgate.model.identifiers import JobId, TaskId
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.units import say_percent, say_seconds
from headgate.task.grants import ROUND_SECONDS

if TYPE_CHECKING:
    from headgate.diagnosis.proving import Pair, Window
    from headgate.recorded.usage import Array

LEAST_SECONDS, MOST_SECONDS, TOGETHER_SECONDS = 0.4, 1.0, 0.4
"""The shortest and the longest pause, and the longest for several tasks: their collectives may time
out after 1 s.
"""
PATIENCE_SECONDS = 60.0
"""How long a proof waits for enough steps."""
LOOK_SECONDS = 1.0
_TRIES = 3
_NO_STEPS = (
    "reports too few steps: print a line for each step, or name the pattern of its "
    "lines (docs/progress.md)"
)


def is_of_other(name: str) -> bool:
    """Whether this names a job of another user, `USER:JOB`."""
    return ":" in name


Tell = Callable[[dict[str, Any]], None]
Boxes = Callable[[], Mapping[TaskId, Box]]


class ProofUnderWay:
    """One proof: watches the steps of some jobs while it pauses others.

    Args:
        run: Their run.
        victims: Names of the watched jobs.
        culprits: Names of the paused jobs.
        most: As of `InterferenceProber.begin`.
        tracker: As of `InterferenceProber`.
        boxes: As of `InterferenceProber`.
        tell: As of `InterferenceProber.begin`.
        others: Has a job of another user held for so many seconds; its name is `USER:JOB`.
    """

    def __init__(
        self,
        run: LiveRun,
        victims: list[str],
        culprits: list[str],
        most: float,
        tracker: Trackers,
        boxes: Boxes,
        tell: Tell,
        others: Callable[[str, float], Awaitable[Window]],
    ) -> None:
        self.run = run
        self.victims, self.culprits = victims, culprits
        self._most = most
        self._tracker = tracker
        self._boxes = boxes
        self._tell = tell
        self._others = others
        self._random = random.Random()
        self._pairs: list[Pair] = []
        self._reasons: list[str] = []
        self._pause: tuple[JobId, JobPause] | None = None
        self._seconds = LEAST_SECONDS
        self._failures = 0
        self._concluded = False
        self._loop = asyncio.get_running_loop()
        # a thread of its own: a pause never waits for other work
        self._thread = ThreadPoolExecutor(1, "proving")
        self.work = self._loop.create_task(self._prove())

    def cancel(self) -> None:
        """End the proof and release paused jobs at once."""
        if self._pause is not None:
            self._pause[1].end()
        self.work.cancel()
        self._conclude()  # at once: the run's store may be about to close

    def release(self, job: JobId) -> None:
        """Resume a job that is about to end or has ended."""
        if self._pause is not None and self._pause[0] == job:
            self._pause[1].end()

    async def _prove(self) -> None:
        try:
            await self._prepare()
            while open_ones := self._open():
                self._random.shuffle(open_ones)
                period = max(self._seconds / self._most, 4 * self._seconds * len(open_ones))
                for culprit in open_ones:
                    await self._slot(culprit, period / len(open_ones))
        except Exception as error:  # noqa: BLE001  # whoever waits for it has to hear of it
            self._reasons.append(f"the proof failed: {error!r:.300}")
        finally:
            self._thread.shutdown(wait=False)
            self._conclude()

    # --- preparation
    # ----------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Find out which jobs can be paused and how many pauses each pair needs, and report
        that.
        """
        held = [culprit for culprit in self.culprits if await self._can_be_held(culprit)]
        most = min((self._longest(culprit) for culprit in held), default=0.0)
        deviations = await self._watch(self.victims if held else [], most)
        if deviations:
            from headgate.diagnosis.proving import (
                planned_pair,  # never None: the noise was found with it
            )

            pairs = [
                (culprit, victim) for culprit in held for victim in deviations if victim != culprit
            ]
            self._pairs = [
                planned_pair(culprit, victim, deviations[victim]) for culprit, victim in pairs
            ]
        period = max(self._seconds / self._most, 4 * self._seconds * len(held))
        for pair in self._pairs:
            needed, part = max(pair.looks), say_percent(self._seconds / period, 1)
            self._tell(
                {
                    "type": "proof",
                    "text": f"{needed} pauses of {self._seconds:.2g} s show whether "
                    f"{pair.culprit} slows {pair.victim} "
                    f"by 5 %: {say_seconds(needed * period)} at {part} of its time",
                }
            )

    async def _watch(self, victims: Sequence[str], most: float) -> dict[str, float]:
        """The noise of each job that makes enough steps. A job without steps delays no other."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        known: dict[str, float] = {}
        pending = [victim for victim in victims if self._runs(victim)]
        while pending:
            for victim in list(pending):
                noise = None
                if (steps := self._steps(victim)) is not None:
                    noise = await self._in_thread(self._noise, victim, *_arrays(steps), most)
                if isinstance(noise, str):
                    self._reasons.append(noise)
                elif noise is not None:
                    known[victim] = noise
                if noise is not None or not self._runs(victim):
                    pending.remove(victim)
            silent = known and not any(map(self._steps, pending))
            if silent or time.monotonic() > deadline:
                self._reasons += [f"{victim} {_NO_STEPS}" for victim in pending]
                break
            await asyncio.sleep(LOOK_SECONDS if pending else 0.0)
        return known

    async def _can_be_held(self, culprit: str) -> bool:
        boxes = self._boxes_of(culprit)
        if not boxes or self._gate_of(culprit) is not None:
            return True
        for left in reversed(range(_TRIES)):
            try:
                await self._in_thread(JobPause(boxes, None).hold, 0.0)
                return True
            except IsolationError as error:  # it may be busy in the kernel for a moment
                if left == 0:
                    self._reasons.append(str(error))
        return False

    def _longest(self, culprit: str) -> float:
        return TOGETHER_SECONDS if len(self._boxes_of(culprit)) > 1 else MOST_SECONDS

    def _steps(self, name: str) -> StepTimes | None:
        """The steps of a job; None: it reports none, or is another user's."""
        if is_of_other(name):
            return None
        tracker = self._tracker(JobId.of(self.run.id, name))
        return tracker.steps if tracker is not None and tracker.tells_steps else None

    def _noise(self, victim: str, times: Array, counts: Array, most: float) -> float | str | None:
        """The noise of a job's steps, as a number; a text: why there is none; None: not known yet.
        Also sets the length of a pause.
        """
        from headgate.diagnosis import proving

        usual = proving.report_seconds(times, counts)
        if usual is None:
            return None
        least = self._seconds
        if self._takes_turns(victim):  # a part of a round has any part of its turn
            least = max(least, ROUND_SECONDS)
        seconds = proving.window_seconds(*usual, least, most)
        if seconds is None:
            return (
                f"nothing can be proved of {victim}: it reports a step every "
                f"{say_seconds(max(usual))}, and a pause "
                f"of {most:g} s is too short to change that; let it print a line for each step"
            )
        self._seconds = seconds
        return proving.noise(times, counts, seconds)

    # --- pauses -----------------------------------------------------------------------------------

    async def _slot(self, culprit: str, length: float) -> None:
        """Pause a job once within `length` seconds: at a random moment, in one of two adjacent
        windows.
        """
        begin = time.monotonic()
        seconds = self._seconds
        await asyncio.sleep(seconds + self._random.uniform(0.0, max(length - 4 * seconds, 0.0)))
        windows = await self._windows(culprit) if self._runs(culprit) else None
        await asyncio.sleep(seconds)
        if windows is not None:
            await self._count(culprit, *windows)
        if self._open():
            await asyncio.sleep(max(begin + length - time.monotonic(), 0.0))

    async def _windows(self, culprit: str) -> tuple[Window, Window] | None:
        """Pause a job in one of two windows, in random order. Returns the paused window and the
        free one.
        """
        from headgate.diagnosis.proving import Window

        if self._random.random() < 0.5:
            if (held := await self._hold(culprit)) is None:
                return None
            await asyncio.sleep(self._seconds)
            return held, Window(held.end, time.monotonic())
        begin = time.monotonic()
        await asyncio.sleep(self._seconds)
        free = Window(begin, time.monotonic())
        held = await self._hold(culprit)
        return (held, free) if held is not None else None

    async def _hold(self, culprit: str) -> Window | None:
        if is_of_other(culprit):
            try:
                return await self._others(culprit, self._seconds)
            except IsolationError as error:
                self._close(culprit, str(error))
                return None
        steps = self._steps(culprit)
        settles = steps.mean_seconds() if steps is not None else 0.0
        pause = JobPause(self._boxes_of(culprit), self._gate_of(culprit), settles)
        self._pause = JobId.of(self.run.id, culprit), pause
        try:
            held: Window | None = await self._in_thread(pause.hold, self._seconds)
            self._failures = 0
            return held
        except IsolationError as error:  # it may be busy in the kernel for a moment
            self._failures += 1
            if self._failures == _TRIES:
                self._close(culprit, str(error))
            return None
        finally:
            pause.end()
            self._pause = None

    async def _count(self, culprit: str, held: Window, free: Window) -> None:
        from headgate.diagnosis.proving import difference

        for pair in self._pairs:
            steps = self._steps(pair.victim)
            if pair.culprit != culprit or not pair.is_open or steps is None:
                continue
            lost = await self._in_thread(difference, *_arrays(steps), held, free)
            if lost is not None:
                await self._in_thread(pair.add, lost, self._seconds)
                done, needed = len(pair.differences), max(pair.looks)
                message = {
                    "culprit": culprit,
                    "victim": pair.victim,
                    "pauses": done,
                    "needed": needed,
                }
                self._tell(
                    {
                        "type": "proof",
                        "text": f"{culprit} and {pair.victim}: {done} of {needed} pauses",
                        **message,
                    }
                )

    # --- the end ----------------------------------------------------------------------------------

    def _open(self) -> list[str]:
        """Jobs that still have to be paused."""
        for pair in self._pairs:
            pair.is_open = pair.is_open and self._runs(pair.culprit) and self._runs(pair.victim)
        return list(dict.fromkeys(pair.culprit for pair in self._pairs if pair.is_open))

    def _close(self, culprit: str, reason: str) -> None:
        self._reasons.append(reason)
        for pair in self._pairs:
            pair.is_open = pair.is_open and pair.culprit != culprit

    def _conclude(self) -> None:
        if self._concluded:
            return
        self._concluded = True
        founds = [pair.found for pair in self._pairs if pair.found is not None]
        for pair in self._pairs:
            if pair.found is None:
                after = f"{len(pair.differences)} of {min(pair.looks)} pauses"
                self._reasons.append(
                    f"nothing can be said yet of {pair.culprit} and {pair.victim}: the proof "
                    f"ended after {after}"
                )
        proofs_told = []
        for proof in founds:
            self.run.record_proof(proof)
            row = proof.row()
            self.run.event(
                "note", Reason.of(ReasonKind.PROVED, **row, text=str(proof)), proof.victim
            )
            proofs_told.append({"faster": row.pop("gain"), **row, "text": str(proof)})
        self._tell(
            {"type": "proved", "run": self.run.id, "proofs": proofs_told, "reasons": self._reasons}
        )

    # --- small things -----------------------------------------------------------------------------

    def _runs(self, name: str) -> bool:
        return is_of_other(name) or self.run.jobs[name].state == "running"

    def _boxes_of(self, name: str) -> list[Box]:
        job = JobId.of(self.run.id, name)
        return [box for task, box in self._boxes().items() if task.job == job]

    def _gate_of(self, name: str) -> Callable[[bool], None] | None:
        """A function that pauses a job between two steps; None: its processes are paused instead.
        Any thread may call it.
        """
        return step_gate(self.run.jobs[name].current, self._loop) if name in self.run.jobs else None

    def _takes_turns(self, name: str) -> bool:
        """Whether a job takes turns on a GPU."""
        attempt = self.run.jobs[name].current
        return attempt is not None and any(
            task.gate.get("turns") for task in attempt.tasks.values()
        )

    async def _in_thread(self, act: Callable[..., Any], *facts: object) -> Any:
        return await self._loop.run_in_executor(self._thread, act, *facts)


def _arrays(steps: StepTimes) -> tuple[Array, Array]:
    """Copies of the step times for another thread, made on the loop because the originals grow."""
    import numpy as np

    return np.array(steps.times), np.array(steps.steps)


def step_gate(
    attempt: Attempt | None, loop: asyncio.AbstractEventLoop
) -> Callable[[bool], None] | None:
    """A function that pauses a job between two steps, so that it gives up its turn on a GPU; None:
    it takes none, and its processes are paused instead. Any thread may call it.
    """
    if attempt is None or not attempt.pauses_by_gate:
        return None

    def gate(paused: bool) -> None:
        loop.call_soon_threadsafe(attempt.pause, paused)

    return gate


class JobPause:
    """Pauses all tasks of a job together.

    Args:
        boxes: The boxes of its tasks.
        gate: Pauses its steps instead of its processes, on the hub's loop; None: its processes are
            paused.
        settles: Seconds until a step that has begun is over.
    """

    def __init__(
        self, boxes: Sequence[Box], gate: Callable[[bool], None] | None, settles: float = 0.0
    ) -> None:
        self._boxes = boxes
        self._gate = gate
        self._settles = settles
        self._over = threading.Event()

    def end(self) -> None:
        """End the pause early."""
        self._over.set()

    def hold(self, seconds: float) -> Window | None:
        """Pause the job for `seconds` from the first paused task on. Call it from a thread that may
        wait.

        Returns:
            The window in which all tasks were paused; None: the pause ended early.

        Raises:
            IsolationError: A task cannot be paused.
        """
        from headgate.diagnosis.proving import Window

        asked = time.monotonic()
        try:
            if self._gate is not None:
                self._gate(True)
                self._over.wait(min(self._settles, seconds / 2))
            elif not all(box.hold() for box in self._boxes):
                return None
            begin = time.monotonic()
            self._over.wait(max(asked + seconds - begin, 0.0))
            return None if self._over.is_set() else Window(begin, time.monotonic())
        finally:
            if self._gate is not None:
                self._gate(False)
            for box in self._boxes if self._gate is None else ():
                box.release()
