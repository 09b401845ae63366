"""Jobs are held for proofs of others where their user allows it."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.arbiter.messages import HubRequest
from headgate.arbiter.records import HoldAsked, Hub, JobHeld, MachineJob
from headgate.forecast.job_tracker import StepTimes
from headgate.hub.parts.holds import OthersHolds
from headgate.hub.state.runs import LiveRuns
from headgate.isolation.base import Box
from headgate.model.errors import IsolationError
from headgate.model.identifiers import TaskId
from headgate.model.jobs import Job
from headgate.model.reasons import Reason, ReasonKind

ADA, BEN = Hub("ada", "1"), Hub("ben", "2")


class HeldBox:
    """A box that counts how often it was held."""

    def __init__(self) -> None:
        self.holds = 0

    def hold(self) -> bool:
        self.holds += 1
        return True

    def release(self) -> None:
        """It goes on."""


class BensHub:
    """The part of a hub with the job `vae`, and what it sends and tells."""

    def __init__(self, allows: bool, pausable: bool = True) -> None:
        self.sent: list[HubRequest] = []
        self.told: list[tuple[object, ...]] = []
        self.box = HeldBox()
        self.vae = vae = SimpleNamespace(
            spec=Job(name="vae", run="true", pausable=pausable), state="running", current=None
        )
        environment = {"HEADGATE_PROVE_FOR_OTHERS": "on"} if allows else {}
        run = SimpleNamespace(
            jobs={"vae": vae}, submission=SimpleNamespace(environment=environment)
        )
        live_runs: Any = SimpleNamespace(
            runs={"r": run}, event=lambda *facts: self.told.append(facts[1:])
        )
        boxes = {TaskId("r/vae/worker-0"): cast("Box", self.box)}
        self.steps = StepTimes()
        tracker: Any = SimpleNamespace(steps=self.steps, tells_steps=True)
        self.holds = OthersHolds(
            cast("LiveRuns", live_runs), lambda: boxes, self._send, lambda job: tracker
        )

    def _send(self, request: HubRequest) -> bool:
        self.sent.append(request)
        return True

    async def answers(self, seconds: float) -> JobHeld:
        """What it answers when it is asked to hold the job."""
        count = len(self.sent)
        self.holds.hear(HoldAsked(MachineJob(BEN, "r/vae#1"), ADA, 3, seconds))
        async with asyncio.timeout(20.0):
            while len(self.sent) == count:
                await asyncio.sleep(0.01)
        answer = self.sent[-1]
        assert isinstance(answer, JobHeld) and (answer.by, answer.number) == (ADA, 3)
        return answer


def test_a_job_is_held_for_another_only_where_its_user_allows_it() -> None:
    async def asks() -> None:
        refuses = BensHub(allows=False)
        assert "prove_for_others" in (await refuses.answers(0.1)).why
        assert "pausable" in (await BensHub(allows=True, pausable=False).answers(0.1)).why
        assert (refuses.box.holds, refuses.told) == (0, [])
        ben = BensHub(allows=True)
        for _ in range(2):
            held = await ben.answers(0.1)
            assert held.why == "" and held.end - held.begin >= 0.09
        assert ben.box.holds == 2
        [(kind, reason, name)] = ben.told
        assert (kind, name) == ("note", "vae") and reason == Reason.of(
            ReasonKind.HELD_FOR_PROOF, user="ada"
        )

    asyncio.run(asks())


def test_a_job_that_takes_turns_on_a_gpu_is_held_between_its_steps() -> None:
    """Frozen, it would keep its turn, and others would wait for it."""

    async def asks() -> None:
        ben, gates, closed = BensHub(allows=True), list[bool](), list[float]()

        def pause(is_held: bool) -> None:
            gates.append(is_held)
            if is_held:
                closed.append(time.monotonic())

        ben.vae.current = SimpleNamespace(pauses_by_gate=True, pause=pause)
        assert "not known" in (await ben.answers(0.1)).why
        for step in (1.0, 2.0):
            ben.steps.add(step * 0.08, step)
        assert "take 0.08 s" in (await ben.answers(0.1)).why  # it would still compute
        assert gates == []
        ben.steps.add(0.16, 8.0)
        held = await ben.answers(0.1)
        assert held.why == "" and held.begin < held.end
        await asyncio.sleep(0)
        mean = (0.16 - 0.08) / 7
        assert held.begin - closed[0] >= mean  # it may have been within a step till then
        assert (gates, ben.box.holds) == ([True, False], 0)

    asyncio.run(asks())


def test_a_job_is_held_for_others_for_a_small_part_of_its_time() -> None:
    async def asks() -> None:
        ben = BensHub(allows=True)
        answers = [await ben.answers(1.0) for _ in range(4)]
        assert [bool(answer.why) for answer in answers] == [False, False, False, True]
        assert "at most 2" in answers[3].why

    asyncio.run(asks())


def test_whoever_asks_hears_why_a_job_is_not_held() -> None:
    async def asks() -> None:
        ada = BensHub(allows=False)
        question = asyncio.ensure_future(ada.holds.ask("ben:vae", 0.4))
        await asyncio.sleep(0)
        ada.holds.hear(JobHeld(ADA, 1, 5.0, 5.4))
        assert await question == (5.0, 5.4)
        question = asyncio.ensure_future(ada.holds.ask("ben:vae", 0.4))
        await asyncio.sleep(0)
        ada.holds.hear(JobHeld(ADA, 2, why="no"))
        with pytest.raises(IsolationError, match="ben:vae is not held: no"):
            await question

    asyncio.run(asks())
