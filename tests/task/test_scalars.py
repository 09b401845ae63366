"""What is a number of what a script may report, of any framework, and what is said of all else."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from headgate.task.scalars import read, traced

Make = Callable[[], Any]


@pytest.mark.parametrize(
    "make",
    [
        *(
            lambda: 2,
            lambda: 2.0,
            lambda: "2",
            lambda: Decimal(2),
            lambda: np.float32(2),
            lambda: np.array([[2]]),
        ),
        *(
            lambda: torch.tensor([2.0], requires_grad=True),
            lambda: torch.tensor(2, dtype=torch.bfloat16),
        ),
        *(lambda: jnp.array(2), lambda: jnp.array([2], "bfloat16")),
    ],
)
def test_one_number_is_read_from_whatever_holds_it(make: Make) -> None:
    assert read(make()) == (2.0, "")


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.array([1, 3]),
        lambda: torch.tensor([1, 3]),
        lambda: jnp.array([[1.0], [3.0]], "bfloat16"),
    ],
)
def test_of_several_elements_the_mean_is_taken_and_said(make: Make) -> None:
    assert read(make()) == (2.0, "found 2 elements, whose mean is taken; report one number")


def donated() -> Any:
    value = jnp.ones(())
    value.delete()
    return value


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            concurrent.futures.Future,
            "found a Future, which may not be done; report what it comes to",
        ),
        (torch.futures.Future[int], "found a Future, which may not be done"),
        (lambda: torch.tensor(1.0).item, "found a builtin_function_or_method; call it"),
        (lambda: 1j, "found a complex"),
        (lambda: np.complex64(1j), "found a complex64"),
        (lambda: torch.zeros(0), "found a Tensor (without elements)"),
        (lambda: torch.empty((), device="meta"), "found a Tensor ("),
        (lambda: jax.random.key(0), "found a PRNGKeyArray ("),
        (donated, "found an ArrayImpl (Array has been deleted"),
        (lambda: [1.0], "found a list ("),
        (lambda: "n/a", "found a str ("),
        (lambda: 10**400, "found an int ("),
    ],
)
def test_what_is_no_number_is_said_to_be_none(make: Make, said: str) -> None:
    number, remark = read(make())
    assert number is None
    assert remark.startswith(said)


def test_nothing_is_said_of_nothing() -> None:
    assert read(None) == (None, "")


def test_what_a_compiled_function_is_given_is_no_number_yet() -> None:
    seen = []

    def function(value: Any) -> Any:
        seen.append((traced(value), read(value)))
        return value

    changes: list[Any] = [
        jax.jit,
        jax.grad,
        lambda function: lambda value: jax.vmap(function)(value[None]),
    ]
    for change in changes:
        change(function)(jnp.ones(()))
    assert [found for found, _ in seen] == [True] * 3
    assert all("inside of a function that is compiled" in remark for _, (_, remark) in seen)
    assert not traced(jnp.ones(()))
