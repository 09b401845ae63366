"""Several workers that add up gradients among themselves come to what one process comes to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.torch import right_answers

from headgate.plans import Plan


@pytest.mark.parametrize(
    ("workers", "batches"),
    [(1, None), (2, (9, 3)), pytest.param(4, None, marks=pytest.mark.long)],
    ids=["one", "two unlike ones", "four"],
)
def test_comes_to_what_one_process_comes_to(
    workers: int, batches: tuple[int, ...] | None, wrong_answers: Callable[..., dict[str, float]]
) -> None:
    cases = right_answers.USUAL if workers == 4 else ()  # two come across all that is special
    assert wrong_answers(Plan(strategy="allreduce", workers=workers, batch_per_worker=batches), *cases) == {}
