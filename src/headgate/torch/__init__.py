"""Three calls in a PyTorch script: `prepare`, `epochs`, `report`.

Under an engine they tell it how the training goes, save and resume, and follow the CPU grant. Under
plain `python` they pass everything through.

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

from headgate.task import Channel, Epochs, Stop, TaskEnvironment
from headgate.task.file_writes import file_writes
from headgate.task.recording import recorder
from headgate.torch import checkpoints, sparse_layers
from headgate.torch.buffers import MEAN, SUM
from headgate.torch.extra_state import ACROSS

if TYPE_CHECKING:
    from headgate.torch.session import Session

__all__ = ["Stop", "agree", "epochs", "is_main", "keep", "mean", "prepare", "rank", "report"]

_session: Session | None = None
_joined = False


def prepare(
    model: torch.nn.Module,
    optimizer: Any = None,
    *loaders: Any,
    scheduler: Any = None,
    loss_reduction: str | Callable[[Any], Any] = "mean",
    batch_dim: int = 0,
) -> Any:
    """Register what the script trains with; resume from a checkpoint where the engine says so.

    Args:
        model: The model, on its device and, if it is, compiled.
        optimizer: Its optimizer; None where the script has none that `torch.optim` would know.
        *loaders: Loaders of batches, the loader of the training data first.
        scheduler: A learning-rate scheduler; it is registered, not returned. Where `step` takes a
            metric, as that of `ReduceLROnPlateau` does, it takes the mean over the workers.
        loss_reduction: How the loss of a batch is made from those of its samples. A plan with
            several workers needs it to keep the mathematics. `mean`: also over what counts of them
            (tokens, weights of classes), where the loss shows it. `sum`. Or a function: it is given
            a batch as the loader gives it, and returns the number that its loss is a mean over.
        batch_dim: The dimension that samples lie along in the tensors of these loaders' batches:
            batches that every worker reads whole are divided along it. A tensor without that
            dimension is divided along its last.

    Returns:
        The same objects: `model` alone if nothing else was given, otherwise `(model, optimizer,
        *loaders)`. A loader whose type cannot be extended (a list) comes back in a thin wrapper.

    Raises:
        TypeError: An argument is in the wrong place.
        ValueError: `loss_reduction` is neither `mean`, `sum` nor a function; `batch_dim` is no
            dimension.
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
    session = _join()
    prepared = (
        list(loaders)
        if session is None
        else session.prepare(model, optimizer, loaders, scheduler, loss_reduction, batch_dim)
    )
    return model if optimizer is None and not loaders else (model, optimizer, *prepared)


def keep(*modules: torch.nn.Module, across: str | None = None, **objects: Any) -> None:
    """Save more with the checkpoints, and load it on a resume: an AMP `GradScaler`, a moving
    average of the weights.

    Args:
        *modules: Parts of a prepared model that change their buffers while they compute, as a
            quantizer changes its codebook. With several workers that step together their buffers
            are combined after each backward, as `across` says: `mean`, weighed by samples; or
            `sum`, where what each worker adds is added up.
        across: What the states of these objects are to each other in the workers of a job. `equal`:
            the same in all workers. A checkpoint holds the first worker's, and a warning names what
            differs. `mean`: parts of a mean. A checkpoint holds the mean over the workers of each
            floating-point number, and after a resume all workers go on from that. `worker`: each
            worker's own. A checkpoint holds all of them, and after a resume each worker has its own
            again. Another number of workers is refused. None: as `equal` where they are the same,
            as `worker` where they differ; a note says so.
        **objects: Anything with `state_dict` and `load_state_dict`, by the name it is saved under.

    Raises:
        TypeError: An object has no such methods, or is no module.
        ValueError: `across` is none of these.
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
    session = _join()
    if session is not None:
        session.combine(modules, across or MEAN)
        session.keep(objects, across)


def epochs(count: int) -> Epochs:
    """The epochs from 0 to `count`; after a resume, from the one the checkpoint was taken in.

    Between two of them a checkpoint is saved when one is asked for, or when saving takes less than
    0.5 % of the time.
    """
    return Epochs(count, _join)


def report(
    loss: Any = None, step: int | None = None, *, weight: Any = None, **metrics: Any
) -> None:
    """Report how training goes. A few messages a second are sent, with the mean of the losses
    between them.

    `weight` says what the gradients of several workers are weighed by. It has to come before
    `optimizer.step()`, and best before `backward`. Where it comes after `backward`, gradients are
    exchanged only then.

    Args:
        loss: Loss of the batch: a tensor (still on its device, still with its gradient) or a
            number.
        step: Number of the step; by default the steps of the optimizer are counted.
        weight: What the loss of the batch is a mean over, where that is not its samples: a number,
            or a tensor of one.
        **metrics: Numbers, for example `accuracy=0.97`.
    """
    session = _session if _joined else _join()
    if session is not None:
        session.report(loss, step, metrics, weight)


def mean(value: Any) -> Any:
    """The mean of a number over the workers of the job, by which all of them decide alike.

    All workers have to call this.

    Args:
        value: A number, or a tensor of one element.

    Returns:
        The mean, of the same type (of a whole number, a float). Alone, and under plain `python`:
        the value.

    Raises:
        headgate.task.WorkersDiffer: Other workers are elsewhere in the script.
        RuntimeError: It is called in a pass over training data of a plan whose workers do not wait
            for each other.
    """
    session = _join()
    return value if session is None else session.mean(value)


def agree(flag: Any) -> Any:
    """One decision for all workers of the job: true where it is true in any of them.

    All workers have to call this. `not agree(not flag)` is true where it is true in all of them.

    Args:
        flag: What this worker would decide.

    Returns:
        The decision. Alone, and under plain `python`: the flag.

    Raises:
        headgate.task.WorkersDiffer: Other workers are elsewhere in the script.
        RuntimeError: It is called in a pass over training data of a plan whose workers do not wait
            for each other.
    """
    session = _join()
    return flag if session is None else session.agree(flag)


def rank() -> int:
    """This worker's number in its job, from 0; 0 alone, and under plain `python`."""
    session = _join()
    return 0 if session is None else session.rank


def is_main() -> bool:
    """Whether this worker writes files for all: true in one worker of a job; alone, and under plain
    `python`.
    """
    session = _join()
    return session is None or session.is_main


def _on_servers() -> bool:
    """Whether this process is a worker of a plan with parameter servers."""
    session = _join()
    return session is not None and session.on_servers


def _table_for(kind: str, layer: dict[str, Any]) -> Any:
    from headgate.torch.ps.tables.lazy_tensor import (
        table_for,  # needs pyzmq, which other plans do without
    )

    return table_for(kind, layer)


def _join() -> Session | None:
    """The session with the engine that started this process; None under plain `python`."""
    global _joined, _session
    if not _joined:
        environment = TaskEnvironment.claim()
        if environment.channel is not None:
            _session = _opened(environment)
        _joined = True
    return _session


def _opened(environment: TaskEnvironment) -> Session:
    channel = Channel.open(environment, "torch", torch.__version__, torch.initial_seed())
    if recorder() is not None:
        from headgate.torch.recording import steps
        from headgate.torch.recording_session import RecordingSession

        if (recording := steps()) is not None:
            return RecordingSession(environment, channel, recording)
    from headgate.torch.session import Session

    return Session(environment, channel)


if TaskEnvironment.read().channel is not None:
    file_writes.watch()
    checkpoints.watch_saving()
    sparse_layers.watch(_on_servers, _table_for)
