"""Observes the steps of an unchanged PyTorch script, which calls none of Headgate's libraries.

Each step of an optimizer ends a step of the script: PyTorch calls a hook after it. The batches of a
`DataLoader` give the number of samples and the time spent waiting for them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Callable

from headgate.task import recording
from headgate.task.environment import TaskEnvironment

VARIABLE = "HEADGATE_OBSERVE"
"""The variable that names the module with the `StepObserver` of this task. It is set if the task is
observed.
"""


class Loads:
    """The batches that a process's loaders have yielded since the last `take`.

    Attributes:
        open: Whether batches are noted.
        seconds: Time spent waiting for batches.
        batches: The batches.
        dataset: The dataset of the latest batch; None: unknown.
        here: Whether the training process reads the data itself, without worker processes.
    """

    def __init__(self) -> None:
        self.open = True
        self.here = True
        self.seconds = 0.0
        self.batches: list[Any] = []
        self.dataset: Any = None

    def add(self, loader: Any, batch: Any, seconds: float) -> None:
        self.seconds += seconds
        self.batches.append(batch)
        self.here = not getattr(loader, "_num_workers", 0)
        self.dataset = getattr(loader, "_dataset", None)

    def take(self) -> tuple[float, list[Any]]:
        """Take and forget the seconds and the batches."""
        taken = self.seconds, self.batches
        self.seconds, self.batches = 0.0, []
        return taken


def install() -> None:
    """Observe this process if its task is to be observed. Programs that it starts are not."""
    environment = TaskEnvironment.read()
    if recording.VARIABLE in os.environ:
        _record(environment)
    observer = os.environ.pop(VARIABLE, "")
    if not observer:
        return
    loads = Loads()
    sys.meta_path.insert(
        0,
        AfterImport(
            {
                "torch.optim.optimizer": lambda module: _watch_steps(
                    module, observer, environment, loads
                ),
                "torch.utils.data.dataloader": lambda module: _watch_loaders(module, loads),
            }
        ),
    )


def _record(environment: TaskEnvironment) -> None:
    """Record this process for `headgate verify`."""
    recorder = recording.install(environment.task.rpartition("/")[2])
    if recorder is None:
        return

    def begin(framework: Any) -> None:
        name = framework.__name__.removeprefix("tf_")
        import_module(f"headgate.{name}.recording").begin(recorder)

    def seed(numpy: Any) -> None:
        numpy.random.seed(recorder.recipe.seed + recorder.worker)

    sys.meta_path.insert(
        0,
        AfterImport({**dict.fromkeys(("torch", "keras", "tf_keras", "jax"), begin), "numpy": seed}),
    )


class AfterImport:
    """Calls a function once a module has been imported."""

    def __init__(self, after: dict[str, Callable[[Any], None]]) -> None:
        self._after = after

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: object = None
    ) -> ModuleSpec | None:
        if name not in self._after:
            return None
        spec, after = PathFinder.find_spec(name, path), self._after.pop(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            after(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _watch_steps(module: Any, name: str, environment: TaskEnvironment, loads: Loads) -> None:
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is None:  # an older PyTorch
        return
    observer: Any = None

    def stepped(optimizer: Any, *_: object) -> None:
        nonlocal observer
        if observer is None and "headgate.torch" in sys.modules:  # it tells all by itself
            loads.open = False
            handle.remove()
            return
        if observer is None:
            # It needs PyTorch, which is imported by now.
            observer = import_module(name).StepObserver(environment, loads, handle.remove)
        observer.stepped(optimizer)

    handle = register(stepped)


def _watch_loaders(module: Any, loads: Loads) -> None:
    kind: Any = getattr(module, "_BaseDataLoaderIter", None)
    original = getattr(kind, "__next__", None)
    if original is None:
        return

    def following(self: Any) -> Any:
        if not loads.open:
            return original(self)
        begun = time.perf_counter()
        batch = original(self)
        loads.add(self, batch, time.perf_counter() - begun)
        return batch

    kind.__next__ = following
