"""Observes an unchanged PyTorch script, which calls none of Headgate's libraries.

Once the script has imported PyTorch, its loaders, backward passes and optimizers are watched. With
the first step of an optimizer the process connects to its engine, as the script's own calls would.
A process that takes no such step, as a loader's worker or a launcher, never connects.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from importlib import import_module
from threading import get_ident
from typing import Any, Callable

from headgate.task.environment import TaskEnvironment
from headgate.task.observed_loads import Loads
from headgate.task.observed_steps import Marks, ObservedSteps
from headgate.task.script_saves import saves
from headgate.task.thread_pools import MKL, OPENMP, first_threads

VARIABLE = "HEADGATE_OBSERVE"
"""The variable that tells how a task is observed: some of the words below, separated by commas."""
STEPS = "steps"
"""The steps of the task are reported while it runs, and it is held to its grant."""
PROFILE = "profile"
"""Its first steps are measured for a profile."""
_FLUSH_SECONDS = 2.0
_HOOKS = {
    "jax": ("jax_hooks", "watch_jax"),
    "optax": ("jax_hooks", "watch_optax"),
    "tensorflow": ("keras_hooks", "watch_tensorflow"),
    "keras": ("keras_hooks", "watch_keras"),
    "tf_keras": ("keras_hooks", "watch_keras"),
}
"""The module and the function that hook each framework but PyTorch."""
_OPTIMIZER, _LOADER = "torch.optim.optimizer", "torch.utils.data.dataloader"


class ScriptObserver:
    """Watches one process, until its first own error.

    Args:
        torch: The module.
        words: How the task is observed.
        environment: This task's identity.
    """

    def __init__(self, torch: Any, words: frozenset[str], environment: TaskEnvironment) -> None:
        self._torch = torch
        self._words = words
        self._environment = environment
        self._is_compiling: Callable[[], bool] = getattr(
            getattr(torch, "compiler", None), "is_compiling", bool
        )
        self._has_gradients: Callable[[], bool] = torch.is_grad_enabled
        self._thread = 0  # that trains; 0: not known yet
        self.session: Any = None  # an ObservedSession of headgate.torch
        self._profile: Any = None
        self._loads = Loads()
        self._loading = False  # a dataset may read another loader
        self._following: Callable[[Any], Any] = lambda iterator: iterator  # reads unobserved
        self._size: Callable[[Any], int | None] | None = None
        self._batch: Any = None  # the latest, until its size can be told
        self.is_on = True
        self.steps = ObservedSteps(self._stepped)
        self._unscaled: Any = None  # a loss that a gradient scaler has multiplied
        self.wants_loss = False
        """Whether the session reads what the next backward pass begins at."""
        self.loader_workers: int | None = None
        self._replicates = False
        """Whether backward passes wait for the gradients of other workers."""
        self.sets_threads = first_threads(OPENMP, MKL) is not None
        """Whether the script has left its threads to Headgate."""
        self.set_threads: Callable[[int], None] = torch.set_num_threads
        os.register_at_fork(after_in_child=self._forked)

    # --- hooks ------------------------------------------------------------------------------------

    def watch(self, after_import: Callable[[Any], Any]) -> None:
        """Hook PyTorch. `after_import` as of `watch` below."""
        optimizers: Any = sys.modules[_OPTIMIZER]
        optimizers.register_optimizer_step_pre_hook(self._optimizer_begins)
        optimizers.register_optimizer_step_post_hook(self._optimizer_ended)
        autograd, module = self._torch.autograd, self._torch.nn.Module
        autograd.backward = self._around_backward(autograd.backward)
        module.eval = self._before_eval(module.eval)
        replicas = self._torch.nn.parallel.DistributedDataParallel
        replicas.__init__ = self._before_replicas(replicas.__init__)
        exchange = getattr(self._torch.distributed, "Work", None)
        if exchange is not None:  # else this PyTorch has no exchanges
            exchange.wait = self._around_wait(exchange.wait)
        if self.sets_threads:
            self._torch.set_num_threads = self._before_threads(self.set_threads)
        if _LOADER in sys.modules:
            self.watch_loaders(sys.modules[_LOADER])
        else:
            sys.meta_path.insert(0, after_import({_LOADER: self.watch_loaders}))
        scaler = getattr(sys.modules.get("torch.amp.grad_scaler"), "GradScaler", None)
        if scaler is not None:
            scaler.scale = self._before_scale(scaler.scale)

    def _optimizer_begins(self, optimizer: Any, *_: object) -> None:
        if not self.is_on or self._is_compiling():
            return
        if not self._thread:
            self._thread = get_ident()
        if self._thread == get_ident():
            try:
                self.steps.optimizer_begins()
            except Exception as error:  # noqa: BLE001
                self.fail(error)

    def _optimizer_ended(self, optimizer: Any, *_: object) -> None:
        if not self.is_on or self._is_compiling() or self._thread != get_ident():
            return
        try:
            if self.session is None and self._profile is None and not self._open():
                return
            if self._profile is not None:
                self._profile.stepped(optimizer)
            if self.session is not None:
                self.session.optimizer_ended(optimizer)
            self.steps.optimizer_ended(optimizer)
        except Exception as error:  # noqa: BLE001
            self.fail(error)

    def around_update(self, apply: Any) -> Any:
        """A method of optimizers that PyTorch does not know, which updates parameters."""
        applies = False

        @functools.wraps(apply)
        def watched(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal applies
            if applies or not self.is_on or self._is_compiling():
                return apply(optimizer, *args, **kwargs)
            applies = True
            try:
                self._optimizer_begins(optimizer)
                result = apply(optimizer, *args, **kwargs)
            finally:
                applies = False
            self._optimizer_ended(optimizer)
            return result

        return watched

    def _around_backward(self, backward: Any) -> Any:
        @functools.wraps(backward)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if not self.is_on or self._is_compiling() or not self._is_mine():
                return backward(*args, **kwargs)
            try:
                self.steps.backward_begins()
                unscaled, self._unscaled = self._unscaled, None
                if self.wants_loss and self.session is not None and args:
                    self.session.saw_loss(args[0] if unscaled is None else unscaled)
                handle = self._before_others(*args) if self._replicates else None
            except Exception as error:  # noqa: BLE001
                self.fail(error)
                return backward(*args, **kwargs)
            try:
                return backward(*args, **kwargs)
            finally:
                if handle is not None:
                    handle.remove()
                self.attempt(self.steps.backward_ends)

        return watched

    def _before_replicas(self, initialize: Any) -> Any:
        @functools.wraps(initialize)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._replicates = True
            return initialize(*args, **kwargs)

        return watched

    def _before_others(self, losses: Any = None, *_: object) -> Any:
        """Have the backward pass of these losses tell when it has computed all gradients. Its
        replicas are waited for by a callback that it queues later. Returns the handle of a hook.
        """
        loss = losses[0] if isinstance(losses, (list, tuple)) and losses else losses
        compiled = sys.modules.get("torch._dynamo.compiled_autograd")
        if not getattr(loss, "requires_grad", False) or getattr(
            compiled, "compiled_autograd_enabled", False
        ):
            return None
        queue = self._torch.autograd.Variable._execution_engine.queue_callback
        computed = functools.partial(self.attempt, self.steps.gradients_computed)

        def begins(gradient: Any) -> None:
            self.attempt(queue, computed)

        return loss.register_hook(begins)

    def _around_wait(self, waits: Any) -> Any:
        """What every exchange between workers is waited for by, but those of a replica."""

        # pybind11 knows by this name that a method of a subclass calls that of its base
        @functools.wraps(waits)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._may_mark_wait():
                return waits(work, *args, **kwargs)
            self.attempt(self.steps.breaks_off)
            try:
                return waits(work, *args, **kwargs)
            finally:
                self.attempt(self.steps.exchanged)

        return wait

    def _may_mark_wait(self) -> bool:
        steps = self.steps
        is_mine = self._is_mine() or steps.is_in_backward
        if not self.is_on or not is_mine or not steps.tells_apart() or self._is_compiling():
            return False
        # moments on another stream than that of the step are in no order with its own
        cuda = self._torch.cuda
        return steps.moment is None or cuda.current_stream() == cuda.default_stream()

    def marks_copies(self) -> bool:
        """Whether a copy to a GPU would be marked now: not one that a loader makes."""
        try:
            return not self._loading and self._is_mine() and self._may_mark_wait()
        except Exception as error:  # noqa: BLE001
            self.fail(error)
            return False

    def _before_scale(self, scale: Any) -> Any:
        @functools.wraps(scale)
        def watched(scaler: Any, outputs: Any) -> Any:
            if self.is_on and not self._is_compiling():
                self._unscaled = outputs
            return scale(scaler, outputs)

        return watched

    def _before_eval(self, evaluate: Any) -> Any:
        kind: Any = self._torch.nn.Module

        @functools.wraps(evaluate)
        def watched(module: Any) -> Any:
            if self.is_on and not self._is_compiling() and self._is_mine():
                self.attempt(self.steps.evaluates, True)
                train = kind.train
                if not hasattr(train, "_headgate_train"):
                    kind.train = self._before_train(train)
            return evaluate(module)

        return watched

    def _before_train(self, train: Any) -> Any:
        """Watch for the end of an evaluation. Without one, `train` is as it was: it is called for
        each part of a model.
        """
        kind: Any = self._torch.nn.Module

        @functools.wraps(train)
        def watched(module: Any, mode: bool = True) -> Any:
            if mode and not self._is_compiling():
                if kind.train is watched:
                    kind.train = train
                if self._is_mine():
                    self.attempt(self.steps.evaluates, False)
            return train(module, mode)

        watched._headgate_train = True  # type: ignore[attr-defined]
        return watched

    def _before_threads(self, set_threads: Any) -> Any:
        @functools.wraps(set_threads)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.sets_threads = False
            return set_threads(*args, **kwargs)

        return watched

    def watch_loaders(self, module: Any) -> None:
        """Watch the batches of loaders. Their module has just been imported."""
        kind: Any = module._BaseDataLoaderIter
        following = kind.__next__

        @functools.wraps(following)
        def watched(iterator: Any) -> Any:
            if not self.is_on or self._loading or not self._is_mine():
                return self._following(iterator)
            return self._fetch(iterator, following)

        self._following = following
        kind.__next__ = watched

    def _fetch(self, iterator: Any, following: Callable[[Any], Any]) -> Any:
        began = 0.0
        self._loading = True
        try:
            try:
                self.steps.fetching()
                if self._loads.measure is not None:
                    began = time.perf_counter()
            except Exception as error:  # noqa: BLE001
                self.fail(error)
            batch = following(iterator)
        except StopIteration:
            self.attempt(self.steps.exhausted)
            raise
        finally:
            self._loading = False
        try:
            if self._loads.measure is not None:
                self._loads.add(iterator, batch, time.perf_counter() - began)
            if self._size is None:
                self._batch, size = batch, None
            else:
                size = self._size(batch)
            self.loader_workers = iterator._num_workers
            self.steps.fetched(iterator._index_sampler, size, self._has_gradients())
        except Exception as error:  # noqa: BLE001
            self.fail(error)
        return batch

    def attempt(self, call: Callable[..., object], *args: object) -> None:
        """Call what may fail."""
        try:
            call(*args)
        except Exception as error:  # noqa: BLE001
            self.fail(error)

    def _is_mine(self) -> bool:
        """Whether this thread trains, as far as known."""
        return self._thread in (0, get_ident())

    # --- the session ------------------------------------------------------------------------------

    def _open(self) -> bool:
        """Connect. Returns whether this process goes on observing."""
        if f"headgate.{self._torch.__name__}" in sys.modules:  # the script tells all by itself
            self.off()
            return False
        if STEPS in self._words:
            environment = TaskEnvironment.claim()  # before the library reads it
            if environment.channel is None:
                self.off()
                return False
            self.session = self._library("observed_session").opened(environment, self)
            saves.follow(self.session)
        self._size = self._library("batches").size
        if PROFILE in self._words:
            self._profile = self._library("observer").StepObserver(
                self._environment, self._loads, self.session
            )
        return True

    def _library(self, name: str) -> Any:
        return import_module(f"headgate.{self._torch.__name__}.{name}")

    def first_samples(self) -> int | None:
        """Samples of the latest batch of the first step."""
        batch, self._batch = self._batch, None
        return None if batch is None or self._size is None else self._size(batch)

    def _stepped(self, steps: int, marks: Marks) -> None:
        self._unscaled = None
        if saves.pending is not None:
            saves.goes_on()
        if self.session is not None:
            self.session.stepped(steps, marks)

    def _forked(self) -> None:
        """In a forked child, leave a connection to the parent."""
        self._loading, self._thread = False, 0
        if self.session is not None or self._profile is not None:
            self.off()

    def hand_over(self, around_next: Callable[..., Any]) -> None:
        """Leave this process to the observer of another framework, which the loaders may feed."""
        self.off()
        self._following = around_next(self._following, lambda iterator: iterator._index_sampler)

    def off(self) -> None:
        """Observe no more. The hooks stay, and do nothing: others may be at work in their lists."""
        self.is_on = False
        self._loads.close()
        self._unscaled = self._batch = None

    def fail(self, error: Exception) -> None:
        """Observe no more, and warn once."""
        self.off()
        try:
            warn(self._environment, self.session, f"its steps are no longer observed: {error!r}")
        except Exception:  # noqa: BLE001 - the script goes on, whatever happens
            return


def warn(environment: TaskEnvironment, session: Any, text: str) -> None:
    """Send the user a warning, over the session's channel if there is one."""
    message = {"type": "note", "warns": True, "text": text}
    if session is not None:
        session.warn(message)
        return
    from headgate.task.channel import Channel

    channel = Channel.open(environment, "torch", "", None, observes=True)
    channel.send(message)
    channel.flush(_FLUSH_SECONDS)
    channel.close()


_environment: TaskEnvironment | None = None  # as it was when the first framework was imported
observer: ScriptObserver | None = None
"""The observer of this process."""


def watch(module: Any, after_import: Callable[[Any], Any]) -> None:
    """Observe this process from now on. A framework has just been imported. `after_import` is
    `AfterImport` of `headgate.task.sitecustomize`.
    """
    words = frozenset(os.environ.get(VARIABLE, "").split(","))
    global _environment
    environment = _environment = _environment or TaskEnvironment.read()
    if environment.channel is None or not words & {STEPS, PROFILE}:
        return
    name = module.__name__
    try:
        if name == "torch":
            _watch_torch(module, words, environment, after_import)
        elif STEPS in words:
            hooks, function = _HOOKS[name]
            getattr(import_module(f"headgate.task.{hooks}"), function)(module)
    except Exception as error:  # noqa: BLE001 - another version than is known
        calls = sys.modules.get("headgate.task.observed_calls")
        half_hooked = observer if name == "torch" else getattr(calls, "calls", None)
        if half_hooked is not None:
            half_hooked.off()
        warn(environment, None, f"its steps are not observed: {error!r}")


def _watch_torch(
    torch: Any,
    words: frozenset[str],
    environment: TaskEnvironment,
    after_import: Callable[[Any], Any],
) -> None:
    if STEPS not in words:
        del os.environ[VARIABLE]  # a profile is that of the first process
    if not hasattr(sys.modules[_OPTIMIZER], "register_optimizer_step_post_hook"):
        return  # an older PyTorch
    global observer
    observer = ScriptObserver(torch, words, environment)
    observer.watch(after_import)


def record(after_import: Callable[[Any], Any]) -> None:
    """Record this process for `headgate verify`. `after_import` as of `watch`."""
    from headgate.task import recording

    recorder = recording.install(TaskEnvironment.read().task.rpartition("/")[2])
    if recorder is None:
        return

    def begin(framework: Any) -> None:
        name = framework.__name__.removeprefix("tf_")
        import_module(f"headgate.{name}.recording").begin(recorder)

    def seed(numpy: Any) -> None:
        numpy.random.seed(recorder.recipe.seed + recorder.worker)

    begins = dict.fromkeys(("torch", "keras", "tf_keras", "jax"), begin)
    sys.meta_path.insert(0, after_import({**begins, "numpy": seed}))
