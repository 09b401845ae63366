"""A worker's side of an optimizer on asynchronous servers. Gradients go to the servers chunk by
chunk, and each chunk returns with new values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from headgate.torch.backend import REMOTE
from headgate.torch.ps import optimizers
from headgate.torch.ps.optimizers import ParameterChunk, Piece, cut, cut_state, joined_state, part
from headgate.torch.ps.transport.calls import Answer, Caller


class RemoteOptimizer:
    """An optimizer whose parameters are on the servers.

    Args:
        number: Number of the optimizer, in the order of preparation.
        optimizer: The script's optimizer.
        caller: Calls the servers.
    """

    def __init__(self, number: int, optimizer: Any, caller: Caller) -> None:
        self.optimizer = optimizer
        self._number = number
        self._caller = caller
        self._recipe = optimizers.recipe(optimizer)
        parameters = [
            (parameter, number)
            for number, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
        ]
        remote = [
            (parameter, group, place)
            for place, (parameter, group) in enumerate(parameters)
            if not hasattr(parameter, REMOTE)
        ]
        self._parameters: list[torch.Tensor] = [parameter for parameter, _, _ in remote]
        self._groups = [group for _, group, _ in remote]
        self._places = [place for _, _, place in remote]
        self._chunks = cut(
            self._parameters, caller.servers, optimizers.element_wise(type(optimizer))
        )
        self._last = {chunk.server: number for number, chunk in enumerate(self._chunks)}
        self._sent: list[dict[str, Any]] = [dict(options) for options in self._recipe["groups"]]
        self._taken: dict[int, torch.Tensor] = {}

    def create(self) -> None:
        """Give the servers the present values and the optimizer's state, unless they have
        others.
        """
        calls = [
            self._caller.call(server, operation, content)
            for server in range(self._caller.servers)
            for operation, content in self.creation(server, states=True)
        ]
        for answer in calls:
            answer.wait()

    def creation(self, server: int, states: bool) -> list[tuple[str, dict[str, Any]]]:
        """The calls that have a server create its chunks."""
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
        """Push gradients and take the new values. Returns the answers with the values.

        Args:
            ends: Number of the step, if servers are to time it.

        Raises:
            RuntimeError: The script changed a parameter itself.
        """
        self._check_unchanged()
        changed = self._changed()
        answers = []
        for number, chunk in enumerate(self._chunks):
            present = [
                i
                for i, piece in enumerate(chunk.pieces)
                if self._parameters[piece.parameter].grad is not None
            ]
            content = {
                "name": self._name(number),
                "gradients": self._gradients([chunk.pieces[i] for i in present], chunk),
                "present": None if len(present) == len(chunk.pieces) else present,
                "changed": changed,
                "ends": ends if self._last[chunk.server] == number else None,
            }
            answers.append(self._caller.call(chunk.server, "parameters.step", content))
        for number, answer in enumerate(answers):
            self._take(number, answer.wait()["values"])
        return answers

    @torch.no_grad()
    def pull(self) -> None:
        """Take the present values from the servers."""
        asked = [
            self._caller.call(chunk.server, "parameters.pull", {"name": self._name(number)})
            for number, chunk in enumerate(self._chunks)
        ]
        for number, answer in enumerate(asked):
            self._take(number, answer.wait()["values"])

    def with_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """A state dict of the optimizer, with the state on the servers."""
        asked = [
            self._caller.call(chunk.server, "parameters.state", {"name": self._name(number)})
            for number, chunk in enumerate(self._chunks)
        ]
        parts: dict[int, list[tuple[Piece, Mapping[str, Any]]]] = {}
        for chunk, answer in zip(self._chunks, asked):
            for piece, fields in zip(chunk.pieces, answer.wait()["states"]):
                parts.setdefault(piece.parameter, []).append((piece, fields))
        for number, fields in parts.items():
            joined = joined_state(fields, self._parameters[number].shape)
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
            different = {
                key: value
                for key, value in now.items()
                if self._sent[number].get(key, ...) != value
            }
            if different:
                changed[number] = different
                self._sent[number] = now
        return changed

    def _part(self, piece: Piece) -> torch.Tensor:
        return part(self._parameters[piece.parameter], piece)

    def _gradients(self, pieces: Sequence[Piece], chunk: ParameterChunk) -> torch.Tensor:
        """The concatenated gradients of these pieces of a chunk."""
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

    def _check_unchanged(self) -> None:
        """
        Raises:
            RuntimeError: A parameter or an optimizer's state was changed by the script.
        """
        known = set(map(id, self._parameters))
        for parameter in (
            present for group in self.optimizer.param_groups for present in group["params"]
        ):
            if id(parameter) not in known and not hasattr(parameter, REMOTE):
                raise RuntimeError(
                    f"the optimizer was given a parameter of shape {tuple(parameter.shape)} after "
                    "headgate.torch.prepare: under an asynchronous plan it is on the parameter "
                    "servers, with the "
                    "parameters that it had then. Add it before prepare, or run a synchronous plan"
                )
        for number, values in self._taken.items():
            begin = 0
            for piece in self._chunks[number].pieces:
                now = self._part(piece).detach().reshape(-1)
                before = values[begin : begin + piece.elements].to(now.device)
                begin += piece.elements
                if now.shape != before.shape or not torch.equal(
                    now.view(torch.uint8), before.view(torch.uint8)
                ):
                    shape = tuple(self._parameters[piece.parameter].shape)
                    raise RuntimeError(
                        f"a parameter of shape {shape} was changed by the script, or by another "
                        "optimizer, after headgate.torch.prepare: under an asynchronous plan its "
                        "values are those of the parameter servers, where the optimizer is, and "
                        "the change would be lost. Change it before prepare, or run a synchronous "
                        "plan"
                    )

    def _take(self, number: int, values: torch.Tensor) -> None:
        begin = 0
        for piece in self._chunks[number].pieces:
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
        self._taken[number] = values.to(parameter.device)
