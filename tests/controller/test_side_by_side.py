"""Jobs on one GPU: measured by turns and side by side, and run as brings more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.controller.driver import PLAN, job

from headgate.controller.core import Controller
from headgate.controller.side_by_side import CHECK_SECONDS
from headgate.controller.unseen_steps import PATIENCE_SECONDS
from headgate.model.actions import Action, SetShare, ShareGpu, Warn
from headgate.model.cluster import Gpu, Node
from headgate.model.endings import Exit
from headgate.model.events import (
    Event,
    GpuMemoryUsed,
    GpusUsed,
    JobPlanned,
    JobSubmitted,
    KeptSideBySide,
    NodeJoined,
    TaskExited,
    Wake,
)
from headgate.model.identifiers import JobId, TaskId
from headgate.model.jobs import Job
from headgate.model.progress import Progress
from headgate.model.reason_text import in_words
from headgate.policies import EqualPolicy

PLACE = "here H200"


class OneGpu:
    """A GPU on which jobs step at a hundred steps a second alone, and report ten times a second.

    Args:
        keeps: The fraction of that which each job keeps side by side.
    """

    def __init__(self, **keeps: float) -> None:
        self.keeps = keeps
        self.controller = Controller(EqualPolicy(), tracks=True, compares_gpus=True)
        self.now = 0.0
        self.wake_at: float | None = None
        self.fractions: dict[str, float] = {}
        self.seen: list[dict[str, float]] = []
        self.steps = dict.fromkeys(keeps, 0.0)
        self.decided: list[ShareGpu] = []
        gpus = (Gpu(0, "H200", 2**37),)
        self.step(NodeJoined(Node("here", cores=8.0, memory_bytes=2**40, gpus=gpus)))

    def step(self, event: Event) -> list[Action]:
        actions, self.wake_at = self.controller.step(self.now, event)
        for action in actions:
            if isinstance(action, SetShare) and action.share.gpu_fraction is not None:
                part = action.share.gpu_fraction
                self.fractions[action.task.job.name] = part if isinstance(part, float) else 1.0
                self.seen.append(dict(self.fractions))
        self.decided += [action for action in actions if isinstance(action, ShareGpu)]
        return actions

    def start(self, *specs: Job, known: tuple[KeptSideBySide, ...] = ()) -> None:
        for spec in specs:
            id = JobId(f"r/{spec.name}")
            key = f"key of {spec.name}"
            self.step(JobSubmitted(id, spec, key=key, beside=known))
            self.step(JobPlanned(id, 1, PLAN))
        for spec in specs:
            self.step(GpusUsed(_task(spec.name), (0,)))

    def run(self, seconds: float) -> None:
        """Let the time pass."""
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            crowd = all(self.fractions.get(name, 1.0) == 1.0 for name in self.keeps)
            for name, kept in self.keeps.items():
                part = kept if crowd else self.fractions.get(name, 1.0)
                self.steps[name] += 10.0 * part
                self.step(Progress(_task(name), step=int(self.steps[name])))
            if self.wake_at is not None and self.wake_at <= self.now:
                self.step(Wake())

    @property
    def is_side_by_side(self) -> bool:
        return set(self.fractions.values()) <= {1.0}


def _task(name: str) -> TaskId:
    return TaskId(f"r/{name}/worker-0")


def test_both_are_measured_in_the_first_minute_and_the_better_is_kept() -> None:
    gpu = OneGpu(a=0.8, b=0.7)
    gpu.start(job("a"), job("b"))
    gpu.run(4.0)
    assert gpu.fractions == {"a": 0.5, "b": 0.5}
    gpu.run(56.0)
    assert gpu.is_side_by_side
    assert {"a": 0.5, "b": 0.5} in gpu.seen[2:], "turns were measured again in between"
    measured, again = (action.measured for action in gpu.decided)
    assert measured is not None
    assert (measured.place, measured.jobs) == (PLACE, ("key of a", "key of b"))
    assert measured.kept == pytest.approx((0.8, 0.7), abs=0.02)
    assert again is None
    said = in_words(gpu.decided[0].reason)
    assert said.startswith("side by side with b on GPU 0, which together bring 1.5")
    gpu.run(3 * CHECK_SECONDS)
    assert (gpu.is_side_by_side, len(gpu.decided)) == (True, 2)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (0.95, 0.4)])
def test_turns_stay_if_side_by_side_brings_too_little_or_one_job_loses(a: float, b: float) -> None:
    gpu = OneGpu(a=a, b=b)
    gpu.start(job("a"), job("b"))
    gpu.run(60.0)
    assert gpu.fractions == {"a": 0.5, "b": 0.5}
    assert in_words(gpu.decided[0].reason).startswith("by turns with b on GPU 0: side by side")


@pytest.mark.parametrize(("a", "expected"), [(0.8, True), (0.6, False)])
def test_weights_hold_side_by_side_or_by_turns(a: float, expected: bool) -> None:
    gpu = OneGpu(a=a, b=0.6)
    gpu.start(job("a", priority=3.0), job("b"))
    gpu.run(60.0)
    assert gpu.is_side_by_side == expected
    if not expected:
        assert gpu.fractions == {"a": 0.75, "b": 0.25}


def test_a_known_pair_starts_in_the_better_mode() -> None:
    known = KeptSideBySide(PLACE, ("key of a", "key of b"), (0.8, 0.7))
    gpu = OneGpu(a=0.8, b=0.7)
    gpu.start(job("b"), job("a"), known=(known,))
    gpu.run(1.0)
    assert gpu.is_side_by_side
    assert [action.measured for action in gpu.decided] == [None, None]
    facts = {action.job.name: action.reason.facts["keeps"] for action in gpu.decided}
    assert facts == {"a": 0.8, "b": 0.7}


def test_another_job_and_a_job_that_leaves_begin_anew() -> None:
    gpu = OneGpu(a=0.8, b=0.7)
    gpu.start(job("a"), job("b"))
    gpu.run(60.0)
    gpu.keeps["c"], gpu.steps["c"] = 0.9, 0.0
    gpu.start(job("c"))
    assert gpu.fractions == pytest.approx(dict.fromkeys("abc", 1 / 3))
    gpu.step(TaskExited(_task("c"), Exit(code=0)))
    del gpu.keeps["c"], gpu.fractions["c"]
    assert gpu.is_side_by_side, "this pair is known"
    gpu.step(TaskExited(_task("a"), Exit(code=0)))
    del gpu.keeps["a"], gpu.fractions["a"]
    gpu.run(CHECK_SECONDS)
    assert gpu.fractions == {"b": 1.0}


def test_rates_that_drift_are_measured_again() -> None:
    gpu = OneGpu(a=0.8, b=0.7)
    gpu.start(job("a"), job("b"))
    gpu.run(60.0 + 2 * CHECK_SECONDS)
    gpu.keeps["a"] = gpu.keeps["b"] = 0.4
    gpu.run(4 * CHECK_SECONDS)
    assert gpu.fractions == {"a": 0.5, "b": 0.5}
    assert [action.side_by_side for action in gpu.decided] == [True, True, False, False]


def test_jobs_that_tell_no_steps_take_turns_and_are_not_measured_for_ever() -> None:
    gpu = OneGpu(a=0.8)
    gpu.start(job("a"), job("b"))
    gpu.run(600.0)
    assert gpu.fractions == {"a": 0.5, "b": 0.5}
    changes = len(gpu.seen)
    gpu.run(600.0)
    assert (len(gpu.seen), gpu.decided) == (changes, [])


def test_a_slice_is_held_by_turns() -> None:
    gpu = OneGpu(a=0.8, b=0.7)
    gpu.start(job("a", share="3/4"), job("b"))
    gpu.run(60.0)
    assert gpu.fractions == pytest.approx({"a": 0.75, "b": 0.25})
    assert gpu.decided == []


def test_a_job_whose_steps_are_not_seen_on_a_shared_gpu_is_warned_of_once() -> None:
    gpu = OneGpu(a=0.8)
    gpu.start(job("a"))
    silent = job("silent")
    for spec in (silent, replace(silent, name="blind", observe=False)):
        gpu.step(JobSubmitted(JobId(f"r/{spec.name}"), spec))
        gpu.step(JobPlanned(JobId(f"r/{spec.name}"), 1, PLAN))
    held = {_task(name): {0: 2.0**30} for name in ("a", "silent", "blind")}
    warnings: list[Warn] = []
    for seconds in (0.0, PATIENCE_SECONDS / 2, PATIENCE_SECONDS, 1.0):
        gpu.now += seconds
        actions = gpu.step(GpuMemoryUsed("here", {0: 3.0 * 2**30}, held))
        warnings += [action for action in actions if isinstance(action, Warn)]
    assert [(warning.job, warning.reason.facts["beside"]) for warning in warnings] == [
        ("r/silent", ("a", "blind")),
        ("r/blind", ("a", "silent")),
    ]
    assert "Next: leave out `observe: false`" in in_words(warnings[1].reason)
