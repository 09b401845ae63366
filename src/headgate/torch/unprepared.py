"""Optimizers and learning-rate schedulers that train, but were given neither to `prepare` nor to
`keep`.

No checkpoint has their state, and several workers do not share what they train.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from headgate.torch.distributed import Worker
from headgate.torch.ps.optimizers import is_built
from headgate.torch.training_state import TrainingState


class Unprepared:
    """Warns of them at their first step.

    Args:
        trained: The prepared and kept objects.
        note: Tells the user something.
        worker: This worker of a job of several; None: it is alone.
    """

    def __init__(
        self,
        trained: TrainingState,
        note: Callable[[str], None],
        worker: Callable[[], Worker | None],
    ) -> None:
        self._trained = trained
        self._note = note
        self._worker = worker
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._kinds: set[str] = set()

    def optimizer_steps(self, optimizer: Any) -> None:
        """Note that an optimizer begins its step."""
        if not self._trained.models or self._trained.knows(optimizer) or is_built(optimizer):
            return
        worker = self._worker()
        if worker is not None:
            worker.stray_begins(optimizer)
        if optimizer in self._known:
            return
        self._known.add(optimizer)
        kind = type(optimizer).__name__
        if self._is_kept(optimizer) or kind in self._kinds:
            return
        stepped = [
            p for group in optimizer.param_groups for p in group["params"] if p.grad is not None
        ]
        prepared = {
            id(parameter) for model in self._trained.models for parameter in model.parameters()
        }
        if any(id(parameter) in prepared for parameter in stepped):
            self._kinds.add(kind)
            self._note(
                f"the optimizer {kind} trains a prepared model and was not given to prepare: "
                "checkpoints do not have "
                "its state, and after a resume it starts afresh. Give it to prepare, or to hg.keep"
            )
        elif any(isinstance(parameter, torch.nn.Parameter) for parameter in stepped):
            self._kinds.add(kind)
            self._note(
                f"the optimizer {kind} trains {len(stepped)} parameters that no prepared model "
                "has: checkpoints have neither them nor its state, and after a resume they start "
                "afresh. Give model and optimizer to prepare as well"
            )

    def scheduler_steps(self, scheduler: Any) -> None:
        """Note that a scheduler takes its step."""
        if not self._trained.models or scheduler in self._known:
            return
        self._known.add(scheduler)
        given = set(map(id, _parts(self._trained.schedulers)))
        if id(scheduler) in given or self._is_kept(scheduler):
            return
        kind = type(scheduler).__name__
        self._note(
            f"the learning-rate scheduler {kind} was not given to prepare: checkpoints do not "
            "have its state, and "
            "after a resume it starts afresh. Give it by prepare(scheduler=...), or to hg.keep"
        )

    def _is_kept(self, value: Any) -> bool:
        return any(entry.object is value for entry in self._trained.kept.values())


def _parts(schedulers: Iterable[Any]) -> Iterator[Any]:
    """Schedulers, and the schedulers that they consist of."""
    for scheduler in schedulers:
        yield scheduler
        yield from _parts(getattr(scheduler, "_schedulers", ()))


_listener: list[Unprepared] = []


def watch(strays: Unprepared) -> None:
    """Report every step of an optimizer and a scheduler to `strays` from now on, and to no earlier
    object.
    """
    if not _listener:
        register_optimizer_step_pre_hook(_optimizer_steps)
    _listener[:] = [strays]
    for kind in _kinds_of_schedulers():
        if "step" in vars(kind) and not hasattr(vars(kind)["step"], _WATCHED):
            kind.step = _watched(vars(kind)["step"])


def _optimizer_steps(optimizer: Any, args: Any, kwargs: Any) -> None:
    _listener[0].optimizer_steps(optimizer)


_WATCHED = "_headgate_watched"


def _kinds_of_schedulers() -> Iterator[Any]:
    kinds: list[Any] = [lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau]
    while kinds:
        kind = kinds.pop()
        yield kind
        kinds += kind.__subclasses__()


def _watched(step: Any) -> Any:
    @functools.wraps(step)
    def stepping(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A scheduler takes its first step in its constructor, before the script can pass it on.
        if getattr(self, "_step_count", 1):
            _listener[0].scheduler_steps(self)
        return step(self, *args, **kwargs)

    setattr(stepping, _WATCHED, True)
    return stepping
