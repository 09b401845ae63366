"""What carries gradients between the workers of a job: the seam behind which collectives and
parameter servers stand.

`Reducer` fills flat buffers while backward runs and hands each to a backend as soon as it is full.
One backward is one round. What is summed, how samples are weighed and what goes back into `.grad`
is the reducer's; a backend only adds up.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Protocol

import torch

if TYPE_CHECKING:
    from headgate.torch.sharding import Assigner

MIB = 1 << 20


@dataclass(frozen=True)
class Passage:
    """Bytes on their way in one direction.

    Args:
        begin: When the first of them left or came, by `time.perf_counter()`.
        end: When the last did.
        bytes: How many.
    """

    begin: float
    end: float
    bytes: int


@dataclass(frozen=True)
class Transfer:
    """What went between this task and one other in a round; it may overlap with backward.

    Args:
        peer: The other task, as `server-1`.
        push: What went there; None: nothing.
        pull: What came from there; None: nothing.
    """

    peer: str
    push: Passage | None = None
    pull: Passage | None = None


@dataclass(frozen=True)
class Movement:
    """What a step spent on other tasks in one go.

    Args:
        spans: Name (`push`, `wait`, `pull`), begin by `time.perf_counter()`, and seconds of what
            the running step did nothing else in.
        transfers: What went to and fro.
    """

    spans: Sequence[tuple[str, float, float]]
    transfers: Sequence[Transfer] = ()


class Observer(Protocol):
    """What measures the steps that a link carries."""

    @property
    def step(self) -> int:
        """Number of the running step, counted from 1 since the job began."""

    def sampling(self) -> bool:
        """Whether the running step is measured."""

    def moved(self, movement: Movement) -> None:
        """The running step, if it is measured, spent this on other tasks."""


@dataclass(frozen=True)
class RoundResult:
    """What a round came to.

    Args:
        sums: For each registered buffer the sum over the workers that took part; of the same shape,
            and its owner's until the next `begin`. May be the registered buffers themselves.
        members: Indices, ascending, of the workers that count in the view in which the round was
            completed. The next global batch is divided between these. The same for all workers.
        wait_seconds: Seconds of `finish` for which nothing moved because others were not done.
        pull_seconds: Seconds of `finish` in which sums came in, and nothing of this worker's went
            out any more. The rest of `finish` counts as push. None: all of it, what came in
            included.
        transfers: By peer; may be left out where nobody asked for it (`Backend.traced`).
        waited: Tasks that the others were seen to wait for, as far as somebody looked.
        changed: Whether tasks came or went while it ran.
    """

    sums: Sequence[torch.Tensor]
    members: tuple[int, ...]
    wait_seconds: float = 0.0
    pull_seconds: float | None = None
    transfers: Sequence[Transfer] = field(default=())
    waited: frozenset[str] = frozenset()
    changed: bool = False


@dataclass(frozen=True)
class TimedRound:
    """A round as the step sees it, by `time.perf_counter()`.

    Args:
        begin: When backward was done and the wait for the sums began.
        end: When they were there.
        result: What came of it.
    """

    begin: float
    end: float
    result: RoundResult


class WorkerGroup(ABC):
    """What ties a worker to the others of its job.

    Attributes:
        index: This worker's index in the plan.
        observer: Is told what steps spend outside of rounds; None: nobody is.
        look: Called now and then while the others are waited for; raises where they will not come.
    """

    index: int
    observer: Observer | None = None
    look: Callable[[], None] = staticmethod(lambda: None)

    @property
    @abstractmethod
    def lowest(self) -> bool:
        """Whether this is the worker that saves checkpoints: the first that counts."""

    @abstractmethod
    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Overwrite the tensors with those of the lowest worker; all workers call it alike.

        Raises:
            headgate.task.PeerLost: It cannot be completed because another task is gone.
            headgate.task.Stop: The same, while this task was asked to stop.
        """

    @abstractmethod
    def close(self) -> None:
        """The script ends: say goodbye to the others and return soon. May be called twice."""

    def broadcast_value(self, value: Any) -> Any:
        """The lowest worker's `value`, of tensors, numbers, strings and containers of them."""
        packed = io.BytesIO()
        torch.save(value, packed)
        content = torch.frombuffer(bytearray(packed.getvalue()), dtype=torch.uint8)
        size = torch.tensor([content.numel()], dtype=torch.int64)
        self.broadcast([size])
        if content.numel() != int(size):
            content = torch.empty(int(size), dtype=torch.uint8)
        self.broadcast([content])
        return torch.load(io.BytesIO(content.numpy().tobytes()), weights_only=True)


class Backend(WorkerGroup):
    """Adds up the buffers of all workers of a job.

    A round is: `begin`, then `launch` of every buffer once, in any order (`ordered`: by index),
    then `finish`. All workers go through the same rounds with buffers of the same shapes. Calls
    come from the thread that runs backward, which on a GPU is not the main thread, but never from
    two at once.

    Attributes:
        bucket_bytes: Bytes of a buffer, about.
        first_bucket_bytes: Bytes of the first, about: a small one is on its way early.
        ordered: Whether buffers have to be launched by index.
        device: Where the buffers have to be; None: where the parameters are.
        sums_sparse: Whether it adds up sparse gradients as such; else they travel as dense ones.
        traced: Whether the running round is one of a sampled step: `finish` then tells its
            transfers.
        members: Indices, ascending, of the workers that count, as of the last completed round
            (before the first: of the view that the job began with).
    """

    bucket_bytes: int = 25 * MIB
    first_bucket_bytes: int = MIB
    ordered: bool = True
    device: torch.device | None = None
    sums_sparse: bool = False
    traced: bool = False
    members: tuple[int, ...]

    @property
    def lowest(self) -> bool:
        """Whether this is the worker that saves checkpoints: the first that counts."""
        return self.index == min(self.members)

    @abstractmethod
    def register(self, buffers: Sequence[torch.Tensor]) -> None:
        """The flat, contiguous float32 or float64 buffers of the rounds to come. The first may be
        on the CPU where the others are on `device`.

        Called before the first `begin`, and again between two rounds when the buffers change. On
        all workers alike.
        """

    @abstractmethod
    def begin(self, weight: float, samples: float = 0.0) -> None:
        """A round begins, at the first gradient of a backward or later; returns at once.

        Args:
            weight: What this worker's gradients count: its samples in this global batch, or what
                else their loss is a mean over; 0 where it has none. The buffers are weighed
                already; what a backend sends besides is not.
            samples: Its samples.
        """

    @abstractmethod
    def launch(self, index: int) -> None:
        """Buffer `index` holds this worker's contribution, and keeps it until `finish` returns;
        returns at once.
        """

    @abstractmethod
    def sum_of(self, index: int) -> torch.Tensor:
        """Wait until the sum of buffer `index`, which was launched by all workers, is there.

        Raises:
            headgate.task.PeerLost: As of `finish`.
            headgate.task.Stop: The same.
        """

    @abstractmethod
    def finish(self) -> RoundResult:
        """Wait until the sums are there.

        Raises:
            headgate.task.PeerLost: The round cannot be completed because another task is gone.
            headgate.task.Stop: The same, while this task was asked to stop.
        """

    @abstractmethod
    def add_up(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of a float32 or float64 tensor of all workers that count, between two rounds; all
        call it alike. The tensor may be used for it.

        Raises:
            headgate.task.PeerLost, headgate.task.Stop: As of `finish`.
        """

    def gather(self, value: Any) -> dict[int, Any]:
        """The values of all workers that count, by index: of tensors, numbers, strings and
        containers of them. All workers call it alike, between two rounds.
        """
        file = io.BytesIO()
        torch.save(value, file)
        packed = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
        counts = self.index in self.members
        sizes = torch.zeros(max((*self.members, self.index)) + 1, dtype=torch.float64)
        if counts:
            sizes[self.index] = packed.numel()
        lengths = [int(size) for size in self.add_up(sizes).tolist()]
        ends = [sum(lengths[: index + 1]) for index in range(len(lengths))]
        # a byte is exact in it, and added to zeros
        content = torch.zeros(ends[-1], dtype=torch.float32)
        if counts:
            content[ends[self.index] - packed.numel() : ends[self.index]] = packed
        parts = self.add_up(content).to(torch.uint8)
        return {
            index: torch.load(
                io.BytesIO(parts[end - length : end].numpy().tobytes()), weights_only=True
            )
            for index, (end, length) in enumerate(zip(ends, lengths))
            if length
        }

    def adopt_tables(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        arriving: Callable[[torch.Tensor], None],
        steps: Mapping[str, int],
    ) -> None:
        """Train the model's parameters that live on servers only (`REMOTE`) from now on.

        Args:
            model: The model.
            optimizer: Its optimizer; None: it has none.
            arriving: Is given such a parameter in a backward, before its gradient is added to what
                it has.
            steps: By name of a table, the steps of it that the worker had taken part in whose state
                this one begins with; empty where all begin.

        Raises:
            TypeError: The optimizer cannot step them; says why.
        """

    def before_save(self) -> dict[str, Any]:
        """A checkpoint is about to be saved here, between two rounds; what it holds for a worker
        that joins: `members`, `tables`, by name the steps that this one has taken part in, and
        `round`, the number of the next round.
        """
        return {}

    def took_part(self, fraction: float | None) -> None:
        """A round is over in which this worker's gradients were so much of the mean; None: they are
        of a sum.
        """

    def overflows(self) -> list[bool]:
        """For each parameter that lives on servers only, whether this worker's gradient of it is
        not finite.
        """
        return []

    def overflowed(self, anywhere: Sequence[bool]) -> None:
        """A round says of each of these whether that of any worker is: let this worker's say the
        same, so that all leave out a step that one leaves out.
        """

    def sum_sparse(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The sums of sparse (COO) gradients, one for one; called after `finish`, by all workers
        alike, where `sums_sparse` says that it can.
        """
        raise NotImplementedError


class Asynchronous(WorkerGroup):
    """Parameter servers that workers do not wait for each other at: optimizers run there, and no
    gradient is averaged.

    Attributes:
        dealer: Which global batches this worker takes.
        staleness: Most steps that a worker was ahead of the slowest so far, as far as this one was
            told.
    """

    assigner: Assigner
    staleness: int = 0

    @abstractmethod
    def adopt(self, model: torch.nn.Module, optimizer: Any) -> None:
        """From now on `optimizer.step()` pushes the gradients of `model` and pulls new values into
        it.

        Called once for each `prepare`, after a checkpoint to resume from was loaded into both.
        Worker 0's values are the first.

        Raises:
            TypeError: The optimizer cannot run on servers; says why.
        """

    @abstractmethod
    def follow(self, scheduler: Any) -> None:
        """From now on the steps of this learning-rate scheduler count the batches of all
        workers.
        """

    @abstractmethod
    def before_save(self) -> int:
        """A checkpoint is about to be saved here: bring parameters and the state of optimizers from
        the servers.

        Returns:
            Batches past the position that is saved which are part of these values: a resume takes
            them again.
        """


REMOTE = "_headgate_remote"
"""Attribute of parameters that live on servers only: they are not summed, not broadcast, and have
no storage.
"""
