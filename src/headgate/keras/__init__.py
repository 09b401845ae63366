"""Two calls around `fit` of a Keras model, over each back end of Keras 3 and over `tf_keras`.

Under an engine they report progress, save and resume. Under plain `python` they pass everything
through.

    import headgate.keras as hg

    model = hg.prepare(model)
    model.fit(data, epochs=5, callbacks=[hg.callback()])

A loop of the script's own, of TensorFlow without Keras' `fit`, uses `epochs` and `report`:

    model, optimizer = hg.prepare(model, optimizer)
    for epoch in hg.epochs(5):
        for batch in data:
            hg.report(loss=step(batch))
"""

from __future__ import annotations

import importlib
import inspect
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from headgate.keras import environment
from headgate.task import Channel, Stop, TaskEnvironment
from headgate.task.file_writes import file_writes
from headgate.task.front_door import FrontDoor

if TYPE_CHECKING:
    from headgate.keras.session import Session

__all__ = [
    "Stop",
    "agree",
    "callback",
    "epochs",
    "is_main",
    "mean",
    "prepare",
    "rank",
    "report",
    "strategy",
]

_strategy: Any = None


def _opened(task: TaskEnvironment, together: bool = False) -> Session:
    """Open the session. `together`: the script is ready to join the other tasks of its job."""
    from headgate.keras.session import Session

    channel = Channel.open(task, "keras", environment.version(), environment.seed())
    return Session(task, channel, together)


_door = FrontDoor(_opened)
epochs, mean, agree = _door.epochs, _door.mean, _door.agree
rank, is_main = _door.rank, _door.is_main


def strategy() -> Any:
    """Join the other tasks of this job, and return the strategy of its plan. Call it before
    anything is computed.

    With parameter servers, all workers but worker 0 only serve. In these the call does not return:
    the process ends with the job.

    Returns:
        Over TensorFlow, a `tf.distribute.Strategy`: its default one, `MultiWorkerMirroredStrategy`
        (all-reduce), or `ParameterServerStrategy`, with `TF_CONFIG` set. Over JAX,
        `keras.distribution.DataParallel`, already in force. Make models under its `scope()`.

    Raises:
        headgate.keras.cluster.PlanError: The plan cannot be run with this back end.
        headgate.task.ClusterError: The script's environment describes a cluster itself.
    """
    from headgate.keras import strategies

    global _strategy
    if _strategy is None:
        session = _door.join(partial(_opened, together=True))
        _strategy = session.strategy if session is not None else None
    if _strategy is None:
        _strategy = strategies.alone()
    return _strategy


def prepare(model: Any, optimizer: Any = None) -> Any:
    """Register what the script trains; resume from a checkpoint where the engine says so.

    Args:
        model: A Keras model, compiled and built or not. Headgate follows its `fit` from now on. A
            loop of the script's own may give anything with `variables`, such as a `tf.Module`.
        optimizer: The optimizer that such a loop steps; a compiled model has its own.

    Returns:
        The same objects: `model` alone if nothing else was given, otherwise `(model, optimizer)`.

    Raises:
        TypeError: The model has no variables.
        headgate.keras.checkpoints.ResumeError: The checkpoint to resume from does not fit.
    """
    # checked statically, because reading them may require the model to be built
    if inspect.getattr_static(model, "variables", None) is None:
        raise TypeError(
            f"prepare(model): found a {type(model).__name__}; expected a Keras model or a tf.Module"
        )
    if optimizer is not None and inspect.getattr_static(optimizer, "variables", None) is None:
        raise TypeError(
            f"prepare(model, optimizer): found a {type(optimizer).__name__}; expected a "
            "Keras optimizer"
        )
    session = _door.join()
    if session is not None:
        index, is_new = session.prepare(model, optimizer)
        if is_new and callable(getattr(model, "fit", None)):
            from headgate.keras.fitting import watch

            watch(model, session, index, optimizer)
    return model if optimizer is None else (model, optimizer)


def callback() -> Any:
    """A callback for the `fit` of a prepared model. Headgate does its work after all other
    callbacks, so that what they change at the end of an epoch is part of its checkpoint.
    """
    from headgate.keras.fitting import callback_of

    for name in ("tf_keras", "keras"):
        if name in sys.modules and (name == "keras" or environment.legacy()):
            return callback_of(sys.modules[name])
    return callback_of(importlib.import_module("keras"))


def report(loss: Any = None, step: int | None = None, **metrics: Any) -> None:
    """Report how training goes. Headgate sends a few messages a second, each with the mean loss
    since the last one.

    Args:
        loss: Loss of the batch, a tensor or a number. It counts one step of a loop of the script's
            own. None: report only metrics.
        step: Number of the step. By default Headgate counts the reports with a loss. A script that
            reports every tenth step has to give it.
        **metrics: Numbers, for example `accuracy=0.97`.
    """
    session = _door.join()
    if session is not None:
        session.report(loss, step, metrics)


if TaskEnvironment.read().channel is not None:
    file_writes.watch()
