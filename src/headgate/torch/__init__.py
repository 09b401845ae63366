"""Three calls in a PyTorch script: `prepare`, `epochs`, `report`.

Under an engine they report progress, save and resume, and follow the CPU grant. With several
workers they divide batches and average gradients. Under plain `python` they pass everything
through.

    import headgate.torch as hg

    model, optimizer, loader = hg.prepare(model, optimizer, loader)
    for epoch in hg.epochs(5):
        for features, labels in loader:
            loss = loss_fn(model(features), labels)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            hg.report(loss=loss)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from headgate.task import Channel, Stop, TaskEnvironment
from headgate.task.file_writes import file_writes
from headgate.task.front_door import FrontDoor
from headgate.task.recording import recorder
from headgate.torch import checkpoints, sparse_layers
from headgate.torch.buffers import MEAN, SUM
from headgate.torch.extra_state import ACROSS

if TYPE_CHECKING:
    from headgate.torch.session import Session

__all__ = ["Stop", "agree", "epochs", "is_main", "keep", "mean", "prepare", "rank", "report"]


def _opened(environment: TaskEnvironment) -> Session:
    channel = Channel.open(environment, "torch", torch.__version__, torch.initial_seed())
    if recorder() is not None:
        from headgate.torch.recording import steps
        from headgate.torch.recording_session import RecordingSession

        if (recording := steps()) is not None:
            return RecordingSession(environment, channel, recording)
    from headgate.torch.session import Session

    return Session(environment, channel)


_door = FrontDoor(_opened)
epochs, mean, agree = _door.epochs, _door.mean, _door.agree
rank, is_main = _door.rank, _door.is_main


def prepare(
    model: torch.nn.Module,
    optimizer: Any = None,
    *loaders: Any,
    scheduler: Any = None,
    loss_reduction: str | Callable[[Any], Any] = "mean",
    batch_dim: int = 0,
) -> Any:
    """Register what the script trains; resume from a checkpoint where the engine says so.

    Args:
        model: The model, on its device, compiled or not.
        optimizer: The optimizer that trains it. None if it does not have the interface of
            `torch.optim.Optimizer`.
        *loaders: Iterables of batches, such as `DataLoader`s. The one with the training data comes
            first.
        scheduler: A learning-rate scheduler. It is registered, not returned. If its `step` takes a
            metric, as of `ReduceLROnPlateau`, the metric is averaged over the workers.
        loss_reduction: How a batch's loss is reduced from its samples. Several workers need it to
            reproduce the gradients of one process. `mean`: a mean over the samples, or over the
            tokens or class weights in them if the graph of the loss shows that. `sum`: a sum over
            the samples. A function: takes a batch, and returns the number that its loss is a mean
            over.
        batch_dim: The dimension of the samples in a batch's tensors. A batch that every worker
            reads whole is divided along this dimension. A tensor with fewer dimensions is divided
            along its last one.

    Returns:
        The same objects: `model` alone if nothing else was given, otherwise `(model, optimizer,
        *loaders)`. A loader whose type cannot be extended (a list) comes back in a thin wrapper.

    Raises:
        TypeError: An argument has the wrong type, for example a loader in place of the optimizer.
        ValueError: `loss_reduction` is not `mean`, `sum` or a function, or `batch_dim` is not the
            number of a dimension.
        headgate.torch.checkpoints.ResumeError: The checkpoint to resume from does not fit.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"prepare(model, ...): found a {type(model).__name__}; expected a torch.nn.Module"
        )
    if optimizer is not None and not callable(getattr(optimizer, "step", None)):
        raise TypeError(
            f"prepare(model, optimizer, ...): found a {type(optimizer).__name__}; "
            "expected an optimizer, or None before the loaders"
        )
    for loader in loaders:
        if not hasattr(loader, "__iter__"):
            raise TypeError(
                f"prepare(..., *loaders): found a {type(loader).__name__}, which cannot be "
                "iterated over"
            )
    if loss_reduction not in ("mean", "sum") and not callable(loss_reduction):
        raise ValueError(
            f"prepare(loss_reduction={loss_reduction!r}): expected 'mean' or 'sum', or a "
            "function of the batch"
        )
    if batch_dim not in range(64):
        raise ValueError(
            f"prepare(batch_dim={batch_dim!r}): expected the number of a dimension, from 0"
        )
    session = _door.join()
    prepared = (
        list(loaders)
        if session is None
        else session.prepare(model, optimizer, loaders, scheduler, loss_reduction, batch_dim)
    )
    return model if optimizer is None and not loaders else (model, optimizer, *prepared)


def keep(*modules: torch.nn.Module, across: str | None = None, **objects: Any) -> None:
    """Save more objects with the checkpoints, and load them on a resume.

    Examples are an AMP `GradScaler`, and a moving average of the weights.

    Args:
        *modules: Modules of a prepared model that change their buffers in the forward pass, as a
            quantizer changes its codebook. Workers that step together combine these buffers after
            each backward. `across` is `mean`, weighted by samples, or `sum`, of the increments of
            all workers.
        across: How the states of `objects` relate between the workers of a job:

            - `equal`: all workers have the same state. A checkpoint holds the first worker's, and a
              warning names any differences.
            - `mean`: each floating-point number is averaged over the workers. After a resume, all
              start from the mean.
            - `worker`: each worker has its own state, also after a resume. A resume with another
              number of workers is refused.
            - None: `equal` if the states are the same, `worker` if they differ. A note says which.
        **objects: Anything with `state_dict` and `load_state_dict`, by the name it is saved under.

    Raises:
        TypeError: An object lacks these methods, or a positional argument is not a module.
        ValueError: `across` has another value.
        headgate.torch.checkpoints.ResumeError: The checkpoint to resume from does not fit.
    """
    if modules and across not in (MEAN, SUM):
        raise ValueError(f"keep(module, across={across!r}): expected {MEAN} or {SUM}")
    if across not in (None, *ACROSS) and (objects or not modules):
        raise ValueError(f"keep(across={across!r}): expected one of {', '.join(ACROSS)}")
    for module in modules:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(
                f"keep(module): found a {type(module).__name__}; expected a "
                "torch.nn.Module, or a name"
            )
    for name, kept in objects.items():
        if not (hasattr(kept, "state_dict") and hasattr(kept, "load_state_dict")):
            raise TypeError(
                f"keep({name}=...): a {type(kept).__name__} has no state_dict and load_state_dict"
            )
    session = _door.join()
    if session is not None:
        session.combine(modules, across or MEAN)
        session.keep(objects, across)


def report(
    loss: Any = None, step: int | None = None, *, weight: Any = None, **metrics: Any
) -> None:
    """Report how training goes. Headgate sends a few messages a second, each with the mean loss
    since the last one.

    Args:
        loss: Loss of the batch, a tensor or a number. A tensor may stay on its device.
        step: Number of the step. By default Headgate counts the steps of the optimizer.
        weight: The number that the batch's loss is a mean over, if not its samples: a number, or a
            tensor of one element. Several workers weight their gradients by it. Give it before
            `optimizer.step()`, preferably before `backward`, after which gradients are exchanged.
        **metrics: Numbers, for example `accuracy=0.97`.
    """
    session = _door.join()
    if session is not None:
        session.report(loss, step, metrics, weight)


def _on_servers() -> bool:
    """Whether this process is a worker of a plan with parameter servers."""
    session = _door.join()
    return session is not None and session.on_servers


def _table_for(kind: str, layer: dict[str, Any]) -> Any:
    from headgate.torch.ps.tables.lazy_tensor import (
        table_for,  # needs pyzmq, which other plans do without
    )

    return table_for(kind, layer)


if TaskEnvironment.read().channel is not None:
    file_writes.watch()
    checkpoints.watch_saving()
    sparse_layers.watch(_on_servers, _table_for)
