"""The session of a script whose steps are recorded for `headgate verify`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable

from torch import nn

from headgate.task import Channel, TaskEnvironment
from headgate.torch.iteration import Iteration
from headgate.torch.recording import StepRecorder
from headgate.torch.session import Session


class RecordingSession(Session):
    """A session that passes models, batches and losses to a recorder.

    Args:
        environment: As of `Session`.
        channel: As of `Session`.
        steps: The recorder.
    """

    def __init__(self, environment: TaskEnvironment, channel: Channel, steps: StepRecorder) -> None:
        super().__init__(environment, channel)
        self._recording = steps
        steps.place = self.place
        report = self._progress.report

        def reported(loss: Any, metrics: Mapping[str, Any], weight: Any = 1.0) -> None:
            steps.reported(loss, weight)
            report(loss, metrics, weight)

        setattr(self._progress, "report", reported)  # noqa: B010 - in place of a method

    def prepare(
        self,
        model: nn.Module,
        optimizer: Any,
        loaders: Sequence[Any],
        scheduler: Any,
        loss_reduction: str | Callable[[Any], Any] = "mean",
        batch_dim: int = 0,
    ) -> list[Any]:
        self._recording.prepared(model, optimizer)
        prepared = super().prepare(model, optimizer, loaders, scheduler, loss_reduction, batch_dim)
        if self._worker is None and self._recording.as_workers:
            self._loaders.draw_apart()
        return prepared

    def fetched(self, iteration: Iteration, batch: Any) -> Any:
        batch = super().fetched(iteration, batch)
        return self._recording.batch(
            batch, iteration.assigned is None or iteration.assigned.taken > 0
        )
