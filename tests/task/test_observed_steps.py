"""Steps and spans of a training loop, from what hooks see of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from headgate.task import observed_steps
from headgate.task.observed_steps import EVALUATION, LeadingOptimizer, Marks, ObservedSteps

TRAINING, VALIDATION = 1, 2
"""Numbers of loaders."""


class Optimizer:
    """Can be referred to weakly, as PyTorch's."""


class Loop:
    """A training loop in which each event comes a second after the one before."""

    def __init__(self) -> None:
        self.optimizer, self.other = Optimizer(), Optimizer()
        self.ended: list[tuple[int, dict[str, float], int | None]] = []
        seconds: Iterator[int] = count()
        self.steps = ObservedSteps(self._ended, lambda: float(next(seconds)))

    def _ended(self, steps: int, marks: Marks) -> None:
        spans: dict[str, float] = {}
        marks.add_to(spans)
        self.ended.append((steps, spans, marks.samples))

    def fetch(self, loader: object = TRAINING, size: int = 8, gradients: bool = True) -> None:
        self.steps.fetching()
        self.steps.fetched(loader, size, gradients)

    def backward(self) -> None:
        self.steps.backward_begins()
        self.steps.backward_ends()

    def optimize(self, optimizer: Optimizer | None = None) -> None:
        self.steps.optimizer_begins()
        self.steps.optimizer_ended(optimizer or self.optimizer)

    def step(self) -> None:
        self.fetch()
        self.backward()
        self.optimize()

    def evaluate(self, batches: int = 3, **how: Any) -> None:
        for _ in range(batches):
            self.fetch(VALIDATION, **how)
        self.steps.fetching()
        self.steps.exhausted()


@pytest.fixture
def loop() -> Loop:
    loop = Loop()
    loop.step()
    loop.ended.clear()
    return loop


def test_a_step_divides_into_its_spans(loop: Loop) -> None:
    loop.step()
    spans = {"other": 2.0, "input": 1.0, "forward": 1.0, "backward": 1.0, "optimizer": 1.0}
    assert loop.ended == [(1, spans, 8)]


def test_a_step_has_the_samples_of_all_batches_that_it_accumulates(loop: Loop) -> None:
    for _ in range(3):
        loop.fetch()
        loop.backward()
    loop.optimize()
    [(steps, spans, samples)] = loop.ended
    assert (steps, samples, spans["input"], spans["backward"]) == (1, 24, 3.0, 3.0)


def test_batches_that_are_read_ahead_are_trained_on(loop: Loop) -> None:
    for _ in range(3):
        loop.fetch()
    for _ in range(3):
        loop.backward()
    loop.optimize()
    [(_, spans, samples)] = loop.ended
    assert samples == 24
    assert EVALUATION not in spans


@pytest.mark.parametrize("gradients", [True, False])
def test_batches_that_feed_no_backward_pass_are_evaluated(loop: Loop, gradients: bool) -> None:
    loop.evaluate(gradients=gradients)
    loop.step()
    [(_, spans, samples)] = loop.ended
    assert samples == 8
    assert spans[EVALUATION] == 6.0  # three batches, each fetched and computed
    assert spans["input"] == 2.0  # that of the step, and the end of the other loader


def test_the_training_data_are_evaluated_where_no_gradients_are_computed(loop: Loop) -> None:
    loop.fetch(gradients=False)
    loop.step()
    assert loop.ended[0][1][EVALUATION] == 2.0


def test_an_evaluation_of_very_many_batches_takes_no_memory(loop: Loop) -> None:
    loop.evaluate(1000, gradients=False)
    spans: dict[str, float] = {}
    marks = loop.steps.take()
    marks.add_to(spans)
    assert len(marks.names) < 5
    assert spans[EVALUATION] == 2000


def test_very_many_backward_passes_without_a_step_take_no_memory(loop: Loop) -> None:
    for _ in range(5000):
        loop.fetch()
        loop.backward()
    spans: dict[str, float] = {}
    marks = loop.steps.take()
    marks.add_to(spans)
    assert len(marks.names) < 5000
    assert [spans[name] for name in ("input", "forward", "backward")] == [5000.0] * 3


def test_time_of_observation_is_no_part_of_a_step(loop: Loop) -> None:
    loop.fetch()
    loop.steps.computes()
    before = loop.steps.take()
    spans: dict[str, float] = {}
    before.add_to(spans)
    before.leave_out(5.0)
    after: dict[str, float] = {}
    before.add_to(after)
    assert after == spans
    assert before.times[-1] - before.begin == sum(spans.values())


def test_batches_read_ahead_after_a_validation_are_trained_on(loop: Loop) -> None:
    loop.steps.evaluates(True)
    loop.evaluate(gradients=False)
    for _ in range(2):
        loop.fetch()
    loop.steps.evaluates(False)
    loop.backward()
    loop.optimize()
    [(_, spans, samples)] = loop.ended
    assert (samples, spans["input"]) == (16, 2.0)


def test_a_loader_that_takes_the_place_of_a_gone_one_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # as the interpreter does where one takes the memory of another
    monkeypatch.setattr(observed_steps, "id", lambda _: 7, raising=False)
    loop, first = Loop(), Optimizer()
    loop.fetch(first)
    loop.backward()
    loop.optimize()
    del first
    second = Optimizer()
    for _ in range(2):
        loop.fetch(second)
    loop.step()
    assert loop.ended[-1][1][EVALUATION] > 2.0


def test_an_evaluation_without_a_loader_lasts_from_eval_to_train(loop: Loop) -> None:
    loop.steps.evaluates(True)
    loop.steps.evaluates(False)
    loop.step()
    assert loop.ended[0][1][EVALUATION] == 1.0


def test_a_model_in_evaluation_mode_may_train(loop: Loop) -> None:
    loop.steps.evaluates(True)
    loop.step()
    loop.step()
    assert EVALUATION not in loop.ended[1][1]


def test_a_batch_that_is_left_out_counts_with_the_next_one(loop: Loop) -> None:
    loop.fetch()
    loop.step()
    assert EVALUATION not in loop.ended[0][1]


def test_a_backward_pass_within_another_is_part_of_it(loop: Loop) -> None:
    loop.fetch()
    loop.steps.backward_begins()
    loop.backward()
    loop.steps.backward_ends()
    loop.optimize()
    assert loop.ended[0][1]["backward"] == 1.0


def test_a_backward_pass_may_wait_for_other_workers_once_it_has_computed(loop: Loop) -> None:
    loop.fetch()
    loop.steps.backward_begins()
    loop.steps.backward_begins()
    loop.steps.gradients_computed()
    loop.steps.backward_ends()
    loop.steps.gradients_computed()
    loop.steps.backward_ends()
    loop.optimize()
    [(_, spans, _)] = loop.ended
    assert (spans["backward"], spans["wait"]) == (1.0, 1.0)


def test_waits_for_other_workers_are_apart_wherever_in_a_step(loop: Loop) -> None:
    def wait() -> None:
        loop.steps.breaks_off()
        loop.steps.exchanged()

    loop.fetch()
    wait()
    loop.steps.backward_begins()
    wait()
    loop.steps.backward_ends()
    wait()
    loop.steps.optimizer_begins()
    wait()
    loop.steps.optimizer_ended(loop.optimizer)
    [(_, spans, _)] = loop.ended
    parts = {"input": 1.0, "forward": 2.0, "backward": 2.0, "other": 3.0, "optimizer": 2.0}
    assert spans == {**parts, "wait": 4.0}


def test_very_many_waits_and_those_of_an_evaluation_are_not_told_apart(loop: Loop) -> None:
    assert loop.steps.tells_apart()
    loop.steps.evaluates(True)
    assert not loop.steps.tells_apart()
    loop.steps.evaluates(False)
    for _ in range(5000):
        if loop.steps.tells_apart():
            loop.steps.breaks_off()
            loop.steps.exchanged()
    assert len(loop.steps.take().names) < 5000


def test_passes_of_a_closure_are_those_of_the_step(loop: Loop) -> None:
    loop.fetch()
    loop.steps.optimizer_begins()
    loop.backward()
    loop.backward()
    loop.steps.optimizer_ended(loop.optimizer)
    [(_, spans, _)] = loop.ended
    assert (spans["backward"], spans["optimizer"]) == (2.0, 2.0)


def test_marks_after_the_last_step_are_taken_with_their_evaluation(loop: Loop) -> None:
    loop.fetch(VALIDATION)
    sums: dict[str, float] = {}
    loop.steps.take().add_to(sums)
    assert sums[EVALUATION] == 1.0


def test_the_step_of_a_second_optimizer_is_no_step(loop: Loop) -> None:
    for _ in range(20):
        loop.step()
        loop.optimize(loop.other)
    assert sum(steps for steps, *_ in loop.ended) == 20


def test_no_step_is_lost_where_another_optimizer_follows() -> None:
    leading, first, second = LeadingOptimizer(), Optimizer(), Optimizer()
    steps = [leading.steps(optimizer) for optimizer in [first] * 5 + [second] * 30]
    assert sum(steps) == 35


def test_the_next_optimizer_leads_at_once_if_the_first_is_gone() -> None:
    leading = LeadingOptimizer()
    assert leading.steps(Optimizer()) == 1
    second = Optimizer()
    assert leading.steps(second) == 1


def test_a_rare_second_optimizer_does_not_lead() -> None:
    leading, often, seldom = LeadingOptimizer(), Optimizer(), Optimizer()
    assert [leading.steps(often) for _ in range(5)] == [1] * 5
    for _ in range(10):
        assert leading.steps(seldom) == 0
        assert sum(leading.steps(often) for _ in range(5)) == 5


def test_a_compiled_call_is_a_step_with_its_wait_for_input(loop: Loop) -> None:
    for _ in range(2):
        loop.fetch()
        loop.steps.computes()
        loop.steps.call_ended(loop.optimizer)
    spans = {"other": 2.0, "input": 1.0, "compute": 1.0}
    assert loop.ended == [(1, spans, 8), (1, spans, 8)]


def test_one_call_of_a_fit_is_the_steps_that_it_takes(loop: Loop) -> None:
    loop.steps.computes()
    loop.steps.trains_on(24)
    loop.steps.call_ended(steps=3)
    assert loop.ended == [(3, {"other": 1.0, "compute": 1.0}, 24)]


def test_batches_that_no_compiled_call_trains_on_are_evaluated(loop: Loop) -> None:
    loop.fetch()
    loop.steps.call_ended(loop.optimizer)
    loop.evaluate()
    loop.fetch()
    loop.steps.call_ended(loop.optimizer)
    _, spans, samples = loop.ended[-1]
    assert spans[EVALUATION] > 3.0
    assert samples == 8
