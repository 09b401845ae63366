"""A worker of a plan in which workers do not wait for each other: gradients go to the servers, where the optimizers
are, and new values come back, chunk by chunk in one round trip."""

from __future__ import annotations

import functools
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from headgate.task import Channel
from headgate.torch.backend import REMOTE, Asynchronous, Movement
from headgate.torch.ps import optimizers
from headgate.torch.ps.calls import Answer, Caller, transfers
from headgate.torch.ps.leased import Leased
from headgate.torch.ps.links import Links
from headgate.torch.ps.loop import Loop
from headgate.torch.ps.optimizers import Chunk, Piece, cut, cut_state, joined_state, part
from headgate.torch.ps.remote_table import RemoteTables
from headgate.torch.ps.schedules import Schedule

_GOODBYE_SECONDS = 1.0


class OnServers(Asynchronous):
    """The worker.

    Args:
        channel: To the hub; was welcomed, and has told a first view.
        links: To the servers; not started yet.
        loop: Drives them.
        folder: Where files go that hold a whole table; None: where temporary files go.
    """

    def __init__(self, channel: Channel, links: Links, loop: Loop, folder: str | None) -> None:
        self.index = links.index
        self._channel = channel
        self._loop = loop
        self.caller = Caller(links, loop, channel)
        self.caller.greetings.append(self._greet)
        self._tables = RemoteTables(self.caller, False, folder, lambda: self.observer)
        self._adopted: list[_Adopted] = []
        self._models = 0
        self._broadcasts = 0
        self._clock: int | None = None
        self._told: Answer | None = None
        self._closed = False
        self._noted: set[str] = set()
        self.dealer = self._leased = Leased(self.caller, self._refresh, self._note, self._freeze)

    @property
    def lowest(self) -> bool:
        return self.caller.lowest

    def adopt(self, model: nn.Module, optimizer: Any) -> None:
        self._tables.adopt(self._models, model, optimizer)
        self._models += 1
        if optimizer is None:
            return
        if self._clock is None:
            self._clock = self.caller.ask(0, "pace.enter", {"clock": None, "told": []})["clock"]
        adopted = _Adopted(len(self._adopted), optimizer, self.caller)
        self._adopted.append(adopted)
        if self.caller.lowest:
            adopted.create()
        adopted.pull()
        optimizer.state.clear()
        self._replace_step(adopted)

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        number = self._broadcasts
        self._broadcasts += 1
        if self.caller.lowest:
            given = [tensor.detach().cpu().clone() for tensor in tensors]
            self.caller.ask(0, "broadcast.give", {"number": number, "value": given})
            return
        found = self.caller.ask(0, "broadcast.take", {"number": number})["value"]
        with torch.no_grad():
            for tensor, value in zip(tensors, found):
                tensor.detach().copy_(value)

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
        pulled, pushed = sum(self.caller.bytes_in), sum(self.caller.bytes_out)
        self._note(
            f"worker-{self.index}: {pulled / 1e6:.1f} MB came from the servers and {pushed / 1e6:.1f} MB went to them; "
            f"workers were at most {self.staleness} steps ahead of the slowest"
        )
        if self._told is not None:  # once this worker has left, servers no longer listen to it
            self._told.there_within(_GOODBYE_SECONDS)
        self._loop.close(_GOODBYE_SECONDS)

    # --- steps -------------------------------------------------------------------------------------------------------

    def _replace_step(self, adopted: _Adopted) -> None:
        optimizer = adopted.optimizer

        def step(self_: Any, closure: Callable[[], Any] | None = None) -> Any:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self._step(adopted)
            return loss

        hooked: Any = torch.optim.Optimizer.profile_hook_step(functools.wraps(type(optimizer).step)(step))
        # Schedulers look whether they have to count the steps; that they need not.
        hooked._wrapped_by_lr_sched = True
        optimizer.step = types.MethodType(hooked, optimizer)
        optimizer.register_state_dict_post_hook(lambda _, state: adopted.with_state(state))
        optimizer.register_load_state_dict_pre_hook(_refuse_to_load)

    @torch.no_grad()
    def _step(self, adopted: _Adopted) -> None:
        adopted.optimizer._opt_called = True
        paced = adopted is self._adopted[0]
        begin = time.perf_counter()
        if paced:
            self._begin()
        may = time.perf_counter()
        answers = self._tables.push(adopted.optimizer)
        answers += adopted.step(self._clock if paced else None)
        self._tables.settle()
        if self.observer is not None and self.observer.sampling():
            pushed = max((answer.reached for answer in answers), default=may)
            came = max((answer.came for answer in answers), default=may)
            spans = (("wait", begin, may - begin), ("push", may, pushed - may), ("pull", pushed, came - pushed))
            self.observer.moved(Movement(spans, transfers(answers)))
            self.caller.compare_clocks()
        if paced:
            self._done()

    def _begin(self) -> None:
        """Wait until server 0 lets this worker step."""
        self._leased.positions = {}
        self.staleness = max(self.staleness, self.caller.ask(0, "pace.begin", {})["largest"])

    def _done(self) -> None:
        self._clock = (self._clock or 0) + 1
        self._told = self.caller.call(0, "pace.done", {"leases": self._leased.take_given()})

    # --- values ------------------------------------------------------------------------------------------------------

    def _freeze(self) -> None:
        """Hold the others before their next step, until this worker's own: what is saved is what all agree on."""
        if not self._leased.positions and self.lowest:
            positions = self.caller.ask(0, "pace.freeze", {})["positions"]
            self._leased.take_positions(positions)

    def _refresh(self) -> None:
        """Bring the values that the servers have now."""
        for adopted in self._adopted:
            adopted.pull()

    def _greet(self, server: int, again: bool) -> list[tuple[str, Mapping[str, Any]]]:
        calls: list[tuple[str, Mapping[str, Any]]] = []
        if again and server == 0 and self._clock is not None:
            calls.append(("pace.enter", {"clock": self._clock, "told": self._leased.told()}))
        for adopted in self._adopted if again else []:
            # Of what no snapshot has, the values here are the best that is left.
            calls += adopted.creation(server, states=False)
            adopted.forget_options()
        return calls

    def _note(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._channel.send({"type": "note", "text": text})


class _Adopted:
    """An optimizer whose parameters are on the servers.

    Args:
        number: Of the optimizer, in the order in which they were prepared.
        optimizer: It.
        caller: Asks the servers.
    """

    def __init__(self, number: int, optimizer: Any, caller: Caller) -> None:
        self.optimizer = optimizer
        self._number = number
        self._caller = caller
        self._recipe = optimizers.recipe(optimizer)
        found = [
            (parameter, group, place)
            for place, (group, parameter) in enumerate(
                (number, parameter)
                for number, group in enumerate(optimizer.param_groups)
                for parameter in group["params"]
            )
            if not hasattr(parameter, REMOTE)
        ]
        self._parameters: list[torch.Tensor] = [parameter for parameter, _, _ in found]
        self._groups = [group for _, group, _ in found]
        self._places = [place for _, _, place in found]
        self._chunks = cut(self._parameters, caller.servers, optimizers.element_wise(type(optimizer)))
        self._last = {chunk.server: number for number, chunk in enumerate(self._chunks)}
        self._sent: list[dict[str, Any]] = [dict(options) for options in self._recipe["groups"]]

    def create(self) -> None:
        """Give the servers these values, and this state of the optimizer, unless they have others."""
        calls = [
            self._caller.call(server, operation, content)
            for server in range(self._caller.servers)
            for operation, content in self.creation(server, states=True)
        ]
        for answer in calls:
            answer.wait()

    def creation(self, server: int, states: bool) -> list[tuple[str, dict[str, Any]]]:
        """What a server is told to make its chunks."""
        calls = []
        for number, chunk in enumerate(self._chunks):
            if chunk.server == server:
                content = {
                    "name": self._name(number),
                    "values": [self._part(piece).detach().cpu().clone() for piece in chunk.pieces],
                    "states": [self._state(piece) if states else {} for piece in chunk.pieces],
                    "groups": [self._groups[piece.parameter] for piece in chunk.pieces],
                    "recipe": {**self._recipe, "groups": self._sent},
                }
                calls.append(("parameters.create", content))
        return calls

    def forget_options(self) -> None:
        """Send all options with the next step."""
        self._sent = [{} for _ in self._sent]

    @torch.no_grad()
    def step(self, ends: int | None) -> list[Answer]:
        """Push gradients, and take the new values; the answers with these.

        Args:
            ends: Number of the step, if servers are to time it.
        """
        changed = self._changed()
        answers = []
        for number, chunk in enumerate(self._chunks):
            present = [i for i, piece in enumerate(chunk.pieces) if self._parameters[piece.parameter].grad is not None]
            content = {
                "name": self._name(number),
                "gradients": self._gradients([chunk.pieces[i] for i in present], chunk),
                "present": None if len(present) == len(chunk.pieces) else present,
                "changed": changed,
                "ends": ends if self._last[chunk.server] == number else None,
            }
            answers.append(self._caller.call(chunk.server, "parameters.step", content))
        for chunk, answer in zip(self._chunks, answers):
            self._take(chunk, answer.wait()["values"])
        return answers

    @torch.no_grad()
    def pull(self) -> None:
        """Take the values that the servers have."""
        asked = [
            self._caller.call(chunk.server, "parameters.pull", {"name": self._name(number)})
            for number, chunk in enumerate(self._chunks)
        ]
        for chunk, answer in zip(self._chunks, asked):
            self._take(chunk, answer.wait()["values"])

    def with_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """A state dict of the optimizer, with the state that is on the servers."""
        asked = [
            self._caller.call(chunk.server, "parameters.state", {"name": self._name(number)})
            for number, chunk in enumerate(self._chunks)
        ]
        parts: dict[int, list[tuple[Piece, Mapping[str, Any]]]] = {}
        for chunk, answer in zip(self._chunks, asked):
            for piece, found in zip(chunk.pieces, answer.wait()["states"]):
                parts.setdefault(piece.parameter, []).append((piece, found))
        for number, found in parts.items():
            joined = joined_state(found, self._parameters[number].shape)
            if joined:
                state["state"][self._places[number]] = joined
        state["state"] = dict(sorted(state["state"].items()))
        return state

    def _name(self, chunk: int) -> str:
        return f"{self._number}.{chunk}"

    def _changed(self) -> dict[int, dict[str, Any]]:
        """Options that changed since the last step, by number of their group."""
        changed = {}
        for number, group in enumerate(self.optimizer.param_groups):
            now = optimizers.options(group)
            different = {key: value for key, value in now.items() if self._sent[number].get(key, ...) != value}
            if different:
                changed[number] = different
                self._sent[number] = now
        return changed

    def _part(self, piece: Piece) -> torch.Tensor:
        return part(self._parameters[piece.parameter], piece)

    def _gradients(self, pieces: Sequence[Piece], chunk: Chunk) -> torch.Tensor:
        """The gradients of these pieces of a chunk, one after the other."""
        if len(pieces) == 1:
            return self._gradient(pieces[0])
        nothing = torch.empty(0, dtype=self._parameters[chunk.pieces[0].parameter].dtype)
        return torch.cat([nothing, *map(self._gradient, pieces)])

    def _gradient(self, piece: Piece) -> torch.Tensor:
        gradient = self._parameters[piece.parameter].grad
        assert gradient is not None
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        return part(dense, piece).detach().reshape(-1).cpu()

    def _state(self, piece: Piece) -> dict[str, Any]:
        parameter = self._parameters[piece.parameter]
        return cut_state(self.optimizer.state.get(parameter, {}), parameter.shape, piece)

    def _take(self, chunk: Chunk, values: torch.Tensor) -> None:
        begin = 0
        for piece in chunk.pieces:
            new = values[begin : begin + piece.elements]
            begin += piece.elements
            parameter = self._parameters[piece.parameter]
            if piece.elements == parameter.numel():
                parameter.copy_(new.view(parameter.shape))
            elif parameter.is_contiguous():
                parameter.view(-1)[piece.start : piece.stop].copy_(new)
            else:
                flat = parameter.reshape(-1)
                flat[piece.start : piece.stop] = new
                parameter.copy_(flat.view(parameter.shape))


def _refuse_to_load(optimizer: Any, state: Any) -> None:
    raise RuntimeError(
        "optimizer.load_state_dict() after headgate.torch.prepare: the optimizer is on the parameter servers; load its "
        "state before prepare"
    )
