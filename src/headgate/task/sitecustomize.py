"""Starts the observation of a script. Python imports this module at its start, because
`engines.launch` puts its folder first on the path. It also runs the module of the same name that it
hides.

It imports nothing more until the script imports a framework, so that other programs start as fast
as before.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as of `typing`, whose import takes longer than all the rest here
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from typing import Any

_OBSERVE, _RECORD = "HEADGATE_OBSERVE", "HEADGATE_RECORD"
"""Those of `headgate.task.observing` and `headgate.task.recording`, which import much."""
_FRAMEWORKS = ("torch", "tensorflow", "keras", "tf_keras", "jax", "optax")
"""Those whose steps are seen."""
_SAVE = (
    "safetensors.torch",
    "keras.src.saving.saving_api",
    "tf_keras.src.saving.saving_api",
    "transformers.trainer",
    "lightning.pytorch.trainer.trainer",
    "pytorch_lightning.trainer.trainer",
    "accelerate.accelerator",
    "orbax.checkpoint",
)
"""Modules besides PyTorch whose calls save checkpoints: those of `headgate.task.script_saves`."""


class AfterImport:
    """Calls a function once a module has been imported.

    Args:
        after: The function for each module.
    """

    def __init__(self, after: dict[str, Callable[[Any], object]]) -> None:
        self._after = after

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: Any = None
    ) -> ModuleSpec | None:
        if name not in self._after:
            return None
        after = self._after.pop(name)  # another of these finders may ask this one
        try:
            spec = self._next(name, path, target)
        finally:
            self._after[name] = after
        if spec is None or spec.loader is None:
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module: Any) -> None:
            loader.exec_module = execute  # type: ignore[method-assign]
            execute(module)
            # only now: many only ask whether it is installed
            if self._after.pop(name, None) is not None:
                after(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _next(self, name: str, path: Sequence[str] | None, target: Any) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None


def _observe() -> None:
    if _RECORD in os.environ:
        from headgate.task.observing import record

        record(AfterImport)
    if os.environ.get(_OBSERVE) and os.environ.get("HEADGATE_CHANNEL"):
        after: dict[str, Callable[[Any], object]] = dict.fromkeys(_FRAMEWORKS, _watch)
        after.update(dict.fromkeys(_SAVE, _watch_saves))
        sys.meta_path.insert(0, AfterImport(after))


def _watch(framework: Any) -> None:
    try:
        from headgate.task.observing import watch

        watch(framework, AfterImport)
    except Exception:  # noqa: BLE001 - the script goes on without it
        return
    if "torch.serialization" in sys.modules and framework.__name__ == "torch":
        _watch_saves(sys.modules["torch.serialization"])


def _watch_saves(module: Any) -> None:
    try:
        from headgate.task.script_saves import watch

        watch(module)
    except Exception:  # noqa: BLE001
        return


def _run_next() -> None:
    """Run the module that this one hides, in its place."""
    folder = os.path.dirname(os.path.abspath(__file__))
    # `importlib.machinery` imports more
    from _frozen_importlib_external import PathFinder

    spec = PathFinder.find_spec(
        "sitecustomize", [path for path in sys.path if os.path.abspath(path) != folder]
    )
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    module = sys.modules["sitecustomize"] = module_from_spec(spec)
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    try:
        _observe()
    finally:
        _run_next()
