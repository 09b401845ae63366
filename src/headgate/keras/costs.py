"""Collects the fields of `headgate.Profile`: some from the model and its data, some over steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from headgate.keras import backends
from headgate.keras.training_state import TrainingState, bytes_of, variables
from headgate.task import step_timing
from headgate.task.core_wait import CoreWait

_TIMED, _MOST_TIMED = 5, 15
"""Steps that each batch size of a profile is timed over; two before them warm up."""


def parameters(models: Iterable[Any], backend: str) -> dict[str, int]:
    """Counts and bytes of trained parameters, dense and sparse. The gradient of a sparse one holds
    only the rows in use.

    TensorFlow alone makes sparse gradients, for the tables of `Embedding` layers.
    """
    rows: dict[int, Any] = {}
    every: dict[int, Any] = {}
    for model in models:
        every.update((id(v), v) for v in model.trainable_variables)
        if backend == "tensorflow":
            tables = [layer for layer in layers_of(model) if type(layer).__name__ == "Embedding"]
            rows.update((id(v), v) for table in tables for v in table.trainable_variables)
    dense = [v for key, v in every.items() if key not in rows]
    return {
        "parameters_dense": sum(_count(v) for v in dense),
        "parameters_sparse": sum(_count(v) for v in rows.values()),
        "dense_bytes": bytes_of(dense),
        "sparse_bytes": bytes_of(rows.values()),
    }


def layers_of(model: Any) -> list[Any]:
    """The leaf layers of a model, without its inputs."""
    flatten = getattr(model, "_flatten_layers", None)
    if flatten is None:
        return []
    return [
        layer
        for layer in flatten(include_self=False, recursive=True)
        if type(layer).__name__ != "InputLayer"
        and not any(True for _ in layer._flatten_layers(include_self=False))
    ]


class Costs:
    """Collects the measurements of a profile, and writes the profile.

    Args:
        trained: The prepared models and optimizers; may grow.
        source: `run` or `profile`.
        joins: Whether the script calls `strategy()` first.

    Attributes:
        samples: Samples in the training data, if known.
        batch: Samples of the script's batch.
        flops: FLOPs of a sample: of the forward pass, and of forward and backward together.
        timings: For each timed step, its samples, compute seconds, and the fraction of them that
            threads waited for a core.
        notes: Notes for readers of the profile.
    """

    def __init__(self, trained: TrainingState, source: str, joins: bool) -> None:
        self._trained = trained
        self._source = source
        self._joins = joins
        self._sample_bytes: float | None = None
        self._reads: list[step_timing.Read] = []
        self._reads_inside = False
        self.samples: int | None = None
        self.batch: int | None = None
        self.flops: tuple[float | None, float | None] = (None, None)
        self.timings: list[tuple[int, float, float | None]] = []
        self._core_wait = CoreWait()
        self.notes: list[str] = []

    def saw_batch(self, batch: Any) -> None:
        """Take in the first batch."""
        self.batch = backends.size_of(batch)
        if self.batch:
            self._sample_bytes = backends.bytes_of(batch) / self.batch

    def reads_inside(self) -> None:
        """Say that the compiled step reads its batches itself: neither they nor the time to read
        them are seen.
        """
        self._reads_inside = True

    def stepped(self, step: step_timing.Step) -> None:
        """Take in a measured step."""
        if step_timing.is_warm(step.number) and step.samples:
            waited = self._core_wait.lap()
            self.timings.append((step.samples, step.spans.get("compute", 0.0), waited))
            self._reads.append(
                step_timing.Read(step.spans.get("input", 0.0) / step.samples, waited)
            )

    def sizes(self) -> list[int]:
        """The batch sizes that a profile times: all of a batch, an eighth, a quarter and a half."""
        batch = self.batch or 1
        return sorted({max(1, batch // parts) for parts in (1, 2, 4, 8)}, reverse=True)

    def timed_enough(self) -> bool:
        """Whether each of `sizes` was timed often enough. A machine that other programs use needs
        more steps.
        """
        timed = Counter(samples for samples, *_ in self.timings)
        fewest = min((timed[size] for size in self.sizes()), default=0)
        calm = step_timing.are_calm(step_timing.Timing(1, *timing) for timing in self.timings)
        # the first of each compiles it
        return fewest >= _TIMED + 1 and (calm or fewest >= _MOST_TIMED)

    def profile(self, backend: str, version: str, threads: int) -> dict[str, Any]:
        """The fields of `headgate.Profile`."""
        models = self._trained.models
        optimizers = [optimizer for optimizer in self._trained.optimizers if optimizer is not None]
        timings = [step_timing.Timing(threads, *timing) for timing in self.timings]
        times = step_timing.step_times(backends.device_name(backend), timings)
        others = self._core_wait.others()
        return {
            "framework": "keras",
            "framework_version": version,
            "source": self._source,
            **parameters(models, backend),
            "layers": dict(
                Counter(type(layer).__name__ for model in models for layer in layers_of(model))
            ),
            "flops_per_sample_forward": self.flops[0],
            "flops_per_sample": self.flops[1],
            "dataset": {
                "samples": self.samples,
                "bytes_per_sample": self._sample_bytes,
                "read_seconds_per_sample": step_timing.read_seconds(self._reads),
            },
            "optimizer": type(optimizers[0]).__name__ if optimizers else None,
            "optimizer_state_bytes": sum(bytes_of(variables(stepped)) for stepped in optimizers)
            if optimizers
            else None,
            "memory_peak_bytes": step_timing.memory_peak_bytes(),
            "batch": self.batch,
            "step_times": times,
            "fits": step_timing.fits(times),
            "others": others,
            "notes": [*self._all_notes(), *step_timing.busy_notes(times, others)],
            "alone": self._alone(backend),
        }

    def _alone(self, backend: str) -> str:
        """Why this training can only have one task; empty if it may have several."""
        if backend == "torch":
            return "Keras over torch trains in one"
        if not self._joins:
            return "its script does not call headgate.keras.strategy() first of all"
        keras = backends.keras_of(self._trained.models[0]) if self._trained.models else None
        if (
            backend == "tensorflow"
            and self.batch is not None
            and keras is not None
            and not backends.is_legacy(keras)
        ):
            return "`fit` of Keras 3 over TensorFlow trains in one"
        return ""

    def _all_notes(self) -> list[str]:
        notes = list(self.notes)
        frozen = sum(
            _count(v)
            for m in self._trained.models
            for v in getattr(m, "non_trainable_variables", ())
        )
        if frozen:
            notes.append(
                f"the {frozen} numbers that no step trains (frozen weights, statistics, seeds) "
                "are not counted"
            )
        if self._reads_inside:
            notes.append(
                "TensorFlow reads the batches of several workers inside the step, so the time to "
                "read them was not measured"
            )
        elif self._source == "run":
            notes.append(
                "only one batch size was timed; `headgate profile` measures how the time of a "
                "step grows with it"
            )
        return notes


def _count(variable: Any) -> int:
    total = 1
    for n in variable.shape:
        total *= int(n)
    return total
