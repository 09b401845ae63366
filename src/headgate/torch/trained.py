"""What a script trains: the objects whose state a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from headgate.task.saving import ResumeError
from headgate.torch import batches, sparse_layers
from headgate.torch.kept import Kept
from headgate.torch.rng import cuda_in_use


class Trained:
    """Models, optimizers, schedulers and whatever else the script wants kept, in the order in which they were prepared.

    Args:
        resume: The checkpoint to load into each of them; None: start afresh.
    """

    def __init__(self, resume: Mapping[str, Any] | None) -> None:
        self._resume = resume
        self.models: list[nn.Module] = []
        self.optimizers: list[Any] = []
        self._schedulers: list[Any] = []
        self.kept: dict[str, Kept] = {}

    def add(self, model: nn.Module, optimizer: Any, scheduler: Any) -> None:
        """Take what one call of `prepare` names; a scheduler or an optimizer of None is left out.

        Raises:
            ResumeError: The checkpoint does not fit.
        """
        self.models.append(model)
        self._load("models", len(self.models) - 1, _unwrapped(model), "model")
        if optimizer is not None:
            self.optimizers.append(optimizer)
            self._load("optimizers", len(self.optimizers) - 1, optimizer, "optimizer")
        if scheduler is not None:
            self._schedulers.append(scheduler)
            self._load("schedulers", len(self._schedulers) - 1, scheduler, "scheduler")

    def keep(self, objects: Mapping[str, Any], across: str | None) -> None:
        """Take more objects, by name. What the checkpoint does not have starts afresh.

        Args:
            objects: They have `state_dict` and `load_state_dict`.
            across: What their states are to each other in several workers, as of `Kept`.

        Raises:
            ResumeError: The checkpoint does not fit.
        """
        for name, kept in objects.items():
            self.kept[name] = Kept(kept, across)
            if self._resume is not None and name in self._resume["kept"]:
                self._load("kept", name, kept, name)

    @property
    def schedulers(self) -> list[Any]:
        """Those that were prepared."""
        return self._schedulers

    def gpus(self) -> set[int]:
        """Numbers of the GPUs that its models are on, as this process sees them."""
        found = {each.device.index for model in self.models for each in model.parameters() if each.is_cuda}
        for model in self.models:  # copies of it, as `DataParallel` has
            found.update(each for each in getattr(model, "device_ids", None) or () if isinstance(each, int))
        return found

    def settle(self) -> None:
        """Wait for what was started on these GPUs; where its models are on none, on the current one."""
        if cuda_in_use():
            for gpu in self.gpus() or {torch.cuda.current_device()}:
                torch.cuda.synchronize(gpu)

    def state_dicts(self) -> dict[str, Any]:
        """State dicts by section of a checkpoint."""
        return {
            "models": [_unwrapped(model).state_dict() for model in self.models],
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in self._schedulers],
            "kept": {name: kept.object.state_dict() for name, kept in self.kept.items()},
        }

    def model_bytes(self) -> int:
        """Bytes of all parameters and buffers."""
        return sum(
            t.numel() * t.element_size() for m in self.models for t in batches.tensors(_unwrapped(m).state_dict())
        )

    def _load(self, section: str, key: Any, target: Any, what: str) -> None:
        if self._resume is None:
            return
        try:
            with sparse_layers.lent():
                target.load_state_dict(self._resume[section][key])
        except (IndexError, KeyError, ValueError, RuntimeError, TypeError, AttributeError) as error:
            found = " ".join(str(error).split())[:500]
            raise ResumeError(
                f"the checkpoint's {what} does not fit the one in the script: {found}; "
                "undo the change to the script, or start over with: headgate resume --from-scratch"
            ) from None


def _unwrapped(model: nn.Module) -> nn.Module:
    """The module itself where `torch.compile` wrapped it, so that its state dict fits with and without."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model
