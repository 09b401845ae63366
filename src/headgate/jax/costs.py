"""Measures what a job costs, in the form of `headgate.Profile`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from headgate.jax import joining
from headgate.jax.placing import Placing, length, nbytes
from headgate.jax.training_state import TrainingState
from headgate.task import step_timing
from headgate.task.core_wait import CoreWait
from headgate.task.step_timing import FIRST_STEPS, Step

_ONE_SIZE = "only one batch size was timed, so how the time of a step grows with it is not known"
_LOOPS = (
    "FLOPs are XLA's estimate for the compiled step, in which the body of a loop (scan, "
    "while) counts once"
)


class Costs:
    """Collects the measurements of a profile, and writes the profile.

    Args:
        source: `run` or `profile`.
        placing: Where arrays go.
    """

    def __init__(self, source: str, placing: Placing) -> None:
        self._source = source
        self._placing = placing
        self._timings: list[step_timing.Timing] = []
        self._core_wait = CoreWait()
        self._reads: list[step_timing.Read] = []
        self._batch: int | None = None
        self._sample_bytes: float | None = None
        self._samples: int | None = None
        self._sizes: set[int] = set()
        self._older: set[Any] = set()
        self._flops: float | None = None

    def begins(self) -> None:
        """Note that the first step is about to begin: programs compiled from now on belong to the
        step.
        """
        if self._batch is None:
            self._older = set(_programs())

    def trains_on(self, batches: Any) -> None:
        """Note the number of samples of what `batches` was given, if it is known."""
        if self._samples is not None:
            return
        dataset: Any = getattr(batches, "dataset", None)
        if hasattr(dataset, "__len__"):
            self._samples = len(dataset)
        elif isinstance(batches, Sequence):
            self._samples = sum(length(batch) or 0 for batch in batches) or None

    def saw_batch(self, batch: Any) -> None:
        """Note the size and the bytes of the first whole batch."""
        if self._batch is None and (size := length(batch)):
            self._batch = size
            self._sample_bytes = nbytes(batch) / size

    def stepped(self, step: Step) -> None:
        if step.number == 1:
            self._count_flops()
        if step.number <= FIRST_STEPS and step.samples:
            if step.samples in self._sizes:  # past compiling
                waited = self._core_wait.lap()
                self._timings.append(
                    step_timing.Timing(
                        joining.threads(), step.samples, step.compute_seconds, waited
                    )
                )
                self._reads.append(
                    step_timing.Read(step.spans.get("input", 0.0) / step.samples, waited)
                )
            self._sizes.add(step.samples)

    def profile(self, trained: TrainingState | None) -> dict[str, Any]:
        """The fields of `headgate.Profile`."""
        device = jax.local_devices()[0]
        name = "cpu" if device.platform == "cpu" else device.device_kind
        times = step_timing.step_times(name, self._timings)
        notes = (
            [_LOOPS]
            if self._flops
            else ["FLOPs are not known: XLA reports none for the compiled step"]
        )
        if trained is None:
            notes.append("the script does not call prepare(), so its parameters are not known")
        if self._batch is None:
            notes.append(
                "no batch goes through headgate.jax.batches or shard, so the samples of a step "
                "are not known"
            )
        others = self._core_wait.others()
        return {
            "framework": "jax",
            "framework_version": jax.__version__,
            "source": self._source,
            **(
                {}
                if trained is None
                else {**trained.parameters(), "layers": trained.layers(), **trained.optimizer()}
            ),
            "flops_per_sample_forward": None,
            "flops_per_sample": self._flops,
            "dataset": self._dataset(),
            "memory_peak_bytes": step_timing.memory_peak_bytes(),
            "gpu_memory_peak_bytes": _peak_on(device),
            "batch": self._batch,
            "step_times": times,
            "fits": step_timing.fits(times),
            "others": others,
            "notes": [*notes, _ONE_SIZE, *step_timing.busy_notes(times, others)],
        }

    def _count_flops(self) -> None:
        """Count the FLOPs per sample of the largest program that the first step compiled. If it
        compiled none, the largest of all compiled programs counts.
        """
        if self._batch:
            programs = _programs()
            step = [program for program in programs if program not in self._older] or programs
            flops = max(map(_flops_of, step), default=0.0) * self._placing.parts(self._batch)
            self._flops = flops / self._batch or None
        self._older = set()

    def _dataset(self) -> dict[str, Any] | None:
        if self._batch is None:
            return None
        return {
            "samples": self._samples,
            "bytes_per_sample": self._sample_bytes,
            "read_seconds_per_sample": step_timing.read_seconds(self._reads),
        }


def _programs() -> list[Any]:
    """The programs that JAX has compiled and still holds."""
    return list(jax.local_devices()[0].client.live_executables())


def _flops_of(program: Any) -> float:
    """FLOPs of one device's part of a compiled program."""
    try:
        costs = program.cost_analysis()
    except (jax.errors.JaxRuntimeError, NotImplementedError):  # not every back end tells them
        return 0.0
    first = costs[0] if isinstance(costs, list) and costs else costs
    return float(first.get("flops") or 0.0) if isinstance(first, dict) else 0.0


def _peak_on(device: Any) -> int | None:
    """Peak memory of a device, in bytes; None if the device does not report it."""
    statistics = device.memory_stats() if device.platform != "cpu" else None
    return statistics.get("peak_bytes_in_use") if statistics else None
