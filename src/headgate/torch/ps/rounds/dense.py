"""Dense synchronous training over parameter servers, as a backend of the reducer."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from headgate.task import Channel, Stop
from headgate.torch.backend import MIB, Backend, Passage, RoundResult, Transfer
from headgate.torch.control_vector import ReduceError
from headgate.torch.ps.rounds.client import HubLost, RoundClient, SumsExpired
from headgate.torch.ps.rounds.exchange import Exchange, Round
from headgate.torch.ps.tables.model_tables import RemoteTables
from headgate.torch.ps.transport.links import Links
from headgate.torch.ps.transport.loop import Loop

_ROUNDS_TO_COMPARE = 21
_NOTE_LATE_SECONDS = 60.0
_GOODBYE_SECONDS = 1.0
_PUSHED_SECONDS = 5.0


class Dense(Backend):
    """The worker of a synchronous `ps` plan.

    Args:
        channel: The channel to the hub, after its welcome and a first view.
        links: Links to the servers.
        loop: Drives the links.
        joined: The result of `before_save` with the state that this worker joined with; None if all
            begin.

    Attributes:
        counted: The workers that contributed to the last sums: `members`, and those that leave
            after it.
    """

    bucket_bytes = MIB
    first_bucket_bytes = MIB
    ordered = False
    device = torch.device("cpu")

    def __init__(
        self, channel: Channel, links: Links, loop: Loop, joined: Mapping[str, Any] | None
    ) -> None:
        welcome = channel.welcome
        self.index = welcome["index"]
        self.members = (
            tuple(joined["members"]) if joined else tuple(range(welcome["plan"]["workers"]))
        )
        self.counted = self.members
        self._channel = channel
        self._loop = loop
        self._servers = links.servers
        self._lockstep = not welcome["plan"]["backup_workers"]
        first = joined["round"] if joined else 0
        self._client = RoundClient(
            links, loop, first, self._note, lambda: channel.stopping == "orphaned"
        )
        self._exchange: Exchange | None = None
        self._round: Round | None = None
        self._seconds: deque[float] = deque(maxlen=_ROUNDS_TO_COMPARE)
        self._late_rounds = 0
        self._late_samples = self._samples = 0.0
        self._rounds = 0
        self._told_late = time.monotonic()
        self._models = 0
        self._closed = False
        self.tables: RemoteTables

    def failed(self, error: BaseException) -> None:
        """Fail all waiting calls with the error that ended the loop."""
        self._client.fail(error)
        self.tables.caller.fail(error)

    def register(self, buffers: Sequence[torch.Tensor]) -> None:
        self._exchange = Exchange(buffers, self._servers)
        self._client.offer_memory(self._exchange)

    def adopt_tables(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        arriving: Callable[[torch.Tensor], None],
        steps: Mapping[str, int],
    ) -> None:
        self.tables.arriving = arriving
        self.tables.adopt(self._models, model, optimizer, steps)
        self._models += 1

    def before_save(self) -> dict[str, Any]:
        return {
            "members": list(self.members),
            "tables": self.tables.steps(),
            "round": self._client.pause(),
        }

    def took_part(self, fraction: float | None) -> None:
        self.tables.fraction = fraction

    def barrier(self) -> None:
        """Wait until all workers call this, between two rounds."""
        self.broadcast([torch.zeros(1)])

    def overflows(self) -> list[bool]:
        return self.tables.overflows()

    def overflowed(self, anywhere: Sequence[bool]) -> None:
        self.tables.overflowed(anywhere)

    def begin(self, weight: float, samples: float = 0.0) -> None:
        self._check_between()
        self._samples = samples
        step = 0 if self.observer is None else self.observer.step
        self._round = self._client.begin(self._registered, weight, step=step)

    def launch(self, index: int) -> None:
        self._client.launch(self._running, index)

    def sum_of(self, index: int) -> torch.Tensor:
        running = self._running
        self._wait(running, running.arrived[index])
        return running.exchange.sums[index]

    def finish(self) -> RoundResult:
        running, begun = self._running, time.monotonic()
        self._wait(running)
        ended = time.monotonic()
        if not self._lockstep:
            self._even_out(running)
            self._count_late(running)
        self._count_loss(running, ended - running.begun)
        view = self._client.view(running)
        if view is not None:
            self.members, self.counted = tuple(sorted(view.staying)), tuple(sorted(view.active))
        self._round = None
        # The exposed part of the wait, as measured on the last chunk.
        arrived, sent, _ = (min(max(at, begun), ended) for at in running.last)
        sent = max(arrived, sent)
        transfers = self._transfers(running) if self.traced else ()
        return RoundResult(
            running.exchange.sums,
            self.members,
            sent - arrived,
            ended - sent,
            transfers,
            running.waited - {f"worker-{self.index}"},
            running.changed,
        )

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            copies = [tensor.detach().cpu().contiguous() for tensor in tensors]
            buffer = (
                torch.cat([_bytes(tensor) for tensor in copies])
                if copies
                else torch.empty(0, dtype=torch.uint8)
            )
            if not buffer.numel():
                return
            self._check_between()
            exchange = Exchange([buffer], self._servers)
            running = self._client.begin(exchange, 0.0, lowest_only=True)
            self._client.launch(running, 0)
            self._wait(running)
            offset = 0
            for tensor, mine in zip(tensors, copies):
                raw = _bytes(mine)
                raw.copy_(exchange.sums[0][offset : offset + raw.numel()])
                offset += raw.numel()
                if mine.data_ptr() != tensor.data_ptr():
                    tensor.detach().copy_(mine)

    def add_up(self, tensor: torch.Tensor) -> torch.Tensor:
        self._check_between()
        exchange = Exchange([tensor.detach().cpu().contiguous()], self._servers)
        running = self._client.begin(exchange, 1.0)
        self._client.launch(running, 0)
        self._wait(running)
        return exchange.sums[0]

    def close(self) -> None:
        if self._late_rounds:
            self._tell_late()
        if self.tables.traffic() and not self._closed:
            self._channel.send(
                {"type": "note", "text": f"worker-{self.index}: {self.tables.traffic()}"}
            )
        if not self._closed:
            self.tables.finish(_PUSHED_SECONDS)
        self._closed = True
        self._loop.close(_GOODBYE_SECONDS)

    # --- the result of a round --------------------------------------------------------------------

    def _wait(self, running: Round, event: threading.Event | None = None) -> None:
        try:
            self._client.wait(running, self.look, event)
        except SumsExpired as error:
            text = f"too far behind the others to catch up, and ends: {error}"
            self._channel.send(
                {"type": "fault", "text": text, "seconds": 0.0, "steps": 0, "leaves": True}
            )
            self._channel.flush(_GOODBYE_SECONDS)
            raise Stop from error
        except HubLost as error:
            print(f"worker-{self.index} ends: {error}", file=sys.stderr)
            raise Stop from error

    def _even_out(self, running: Round) -> None:
        """Rescale the sums if their chunks may come from different workers, so that all stand for
        the same number of samples.
        """
        chunks = running.exchange.chunks
        wanted = running.weights[chunks[-1].number]
        for chunk in chunks:
            weight = running.weights[chunk.number]
            if weight and weight != wanted:
                running.exchange.scale(chunk, wanted / weight)

    def _count_late(self, running: Round) -> None:
        self._rounds += 1
        if running.late:
            self._late_rounds += 1
            self._late_samples += self._samples
        if self._late_rounds and time.monotonic() - self._told_late > _NOTE_LATE_SECONDS:
            self._tell_late()

    def _tell_late(self) -> None:
        self._told_late = time.monotonic()
        self._note(
            f"{self._late_rounds} of {self._rounds} gradients of worker-{self.index} came too "
            f"late: the job did not train, or only in part, on {self._late_samples:g} samples"
        )

    def _count_loss(self, running: Round, seconds: float) -> None:
        """Report the time that the loss of tasks cost in this round."""
        lost = self._client.take_lost()
        usual = statistics.median(self._seconds) if self._seconds else seconds
        if lost and (running.again or any(task.startswith("server-") for task in lost)):
            text = f"{', '.join(sorted(lost))} lost in {self._step_now()}; "
            text += "all others pushed again" if running.again else "the others had its sums"
            cost = max(0.0, seconds - usual)
            self._channel.send(
                {"type": "fault", "text": text, "seconds": cost, "steps": int(running.again)}
            )
        else:
            self._seconds.append(seconds)

    def _step_now(self) -> str:
        return "a step" if self.observer is None else f"step {self.observer.step}"

    def _transfers(self, running: Round) -> list[Transfer]:
        return [
            Transfer(
                f"server-{server}",
                Passage(*traffic.pushed, traffic.bytes_out) if traffic.bytes_out else None,
                Passage(*traffic.pulled, traffic.bytes_in) if traffic.bytes_in else None,
            )
            for server, traffic in enumerate(running.traffic)
        ]

    def _note(self, text: str) -> None:
        self._channel.send({"type": "note", "text": text})

    @property
    def _registered(self) -> Exchange:
        if self._exchange is None:
            raise RuntimeError("a round was to begin before its buffers were registered")
        return self._exchange

    def _check_between(self) -> None:
        """
        Raises:
            ReduceError: A round is open: the code that began it failed, and the script has
                continued.
        """
        if self._round is not None:
            raise ReduceError(
                "a step failed in the middle of its exchange with the other workers, and the "
                "script went on: they wait for the rest of that step. Let the error end the script"
            )

    @property
    def _running(self) -> Round:
        if self._round is None:
            raise RuntimeError("a buffer was launched outside a round")
        return self._round


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, as a flat tensor of the same memory."""
    return (
        tensor.reshape(-1).view(torch.uint8)
        if tensor.numel()
        else torch.empty(0, dtype=torch.uint8)
    )
