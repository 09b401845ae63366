"""Times evaluations between two training steps.

An evaluation lasts from the first to the last forward pass without gradients or in evaluation mode.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from headgate.task.overheads import overheads


class EvaluationTime:
    """Hooks the models outside of training steps, and removes the hooks during steps.

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
        """Note that a module was set to evaluation mode: an evaluation may begin before the next
        step.
        """
        if any(module is model for model in self._models):
            self.watch()

    def watch(self) -> None:
        """Note a pass over data, which may be an evaluation."""
        global _active
        if not self._handles:
            _active = self
            for model in self._models:
                self._handles.append(model.register_forward_pre_hook(_begins))
                self._handles.append(model.register_forward_hook(_ends))

    def end(self) -> None:
        """Report the evaluation, if there was one, before a training step or the end of the
        script.
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
    """Watch for modules set to evaluation mode, in the class of all modules. An attribute of a
    model would be copied and pickled with it.
    """
    global _switching
    _switching = evaluating
    nn.Module.train = _switch  # type: ignore[method-assign, assignment]


def _switch(module: nn.Module, mode: bool = True) -> nn.Module:
    if not mode and _switching is not None:
        _switching.switched(module)
    return _train(module, mode)


_active: EvaluationTime | None = None
"""Called by the hooks. They are plain functions, so that a hooked model can be copied or
pickled.
"""


def _evaluates(module: nn.Module) -> bool:
    return not torch.compiler.is_compiling() and not (module.training and torch.is_grad_enabled())


def _begins(module: nn.Module, args: Any) -> None:
    if _active is not None and _evaluates(module):
        _active.begins()


def _ends(module: nn.Module, args: Any, output: Any) -> None:
    if _active is not None and _evaluates(module):
        _active.ends()
