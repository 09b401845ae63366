"""Records what a PyTorch script trains, at each step of its optimizers. See
`headgate.task.recording`.

It sees the steps of all optimizers and the forward passes of all models, even if the script does
not call Headgate. If the recipe asks for it, the script computes in float64. Dropout is left out of
workers, because each would draw its own; a resume has to draw it again.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any, Callable

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from headgate.task.recording import (
    BUFFER,
    DROPOUT,
    GRADIENT,
    MIXED_PRECISION,
    MOST_NUMBERS,
    ROUNDINGS,
    WEIGHT,
    RecordedTensor,
    TaskRecorder,
)
from headgate.torch import batches, rng
from headgate.torch.observer import SHARDS

_DROPOUTS = (
    "dropout",
    "alpha_dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "feature_alpha_dropout",
)
_SINGLE = (torch.float32, torch.float16, torch.bfloat16, torch.complex64)
_DENSE_NUMBERS = 1 << 24
"""Most numbers of a sparse gradient that is recorded as a dense one."""


def begin(recorder: TaskRecorder) -> None:
    """Start to record this process. PyTorch has just been imported."""
    global _steps
    torch.manual_seed(recorder.recipe.seed + recorder.worker)
    if recorder.recipe.double:
        torch.set_default_dtype(torch.float64)
        _leave_autocast_out(recorder)
    if recorder.recipe.as_workers:
        _leave_dropout_out(recorder)
    _steps = StepRecorder(recorder)


_steps: StepRecorder | None = None


def steps() -> StepRecorder | None:
    """The recorder of this process; None: it is not recorded."""
    return _steps


class StepRecorder:
    """Records each step of an optimizer, with the models that were seen.

    Args:
        kept: Takes the record.
    """

    def __init__(self, kept: TaskRecorder) -> None:
        self._recorder = kept
        self._prepared: list[nn.Module] = []
        self._given: set[int] = set()
        self._models: list[nn.Module] = []
        self._optimizers: dict[int, Any] = {}
        self._counts: list[int] = []
        self._depth = 0
        self._passes = 0
        self._random: Any = None
        self._moved: set[int] = set()
        self.place: Callable[[], tuple[int, int]] = lambda: (-1, -1)
        nn.modules.module.register_module_forward_pre_hook(self._enter)
        nn.modules.module.register_module_forward_hook(self._leave, always_call=True)
        register_optimizer_step_post_hook(self._stepped)
        _watch_loaders(self.plain_batch)

    @property
    def as_workers(self) -> bool:
        """Whether data is drawn as workers of a plan draw it."""
        return self._recorder.recipe.as_workers

    # --- calls of the session ---------------------------------------------------------------------

    def prepared(self, model: nn.Module, optimizer: Any) -> None:
        """Note a model that is about to be prepared."""
        if self._recorder.recipe.double:
            _doubled(model)
        self._prepared.append(model)
        self._given.add(id(optimizer))

    def batch(self, batch: Any, counts: bool) -> Any:
        """Record a batch, or a worker's part of it. Returns it as it is to be given to the script.
        `counts`: it has no borrowed samples.
        """
        tensors = [t for t in batches.tensors(batch) if not t.is_complex() and not t.is_sparse]
        if counts and tensors:
            values = [t.detach().double() for t in tensors]
            total, squares = (
                sum(float(v.sum()) for v in values),
                sum(float((v * v).sum()) for v in values),
            )
            self._recorder.batch(batches.size(batch) or 1, total, squares)
        self._random = _random_state()
        return _as_double(batch) if self._recorder.recipe.double else batch

    def plain_batch(self, batch: Any) -> Any:
        """Record a batch of a loader that was not prepared, in a script that prepares none."""
        return batch if self._prepared else self.batch(batch, True)

    def reported(self, loss: Any, part: Any) -> None:
        if isinstance(loss, (int, float)) or (isinstance(loss, torch.Tensor) and loss.numel() == 1):
            self._recorder.reported(float(loss), float(part))

    # --- hooks of PyTorch -------------------------------------------------------------------------

    def _enter(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._depth += 1
        if self._depth > 1:
            return
        if all(module is not known for known in self._models):
            self._models.append(module)
            if self.as_workers:
                _without_dropout(module, self._recorder)
        if next(module.parameters(), None) is None:
            return
        self._perturb(module)
        self._passes += 1
        trains = module.training and torch.is_grad_enabled()
        self._recorder.passed(number=self._passes, trains=trains, epoch=self.place()[1])
        if self._passes == self._recorder.recipe.stop_at:
            self._recorder.stop()

    def _leave(self, module: nn.Module, given: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():
            self._depth = max(0, self._depth - 1)

    def _perturb(self, module: nn.Module) -> None:
        """Perturb each initial weight by a few roundings, once."""
        if not self._recorder.recipe.perturbed:
            return
        generator = torch.Generator().manual_seed(1)
        for parameter in module.parameters():
            if id(parameter) not in self._moved and parameter.is_floating_point():
                self._moved.add(id(parameter))
                away = torch.rand(parameter.shape, generator=generator).to(parameter) * 2 - 1
                with torch.no_grad():
                    parameter.mul_(1 + ROUNDINGS * torch.finfo(parameter.dtype).eps * away)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        first = id(optimizer) not in self._optimizers
        index = len(self._optimizers) if first else list(self._optimizers).index(id(optimizer))
        if first:
            self._optimizers[id(optimizer)] = optimizer
            self._counts.append(self._recorder.done_before)
        self._counts[index] += 1
        if self._random is not None and not _same_random(self._random, _random_state()):
            self._recorder.drew()
        self._random = None
        facts = self._facts() if first else {}
        unprepared = bool(self._prepared) and id(optimizer) not in self._given
        self._recorder.step(
            index, self._counts[index], self._tensors(), unprepared=unprepared, **facts
        )
        wanted = self._recorder.recipe.steps
        if self._counts[0] > wanted or all(count >= wanted for count in self._counts):
            self._recorder.finish()

    # --- records ----------------------------------------------------------------------------------

    def _named(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Kind, name and value of everything trained, each once."""
        known: set[int] = set()
        models = 0
        for model in _each_once([*self._prepared, *self._models]):
            tensors = chain(
                ((WEIGHT, name, p) for name, p in model.named_parameters()),
                ((BUFFER, name, b) for name, b in model.named_buffers()),
            )
            fresh = [
                (kind, name, tensor) for kind, name, tensor in tensors if id(tensor) not in known
            ]
            known.update(id(tensor) for _, _, tensor in fresh)
            models += bool(fresh)
            prefix = f"model {models}: " if models > 1 else ""
            yield from (
                (kind, prefix + name.removeprefix("module."), tensor)
                for kind, name, tensor in fresh
            )
        for number, optimizer in enumerate(self._optimizers.values(), 1):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            for at, parameter in enumerate(parameters, 1):
                if id(parameter) not in known:
                    known.add(id(parameter))
                    yield WEIGHT, f"parameter {at} of optimizer {number}", parameter

    def _tensors(self) -> Iterator[RecordedTensor]:
        for kind, name, tensor in self._named():
            gradient = tensor.grad if kind == WEIGHT and tensor.is_leaf else None
            for kind_of_value, value in ((GRADIENT, gradient), (kind, tensor)):
                if (
                    value is not None
                    and (recorded := _recorded(kind_of_value, name, value)) is not None
                ):
                    yield recorded

    def _facts(self) -> dict[str, Any]:
        """Facts that explain why workers may differ."""
        named = list(self._named())
        hooked = [name for _, name, tensor in named if _is_hooked(tensor)]
        kinds = {
            type(m).__name__
            for model in self._models
            for m in model.modules()
            if _takes_statistics(m)
        }
        sharded = any(hasattr(tensor, mark) for _, _, tensor in named for mark in SHARDS)
        return {"hooked": hooked, "normalised": sorted(kinds), "sharded": sharded}


def _each_once(models: list[nn.Module]) -> list[nn.Module]:
    return list({id(model): model for model in models}.values())


def _recorded(kind: str, name: str, value: torch.Tensor) -> RecordedTensor | None:
    """The record of a tensor. None if it cannot be read here, as a table on servers or a shard."""
    try:
        if hasattr(value, "full_tensor"):  # a DTensor; all workers come here with the same one
            value = value.full_tensor()
        if value.is_sparse:
            if value.numel() > _DENSE_NUMBERS:
                return None
            value = value.to_dense()
        flat = value.detach().reshape(-1).double().cpu()
        every = -(-flat.numel() // MOST_NUMBERS) or 1
        some = flat[::every].contiguous()
        numbers = ctypes.string_at(some.data_ptr(), some.numel() * 8) if some.numel() else b""
        sums, double = (float(flat.sum()), float((flat * flat).sum())), value.dtype not in _SINGLE
        return RecordedTensor(kind, name, tuple(value.shape), numbers, *sums, double)
    except (RuntimeError, NotImplementedError, TypeError, AttributeError):
        return None


def _is_hooked(tensor: torch.Tensor) -> bool:
    """Whether hooks of the script change its gradient. Headgate's own hooks do not count."""
    return bool(
        getattr(tensor, "_backward_hooks", None)
        or getattr(tensor, "_post_accumulate_grad_hooks", None)
    )


def _takes_statistics(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training


# --- random draws ---------------------------------------------------------------------------------


def _random_state() -> Any:
    return rng.capture((), devices=rng.cuda_in_use())


def _same_random(before: Any, after: Any) -> bool:
    def alike(one: Any, other: Any) -> bool:
        if isinstance(one, torch.Tensor):
            return torch.equal(one, other)
        if isinstance(one, (tuple, list)):
            return len(one) == len(other) and all(map(alike, one, other))
        return bool(one == other)

    return all(alike(before[name], after.get(name)) for name in before if name in after)


def _leave_dropout_out(recorder: TaskRecorder) -> None:
    functional: Any = nn.functional

    def kept(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if training and p > 0 and not torch.compiler.is_compiling():
            recorder.left_out(DROPOUT)
        return input

    for name in _DROPOUTS:
        if hasattr(functional, name):
            setattr(functional, name, kept)
    attend = functional.scaled_dot_product_attention

    def attending(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, **more: Any
    ) -> Any:
        if dropout_p > 0 and not torch.compiler.is_compiling():
            recorder.left_out(DROPOUT)
        return attend(query, key, value, attn_mask, 0.0, **more)

    functional.scaled_dot_product_attention = attending


def _without_dropout(model: nn.Module, recorder: TaskRecorder) -> None:
    """Turn off dropout within single operations. Other layers are reported, because they may be
    compiled.
    """
    for module in model.modules():
        if isinstance(module, nn.RNNBase) and module.dropout > 0:
            module.dropout = 0.0
            recorder.left_out(DROPOUT)
        elif isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
            recorder.left_out(DROPOUT)


# --- float64 --------------------------------------------------------------------------------------


def _leave_autocast_out(recorder: TaskRecorder) -> None:
    kind: Any = torch.amp.autocast_mode.autocast
    original = kind.__init__

    def disabled(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self._enabled:
            recorder.left_out(MIXED_PRECISION)
        self._enabled = False

    kind.__init__ = disabled


def _doubled(model: nn.Module) -> None:
    """Convert a model to float64. Its parameters stay the objects that its optimizer has."""
    with torch.no_grad():
        for tensor in chain(model.parameters(), model.buffers()):
            if tensor.is_floating_point() and tensor.dtype != torch.float64:
                tensor.data = tensor.data.double()


def _as_double(batch: Any) -> Any:
    """A batch with its numbers as float64. Containers of other types stay as they are."""
    if isinstance(batch, torch.Tensor):
        return batch.double() if batch.is_floating_point() else batch
    if type(batch) in (list, tuple):
        return type(batch)(map(_as_double, batch))
    if type(batch) is dict:
        return {name: _as_double(value) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(_as_double, batch))
    return batch


def _watch_loaders(see: Callable[[Any], Any]) -> None:
    """Record each batch of a `DataLoader`."""
    kind: Any = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter
    original = kind.__next__

    def following(self: Any) -> Any:
        return see(original(self))

    kind.__next__ = following
