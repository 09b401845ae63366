"""How long a script evaluates its models between two training steps: forward passes without
gradients, or in evaluation mode, and all that lies between the first and the last of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from headgate.task.overheads import overheads


class EvaluationTime:
    """Hooks the models while no training step runs, and leaves them as they were when one does.

    Args:
        models: The prepared models; may grow.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = models
        self._handles: list[Any] = []
        self._first: float | None = None
        self._last = 0.0

        _watch_modes(self)

    def switched(self, module: nn.Module) -> None:
        """A module is in evaluation mode from now on: what it does until the next step may be an
        evaluation.
        """
        if any(module is model for model in self._models):
            self.watch()

    def watch(self) -> None:
        """A pass over data may be one of evaluation."""
        global _active
        if not self._handles:
            _active = self
            for model in self._models:
                self._handles.append(model.register_forward_pre_hook(_begins))
                self._handles.append(model.register_forward_hook(_ends))

    def end(self) -> None:
        """A training step was taken, or the script ends: tell of the evaluation before it, if there
        was one.
        """
        global _active
        if not self._handles:
            return
        for handle in self._handles:
            handle.remove()
        self._handles, _active = [], None
        if self._first is not None:
            overheads.add("evaluation", max(self._last - self._first, 0.0))
            self._first = None

    def begins(self) -> None:
        if self._first is None:
            self._first = self._last = time.perf_counter()

    def ends(self) -> None:
        self._last = time.perf_counter()


_train = nn.Module.train
_switching: EvaluationTime | None = None


def _watch_modes(evaluating: EvaluationTime) -> None:
    """Have it told of modules that are set to evaluation mode, in the class of all modules: an
    attribute of a model would be copied and pickled with it.
    """
    global _switching
    _switching = evaluating
    nn.Module.train = _switch  # type: ignore[method-assign, assignment]


def _switch(module: nn.Module, mode: bool = True) -> nn.Module:
    if not mode and _switching is not None:
        _switching.switched(module)
    return _train(module, mode)


_active: EvaluationTime | None = None
"""Told by the hooks, which are plain functions, so that a model can be copied or pickled while
hooked.
"""


def _evaluates(module: nn.Module) -> bool:
    return not torch.compiler.is_compiling() and not (module.training and torch.is_grad_enabled())


def _begins(module: nn.Module, args: Any) -> None:
    if _active is not None and _evaluates(module):
        _active.begins()


def _ends(module: nn.Module, args: Any, output: Any) -> None:
    if _active is not None and _evaluates(module):
        _active.ends()
