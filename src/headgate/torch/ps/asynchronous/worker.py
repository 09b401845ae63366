"""A worker of an asynchronous plan. It pushes gradients to the servers, which hold the optimizers.
Each chunk returns with new values in one round trip.
"""

from __future__ import annotations

import functools
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from headgate.task import Channel
from headgate.torch.backend import Asynchronous, Movement
from headgate.torch.ps.asynchronous.lease_client import LeaseClient
from headgate.torch.ps.asynchronous.remote_optimizer import RemoteOptimizer
from headgate.torch.ps.asynchronous.schedules import Schedule
from headgate.torch.ps.tables.model_tables import RemoteTables
from headgate.torch.ps.transport.calls import Answer, Caller, transfers
from headgate.torch.ps.transport.links import Links
from headgate.torch.ps.transport.loop import Loop
from headgate.torch.straggler_wait import StragglerWait

_GOODBYE_SECONDS = 1.0


class AsynchronousWorker(Asynchronous):
    """A worker of an asynchronous plan.

    Args:
        channel: The channel to the hub, after its welcome and a first view.
        links: Links to the servers, not started yet.
        loop: Drives the links.
        folder: Folder of files that hold a whole table; None: that of temporary files.
    """

    def __init__(self, channel: Channel, links: Links, loop: Loop, folder: str | None) -> None:
        self.index = links.index
        self._channel = channel
        self._loop = loop
        self.caller = Caller(links, loop, channel)
        self.caller.greetings.append(self._greet)
        self._tables = RemoteTables(self.caller, False, folder, lambda: self.observer)
        self._adopted: list[RemoteOptimizer] = []
        self._models = 0
        self._broadcasts = 0
        self._clock: int | None = None
        self._told: Answer | None = None
        self._closed = False
        self._noted: set[str] = set()
        self._waits = StragglerWait(channel.send)
        self.assigner = self._leased = LeaseClient(
            self.caller, self._refresh, self._note, self._freeze
        )

    @property
    def lowest(self) -> bool:
        return self.caller.lowest

    def failed(self, error: BaseException) -> None:
        """Fail all waiting calls with the error that ended the loop."""
        self.caller.fail(error)

    def adopt(self, model: nn.Module, optimizer: Any) -> None:
        self._tables.adopt(self._models, model, optimizer)
        self._models += 1
        if optimizer is None:
            return
        if self._clock is None:
            self._clock = self.caller.ask(
                0, "coordinator.enter", {"clock": None, "told": [], "over": []}
            )["clock"]
        adopted = RemoteOptimizer(len(self._adopted), optimizer, self.caller)
        self._adopted.append(adopted)
        if self.caller.lowest:
            adopted.create()
        with self.caller.preparing():
            adopted.pull()
        optimizer.state.clear()
        self._replace_step(adopted)

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        number = self._broadcasts
        if self.caller.lowest:
            given = [tensor.detach().cpu().clone() for tensor in tensors]
            self.caller.call(0, "broadcast.give", {"number": number, "value": given})
        else:
            with self.caller.preparing():
                received = self.caller.ask(0, "broadcast.take", {"number": number})["value"]
            with torch.no_grad():
                for tensor, value in zip(tensors, received):
                    tensor.detach().copy_(value)
        self._broadcasts = number + 1

    def follow(self, scheduler: Any) -> None:
        self._leased.schedules.append(Schedule(scheduler))

    def before_save(self) -> int:
        self._freeze()
        self._refresh()
        return self._leased.ahead if self._leased.positions else 0

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._waits.close()
        pulled, pushed = sum(self.caller.bytes_in), sum(self.caller.bytes_out)
        self._note(
            f"worker-{self.index}: {pulled / 1e6:.1f} MB came from the servers and "
            f"{pushed / 1e6:.1f} MB went to them; "
            f"workers were at most {self.staleness} steps ahead of the slowest"
        )
        if self._told is not None:  # once this worker has left, servers no longer listen to it
            self._told.there_within(_GOODBYE_SECONDS)
        self._loop.close(_GOODBYE_SECONDS)

    # --- steps ------------------------------------------------------------------------------------

    def _replace_step(self, adopted: RemoteOptimizer) -> None:
        optimizer = adopted.optimizer

        def step(self_: Any, closure: Callable[[], Any] | None = None) -> Any:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self._step(adopted)
            return loss

        hooked: Any = torch.optim.Optimizer.profile_hook_step(
            functools.wraps(type(optimizer).step)(step)
        )
        # Schedulers check whether they have to count the steps. Here they do not have to.
        hooked._wrapped_by_lr_sched = True
        optimizer.step = types.MethodType(hooked, optimizer)
        optimizer.register_state_dict_post_hook(lambda _, state: adopted.with_state(state))
        optimizer.register_load_state_dict_pre_hook(_refuse_to_load)

    @torch.no_grad()
    def _step(self, adopted: RemoteOptimizer) -> None:
        adopted.optimizer._opt_called = True
        paced = adopted is self._adopted[0]
        begin = time.perf_counter()
        if paced:
            self._begin()
        may = time.perf_counter()
        answers = self._tables.push(adopted.optimizer)
        answers += adopted.step(self._clock if paced else None)
        self._tables.settle()
        end = time.perf_counter()
        if self.observer is not None and self.observer.sampling():
            pushed = max((answer.reached for answer in answers), default=may)
            came = max((answer.came for answer in answers), default=may)
            spans = (
                ("wait", begin, may - begin),
                ("push", may, pushed - may),
                ("pull", pushed, came - pushed),
            )
            self.observer.moved(Movement(spans, transfers(answers)))
            self.caller.compare_clocks()
        if paced:
            slowest = "the slowest worker" if may - begin > end - may else "servers"
            self._waits.add(begin, end, (self._clock or 0) + 1, (slowest,))
            self._done()

    def _begin(self) -> None:
        """Wait until server 0 allows this worker's step."""
        self._leased.positions = {}
        self.staleness = max(self.staleness, self.caller.ask(0, "coordinator.begin", {})["largest"])

    def _done(self) -> None:
        self._clock = (self._clock or 0) + 1
        self._told = self.caller.call(0, "coordinator.done", {"leases": self._leased.take_given()})

    # --- values -----------------------------------------------------------------------------------

    def _freeze(self) -> None:
        """Hold the others before their next step, until this worker's own, so that all agree on the
        saved state.
        """
        if not self._leased.positions and self.lowest:
            positions = self.caller.ask(0, "coordinator.freeze", {})["positions"]
            self._leased.take_positions(positions)

    def _refresh(self) -> None:
        """Take the present values from the servers."""
        for adopted in self._adopted:
            adopted.pull()

    def _greet(self, server: int, again: bool) -> list[tuple[str, Mapping[str, Any]]]:
        calls: list[tuple[str, Mapping[str, Any]]] = []
        if again and server == 0:
            calls.append(("broadcast.had", {"count": self._broadcasts}))
        if again and server == 0 and self._clock is not None:
            leases, over = self._leased.progress(), self._leased.over()
            calls.append(
                ("coordinator.enter", {"clock": self._clock, "told": leases, "over": over})
            )
        for adopted in self._adopted if again else []:
            # If no snapshot has a value, this worker's is the best that is left.
            calls += adopted.creation(server, states=False)
            adopted.forget_options()
        return calls

    def _note(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._channel.send({"type": "note", "text": text})


def _refuse_to_load(optimizer: Any, state: Any) -> None:
    raise RuntimeError(
        "optimizer.load_state_dict() after headgate.torch.prepare: the optimizer is on the "
        "parameter servers; load its state before prepare"
    )
