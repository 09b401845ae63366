"""Runs the user's own loop at several batch sizes and thread counts, under `headgate profile`.

The first prepared loader yields parts of real batches. Sizes and thread counts alternate in every
round. So a machine that slows down or speeds up does not look like a property of one of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from typing import Any

import torch

from headgate.task import step_timing
from headgate.torch import batches
from headgate.torch.costs import Costs
from headgate.torch.loader_hooks import OpenIterator
from headgate.torch.meter import Step
from headgate.torch.rng import cuda_in_use

BUDGET_SECONDS = 20.0
_ENOUGH_SECONDS = 5.0
_FEWEST_ROUNDS = step_timing.FEWEST
_ROUNDS = 5
_MOST_ROUNDS = 40
_POOL = 4
"""Number of real batches that are repeated to feed the steps."""


class ProfilingSweep:
    """Sets the part of a batch and the number of threads of each step.

    Attributes:
        done: Whether everything was measured.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._whole = 0
        self._samples = 0
        self._threads = torch.get_num_threads()
        self._timed = False
        self._schedule: Generator[tuple[int, int, bool], None, None] | None = None
        self.done = False

    def source(self, open_iterator: OpenIterator) -> Iterator[Any]:
        """Real batches of the training loader, without end."""
        pool: list[Any] = []
        inner = open_iterator()
        while len(pool) < _POOL:
            self._costs.core_wait.lap()
            begun = time.perf_counter()
            batch = next(inner, None)
            if batch is None:
                break
            if not pool:
                self._costs.saw_batch(batch)
            pool.append(batch)
            samples = batches.size(batch, self._costs.batch_dim)
            if samples and len(pool) > 1 and self._costs.reads_here:
                took = time.perf_counter() - begun
                self._costs.read(took, samples, self._costs.core_wait.lap())
        del inner
        sizes = [batches.size(batch, self._costs.batch_dim) or 0 for batch in pool]
        if self._schedule is None:
            self._whole = max(sizes, default=0)
            self._schedule = self._turns(self._whole)
            self._advance()
        pool = [batch for batch, samples in zip(pool, sizes) if samples == self._whole]
        while pool:
            yield from pool

    def part(self, batch: Any) -> Any:
        """The part of a batch, of any loader, for the running turn."""
        samples = batches.size(batch, self._costs.batch_dim)
        if not samples or not self._whole or self._samples >= self._whole:
            return batch
        taken = max(1, samples * self._samples // self._whole)
        return batches.part(batch, taken, samples, dim=self._costs.batch_dim)

    def stepped(self, step: Step, waited: float | None) -> None:
        """Note a measured step of the running turn. `waited`: the fraction of the time that threads
        waited for a core.
        """
        if self._timed and step.samples:
            self._costs.timings.append(
                step_timing.Timing(self._threads, step.samples, step.compute_seconds, waited)
            )
        self._advance()

    def _advance(self) -> None:
        if self._schedule is None:
            return
        turn = next(self._schedule, None)
        if turn is None:
            self.done = True
            return
        self._threads, self._samples, self._timed = turn
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)

    def _turns(self, whole: int) -> Generator[tuple[int, int, bool], None, None]:
        """Threads, samples of a batch, and whether the step counts. The time between two of these
        is the step's.
        """
        sizes = sorted({max(min(2, whole), whole // divisor) for divisor in (8, 4, 2, 1)})
        started = time.perf_counter()
        counts: list[int] = []
        warm_up = 0.0
        for threads in thread_counts():
            begun = time.perf_counter()
            for samples in reversed(sizes):
                yield threads, samples, False
            counts.append(threads)
            block = time.perf_counter() - begun
            warm_up += block
            # With half the threads a step takes at most twice as long.
            if threads > 1 and (warm_up + 2 * block) * (_FEWEST_ROUNDS + 1) > BUDGET_SECONDS:
                self._costs.notes.append(
                    f"fewer than {threads} threads were left out, to be done in time"
                )
                break
        rounds = 0
        while True:
            for threads in counts:
                if len(counts) > 1:
                    # the first step after a change wakes the threads up
                    yield threads, sizes[0], False
                for samples in sizes:
                    yield threads, samples, True
            rounds += 1
            elapsed = time.perf_counter() - started
            enough = rounds >= _MOST_ROUNDS or (rounds >= _ROUNDS and elapsed > _ENOUGH_SECONDS)
            # On a machine that others use it is tried again, as time permits.
            if enough and step_timing.are_calm(self._costs.timings):
                return
            if rounds >= _FEWEST_ROUNDS and elapsed > BUDGET_SECONDS:
                return


def thread_counts() -> list[int]:
    """The number of cores that this process may use, and the powers of two below it, in descending
    order.
    """
    if cuda_in_use():
        return [torch.get_num_threads()]
    cores = len(os.sched_getaffinity(0))
    return sorted(
        {cores, *(1 << n for n in range(cores.bit_length()) if 1 << n <= cores)}, reverse=True
    )
