"""Gradient hooks of the script, under a plan whose workers average gradients.

A hook on a parameter has to see the gradient of the whole batch, as in one process. It is held back
during backward, and runs on the average. A hook inside of the model sees only its worker's samples.
Its result has to be a multiple of its input; otherwise no average equals the gradient of one
process.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd import graph

from headgate.torch.backend import REMOTE
from headgate.torch.control_vector import ReduceError

_CLOSE = 1e-5
_LOOK_AT_GPU = 50
"""Calls between two checks of a hook on a GPU, because each check waits for the GPU."""
_FIRST = 3
"""The first calls of a hook, which are all checked."""

register_hook: Any = torch.Tensor.register_hook
"""The original `register_hook`, for Headgate's own hooks."""
register_post_accumulate_grad_hook: Any = torch.Tensor.register_post_accumulate_grad_hook

_MODULE_HOOKS = (
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_backward_hook",
)


class HeldHook:
    """Replaces a hook on a parameter that PyTorch would call during backward.

    Attributes:
        hook: The script's hook.
    """

    def __init__(self, hook: Callable[[Any], Any]) -> None:
        self.hook = hook

    def __call__(self, gradient: Any) -> None:
        return None


class _ComparedHook:
    """A hook inside of the model, on a tensor or a module.

    Args:
        hook: The script's hook.
        where: A description of the place where it is registered.
        first: Position of its first argument that is a gradient.
    """

    def __init__(self, hook: Callable[..., Any], where: str, first: int) -> None:
        self.hook = hook
        self._where = where
        self._first = first

    def __call__(self, *arguments: Any) -> Any:
        changed = self.hook(*arguments)
        if changed is not None and _is_due(self.hook, changed):
            halved = [*arguments[: self._first], *map(_half, arguments[self._first :])]
            if not _close(_half(changed), self.hook(*halved)):
                raise ReduceError(
                    f"a hook on {self._where} changes gradients while backward runs, and not in "
                    "proportion, as clipping does. With several workers it sees the gradient of "
                    "one worker's samples: the result is not that of one process. Register it on "
                    "parameters, change gradients after backward, or run with --strategy single"
                )
        return changed


_OWN_BACKWARD = frozenset(("backward", "grad", "run_backward", "autograd"))
"""Names by which a backward may run through another graph, which cannot be repeated."""


def compare_functions(nodes: Iterable[Any]) -> None:
    """Check, in the next backward, the gradients that the script's own backward functions make."""
    for node in nodes:
        if not isinstance(node, torch.autograd.function.BackwardCFunction):
            continue
        function: Any = getattr(type(node), "_forward_cls", None)
        code = (
            getattr(inspect.unwrap(function.backward), "__code__", None)
            if function is not None
            else None
        )
        ours = getattr(function, "__module__", "").startswith(("torch.", _OURS))
        if code is not None and not ours and not _OWN_BACKWARD & set(code.co_names):
            node.register_prehook(_ComparedFunction(function, node))


class _ComparedFunction:
    """A backward function of the script.

    Args:
        function: The `autograd.Function`.
        context: Its context from the forward pass: the node itself.
    """

    def __init__(self, function: Any, context: Any) -> None:
        self._function = function
        self._context = weakref.ref(context)

    def __call__(self, gradients: Any) -> None:
        context = self._context()
        given = [None if gradient is None else gradient.detach().clone() for gradient in gradients]
        if context is None:
            return
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            try:
                halved = self._function.backward(context, *map(_half, given))
                undivided = self._function.backward(context, *given)
            except Exception:  # noqa: BLE001 - it cannot be asked twice: that tells nothing
                return
        if not _close(_half(undivided), halved):
            raise ReduceError(
                f"the backward of {self._function.__name__} changes gradients not in proportion, "
                "as clipping does. With several workers it sees the gradient of one worker's "
                "samples: the result is not that of one process. Change gradients after backward, "
                "or run with --strategy single"
            )


_calls: dict[Any, int] = {}


def _is_due(hook: Callable[..., Any], changed: Any) -> bool:
    if not any(tensor.is_cuda for tensor in _tensors(changed)):
        return True
    key = getattr(hook, "__code__", type(hook))
    calls = _calls[key] = _calls.get(key, 0) + 1
    return calls <= _FIRST or calls % _LOOK_AT_GPU == 0


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    for item in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(item, torch.Tensor):
            yield item


def _half(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_half(item) for item in value)
    return value * 0.5 if isinstance(value, torch.Tensor) else value


def _close(one: Any, other: Any) -> bool:
    pairs = list(zip(_tensors(one), _tensors(other)))
    return all(
        a.shape == b.shape and torch.allclose(a, b, _CLOSE, 0.0, equal_nan=True) for a, b in pairs
    )


def of_parameter(parameter: torch.Tensor) -> bool:
    """Whether hooks of a parameter are held back."""
    return any(True for _ in _held(parameter, "_backward_hooks")) or runs_after(parameter)


def runs_after(parameter: torch.Tensor) -> bool:
    """Whether a hook is to run once the gradient of a parameter is complete."""
    return any(True for _ in _held(parameter, "_post_accumulate_grad_hooks"))


def changed(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Apply a parameter's hooks to what backward adds to its gradient."""
    for hook in list(_held(parameter, "_backward_hooks")):
        returned = hook(gradient)
        gradient = gradient if returned is None else returned
    return gradient


def run_after(parameter: torch.Tensor) -> None:
    """Run the hooks of a parameter whose gradient is complete."""
    for hook in list(_held(parameter, "_post_accumulate_grad_hooks")):
        hook(parameter)


def _held(parameter: torch.Tensor, name: str) -> Iterator[Callable[[Any], Any]]:
    for hook in (getattr(parameter, name, None) or {}).values():
        if isinstance(hook, HeldHook):
            yield hook.hook


def take(model: nn.Module, own: Callable[[torch.Tensor], bool]) -> list[torch.Tensor]:
    """Hold back the hooks of the model's parameters, and check those of its modules.

    Args:
        model: The model.
        own: Whether a parameter's gradient is averaged.

    Returns:
        The parameters that have hooks.

    Raises:
        ReduceError: A parameter on servers has hooks.
    """
    for name, module in model.named_modules():
        where = f"{type(module).__name__} at {name or 'the top'} of the model"
        for hooks in (module._backward_hooks, getattr(module, "_backward_pre_hooks", {})):
            for number, hook in hooks.items():
                if not isinstance(hook, _ComparedHook):
                    hooks[number] = _ComparedHook(hook, where, 1)
    hooked = []
    for parameter in model.parameters():
        dicts = [
            getattr(parameter, name, None)
            for name in ("_backward_hooks", "_post_accumulate_grad_hooks")
        ]
        if any(dicts):
            _check(parameter)
        if not any(dicts) or not own(parameter):
            continue
        for held in dicts:
            for number, hook in (held or {}).items():
                if not isinstance(hook, HeldHook) and not getattr(
                    hook, "__module__", ""
                ).startswith(_OURS):
                    held[number] = HeldHook(hook)  # type: ignore[index]
        hooked.append(parameter)
    return [parameter for parameter in hooked if of_parameter(parameter)]


_OURS = "headgate.torch."


def _check(tensor: torch.Tensor) -> None:
    """
    Raises:
        ReduceError: It is a parameter on servers, which only get this worker's part of a gradient.
    """
    if hasattr(tensor, REMOTE):
        raise ReduceError(
            "a hook is registered on the weight of a layer with sparse=True, of shape "
            f"{tuple(tensor.shape)}, which is on parameter servers: no worker has its whole "
            "gradient. Leave the hook out, or use --strategy allreduce"
        )


_averaged: Callable[[torch.Tensor], bool] | None = None
_hooked: Callable[[torch.Tensor], None] | None = None


def watch(averaged: Callable[[torch.Tensor], bool], hooked: Callable[[torch.Tensor], None]) -> None:
    """Also take hooks that are registered from now on.

    Args:
        averaged: Whether a tensor's gradient is averaged.
        hooked: Takes each such tensor that gets a hook.
    """
    global _averaged, _hooked
    begins = _averaged is None
    _averaged, _hooked = averaged, hooked
    if begins:
        kind: Any = torch.Tensor
        kind.register_hook = _watched_hook
        kind.register_post_accumulate_grad_hook = _watched_post_hook
        for name in _MODULE_HOOKS:
            _watch_modules(name)
        multi: Any = graph.register_multi_grad_hook

        def watched(tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
            assert _averaged is not None
            if any(map(_averaged, tensors)):
                raise ReduceError(
                    "register_multi_grad_hook is called for parameters of a prepared model: with "
                    "several workers it would see the gradients of one worker's samples. Use "
                    "register_post_accumulate_grad_hook, look at gradients after backward, or run "
                    "with --strategy single"
                )
            return multi(tensors, *args, **kwargs)

        graph.register_multi_grad_hook = watched


def _watched_hook(self: torch.Tensor, hook: Callable[[Any], Any]) -> Any:
    assert _averaged is not None and _hooked is not None
    _check(self)
    if _averaged(self):
        handle = register_hook(self, HeldHook(hook))
        _hooked(self)
        return handle
    if self.grad_fn is None:
        return register_hook(self, hook)
    return register_hook(
        self, _ComparedHook(hook, f"a tensor of shape {tuple(self.shape)} inside of the model", 0)
    )


def _watched_post_hook(self: torch.Tensor, hook: Callable[[Any], Any]) -> Any:
    assert _averaged is not None and _hooked is not None
    _check(self)
    if not _averaged(self):
        return register_post_accumulate_grad_hook(self, hook)
    handle = register_post_accumulate_grad_hook(self, HeldHook(hook))
    _hooked(self)
    return handle


def _watch_modules(name: str) -> None:
    register: Any = getattr(nn.Module, name)

    def watched(self: nn.Module, hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return register(self, _ComparedHook(hook, f"a {type(self).__name__}", 1), *args, **kwargs)

    setattr(nn.Module, name, watched)
