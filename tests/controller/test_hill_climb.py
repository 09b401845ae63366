"""As many jobs at once as make the most steps a second: events in, starts and notes out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.controller.test_at_once import MANY, Hub
from tests.controller.test_memory import names

from headgate.model.actions import Action, BoundRun
from headgate.model.endings import Exit
from headgate.model.events import Usage
from headgate.model.identifiers import TaskId
from headgate.model.progress import Progress
from headgate.model.reason_text import in_words


class Sweep:
    """Jobs of one run whose rate depends on how many run.

    Args:
        together: Steps a second that so many jobs make together.
        lasts: Steps of each job.
        prints: Whether the jobs tell their steps.
    """

    def __init__(
        self,
        together: Callable[[int], float],
        lasts: float = 1e9,
        prints: bool = True,
        best: int | None = None,
    ) -> None:
        self.hub = Hub(gib=64.0)
        self.together, self.lasts, self.prints = together, lasts, prints
        self.done: dict[str, float] = {}
        self.bound: list[BoundRun] = []
        self.most = 0
        self.now = 1.0
        self._take(self.hub.hands_in(*MANY, script="s", at_once="auto", best=best), [])

    def _take(self, began: list[str], actions: list[Action]) -> None:
        self.done |= dict.fromkeys(began, 0.0)
        self.most = max(self.most, len(self.done))
        self.bound += [action for action in actions if isinstance(action, BoundRun)]

    def _step(self, event: Progress | Usage) -> None:
        actions = self.hub.step(self.now, event)
        self._take(names(actions), actions)

    def runs(self, seconds: int) -> int:
        """Let the time pass. Returns how many jobs run at its end."""
        for _ in range(seconds):
            self.now += 1.0
            rate = self.together(len(self.done)) / max(len(self.done), 1)
            for name in [*self.done]:
                self.done[name] += rate
                task = TaskId(f"r/{name}/worker-0")
                if self.prints:
                    self._step(Progress(task, int(self.done[name]), loss=1.0))
                self._step(Usage(task, 1.0, 1e8))
                if self.done[name] >= self.lasts:
                    del self.done[name]
                    actions = self.hub.end(self.now, f"{name}/worker-0", Exit(code=0))
                    self._take(names(actions), actions)
        return len(self.done)


@pytest.mark.parametrize(
    ("together", "expected"),
    [
        (lambda jobs: 10.0 * min(jobs, 3), 3),
        (lambda jobs: 10.0, 1),
        (lambda jobs: {1: 10.0, 2: 17.0}.get(jobs, 12.0), 2),
    ],
)
def test_jobs_are_added_until_one_more_brings_no_more(
    together: Callable[[int], float], expected: int
) -> None:
    sweep = Sweep(together, lasts=1500.0)
    sweep.runs(200)
    assert sweep.most == expected + 1, "one more was tried"
    assert [bound.at_once for bound in sweep.bound] == [expected]
    before = sweep.now
    while len(sweep.done) != expected:
        sweep.runs(1)
        assert sweep.now < before + 1000.0
    assert sweep.runs(300) <= expected, "none starts in the place of the one too many"


def test_where_jobs_slow_nobody_a_quarter_more_come_each_time() -> None:
    sweep = Sweep(lambda jobs: 10.0 * min(jobs, 20))
    sweep.runs(400)
    [bound] = sweep.bound
    assert 20 <= (bound.at_once or 0) <= 22


def test_short_jobs_without_steps_are_counted_by_their_ends() -> None:
    sweep = Sweep(lambda jobs: min(jobs, 2), lasts=5.0, prints=False)
    sweep.runs(160)
    assert [bound.at_once for bound in sweep.bound] == [2]


def test_jobs_that_neither_step_nor_end_run_as_the_cores_are_for() -> None:
    sweep = Sweep(lambda jobs: 10.0, prints=False)
    assert sweep.runs(300) == 2
    [bound] = sweep.bound
    assert bound.at_once is None
    assert in_words(bound.reason).startswith("neither steps nor ends tell")


@pytest.mark.parametrize(("room", "lasts", "expected"), [(4, 1500.0, (4,)), (1, 300.0, (1, 2))])
def test_it_looks_again_where_another_script_runs_beside(
    room: int, lasts: float, expected: tuple[int, ...]
) -> None:
    sweep = Sweep(lambda jobs: 10.0 * min(jobs, room), lasts, best=3)
    sweep.runs(5)
    sweep.hub.hands_in("x", run="other", script="t")
    sweep.runs(50)
    assert sweep.bound == []
    sweep.runs(250)
    [bound] = sweep.bound
    assert bound.at_once in expected


def test_it_looks_again_after_ten_minutes_and_the_same_number_is_no_news() -> None:
    sweep = Sweep(lambda jobs: 10.0 * min(jobs, 2), best=1)
    sweep.runs(595)
    assert (len(sweep.done), sweep.bound) == (1, [])
    sweep.runs(60)
    assert [bound.at_once for bound in sweep.bound] == [2]
    sweep = Sweep(lambda jobs: 10.0, lasts=1000.0, best=1)
    sweep.runs(650)
    assert (sweep.most, sweep.bound) == (2, []), "one more was tried"


def test_a_script_begins_with_what_was_best_before() -> None:
    sweep = Sweep(lambda jobs: 10.0, best=3)
    sweep.runs(10)
    assert (sweep.runs(60), sweep.most, sweep.bound) == (3, 3, [])
