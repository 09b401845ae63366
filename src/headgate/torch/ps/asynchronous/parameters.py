"""The server's side of asynchronous plans: holds parameters with their optimizers, and steps them
when a gradient arrives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from headgate.torch.ps import optimizers
from headgate.torch.ps.transport.requests import Handler, Request


class ServerChunk:
    """The pieces of a chunk, concatenated in one tensor, and the optimizer that steps them.

    Args:
        values: The initial values of each piece, in its shape, all of the same type.
        states: The optimizer's initial state of each piece.
        groups: Number of each piece's parameter group.
        recipe: The result of `optimizers.recipe`; None: the pieces are not stepped.
    """

    def __init__(
        self,
        values: Sequence[torch.Tensor],
        states: Sequence[Mapping[str, Any]],
        groups: Sequence[int],
        recipe: Mapping[str, Any] | None,
    ) -> None:
        self.values = torch.cat([value.reshape(-1) for value in values])
        self._groups = tuple(groups)
        self._recipe = recipe
        self._ends: list[int] = []
        self._pieces: list[torch.Tensor] = []
        end = 0
        for value in values:
            self._pieces.append(self.values[end : end + value.numel()].view(value.shape))
            end += value.numel()
            self._ends.append(end)
        self._optimizer: Any = None
        if recipe is not None:
            self._optimizer, self._options = optimizers.build(
                recipe, list(zip(self._pieces, groups))
            )
            for piece, state in zip(self._pieces, states):
                if state:
                    self._optimizer.state[piece].update(_copied(state))

    def step(
        self,
        gradients: torch.Tensor,
        present: Sequence[int] | None,
        changed: Mapping[int, Mapping[str, Any]],
    ) -> None:
        """Take a step.

        Args:
            gradients: Concatenated gradients of the pieces that have one.
            present: The pieces that have one; None: all.
            changed: New options, by number of the group.
        """
        for number, options in changed.items():
            if number in self._options:
                self._options[number].update(options)
        begin = 0
        for number in range(len(self._pieces)) if present is None else present:
            piece = self._pieces[number]
            piece.grad = gradients[begin : begin + piece.numel()].view(piece.shape)
            begin += piece.numel()
        self._optimizer.step()
        for piece in self._pieces:
            piece.grad = None

    def states(self) -> list[dict[str, Any]]:
        """The optimizer's state of each piece."""
        if self._optimizer is None:
            return [{} for _ in self._pieces]
        return [dict(self._optimizer.state.get(piece, {})) for piece in self._pieces]

    def saved(self) -> dict[str, Any]:
        """The contents, for `restored`."""
        recipe = None
        if self._recipe is not None:
            current = list(self._recipe["groups"])
            for number, options in self._options.items():
                current[number] = optimizers.options(options)
            recipe = {**self._recipe, "groups": current}
        return {
            "values": list(self._pieces),
            "states": self.states(),
            "groups": list(self._groups),
            "recipe": recipe,
        }


class Parameters(Handler):
    """Chunks by name. A request about a missing chunk waits until it is created.

    Args:
        saved: The result of `state` in a former life of the server.
    """

    operations = frozenset(
        {"parameters.create", "parameters.step", "parameters.pull", "parameters.state"}
    )
    without_snapshot: Mapping[str, str] = {
        "parameters.create": (
            "dense parameters go on from a worker's values, and their optimizers' state begins anew"
        )
    }

    def __init__(self, saved: Mapping[str, Any]) -> None:
        self._held = {name: ServerChunk(**held) for name, held in saved.items()}
        self._waiting: dict[str, list[tuple[str, Request]]] = {}

    def handle(self, operation: str, request: Request) -> None:
        content = request.content
        name = content["name"]
        if operation == "parameters.create":
            if name not in self._held:
                self._held[name] = ServerChunk(
                    content["values"], content["states"], content["groups"], content["recipe"]
                )
            request.answer()
            for waiting, asked in self._waiting.pop(name, []):
                self.handle(waiting, asked)
            return
        held = self._held.get(name)
        if held is None:
            self._waiting.setdefault(name, []).append((operation, request))
        elif operation == "parameters.state":
            request.answer(states=held.states())
        else:
            if operation == "parameters.step":
                held.step(content["gradients"], content["present"], content["changed"])
            request.answer(values=held.values.clone())

    def state(self) -> Mapping[str, Any]:
        return {name: held.saved() for name, held in self._held.items()}


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a state. Values in received messages and files must not be changed."""
    return {
        key: value.clone() if isinstance(value, torch.Tensor) else value
        for key, value in state.items()
    }
