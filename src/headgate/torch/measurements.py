"""Measures a script's steps, and reports spans, and once a profile of the job's costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import torch

from headgate.task.step_timing import FIRST_STEPS, Timing, is_warm
from headgate.torch.costs import Costs
from headgate.torch.meter import Meter, Step
from headgate.torch.profiling_sweep import ProfilingSweep
from headgate.torch.training_state import TrainingState


class Measurements:
    """Takes the measurements of the meter.

    Args:
        trained: The prepared models and optimizers; may grow.
        mode: `run`, or `profile`: measure at several batch sizes and thread counts.
        has_loaders: Whether a loader was prepared.
        tell: Takes each measured step of a run.

    Attributes:
        meter: Times the steps.
        costs: Collects the measurements of the profile.
        sweep: Sets batch sizes and threads of the steps of a profile; None in a run.
    """

    def __init__(
        self,
        trained: TrainingState,
        mode: str,
        has_loaders: Callable[[], bool],
        tell: Callable[[Step], None],
    ) -> None:
        profiling = mode == "profile"
        self.costs = Costs(trained, mode)
        self.sweep = ProfilingSweep(self.costs) if profiling else None
        self.meter = Meter(trained.models, self._measured, every_step=profiling)
        self._has_loaders = has_loaders
        self._tell = tell

    def end(self) -> None:
        """Note the end of the script."""
        self.meter.unhook()
        if self.sweep is not None and not self.sweep.done:
            self.costs.notes.append(
                "the script ended before all sizes and thread counts were measured"
            )

    def profile(self) -> dict[str, Any]:
        """The measurements so far."""
        self.costs.notes += self.meter.notes
        return self.costs.profile()

    def _measured(self, step: Step) -> None:
        self.costs.stepped(step)
        waited = (
            self.costs.core_wait.lap()
            if self.sweep is not None or step.number <= FIRST_STEPS
            else None
        )
        if self.sweep is not None:
            self.sweep.stepped(step, waited)
            if not self._has_loaders() and step.number == FIRST_STEPS:
                self.costs.notes.append(
                    "no loader was prepared: the time of a step was not measured by batch size"
                )
                self.sweep.done = True
            return
        if is_warm(step.number) and step.number <= FIRST_STEPS and step.samples:
            self.costs.timings.append(
                Timing(torch.get_num_threads(), step.samples, step.compute_seconds, waited)
            )
            if self.costs.reads_here and self._has_loaders():
                self.costs.read(step.spans.get("input", 0.0), step.samples, waited)
        step.loader_workers = self.costs.loader_workers
        self._tell(step)


def fetched(values: Sequence[Any]) -> Sequence[Any]:
    """The values, with those on a GPU read together as numbers."""
    on_device = [v.detach().double().reshape(()) for v in values if _single_on_gpu(v)]
    if not on_device:
        return values
    numbers = iter(torch.stack(on_device).tolist())
    return [next(numbers) if _single_on_gpu(value) else value for value in values]


def _single_on_gpu(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_cuda
        and value.numel() == 1
        and not value.is_complex()
    )


def kept(loss: torch.Tensor) -> Any:
    """A copy of a loss, which the script may change in place. A loss on a GPU is not waited for."""
    if loss.is_cpu and loss.numel() == 1 and not loss.is_complex():
        return loss.item()
    return loss.detach() if loss.is_cuda else loss.detach().clone()
