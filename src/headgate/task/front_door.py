"""The calls that `headgate.torch`, `headgate.keras` and `headgate.jax` have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headgate.task.environment import TaskEnvironment
from headgate.task.epochs import Epochs

if TYPE_CHECKING:
    from headgate.task.session import TaskSession

S = TypeVar("S", bound="TaskSession")


class FrontDoor(Generic[S]):
    """Answers a script's calls through its session with the engine, or locally under plain
    `python`.

    Args:
        opened: Opens the session of a framework.
        check: Called with the name of a call before it joins; may raise.

    Attributes:
        session: The session with the engine; None before the first call, and under plain `python`.
        is_joined: Whether a call has come.
    """

    def __init__(
        self,
        opened: Callable[[TaskEnvironment], S],
        check: Callable[[str], None] = lambda call: None,
    ) -> None:
        self._opened = opened
        self._check = check
        self.session: S | None = None
        self.is_joined = False

    def join(self, opened: Callable[[TaskEnvironment], S] | None = None) -> S | None:
        """Join the engine that started this process, once. Returns the session; None under plain
        `python`.

        Args:
            opened: Opens the session in place of the usual way.
        """
        if not self.is_joined:
            environment = TaskEnvironment.claim()
            if environment.channel is not None:
                self.session = (opened or self._opened)(environment)
            self.is_joined = True
        return self.session

    def session_of(self, call: str) -> S | None:
        """The session for a call of the script; None under plain `python`."""
        self._check(call)
        return self.join()

    def epochs(self, count: int) -> Epochs:
        """Iterate over `count` epochs, from 0. After a resume, begin at the checkpoint's epoch.

        Between two epochs Headgate saves a checkpoint if one was requested, or if saving takes less
        than 0.5 % of the time.
        """
        return Epochs(count, lambda: self.session_of("epochs"))

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
        session = self.session_of("mean")
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
        session = self.session_of("agree")
        return flag if session is None else session.agree(flag)

    def rank(self) -> int:
        """This worker's number in its job, from 0. It is 0 in a job of one worker and under plain
        `python`. Call `strategy()` of Keras, or `init()` of JAX, first.
        """
        session = self.session_of("rank")
        return 0 if session is None else session.rank

    def is_main(self) -> bool:
        """Whether this worker writes files for all. It is true in exactly one worker of a job, and
        under plain `python`.
        """
        session = self.session_of("is_main")
        return session is None or session.is_main
