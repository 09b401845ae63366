"""Checks whether the models hold the weights that the last step left.

A script may set others for a while, for example an average for a validation, and then restore the
trained ones. Meanwhile a checkpoint of the models would be wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn

from headgate.torch.backend import REMOTE

_SAMPLED = 4
"""Number of sampled parameters of each optimizer: the first, the last, and some between them."""
_ELEMENTS = 8
_LEARNED_STEPS = 3
_PLAIN = (torch.Tensor, nn.Parameter)


@dataclass(frozen=True)
class _ReadElements:
    """Some elements of a parameter, and the address of its memory when they were read."""

    parameter: torch.Tensor
    address: int
    view: torch.Tensor


class StepWeights:
    """Remembers some elements of the trained parameters after each step, at a cost of a few
    microseconds per step.
    """

    def __init__(self) -> None:
        self._parameters: dict[int, list[torch.Tensor]] = {}
        self._samples: list[_ReadElements] = []
        self._views: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._steps = 0
        self._at_boundary = False
        self._script_changes_them = False

    def stepped(self, optimizer: Any, models: Iterable[nn.Module] = ()) -> None:
        """Note a step.

        Args:
            optimizer: The optimizer.
            models: The models that it trains, if the optimizer does not tell.
        """
        if id(optimizer) not in self._parameters:
            groups = [group["params"] for group in getattr(optimizer, "param_groups", ())]
            parameters = groups or [model.parameters() for model in models]
            self._parameters[id(optimizer)] = _sampled(chain.from_iterable(parameters))
            self._samples = []
        self._steps += 1
        self._at_boundary = False
        self._look()

    def begins(self) -> None:
        """Note that an optimizer is about to take a step. The first steps show whether a script
        changes weights itself after each step, for example by clamping them.
        """
        if 0 < self._steps <= _LEARNED_STEPS and not self._at_boundary and self._differ():
            self._script_changes_them = True

    def boundary(self) -> None:
        """Note a step boundary: the script has finished its iteration."""
        if self._script_changes_them:
            self.settle()

    def settle(self) -> None:
        """Accept the present weights as the trained ones, because a pass over training data has
        ended.
        """
        if self._samples:
            self._at_boundary = True
            self._look()

    def forget(self, optimizer: Any) -> None:
        """Forget an optimizer that is gone."""
        self._parameters.pop(id(optimizer), None)
        self._samples = []

    @property
    def changed(self) -> bool:
        """Whether the models hold other weights than the last step left. True before the first
        step.
        """
        known = self._at_boundary or not self._script_changes_them
        return known and bool(self._samples) and self._differ()

    def _look(self) -> None:
        if not self._samples or any(
            sample.parameter.data_ptr() != sample.address for sample in self._samples
        ):
            parameters_by_id = {
                id(p): p for parameters in self._parameters.values() for p in parameters
            }
            self._samples = [
                _ReadElements(p, p.data_ptr(), _elements(p)) for p in parameters_by_id.values()
            ]
            self._views = [sample.view for sample in self._samples]
            self._values = [torch.empty_like(view) for view in self._views]
        if self._values:
            torch._foreach_copy_(self._values, self._views)

    def _differ(self) -> bool:
        now = [
            sample.view
            if sample.parameter.data_ptr() == sample.address
            else _elements(sample.parameter)
            for sample in self._samples
        ]
        return any(
            not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(now, self._values)
        )


def _sampled(parameters: Iterable[Any]) -> list[torch.Tensor]:
    """Some parameters, spread over all trained ones."""
    trained = [
        parameter
        for parameter in parameters
        if type(parameter) in _PLAIN
        and parameter.requires_grad
        and parameter.layout is torch.strided
        and parameter.numel()
        and not hasattr(parameter, REMOTE)
        and (
            parameter.is_contiguous() or parameter.is_contiguous(memory_format=torch.channels_last)
        )
    ]
    last = len(trained) - 1
    places = (
        sorted({round(last * number / (_SAMPLED - 1)) for number in range(_SAMPLED)})
        if trained
        else []
    )
    return [trained[place] for place in places]


def _elements(parameter: torch.Tensor) -> torch.Tensor:
    """Some elements from the middle of a parameter, sharing its memory."""
    count = min(_ELEMENTS, parameter.numel())
    begin = parameter.storage_offset() + (parameter.numel() - count) // 2
    return parameter.detach().as_strided((count,), (1,), begin)
