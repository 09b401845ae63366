"""Sees a script's copies of batches to a GPU."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch.overrides import has_torch_function

from headgate.torch.observed_arithmetic import has_compiled

if TYPE_CHECKING:
    from headgate.task.observing import ScriptObserver

_METHODS = ("to", "cuda")
_FIRST = 2
"""After this many steps, a script that compiles its model has done so."""


class DeviceCopies:
    """Marks the calls of a tensor's methods that copy it to a device.

    The methods become PyTorch's own again, for good, where something may compare them: once
    anything is compiled, or a class or a mode overrides functions of PyTorch.

    Args:
        observer: Has the steps.
    """

    def __init__(self, observer: ScriptObserver) -> None:
        self._observer = observer
        self._steps = 0
        self._is_over = False
        self._methods: dict[str, Any] = {}

    def step_begins(self) -> None:
        """Watch for copies, if it is time. A step on a GPU begins."""
        self._steps += 1
        if has_compiled():
            self.end()
        elif self._steps == _FIRST and not self._is_over:
            kind: Any = torch.Tensor  # its methods are those of the class below
            if vars(kind).keys().isdisjoint(_METHODS):
                self._methods = {name: self._around(name) for name in _METHODS}
            for name, method in self._methods.items():
                setattr(kind, name, method)

    def end(self) -> None:
        """Watch no more."""
        kind: Any = torch.Tensor
        self._is_over, methods, self._methods = True, self._methods, {}
        for name, method in methods.items():
            if vars(kind).get(name) is method:
                delattr(kind, name)

    def _around(self, name: str) -> Any:
        copy: Callable[..., Any] = getattr(torch._C.TensorBase, name)
        observer = self._observer

        @functools.wraps(copy)
        def watched(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():
                return getattr(tensor, name)(*args, **kwargs)  # it knows methods by their names
            if self._is_over or torch.compiler.is_compiling():
                return copy(tensor, *args, **kwargs)
            first = args[0] if args else kwargs.get("other")
            like = first if isinstance(first, torch.Tensor) else tensor
            if not observer.is_on or has_torch_function((tensor, like)):
                self.end()
                return copy(tensor, *args, **kwargs)
            if (
                observer.steps.moment is None
                or not tensor.is_cpu
                or not (name == "cuda" or _names_device(*args, **kwargs))
                or not observer.marks_copies()
            ):
                return copy(tensor, *args, **kwargs)
            observer.attempt(observer.steps.breaks_off)
            result = copy(tensor, *args, **kwargs)
            observer.attempt(observer.steps.copied)
            return result

        return watched


def _names_device(first: Any = None, *_: object, **named: Any) -> bool:
    """Whether these arguments of `to` name a device other than the CPU."""
    target = named.get("device", named.get("other", first))
    if isinstance(target, torch.Tensor):
        return not target.is_cpu
    if isinstance(target, torch.dtype) or target is None:
        return False
    return not str(target).startswith("cpu")
