"""The interface for exchanging gradients between a job's workers. Collectives and parameter servers
implement it.

`Reducer` fills flat buffers during backward, and hands each full buffer to a backend. One backward
is one round. The reducer decides what is summed, how samples are weighted, and what is written to
`.grad`. A backend only sums.
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
    """Bytes sent in one direction.

    Args:
        begin: When the first byte was sent or received, by `time.perf_counter()`.
        end: When the last one was.
        bytes: Number of bytes.
    """

    begin: float
    end: float
    bytes: int


@dataclass(frozen=True)
class Transfer:
    """The bytes exchanged with one other task in a round. The transfer may overlap with backward.

    Args:
        peer: The other task, for example `server-1`.
        push: Bytes sent to it; None: nothing.
        pull: Bytes received from it; None: nothing.
    """

    peer: str
    push: Passage | None = None
    pull: Passage | None = None


@dataclass(frozen=True)
class Movement:
    """One exchange of a step with other tasks.

    Args:
        spans: Spans in which the step did nothing else: name (`push`, `wait`, `pull`), begin by
            `time.perf_counter()`, and seconds.
        transfers: The bytes sent and received.
    """

    spans: Sequence[tuple[str, float, float]]
    transfers: Sequence[Transfer] = ()


class Observer(Protocol):
    """Measures the steps whose gradients a backend exchanges."""

    @property
    def step(self) -> int:
        """Number of the running step, counted from 1 since the job began."""

    def sampling(self) -> bool:
        """Whether the running step is measured."""

    def moved(self, movement: Movement) -> None:
        """Note an exchange of the running step, if the step is measured."""


@dataclass(frozen=True)
class RoundResult:
    """The result of a round.

    Args:
        sums: For each registered buffer the sum over the participating workers, in the same shape.
            The backend owns the sums, valid until the next `begin`. They may be the registered
            buffers themselves.
        members: Indices, ascending, of the workers that count in the view in which the round was
            completed. The next global batch is divided between these. The same for all workers.
        wait_seconds: Seconds of `finish` in which nothing was transferred, because other workers
            were not ready.
        pull_seconds: Seconds of `finish` in which sums were received and nothing was sent. The rest
            of `finish` counts as push. None: all of `finish` is push, including what was received.
        transfers: Transfers by peer; may be left out unless `Backend.traced`.
        waited: Tasks that the others were seen to wait for, if this was observed.
        changed: Whether tasks joined or left during the round.
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
    """Times of a round within a step, by `time.perf_counter()`.

    Args:
        begin: When backward was done and the wait for the sums began.
        end: When the sums were ready.
        result: The result of the round.
    """

    begin: float
    end: float
    result: RoundResult


class WorkerGroup(ABC):
    """Connects a worker to the others of its job.

    Attributes:
        index: This worker's index in the plan.
        observer: Gets what steps spend outside of rounds; None: nobody does.
        look: Called at intervals while this worker waits for others. Raises if they will not come.
    """

    index: int
    observer: Observer | None = None
    look: Callable[[], None] = staticmethod(lambda: None)

    @property
    @abstractmethod
    def lowest(self) -> bool:
        """Whether this is the worker that saves checkpoints: the one with the lowest index."""

    @abstractmethod
    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Overwrite the tensors with those of the lowest worker. All workers call this at the same
        place.

        Raises:
            headgate.task.PeerLost: Another task is gone.
            headgate.task.Stop: Another task is gone, and this task was asked to stop.
        """

    @abstractmethod
    def close(self) -> None:
        """Say goodbye to the other workers at the end of the script. Returns soon. May be called
        twice.
        """

    def broadcast_value(self, value: Any) -> Any:
        """The lowest worker's `value`: a tensor, number, string or container of them."""
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
    """Sums the buffers of all workers of a job.

    A round consists of `begin`, one `launch` of every buffer, in any order (`ordered`: by index),
    and `finish`. All workers go through the same rounds, with buffers of the same shapes. Calls
    come from the thread that runs backward, on a GPU not the main thread, but never from two at
    once.

    Attributes:
        bucket_bytes: Approximate bytes of a buffer.
        first_bucket_bytes: Approximate bytes of the first buffer, smaller so that it is sent early.
        ordered: Whether buffers have to be launched by index.
        device: Device of the buffers; None: that of the parameters.
        sums_sparse: Whether it sums sparse gradients as sparse tensors. Otherwise they are sent as
            dense ones.
        traced: Whether the running round belongs to a measured step. Then `finish` returns its
            transfers.
        members: Indices, ascending, of the workers that count, as of the last completed round.
            Before the first round: of the view that the job began with.
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
        """Whether this is the worker that saves checkpoints: the one with the lowest index."""
        return self.index == min(self.members)

    @abstractmethod
    def register(self, buffers: Sequence[torch.Tensor]) -> None:
        """Set the buffers of the coming rounds: flat, contiguous, float32 or float64.

        The first buffer may be on the CPU when the others are on `device`. All workers call this
        before the first `begin`, and again between two rounds when the buffers change.
        """

    @abstractmethod
    def begin(self, weight: float, samples: float = 0.0) -> None:
        """Begin a round, at the first gradient of a backward or later. Returns at once.

        Args:
            weight: Weight of this worker's gradients: its samples in this global batch, or the
                number that its loss is a mean over; 0 without gradients. The buffers are weighted
                already; other values that a backend sends are not.
            samples: Number of this worker's samples.
        """

    @abstractmethod
    def launch(self, index: int) -> None:
        """Start to sum buffer `index`, which holds this worker's contribution. Returns at once. The
        buffer must not change until `finish` returns.
        """

    @abstractmethod
    def sum_of(self, index: int) -> torch.Tensor:
        """Wait for the sum of buffer `index`, which all workers have launched.

        Raises:
            headgate.task.PeerLost: As of `finish`.
            headgate.task.Stop: As of `finish`.
        """

    @abstractmethod
    def finish(self) -> RoundResult:
        """Wait for the sums of all buffers.

        Raises:
            headgate.task.PeerLost: The round cannot be completed because another task is gone.
            headgate.task.Stop: Another task is gone, and this task was asked to stop.
        """

    @abstractmethod
    def add_up(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of a float32 or float64 tensor over all workers that count. All of them call this
        between two rounds. The tensor may be overwritten.

        Raises:
            headgate.task.PeerLost, headgate.task.Stop: As of `finish`.
        """

    def gather(self, value: Any) -> dict[int, Any]:
        """The values of all workers that count, by index: tensors, numbers, strings or containers
        of them. All of them call this between two rounds.
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
        # float32 holds a byte exactly, and adding zeros does not change it
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
        """Train the model's parameters that live only on servers (`REMOTE`) from now on.

        Args:
            model: The model.
            optimizer: Its optimizer; None: it has none.
            arriving: Called with such a parameter in a backward, before its gradient is added to
                the present one.
            steps: For each table, the number of steps of the worker whose state this worker loaded;
                empty if all workers begin.

        Raises:
            TypeError: The optimizer cannot run on servers. The message says why.
        """

    def before_save(self) -> dict[str, Any]:
        """Get the state that a checkpoint needs for a joining worker, between two rounds.

        Returns:
            `members`; `tables`, the number of steps of each table; and `round`, the number of the
            next round.
        """
        return {}

    def took_part(self, fraction: float | None) -> None:
        """Note the end of a round, and the fraction of the mean that this worker's gradients were.
        None: the round computed a sum.
        """

    def overflows(self) -> list[bool]:
        """For each parameter that lives only on servers, whether this worker's gradient is not
        finite.
        """
        return []

    def overflowed(self, anywhere: Sequence[bool]) -> None:
        """Set the result of a round for each of these parameters: whether any worker's gradient is
        not finite. So all workers skip the same steps.
        """

    def sum_sparse(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The sum of each sparse (COO) gradient. All workers call this after `finish`, if
        `sums_sparse`.
        """
        raise NotImplementedError


class Asynchronous(WorkerGroup):
    """Parameter servers whose workers do not wait for each other. The optimizers run on the
    servers, and gradients are not averaged.

    Attributes:
        assigner: Decides which global batches this worker takes.
        staleness: Most steps that a worker was ahead of the slowest so far, as far as this worker
            knows.
    """

    assigner: Assigner
    staleness: int = 0

    @abstractmethod
    def adopt(self, model: torch.nn.Module, optimizer: Any) -> None:
        """From now on, `optimizer.step()` pushes the gradients of `model` and pulls new values into
        it.

        Called once for each `prepare`, after a checkpoint to resume from was loaded into both. The
        first values are worker 0's.

        Raises:
            TypeError: The optimizer cannot run on servers. The message says why.
        """

    @abstractmethod
    def follow(self, scheduler: Any) -> None:
        """From now on, the steps of this learning-rate scheduler count the batches of all
        workers.
        """

    @abstractmethod
    def before_save(self) -> int:
        """Bring parameters and optimizer state from the servers, for a checkpoint.

        Returns:
            Number of batches past the saved position that these values include. A resume takes
            these batches again.
        """


REMOTE = "_headgate_remote"
"""Attribute of parameters that live only on servers. They are not summed or broadcast, and have no
storage.
"""
