"""Optimizers over pieces of tensors come to what they come to over whole ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from headgate.torch.ps import optimizers
from headgate.torch.ps.asynchronous.parameters import ServerChunk
from headgate.torch.ps.optimizers import OptimizerError, cut, cut_state, joined_state, part
from headgate.torch.ps.tables.model_tables import check
from headgate.torch.ps.transport.payload import octets, pack, unpack

SHAPES = [(40, 70), (70,), (), (3, 5, 7), (9000,)]
ELEMENT_WISE: list[Callable[[Any], Any]] = [
    lambda p: torch.optim.SGD(p, lr=0.1),
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1, dtype=torch.float64), betas=(0.8, 0.99)),
    lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
    lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True, momentum=0.5),
    torch.optim.Adadelta,
    lambda p: torch.optim.Adamax(p, lr=0.1),
    lambda p: torch.optim.NAdam(p, lr=0.1),
    lambda p: torch.optim.RAdam(p, lr=0.1),
    lambda p: torch.optim.ASGD(p, lr=0.1),
    lambda p: torch.optim.Rprop(p, lr=0.1),
]
WHOLE: list[Callable[[Any], Any]] = [lambda p: torch.optim.Adafactor(p, lr=0.1)]
if hasattr(torch.optim, "Muon"):
    WHOLE.append(lambda p: torch.optim.Muon([t for t in p if t.dim() == 2], lr=0.1))


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in SHAPES]


def over_the_wire(tree: Any) -> Any:
    text, tensors = pack(tree)
    return unpack(text, [bytearray(octets(tensor)) for tensor in tensors])


class Servers:
    """Two servers' chunks of an optimizer's parameters, in this process."""

    def __init__(self, optimizer: Any) -> None:
        self.tensors = [
            parameter for group in optimizer.param_groups for parameter in group["params"]
        ]
        groups = [
            number for number, group in enumerate(optimizer.param_groups) for _ in group["params"]
        ]
        recipe = optimizers.recipe(optimizer)
        self.chunks = cut(self.tensors, 2, optimizers.element_wise(type(optimizer)))
        self.held = [
            ServerChunk(
                **over_the_wire(
                    {
                        "values": [
                            part(self.tensors[p.parameter], p).clone() for p in chunk.pieces
                        ],
                        "states": [self._state(optimizer, p) for p in chunk.pieces],
                        "groups": [groups[p.parameter] for p in chunk.pieces],
                        "recipe": recipe,
                    }
                )
            )
            for chunk in self.chunks
        ]

    def _state(self, optimizer: Any, piece: optimizers.Piece) -> dict[str, Any]:
        tensor = self.tensors[piece.parameter]
        return cut_state(optimizer.state.get(tensor, {}), tensor.shape, piece)

    def step(
        self, gradients: list[torch.Tensor | None], changed: dict[int, dict[str, Any]]
    ) -> None:
        for chunk, held in zip(self.chunks, self.held):
            parts = [(i, gradients[p.parameter], p) for i, p in enumerate(chunk.pieces)]
            sent = [part(g, p).reshape(-1) for _, g, p in parts if g is not None]
            empty = torch.empty(0, dtype=torch.float64)
            held.step(torch.cat([empty, *sent]), [i for i, g, _ in parts if g is not None], changed)

    def values(self) -> list[torch.Tensor]:
        flat = [torch.empty(tensor.numel(), dtype=torch.float64) for tensor in self.tensors]
        for chunk, held in zip(self.chunks, self.held):
            begin = 0
            for piece in chunk.pieces:
                flat[piece.parameter][piece.start : piece.stop] = held.values[
                    begin : begin + piece.elements
                ]
                begin += piece.elements
        return [values.view(tensor.shape) for values, tensor in zip(flat, self.tensors)]

    def state(self, number: int) -> dict[str, Any]:
        parts = [
            (piece, state)
            for chunk, held in zip(self.chunks, self.held)
            for piece, state in zip(chunk.pieces, held.states())
            if piece.parameter == number
        ]
        return joined_state(parts, self.tensors[number].shape)


@pytest.mark.parametrize("make", [*ELEMENT_WISE, *WHOLE])
def test_servers_come_to_what_one_process_comes_to(make: Callable[[Any], Any]) -> None:
    optimizer = make(parameters())
    tensors = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    servers: Servers | None = None
    for step in range(6):
        if step == 2:  # with a state that was loaded, and a parameter that has none yet
            servers = Servers(optimizer)
        changed: dict[int, dict[str, Any]] = {}
        if step == 4:
            optimizer.param_groups[0]["lr"] = 0.03
            changed = {0: {"lr": 0.03}}
        gradients = [
            None if number == step - 1 else torch.randn_like(t) for number, t in enumerate(tensors)
        ]
        for tensor, gradient in zip(tensors, gradients):
            tensor.grad = gradient
        optimizer.step()
        if servers is not None:
            servers.step(gradients, changed)
    assert servers is not None
    for held, wanted in zip(servers.values(), tensors):
        torch.testing.assert_close(held, wanted.detach(), rtol=1e-12, atol=1e-14)
    for number, tensor in enumerate(tensors):
        for name, wanted in optimizer.state[tensor].items():
            held = servers.state(number)[name]
            assert torch.as_tensor(held).shape == torch.as_tensor(wanted).shape, name
            torch.testing.assert_close(
                torch.as_tensor(held), torch.as_tensor(wanted), rtol=1e-12, atol=1e-14
            )


def test_a_server_goes_on_from_what_it_saved() -> None:
    optimizer = torch.optim.AdamW(parameters(), lr=0.1)
    servers = Servers(optimizer)
    gradients: list[torch.Tensor | None] = [torch.randn_like(tensor) for tensor in servers.tensors]
    servers.step(gradients, {0: {"lr": 0.05}})
    again = Servers(optimizer)
    again.held = [ServerChunk(**over_the_wire(held.saved())) for held in servers.held]
    for one in (servers, again):
        one.step(gradients, {})
    assert all(torch.equal(a, b) for a, b in zip(servers.values(), again.values()))


@pytest.mark.parametrize("servers", [2, 3, 7])
@pytest.mark.parametrize("sizes", [[1_000_000], [300_000, 5000, 5000, 64], [10_000] * 40])
def test_tensors_that_may_be_split_lie_on_servers_within_five_percent(
    servers: int, sizes: list[int]
) -> None:
    loads = [0] * servers
    for chunk in cut([torch.empty(size) for size in sizes], servers, split=True):
        loads[chunk.server] += sum(piece.elements for piece in chunk.pieces)
    assert sum(loads) == sum(sizes)
    assert max(loads) / (sum(sizes) / servers) < 1.05


def test_a_tensor_that_must_stay_whole_does() -> None:
    tensors = [torch.empty(1_000_000), torch.empty(10)]
    pieces = [piece for chunk in cut(tensors, 2, split=False) for piece in chunk.pieces]
    assert sorted(piece.elements for piece in pieces) == [10, 1_000_000]


class Homemade(torch.optim.SGD):
    pass


def test_only_torch_s_own_classes_are_known_to_be_element_wise() -> None:
    assert optimizers.element_wise(torch.optim.SGD)
    assert not optimizers.element_wise(Homemade)
    assert not optimizers.element_wise(torch.optim.Adafactor)


def test_an_optimizer_that_evaluates_the_loss_itself_is_refused() -> None:
    with pytest.raises(OptimizerError, match="several times within a step"):
        optimizers.recipe(torch.optim.LBFGS(parameters()))


def test_an_optimizer_that_servers_cannot_import_is_refused() -> None:
    class Local(torch.optim.SGD):
        pass

    with pytest.raises(OptimizerError, match="defined in the script itself"):
        optimizers.recipe(Local(parameters(), lr=0.1))
    with pytest.raises(OptimizerError, match="cannot import nowhere"):
        optimizers.build({"module": "nowhere", "name": "X", "arguments": {}, "groups": []}, [])
    with pytest.raises(OptimizerError, match=r"is no torch\.optim\.Optimizer"):
        optimizers.build({"module": "os", "name": "stat_result", "arguments": {}, "groups": []}, [])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (torch.optim.Adam, "does not support sparse gradients"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "with momentum changes every row"),
        (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1), "sparse"),
    ],
)
def test_an_optimizer_that_cannot_step_a_table_is_refused_with_the_reason(
    make: Callable[[Any], Any], reason: str
) -> None:
    optimizer = make(parameters())  # the first one that is made imports torch._dynamo
    with pytest.raises(OptimizerError, match=reason):
        check(optimizer, optimizer.param_groups[0])


@pytest.mark.parametrize("kind", [torch.optim.SparseAdam, torch.optim.Adagrad, torch.optim.SGD])
def test_an_optimizer_that_steps_only_the_rows_in_use_is_taken(kind: Any) -> None:
    optimizer = kind(parameters(), lr=0.1)
    check(optimizer, optimizer.param_groups[0])
