"""Measures what a job costs, in the form of `headgate.Profile`: from the model and its data, and
over steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from headgate.task import step_timing
from headgate.task.core_wait import CoreWait
from headgate.torch import batches
from headgate.torch.meter import Step
from headgate.torch.rng import cuda_in_use
from headgate.torch.training_state import TrainingState


def parameters(models: Iterable[nn.Module]) -> dict[str, Any]:
    """Count and bytes of trained parameters, dense and sparse. The gradient of a sparse one holds
    only the used rows.

    A tensor shared by layers or models counts once. Frozen ones do not count.
    """
    sparse: dict[int, torch.Tensor] = {}
    dense: dict[int, torch.Tensor] = {}
    for model in models:
        for module in model.modules():
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
                sparse[id(module.weight)] = module.weight
        dense.update((id(p), p) for p in model.parameters())
    trained = [p for key, p in dense.items() if p.requires_grad and key not in sparse]
    rows = [p for p in sparse.values() if p.requires_grad]
    return {
        "parameters_dense": sum(p.numel() for p in trained),
        "parameters_sparse": sum(p.numel() for p in rows),
        "dense_bytes": sum(p.numel() * p.element_size() for p in trained),
        "sparse_bytes": sum(p.numel() * p.element_size() for p in rows),
    }


def layers(models: Iterable[nn.Module]) -> dict[str, int]:
    """Number of leaf layers of each kind."""
    return dict(
        Counter(
            type(m).__name__ for model in models for m in model.modules() if not any(m.children())
        )
    )


def state_bytes(optimizers: Iterable[Any]) -> int:
    """Bytes of the optimizers' state per parameter."""
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    tensors = [tensor for state in states for tensor in batches.tensors(state)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def samples_in(loader: Any) -> int | None:
    """Number of samples in a loader's data set; None for a stream."""
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError, NotImplementedError):
        return None


def device_name(models: Iterable[nn.Module]) -> str:
    """`cpu`, or the name of the GPU that holds the first parameter."""
    for model in models:
        for parameter in model.parameters():
            if parameter.device.type == "cuda":
                return torch.cuda.get_device_name(parameter.device)
            return parameter.device.type
    return "cpu"


def rows_touched(models: Iterable[nn.Module]) -> tuple[int, int] | None:
    """Number and bytes of the rows of sparse layers in the latest gradients, each counted once.
    None if no gradient is sparse.
    """
    known = {id(p): p for model in models for p in model.parameters()}
    sparse = [(p, p.grad) for p in known.values() if p.grad is not None and p.grad.is_sparse]
    rows = size = 0
    for parameter, gradient in sparse:
        touched = torch.unique(gradient._indices()[0]).numel()
        rows += touched
        size += touched * parameter[0].numel() * parameter.element_size()
    return (rows, size) if sparse else None


def dense_tables(models: Iterable[nn.Module]) -> list[torch.Tensor]:
    """Trained weights of lookup tables with dense gradients, each counted once."""
    tables = {
        id(module.weight): module.weight
        for model in models
        for module in model.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
        and not module.sparse
        and module.weight.requires_grad
    }
    return list(tables.values())


def dense_rows_touched(models: Iterable[nn.Module]) -> float | None:
    """The fraction of these tables' rows, 0 to 1, whose latest gradient is not 0. None without a
    gradient.
    """
    gradients = [weight.grad for weight in dense_tables(models) if weight.grad is not None]
    rows = sum(len(gradient) for gradient in gradients)
    return sum(int(gradient.any(dim=1).sum()) for gradient in gradients) / rows if rows else None


def _has_group() -> bool:
    """Whether the script distributes work among processes itself. Another worker would do the same,
    at the same port.
    """
    return torch.distributed.is_available() and torch.distributed.is_initialized()


class Costs:
    """Collects the measurements of a profile, and writes the profile.

    Args:
        trained: The prepared models and optimizers; may grow.
        source: `run` or `profile`.

    Attributes:
        loader_workers: Number of worker processes of the loader; None: unknown.
        batch: Samples of the first batch.
        timings: The timed steps.
        notes: Notes for readers of the profile.
        core_wait: Whether other programs used the machine meanwhile.
    """

    def __init__(self, trained: TrainingState, source: str) -> None:
        self._models = trained.models
        self._optimizers = trained.optimizers
        self._source = source
        self._has_loader = False
        self._dataset_samples: int | None = None
        self._sample_bytes: float | None = None
        self._reads: list[step_timing.Read] = []
        self._steps: list[Step] = []
        self._flops: Step | None = None
        self._touched: tuple[float, float] | None = None
        self.loader_workers: int | None = None
        self._dense_touched: float | None = None
        self.batch: int | None = None
        self.batch_dim = 0
        self.timings: list[step_timing.Timing] = []
        self.notes: list[str] = []
        self.core_wait = CoreWait()

    def trains_on(self, loader: Any, batch_dim: int) -> None:
        """Note the training loader: the first one prepared. Later ones are ignored."""
        if not self._has_loader:
            self._has_loader = True
            self.batch_dim = batch_dim
            self._dataset_samples = samples_in(loader)
            self.loader_workers = loader.num_workers if isinstance(loader, DataLoader) else None

    @property
    def reads_here(self) -> bool:
        """Whether the training process itself reads its data, without worker processes."""
        return not self.loader_workers

    def saw_batch(self, batch: Any) -> None:
        """Note the first whole batch of the training loader: its size, and its bytes as the model
        gets them.
        """
        self.batch = batches.size(batch, self.batch_dim)
        if self.batch:
            self._sample_bytes = (
                sum(t.numel() * t.element_size() for t in batches.tensors(batch)) / self.batch
            )

    def read(self, seconds: float, samples: int, waited: float | None) -> None:
        """Note a batch read by the training process. `waited`: the fraction of the time that
        threads waited for a core.
        """
        self._reads.append(step_timing.Read(seconds / samples, waited))

    def stepped(self, step: Step) -> None:
        """Note a measured step, of any mode."""
        if step.flops is not None:
            self._flops = step
        if self._touched is None and self.batch is not None and step.samples == self.batch:
            touched = rows_touched(self._models)
            self._touched = (
                (touched[0] / step.samples, touched[1] / step.samples) if touched else None
            )

        if self._dense_touched is None and step.number <= step_timing.FIRST_STEPS:
            self._dense_touched = dense_rows_touched(self._models)

    def profile(self) -> dict[str, Any]:
        """The fields of `headgate.Profile`."""
        device = device_name(self._models)
        step_times = step_timing.step_times(device, self.timings)
        others = self.core_wait.others()
        return {
            "framework": "torch",
            "framework_version": torch.__version__,
            "source": self._source,
            **parameters(self._models),
            "layers": layers(self._models),
            **self._flops_per_sample(),
            "dataset": self._dataset(),
            "optimizer": type(self._optimizers[0]).__name__ if self._optimizers else None,
            "optimizer_state_bytes": state_bytes(self._optimizers) if self._optimizers else None,
            "memory_peak_bytes": step_timing.memory_peak_bytes(),
            "gpu_memory_peak_bytes": torch.cuda.max_memory_reserved() if cuda_in_use() else None,
            "batch": self.batch,
            "sparse_rows_per_sample": self._touched[0] if self._touched else None,
            "sparse_bytes_per_sample": self._touched[1] if self._touched else None,
            "dense_table_bytes": sum(
                t.numel() * t.element_size() for t in dense_tables(self._models)
            ),
            "dense_table_touched": self._dense_touched,
            "step_times": step_times,
            "fits": step_timing.fits(step_times),
            "others": others,
            "notes": [*self._all_notes(), *step_timing.busy_notes(step_times, others)],
            "alone": "its script has a process group of its own" if _has_group() else "",
        }

    def _flops_per_sample(self) -> dict[str, float | None]:
        step = self._flops
        if step is None or step.flops_forward is None or step.flops is None or not step.samples:
            return {"flops_per_sample_forward": None, "flops_per_sample": None}
        return {
            "flops_per_sample_forward": step.flops_forward / step.samples,
            "flops_per_sample": step.flops / step.samples,
        }

    def _dataset(self) -> dict[str, Any] | None:
        if not self._has_loader:
            return None
        return {
            "samples": self._dataset_samples,
            "bytes_per_sample": self._sample_bytes,
            "read_seconds_per_sample": step_timing.read_seconds(self._reads),
        }

    def _all_notes(self) -> list[str]:
        notes = list(self.notes)
        frozen = sum(
            p.numel() for model in self._models for p in model.parameters() if not p.requires_grad
        )
        if frozen:
            notes.append(f"{frozen} frozen parameters are not counted")
        if not self.reads_here:
            notes.append(
                "the time to read a sample was not measured: the loader's workers read ahead"
            )
        if self._source == "run":
            notes.append(
                "one batch size: `headgate profile` measures how the time of a step grows with it"
            )
        return notes
