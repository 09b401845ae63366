"""Buffers that a model changes in its forward pass, as the codebook of a quantizer: in each worker
by its own samples.

Parameters that are not trained count as buffers, because a codebook may be one. After each
backward, workers compare the changed buffers, by a few numbers sent with the gradients. Buffers
that the script declares as a mean or a sum are combined instead. Batch normalisation keeps each
worker's own statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from headgate.torch.backend import REMOTE

MEAN, SUM = "mean", "sum"
_MOST_VALUES = 1 << 16
_LOOK_AT_GPU = 50
"""Rounds between two checks of buffers on a GPU, because each check waits for the GPU."""
_FIRST = 3


@dataclass
class _WatchedBuffer:
    """A buffer, and its state at the latest check.

    Args:
        name: Its full name.
        module: Its module.
        key: Its name in the module.
        of_state: Whether a checkpoint holds it.
    """

    name: str
    module: nn.Module
    key: str
    of_state: bool
    latest: tuple[int, int] = (0, 0)

    @property
    def tensor(self) -> torch.Tensor | None:
        if self.key in self.module._buffers:
            return self.module._buffers[self.key]
        parameter = self.module._parameters.get(self.key)
        return None if parameter is None or parameter.requires_grad else parameter

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter that is not trained. A change through `data` leaves its version
        as it was.
        """
        return self.key in self.module._parameters

    def has_changed(self) -> bool:
        tensor = self.tensor
        now = (0, 0) if tensor is None else (id(tensor), tensor._version)
        before, self.latest = self.latest, now
        return now != before


@dataclass
class _Combined:
    """Modules whose buffers are combined.

    Args:
        how: `MEAN` or `SUM`.
        before: By number of the buffer, its value after the latest round.
    """

    module: nn.Module
    how: str
    before: list[torch.Tensor] = field(default_factory=list)

    def buffers(self) -> list[torch.Tensor]:
        return [
            buffer
            for module in self.module.modules()
            for key, buffer in (*module._buffers.items(), *_untrained(module))
            if buffer is not None
            and buffer.dtype != torch.bool
            and key not in module._non_persistent_buffers_set
        ]

    def keep(self) -> None:
        self.before = (
            [buffer.detach().clone() for buffer in self.buffers()] if self.how == SUM else []
        )


class Buffers:
    """The buffers of all prepared models.

    Args:
        models: The models; may grow.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = models
        self._combined: list[_Combined] = []
        self._watched: list[_WatchedBuffer] = []
        self._rounds = 0

    def combine_in(self, module: nn.Module, how: str) -> None:
        """From now on, combine the buffers of a module over the workers after each backward."""
        combined = _Combined(module, how)
        combined.keep()
        self._combined.append(combined)
        self._rounds = 0

    def mark(self) -> tuple[Any, ...]:
        """Numbers of the buffers that have changed since the latest call."""
        if self._rounds <= _FIRST or not self._rounds & (self._rounds - 1):
            self._look_for_new()
        self._rounds += 1
        first = self._rounds <= _FIRST
        looks = first or not self._rounds % _LOOK_AT_GPU
        changed = [
            (buffer.name, buffer.tensor)
            for buffer in self._watched
            if buffer.has_changed() or (first and buffer.is_parameter)
        ]
        return tuple(
            (name, *(float(f"{number:.6g}") for number in _numbers(tensor)))
            for name, tensor in changed
            if tensor is not None and (looks or not tensor.is_cuda)
        )

    def described(self) -> dict[str, Any]:
        """For each buffer by name: its shape, whether a checkpoint holds it, and a few numbers of
        its contents.
        """
        return {
            buffer.name: [list(tensor.shape), buffer.of_state, *_numbers(tensor)]
            for buffer in self._watched
            if (tensor := buffer.tensor) is not None
        }

    @torch.no_grad()
    def combine(self, add_up: Callable[[torch.Tensor], torch.Tensor], samples: float) -> None:
        """Combine the declared buffers after a round, so that all workers have the same values.

        Args:
            add_up: Sums a CPU tensor over all workers, which all call it.
            samples: Samples of this worker's part.
        """
        for combined in self._combined:
            buffers = combined.buffers()
            changed = combined.how == SUM and len(buffers) == len(combined.before)
            before = (
                combined.before if changed else [torch.zeros_like(buffer) for buffer in buffers]
            )
            parts = [now.double() - then.double() for now, then in zip(buffers, before)]
            factor = float(samples > 0) if combined.how == SUM else samples
            flat = torch.cat(
                [torch.ones(1, dtype=torch.float64), *(part.cpu().reshape(-1) for part in parts)]
            )
            sums = add_up(flat * factor if factor else torch.zeros_like(flat))
            values = sums[1:] if combined.how == SUM else sums[1:] / sums[0].clamp_min(1e-300)
            offset = 0
            for number, buffer in enumerate(buffers if sums[0] else ()):
                value = values[offset : offset + buffer.numel()].view(buffer.shape)
                offset += buffer.numel()
                if changed:
                    value = value + combined.before[number].cpu().double()
                buffer.copy_(value if buffer.is_floating_point() else value.round())
            combined.keep()

    def _look_for_new(self) -> None:
        known = {(id(buffer.module), buffer.key): buffer for buffer in self._watched}
        ours = {id(module) for combined in self._combined for module in combined.module.modules()}
        self._watched = []
        for name, module, key in _buffers(self._models):
            if id(module) not in ours:
                of_state = key not in module._non_persistent_buffers_set
                self._watched.append(
                    known.get((id(module), key)) or _WatchedBuffer(name, module, key, of_state)
                )


def _buffers(models: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module, str]]:
    for number, model in enumerate(models):
        for path, module in model.named_modules():
            if not isinstance(module, nn.modules.batchnorm._NormBase):
                for key, tensor in (*module._buffers.items(), *_untrained(module)):
                    name = f"{path}.{key}" if path else key
                    if tensor is not None:
                        yield name + (f" of model {number}" if number else ""), module, key


def _untrained(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters of the module itself that are not trained and are held by this process."""
    for key, parameter in module._parameters.items():
        if parameter is None or parameter.requires_grad or hasattr(parameter, REMOTE):
            continue
        if not is_lazy(parameter):
            yield key, parameter


def _numbers(tensor: torch.Tensor) -> list[float]:
    """A few numbers that distinguish a tensor from others, and differ little if the tensors do."""
    flat = (
        (torch.view_as_real(tensor) if tensor.is_complex() else tensor)
        .detach()
        .reshape(-1)[:_MOST_VALUES]
        .double()
    )
    ramp = torch.linspace(1.0, 2.0, flat.numel(), dtype=flat.dtype, device=flat.device)
    numbers: list[float] = torch.stack(
        [flat.abs().sum(), (flat * ramp).sum(), flat.norm()]
    ).tolist()
    return numbers


def check_layers(model: nn.Module) -> None:
    """
    Raises:
        RuntimeError: The model changes its parameters in its forward pass, each worker for its own
            samples.
    """
    for name, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
            raise RuntimeError(
                f"{type(module).__name__}(max_norm={module.max_norm}) at {name or 'the top'} of "
                "the model changes the rows that a batch uses while it computes: the weights of "
                "several workers, which use different rows, would drift apart. Leave max_norm "
                "out, or run with --strategy single"
            )
