"""The calls that `headgate.torch`, `headgate.keras` and `headgate.jax` have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headgate.task.epochs import Epochs

if TYPE_CHECKING:
    from headgate.task.session import TaskSession


class FrontDoor:
    """Answers a script's calls through its session with the engine, or locally under plain
    `python`.

    Args:
        session: Returns the session, after joining the engine if necessary; None without an engine.
            It gets the name of the call, for its errors.
    """

    def __init__(self, session: Callable[[str], TaskSession | None]) -> None:
        self._session = session

    def epochs(self, count: int) -> Epochs:
        """Iterate over `count` epochs, from 0. After a resume, begin at the checkpoint's epoch.

        Between two epochs Headgate saves a checkpoint if one was requested, or if saving takes less
        than 0.5 % of the time.
        """
        return Epochs(count, lambda: self._session("epochs"))

    def mean(self, value: Any) -> Any:
        """Average a number over the workers of the job, so that all of them decide alike.

        All workers have to call this.

        Args:
            value: A number, or a tensor or array of one element. Values that are the same in all
                workers need no mean, for example the logs of Keras' `fit` or the results of a JAX
                step.

        Returns:
            The mean, as a tensor or an array if `value` is one. In a job of one worker, where one
            worker coordinates the others, and under plain `python`, the value itself.

        Raises:
            headgate.task.WorkersDiffer: Other workers are at another place in the script.
            RuntimeError: In PyTorch, within a pass over training data, if the plan's workers do not
                wait for each other.
        """
        session = self._session("mean")
        return value if session is None else session.mean(value)

    def agree(self, flag: Any) -> Any:
        """Take one decision for all workers of the job: true if the flag is true in any of them.

        All workers have to call this. `not agree(not flag)` is true if the flag is true in all of
        them.

        Args:
            flag: This worker's decision.

        Returns:
            The decision. In a job of one worker, where one worker coordinates the others, and
            under plain `python`, the flag itself.

        Raises:
            headgate.task.WorkersDiffer: Other workers are at another place in the script.
            RuntimeError: As of `mean`.
        """
        session = self._session("agree")
        return flag if session is None else session.agree(flag)

    def rank(self) -> int:
        """This worker's number in its job, from 0. It is 0 in a job of one worker and under plain
        `python`. Call `strategy()` of Keras, or `init()` of JAX, first.
        """
        session = self._session("rank")
        return 0 if session is None else session.rank

    def is_main(self) -> bool:
        """Whether this worker writes files for all. It is true in exactly one worker of a job, and
        under plain `python`.
        """
        session = self._session("is_main")
        return session is None or session.is_main
