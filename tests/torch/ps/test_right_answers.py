"""Workers that add up gradients over parameter servers come to what one process comes to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.torch import right_answers

from headgate.model.plans import Plan


@pytest.mark.parametrize(
    ("workers", "servers", "batches", "apart", "encrypt"),
    [
        pytest.param(1, 1, None, False, False, marks=pytest.mark.long),
        pytest.param(2, 2, (9, 3), True, True, marks=pytest.mark.long),
        pytest.param(4, 1, None, False, False, marks=pytest.mark.long),
    ],
    ids=["one beside its server", "two unlike ones with two servers", "four beside their server"],
)
def test_comes_to_what_one_process_comes_to(
    workers: int,
    servers: int,
    batches: tuple[int, ...] | None,
    apart: bool,
    encrypt: bool,
    wrong_answers: Callable[..., dict[str, float]],
) -> None:
    plan = Plan(
        strategy="ps",
        workers=workers,
        servers=servers,
        batch_per_worker=batches,
        worker_nodes=tuple(f"w{index}" for index in range(workers)) if apart else (),
        server_nodes=tuple(f"s{index}" for index in range(servers)) if apart else (),
    )
    cases = right_answers.USUAL if workers == 4 else ()  # two come across all that is special
    assert wrong_answers(plan, *cases, encrypt=encrypt) == {}


@pytest.mark.slow
def test_a_weight_that_is_said_after_a_backward_counts_for_rows_on_servers(
    wrong_answers: Callable[..., dict[str, float]],
) -> None:
    plan = Plan(strategy="ps", workers=1, servers=1, batch_per_worker=None)
    assert wrong_answers(plan, "sparse_said_after_each", encrypt=False) == {}


@pytest.mark.long
def test_a_loss_over_some_of_the_samples_comes_to_it_too(
    wrong_answers: Callable[..., dict[str, float]],
) -> None:
    plan = Plan(strategy="ps", workers=2, servers=2, batch_per_worker=(9, 3))
    assert wrong_answers(plan, *right_answers.MASKED, *right_answers.SPARSE_MASKED) == {}
