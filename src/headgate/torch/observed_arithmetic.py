"""Counts the arithmetic of one step of a script that calls none of Headgate's libraries, from the
layers that it calls.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

_FIRST = 2
"""The step after this many is counted."""
_COVERED = 0.9
"""Least fraction of the trained weights that the counted layers hold, for the count to tell."""
_BACKWARD = 3
"""FLOPs of forward and backward over those of forward."""
_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TABLES = (nn.Embedding, nn.EmbeddingBag)


class StepArithmetic:
    """Watches the layers that one step calls, then no more."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._first = 0
        self._flops = 0
        self._weights: dict[int, int] = {}
        self._autocast: str | None = None

    def goes_on(self, steps: int) -> bool:
        """Note that so many steps were made. Returns False once the step is counted, or if it
        cannot be.
        """
        if self._handle is None:
            if steps >= _FIRST:
                if has_compiled():
                    return False
                self._handle = nn.modules.module.register_module_forward_hook(self._called)
                self._first = steps
            return True
        if steps == self._first:
            return True
        self._handle.remove()
        return False

    def costs(self, optimizers: Iterable[Any], samples: float | None) -> dict[str, Any] | None:
        """The fields of `headgate.Profile` that this tells; None: the arithmetic of some layers of
        the step is not known.

        Args:
            optimizers: Those of the script.
            samples: Samples of a step; None: unknown. The step then counts as one.
        """
        groups = [  # none, of an optimizer of Keras
            group for optimizer in optimizers for group in getattr(optimizer, "param_groups", ())
        ]
        trained = {id(p): p for group in groups for p in group["params"] if p.requires_grad}
        weights = {key: p.numel() for key, p in trained.items() if p.dim() > 1}
        seen = sum(count for key, count in self._weights.items() if key in weights)
        if not weights or seen < _COVERED * sum(weights.values()):
            return None
        batch = max(round(samples or 1), 1)
        return {
            "flops_per_sample": _BACKWARD * self._flops / batch,
            "batch": batch,
            "dense_bytes": sum(p.numel() * p.element_size() for p in trained.values()),
        }

    def facts(self, optimizers: Iterable[Any]) -> dict[str, Any]:
        """The fields of `headgate.Profile` that tell how the script computes."""
        groups = [group for known in optimizers for group in getattr(known, "param_groups", ())]
        weights = [p for group in groups for p in group["params"] if type(p) is nn.Parameter]
        images = [p for p in weights if p.dim() == 4]
        last = any(
            p.is_contiguous(memory_format=torch.channels_last) and not p.is_contiguous()
            for p in images
        )
        return {
            "compiled": has_compiled(),
            "autocast": self._autocast,
            "channels_last": last if images else None,
        }

    def _called(self, module: nn.Module, given: object, output: object) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                self._autocast = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        if isinstance(module, _PRODUCTS) and isinstance(output, torch.Tensor):
            weight = module.weight
            self._weights[id(weight)] = weight.numel()
            self._flops += 2 * output.numel() * (weight.numel() // max(weight.shape[0], 1))
        elif isinstance(module, _TABLES):
            self._weights[id(module.weight)] = module.weight.numel()


def has_compiled() -> bool:
    """Whether `torch.compile` has compiled anything in this process. It would warn about a hook of
    all modules, and compile once more.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters.get("frames"))
