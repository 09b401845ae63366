"""Measures the costs of a script that calls none of Headgate's libraries, from the steps that
`task.observing` sees.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from headgate.task import Channel, TaskEnvironment, step_timing
from headgate.task.core_wait import CoreWait
from headgate.task.observed_loads import Loads
from headgate.torch import batches, costs
from headgate.torch.observed_arithmetic import has_compiled
from headgate.torch.profiling_sweep import BUDGET_SECONDS, thread_counts
from headgate.torch.rng import cuda_in_use

if TYPE_CHECKING:
    from headgate.torch.observed_session import ObservedSession

_IN_A_TURN = 4
_ENOUGH_SECONDS = 5.0
_MODEL_STEP = 2
_FLUSH_SECONDS = 5.0
SHARDS = ("_fsdp_flattened", "ds_id")
"""Attributes of parameters that FSDP and DeepSpeed's ZeRO-3 set."""


class StepObserver:
    """Times the first steps, and sends a profile. Under `headgate profile` the steps run with
    several numbers of threads, and then the script ends.

    Args:
        environment: The task.
        loads: The batches that its loaders yield.
        session: What reports its steps; None: only the profile is wanted.
    """

    def __init__(
        self, environment: TaskEnvironment, loads: Loads, session: ObservedSession | None = None
    ) -> None:
        self._environment = environment
        self._loads = loads
        self._session = session
        self._profiling = environment.mode == "profile"
        self._optimizers: dict[int, Any] = {}
        self._first = 0
        self._inputs = _Inputs()
        self._number = 0
        self._timings: list[step_timing.Timing] = []
        self._reads: list[step_timing.Read] = []
        self._core_wait = CoreWait()
        self._turns = self._sweep() if self._profiling else self._first_steps()
        self._threads, self._timed = torch.get_num_threads(), False
        self._since = time.perf_counter()
        self._sees_batch = False
        self._dataset: dict[str, Any] | None = None
        loads.measure = _measured
        atexit.register(self._end)

    def stepped(self, optimizer: Any) -> None:
        """Note an optimizer's step. With several optimizers, a step of the script ends with that of
        the first.
        """
        if self._loads.measure is None:  # the profile is sent
            return
        begins = not self._optimizers
        self._optimizers[id(optimizer)] = optimizer
        if begins:
            self._first, self._number = id(optimizer), 1
            self._begin()
        if begins or id(optimizer) != self._first:
            return
        if cuda_in_use():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - self._since
        load = self._loads.take()
        self._number += 1
        if self._number == _MODEL_STEP:
            self._inputs.close()
        samples = load.samples or self._inputs.samples
        if self._timed:
            self._sees_batch = self._sees_batch or samples is not None
            lap = self._core_wait.lap()
            self._timings.append(
                step_timing.Timing(
                    self._threads, samples or 1, max(seconds - load.seconds, 1e-9), lap
                )
            )
            if load.batches and samples:
                self._reads.append(step_timing.Read(load.seconds / samples, lap))
                self._dataset = {
                    "samples": costs.samples_in(self._loads),
                    "bytes_per_sample": load.size / samples,
                }
        turn = next(self._turns, None)
        if turn is None:
            self._tell()
            return
        threads, self._timed = turn
        if threads != self._threads:
            torch.set_num_threads(threads)
            self._threads = threads
        self._begin()

    def _begin(self) -> None:
        if self._number == _MODEL_STEP - 1:
            self._inputs.open()
        self._loads.take()
        self._core_wait.lap()
        self._since = time.perf_counter()

    def _first_steps(self) -> Iterator[tuple[int, bool]]:
        """The number of threads for each next step, and whether the step counts."""
        for number in range(1, step_timing.FIRST_STEPS + 1):
            yield self._threads, step_timing.is_warm(number)

    def _sweep(self) -> Iterator[tuple[int, bool]]:
        yield from ((self._threads, False) for _ in range(_MODEL_STEP))
        counts, begun, rounds = thread_counts(), time.perf_counter(), 0
        while True:
            for threads in counts:
                yield threads, False  # the first step after a change wakes the threads up
                for _ in range(_IN_A_TURN):
                    yield threads, True
                if time.perf_counter() - begun > BUDGET_SECONDS:
                    return
            rounds += 1
            took = time.perf_counter() - begun
            if rounds >= 2 and took > _ENOUGH_SECONDS and step_timing.are_calm(self._timings):
                return

    def _end(self) -> None:
        """Send the measurements at the end of the script, if there are enough."""
        if self._loads.measure is not None and len(self._timings) >= step_timing.FEWEST:
            self._profiling = False
            self._tell()

    def _tell(self) -> None:
        self._loads.close()
        profile = self._profile()
        # The script may drop them, and their memory.
        self._optimizers, self._inputs = {}, _Inputs()
        if self._session is not None:
            self._session.told_profile(profile)
            return
        channel = Channel.open(self._environment, "torch", torch.__version__, None, observes=True)
        channel.send({"type": "profile", "profile": profile})
        channel.flush(_FLUSH_SECONDS)
        if self._profiling:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # the rest of the script is no part of a profile
        channel.close()

    def _profile(self) -> dict[str, Any]:
        """The fields of `headgate.Profile`."""
        usual, _ = Counter(timing.samples for timing in self._timings).most_common(1)[0]
        # A step with an evaluation in its time, or the last of an epoch, has another number of
        # samples.
        timings = [timing for timing in self._timings if timing.samples == usual]
        trained = self._trained()
        sparse = [p for p in trained if p.grad is not None and p.grad.is_sparse]
        dense = [p for p in trained if p.grad is None or not p.grad.is_sparse]
        model = self._inputs.model
        device = "cpu"
        if trained and trained[0].device.type == "cuda":
            device = torch.cuda.get_device_name(trained[0].device)
        step_times, others = step_timing.step_times(device, timings), self._core_wait.others()
        if self._dataset is not None:
            self._dataset["read_seconds_per_sample"] = (
                step_timing.read_seconds(self._reads) if self._loads.here else None
            )
        notes = ["its steps were seen from outside, at one batch size"]
        notes += (
            []
            if self._sees_batch
            else ["its batch is unknown: neither a DataLoader nor a model showed it"]
        )
        return {
            "framework": "torch",
            "framework_version": torch.__version__,
            "source": self._environment.mode,
            "parameters_dense": sum(p.numel() for p in dense),
            "parameters_sparse": sum(p.numel() for p in sparse),
            "dense_bytes": sum(p.numel() * p.element_size() for p in dense),
            "sparse_bytes": sum(p.numel() * p.element_size() for p in sparse),
            "layers": costs.layers([model]) if model is not None else {},
            "dataset": self._dataset,
            "optimizer": type(self._optimizers[self._first]).__name__,
            "optimizer_state_bytes": costs.state_bytes(self._optimizers.values()),
            "memory_peak_bytes": step_timing.memory_peak_bytes(),
            "gpu_memory_peak_bytes": torch.cuda.max_memory_reserved() if cuda_in_use() else None,
            "batch": usual if self._sees_batch else None,
            "step_times": step_times,
            "others": others,
            "notes": [*notes, *step_timing.busy_notes(step_times, others)],
            "observed": True,
            "sharded": any(_is_sharded(p) for p in trained),
        }

    def _trained(self) -> list[Any]:
        groups = [
            group for optimizer in self._optimizers.values() for group in optimizer.param_groups
        ]
        return list(
            {id(p): p for group in groups for p in group["params"] if p.requires_grad}.values()
        )


class _Inputs:
    """The inputs of models that train, in a step.

    Attributes:
        model: The model with the most parameters.
        samples: Samples of a step that it was given, by the first dimension of its first tensor;
            None: unknown.
    """

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._depth = 0
        self._seen: dict[int, tuple[nn.Module, int]] = {}
        self.model: nn.Module | None = None
        self.samples: int | None = None

    def open(self) -> None:
        """Watch the inputs of every model that is called, if none is compiled."""
        if has_compiled():
            return
        register = nn.modules.module.register_module_forward_pre_hook
        self._handles = [
            register(self._enter),
            nn.modules.module.register_module_forward_hook(self._leave, always_call=True),
        ]

    def close(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()
        if self._seen:
            self.model, samples = max(
                self._seen.values(), key=lambda seen: sum(p.numel() for p in seen[0].parameters())
            )
            self.samples = samples or None

    def _enter(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling():
            return
        self._depth += 1
        trains = module.training and torch.is_grad_enabled()
        if self._depth == 1 and trains and next(module.parameters(), None) is not None:
            _, before = self._seen.get(id(module), (module, 0))
            self._seen[id(module)] = module, before + (batches.size(given) or 0)

    def _leave(self, module: nn.Module, given: object, output: object) -> None:
        if not torch.compiler.is_compiling():
            self._depth -= 1


def _measured(batch: Any) -> tuple[int, int]:
    """Samples and bytes of a batch."""
    size = sum(t.numel() * t.element_size() for t in batches.tensors(batch))
    return batches.size(batch) or 0, size


def _is_sharded(parameter: Any) -> bool:
    return type(parameter).__name__ == "DTensor" or any(hasattr(parameter, name) for name in SHARDS)
