"""JAX scripts as jobs: `init`, `prepare`, `epochs`, `batches` or `shard`, `report`.

Under an engine they join the workers of a job into one JAX program, divide batches between all
devices, tell how the training goes, save and resume. Under plain `python` they pass everything
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

from headgate.task import Channel, Epochs, Stop, TaskEnvironment
from headgate.task.file_writes import file_writes

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

_session: Session | None = None
_begun = False


def init() -> None:
    """Join the other workers of the job, and give XLA the threads of this task. Call it before
    anything that computes.

    Raises:
        headgate.jax.joining.JoinError: It comes too late, JAX cannot run the job's plan, the script
            joins its processes itself, or not all workers started in time.
        headgate.jax.checkpoints.ResumeError: The checkpoint to resume from cannot be read.
    """
    global _begun, _session
    if _begun:
        return
    environment = TaskEnvironment.claim()
    if environment.channel is not None:
        import jax

        from headgate.jax.session import Session

        _session = Session(environment, Channel.open(environment, "jax", jax.__version__, None))
    _begun = True


def prepare(*parts: Any) -> Any:
    """Register what the script trains; resume from a checkpoint where the engine says so.

    Args:
        *parts: Pytrees (parameters, optimizer state, random keys, a train state), or Flax NNX
            objects, which change in place. The parameters, or what has them, come first.

    Returns:
        The same parts with the values to train on from: one alone, several as a tuple. With several
        devices their arrays are on all of them.

    Raises:
        TypeError: Nothing was given.
        headgate.jax.checkpoints.ResumeError: The checkpoint does not fit.
    """
    if not parts:
        raise TypeError("prepare(): expected what is trained, such as prepare(params, opt_state)")
    session = _joined("prepare")
    prepared = parts if session is None else session.prepare(parts)
    return prepared[0] if len(parts) == 1 else prepared


def shard(batch: Any) -> Any:
    """Divide a global batch between the devices of all workers. Every worker passes the same batch.

    Args:
        batch: A pytree of arrays, with the samples along their first axis.

    Returns:
        The batch as global arrays; as it is where there is one device.

    Raises:
        headgate.jax.placing.DataError: The workers draw different batches.
    """
    session = _joined("shard")
    return batch if session is None else session.shard(batch)


class batches:  # noqa: N801 - used like a function
    """Goes over batches, and hands out each as `shard` does. A resume goes on at the batch where
    the run stopped.

    Args:
        iterable: Batches. After a resume of the same epoch they have to be the same ones.
    """

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        session = _joined("batches")
        return iter(self._iterable) if session is None else session.batches(self._iterable)

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]


def epochs(count: int) -> Epochs:
    """The epochs from 0 to `count`; after a resume, from the one the checkpoint was taken in.

    Between two of them a checkpoint is saved when one is asked for, or when saving takes less than
    0.5 % of the time.
    """
    return Epochs(count, lambda: _joined("epochs"))


def report(loss: Any = None, step: int | None = None, *, state: Any = None, **metrics: Any) -> None:
    """Report how training goes, after each step. A few messages a second are sent, with the mean of
    the losses since.

    Args:
        loss: Loss of the batch, as the step returned it: Headgate does not wait for it.
        step: Number of the step; by default the reports with a loss or a state are counted. A
            script that reports every tenth step has to give it.
        state: What `prepare` returned, as the step left it, in the same form. Not needed for Flax
            NNX objects.
        **metrics: Numbers, for example `accuracy=right / total`.
    """
    session = _joined("report")
    if session is not None:
        session.report(loss, step, metrics, state)


def mean(value: Any) -> Any:
    """The mean of a number over the workers of the job, by which all of them decide alike.

    All workers have to call this.

    Args:
        value: A number, or an array of one element. What a step computed from a global batch is the
            same in all.

    Returns:
        The mean; of an array, as an array. Alone, and under plain `python`: the value.

    Raises:
        headgate.task.WorkersDiffer: Other workers are elsewhere in the script.
    """
    session = _joined("mean")
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
    """
    session = _joined("agree")
    return flag if session is None else session.agree(flag)


def rank() -> int:
    """This worker's number in its job, from 0; 0 alone, and under plain `python`."""
    session = _joined("rank")
    return 0 if session is None else session.rank


def is_main() -> bool:
    """Whether this worker writes files for all: true in one worker of a job; alone, and under plain
    `python`.
    """
    return rank() == 0


def _joined(what: str) -> Session | None:
    """The session with the engine that started this process; None under plain `python`.

    Raises:
        RuntimeError: There is an engine, and `init` was not called.
    """
    if not _begun and TaskEnvironment.read().channel is not None:
        raise RuntimeError(
            f"headgate.jax.{what}() before headgate.jax.init(); call init() before the "
            "script uses JAX"
        )
    return _session


if TaskEnvironment.read().channel is not None:
    file_writes.watch()
