"""Five calls in a JAX script: `init`, `prepare`, `epochs`, `batches` or `shard`, `report`.

Under an engine they report progress, save and resume. With several workers they join these into one
JAX program, and divide batches between all devices. Under plain `python` they pass everything
through.

    import headgate.jax as hg

    hg.init()                                              # before anything of JAX
    params, opt_state = hg.prepare(params, opt_state)
    for epoch in hg.epochs(5):
        for batch in hg.batches(shuffled(epoch)):
            params, opt_state, loss = step(params, opt_state, batch)
            hg.report(loss=loss, state=(params, opt_state))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from headgate.task import Channel, Stop, TaskEnvironment
from headgate.task.file_writes import file_writes
from headgate.task.front_door import FrontDoor

if TYPE_CHECKING:
    from headgate.jax.session import Session

__all__ = [
    "Stop",
    "agree",
    "batches",
    "epochs",
    "init",
    "is_main",
    "mean",
    "prepare",
    "rank",
    "report",
    "shard",
]


def _opened(environment: TaskEnvironment) -> Session:
    import jax

    from headgate.jax.session import Session

    return Session(environment, Channel.open(environment, "jax", jax.__version__, None))


def _check_begun(call: str) -> None:
    """
    Raises:
        RuntimeError: There is an engine, and `init` was not called.
    """
    if not _door.is_joined and TaskEnvironment.read().channel is not None:
        raise RuntimeError(
            f"headgate.jax.{call}() before headgate.jax.init(); call init() before the "
            "script uses JAX"
        )


_door = FrontDoor(_opened, _check_begun)
epochs, mean, agree = _door.epochs, _door.mean, _door.agree
rank, is_main = _door.rank, _door.is_main


def init() -> None:
    """Join the other workers of the job, and set XLA's threads. Call it before anything computes.

    Raises:
        headgate.jax.joining.JoinError: JAX has already made its devices, or cannot run the job's
            plan. Or the script joins its processes itself, or a worker did not start in time.
        headgate.jax.checkpoints.ResumeError: The checkpoint to resume from cannot be read.
    """
    _door.join()


def prepare(*parts: Any) -> Any:
    """Register what the script trains; resume from a checkpoint where the engine says so.

    Args:
        *parts: Pytrees (parameters, optimizer state, random keys, a train state), or Flax NNX
            objects, which change in place. The part with the parameters comes first.

    Returns:
        The same parts, with the values to train from: one alone, several as a tuple. Their arrays
        are on all devices.

    Raises:
        TypeError: Nothing was given.
        headgate.jax.checkpoints.ResumeError: The checkpoint to resume from does not fit.
    """
    if not parts:
        raise TypeError("prepare(): expected what is trained, such as prepare(params, opt_state)")
    session = _door.session_of("prepare")
    prepared = parts if session is None else session.prepare(parts)
    return prepared[0] if len(parts) == 1 else prepared


def shard(batch: Any) -> Any:
    """Divide a global batch between the devices of all workers. Every worker passes the same batch.

    Args:
        batch: A pytree of arrays of shape (samples, ...).

    Returns:
        The batch as global `jax.Array`s of the same shapes. On one device, the batch itself.

    Raises:
        headgate.jax.placing.DataError: The workers draw different batches.
    """
    session = _door.session_of("shard")
    return batch if session is None else session.shard(batch)


class batches:  # noqa: N801 - used like a function
    """Iterate over batches, each divided as by `shard`. A resumed epoch begins at the checkpoint's
    batch.

    Args:
        iterable: The batches. A resumed epoch has to yield the same ones.
    """

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        session = _door.session_of("batches")
        return iter(self._iterable) if session is None else session.batches(self._iterable)

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]


def report(loss: Any = None, step: int | None = None, *, state: Any = None, **metrics: Any) -> None:
    """Report how training goes, after each step. Headgate sends a few messages a second, each with
    the mean loss since the last one.

    Args:
        loss: Loss of the batch, as the step returned it: a scalar. Headgate does not wait for it.
        step: Number of the step. By default Headgate counts the reports with a loss or a state. A
            script that reports every tenth step has to give it.
        state: What `prepare` returned, as the step left it, with the same tree structure. Not
            needed for Flax NNX objects.
        **metrics: Numbers, for example `accuracy=right / total`.
    """
    session = _door.session_of("report")
    if session is not None:
        session.report(loss, step, metrics, state)


if TaskEnvironment.read().channel is not None:
    file_writes.watch()
