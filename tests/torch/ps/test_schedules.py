"""Schedulers under a plan in which each worker takes some of the batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headgate.torch.ps.asynchronous.schedules import PassProgress, Schedule

PASSES = 3
BATCHES = 10


def scheduler_of(kind: Any, **options: Any) -> Any:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = kind(optimizer, **options)
    optimizer.step()
    return scheduler


def rates(scheduler: Any, taken: list[int], after: bool = False) -> list[float]:
    """The rate with each batch of a worker that takes these of every pass; `after`: stepped between
    passes.
    """
    schedule = Schedule(scheduler)
    collected = []
    for _ in range(PASSES):
        progress = PassProgress(BATCHES, 0)
        schedule.enter(progress)
        for number in taken:
            progress.given(number)
            collected.append(scheduler.get_last_lr()[0])
            if not after:
                scheduler.step()
        progress.over = True
        schedule.finish()
        if after:
            scheduler.step()
    return collected


def test_a_step_with_each_batch_counts_the_batches_of_all_workers() -> None:
    options = {"max_lr": 1.0, "total_steps": PASSES * BATCHES}
    alone = rates(
        scheduler_of(torch.optim.lr_scheduler.OneCycleLR, **options), list(range(BATCHES))
    )
    shared = rates(
        scheduler_of(torch.optim.lr_scheduler.OneCycleLR, **options), list(range(0, BATCHES, 2))
    )
    # A worker steps after batch 2 for that one and for the one before: so much it is behind at
    # most.
    assert shared == pytest.approx([alone[max(n * 2 - 1, n // 5 * 10)] for n in range(len(shared))])


def test_all_steps_are_made_by_the_end_and_none_twice() -> None:
    scheduler = scheduler_of(torch.optim.lr_scheduler.LinearLR, total_iters=1000)
    rates(scheduler, [1, 4, 8])
    assert scheduler.last_epoch == PASSES * BATCHES


def test_a_step_between_passes_stays_one() -> None:
    scheduler = scheduler_of(torch.optim.lr_scheduler.StepLR, step_size=1)
    assert rates(scheduler, [0, 5], after=True) == pytest.approx([1.0, 1.0, 0.1, 0.1, 0.01, 0.01])


def test_a_step_for_every_second_batch_counts_half_the_batches() -> None:
    scheduler = scheduler_of(torch.optim.lr_scheduler.LinearLR, total_iters=1000)
    schedule = Schedule(scheduler)
    progress = PassProgress(BATCHES, 0)
    schedule.enter(progress)
    for number in (1, 3, 6, 9):
        progress.given(number)
        if progress.taken % 2 == 0:
            scheduler.step()
    progress.over = True
    schedule.finish()
    assert scheduler.last_epoch == BATCHES // 2


def test_the_state_stays_what_the_scheduler_itself_saves() -> None:
    scheduler = scheduler_of(torch.optim.lr_scheduler.StepLR, step_size=2)
    kind, state = type(scheduler), scheduler.state_dict()
    Schedule(scheduler)
    assert isinstance(scheduler, kind)
    assert scheduler.state_dict() == state
