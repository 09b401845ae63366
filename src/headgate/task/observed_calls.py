"""Observes an unchanged script whose steps are compiled: of Keras' `fit`, of TensorFlow, or of JAX.

A call of a compiled program is a step if an optimizer was called while the program was traced.
"""

from __future__ import annotations

import functools
import os
import sys
from importlib import import_module
from threading import get_ident
from typing import TYPE_CHECKING, Any, Callable

from headgate.task import observing
from headgate.task.environment import TaskEnvironment
from headgate.task.observed_steps import Marks, ObservedSteps
from headgate.task.script_saves import saves

if TYPE_CHECKING:
    from headgate.task.call_session import CallBackend


class CompiledProgram:
    """A compiled program.

    Args:
        backend: Computes it.

    Attributes:
        trains: Whether an optimizer was called while it was traced.
        loops: Whether that was in a loop of the program, so that its number of steps is unknown.
    """

    def __init__(self, backend: CallBackend) -> None:
        self.backend = backend
        self.trains = False
        self.loops = False


class CallObserver:
    """Watches the compiled calls of one process, until its first own error.

    Args:
        environment: This task's identity.

    Attributes:
        fits: Whether a `fit` runs, which tells its steps itself.
        backend: Computed the latest step.
        outputs: What the step that has just ended returned; None between two steps.
    """

    def __init__(self, environment: TaskEnvironment) -> None:
        self._environment = environment
        self._thread = 0  # that trains; 0: not known yet
        self._running: list[CompiledProgram] = []
        self._applies = False
        self.is_on = True
        self.fits = False
        self.steps = ObservedSteps(self._stepped)
        self.session: Any = None  # of `headgate.task.call_session`
        self.backend: Any = None
        self._first: int | None = None
        self.outputs: Any = None
        os.register_at_fork(after_in_child=self._forked)

    # --- what hooks see ---------------------------------------------------------------------------

    def watches(self) -> bool:
        """Whether this thread trains, as far as known, outside of a `fit`."""
        return self.is_on and not self.fits and self._is_mine()

    def _is_mine(self) -> bool:
        return self._thread in (0, get_ident())

    def run(
        self, program: CompiledProgram, call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Call a compiled program."""
        if not self.watches():
            return call(*args, **kwargs)
        running = self._running
        is_outermost = not running and not program.backend.is_traced()
        if is_outermost and program.trains and not program.loops:
            self.attempt(self.steps.computes)
        running.append(program)
        try:
            outputs = call(*args, **kwargs)
        finally:
            running.pop()
            if program.trains:  # it may have been traced before
                for outer in running:
                    outer.trains, outer.loops = True, outer.loops or program.loops
        if is_outermost and program.trains and not program.loops:
            self.attempt(self.ended, program.backend, program, outputs)
        return outputs

    def updates(self, backend: CallBackend) -> bool:
        """An optimizer is called. Returns whether that is a step by itself."""
        is_traced = backend.is_traced()
        loops = is_traced and backend.loops()
        for program in self._running if is_traced or self._is_mine() else ():
            program.trains, program.loops = True, program.loops or loops
        return not self._running and not is_traced and self._is_mine()

    def ended(
        self,
        backend: CallBackend,
        program: Any,
        outputs: Any,
        steps: int = 1,
        are_whole: bool = True,
    ) -> None:
        """A step has ended. Arguments as of `ObservedSteps.call_ended`."""
        self.backend = backend
        if self.session is None and not self._open():
            return
        self.outputs = outputs
        try:
            self.steps.call_ended(program, steps, are_whole)
        finally:
            self.outputs = None

    def attempt(self, call: Callable[..., object], *args: Any) -> None:
        """Call what may fail."""
        if self.is_on:
            try:
                call(*args)
            except Exception as error:  # noqa: BLE001 - the script goes on, whatever happens
                self.fail(error)

    # --- hooks that frameworks have in common -----------------------------------------------------

    def around_next(self, following: Any, source: Callable[[Any], Any]) -> Any:
        """`__next__` of an iterator over batches. `source` gives what it reads."""

        @functools.wraps(following)
        def watched(iterator: Any) -> Any:
            if self._running or not self.watches():
                return following(iterator)
            self.attempt(self.steps.fetching)
            try:
                batch = following(iterator)
            except StopIteration:
                self.attempt(self.steps.exhausted)
                raise
            self.attempt(lambda: self.steps.fetched(source(iterator), size_of(batch), True))
            return batch

        return watched

    def around_evaluation(self, evaluate: Any) -> Any:
        """A method that evaluates a model."""

        @functools.wraps(evaluate)
        def watched(model: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_mine():
                return evaluate(model, *args, **kwargs)
            fits, self.fits = self.fits, True
            self.attempt(self.steps.evaluates, True)
            try:
                return evaluate(model, *args, **kwargs)
            finally:
                self.attempt(self.steps.evaluates, False)
                self.fits = fits

        return watched

    def around_update(self, apply: Any, backend: CallBackend) -> Any:
        """A method of optimizers that updates variables."""

        @functools.wraps(apply)
        def watched(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._applies or not self.is_on or self.fits:
                return apply(optimizer, *args, **kwargs)
            ends = False
            self._applies = True
            try:
                ends = self.updates(backend)
            except Exception as error:  # noqa: BLE001
                self.fail(error)
            try:
                result = apply(optimizer, *args, **kwargs)
            finally:
                self._applies = False
            if ends:
                self.attempt(self.ended, backend, optimizer, result)
            return result

        vars(watched)["autograph_info__"] = {}  # which TensorFlow does not convert
        return watched

    # --- the session ------------------------------------------------------------------------------

    def _open(self) -> bool:
        """Connect. Returns whether this process goes on observing."""
        other = observing.observer
        environment = TaskEnvironment.claim()
        if environment.channel is None or (other is not None and other.session is not None):
            self.off()
            return False
        if other is not None:
            other.hand_over(self.around_next)
        self._thread = get_ident()
        names = ("keras", "tf_keras") if self.backend.name == "tensorflow" else ("jax",)
        framework = next(name for name in (*names, "tensorflow") if name in sys.modules)
        self.session = import_module("headgate.task.call_session").opened(
            environment, framework, self
        )
        saves.session = self.session
        return True

    def first_samples(self) -> int | None:
        """Samples of the first step: they are known as of any other."""
        return self._first

    def _stepped(self, steps: int, marks: Marks) -> None:
        self._first = marks.samples
        if saves.pending is not None:
            saves.goes_on()
        if self.session is not None:
            self.session.stepped(steps, marks)

    def _forked(self) -> None:
        """In a forked child, leave a connection to the parent."""
        self._thread, self._running = 0, []
        if self.session is not None:
            self.off()

    def off(self) -> None:
        """Observe no more. The hooks stay, and do nothing."""
        self.is_on = False

    def fail(self, error: Exception) -> None:
        """Observe no more, and warn once."""
        self.off()
        try:
            text = f"its steps are no longer observed: {error!r}"
            observing.warn(self._environment, self.session, text)
        except Exception:  # noqa: BLE001 - the script goes on, whatever happens
            return


def size_of(batch: Any) -> int | None:
    """Samples of a batch; None: unknown."""
    while isinstance(batch, (list, tuple, dict)) and batch:
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    shape = getattr(batch, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) and shape[0] else None


calls: CallObserver | None = None
"""The observer of this process."""


def observer() -> CallObserver:
    """The observer of this process, made if there is none."""
    global calls
    if calls is None:
        calls = CallObserver(TaskEnvironment.read())
    return calls
