"""Every way that PyTorch has of setting a parameter, in a training: `python placed.py FOLDER
[WAY...]`.

Each way is tried on the weight of a dense and of a sparse layer, in each worker of a job and once
under plain Python. What a training came to, or the error that refused the way, is saved as
`FOLDER/TASK.pt`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import headgate.torch as hg

sys.path.append(str(Path(__file__).parent))
import right_answers  # type: ignore[import-not-found]

ROWS, WIDTH, SAMPLES = 30, 4, 26
Way = Callable[[nn.Module], object]


def values(rows: int = ROWS) -> torch.Tensor:
    return torch.linspace(-1, 1, rows * WIDTH).reshape(rows, WIDTH)


def pretrained() -> torch.Tensor:
    """A buffer that the script fills again afterwards, as one that reads vectors from a file
    does.
    """
    return values().clone()


class Model(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH, sparse=sparse)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.table(rows).mean(1))
        return out


with_weights: Callable[..., Any] = nn.Embedding.from_pretrained
embedding: Callable[..., Any] = nn.Embedding


def data(layer: Any) -> None:
    layer.weight.data = pretrained()


def data_of_another_size(layer: Any) -> None:
    layer.weight.data = values(ROWS + 5)


def data_copy(layer: Any) -> None:
    buffer = pretrained()
    layer.weight.data.copy_(buffer)
    buffer.zero_()


def copy_and_change(layer: Any) -> None:
    with torch.no_grad():
        layer.weight.copy_(values())
        layer.weight[3] = 0
        layer.weight[5:9] *= 2
        layer.weight[:, 1] = 0.5


def row_by_row(layer: Any) -> None:
    for row in (0, 7, 7, -1):
        layer.weight.data[row] = torch.full((WIDTH,), row + 0.5)
    with torch.no_grad():
        layer.weight[2:4] = values(2)
        layer.weight[6].mul_(3)


def by_numbers(layer: Any) -> None:
    with torch.no_grad():
        layer.weight[torch.tensor([3, 11, -2])] = values(3)
        layer.weight[torch.arange(ROWS) < 2] = 0.25
        layer.weight.data.index_copy_(0, torch.tensor([5, 20]), values(2))


def from_numpy(layer: Any) -> None:
    layer.weight.data.copy_(torch.from_numpy(np.full((ROWS, WIDTH), 0.125, dtype="float32")))


def new_parameter(layer: Any) -> None:
    layer.weight = nn.Parameter(values())


def by_setattr(layer: Any) -> None:
    delattr(layer, "weight")
    layer.register_parameter("weight", nn.Parameter(values()))


def drawn(layer: Any) -> None:
    nn.init.normal_(layer.weight, std=0.3)


def drawn_until_it_fits(layer: Any) -> None:
    nn.init.trunc_normal_(layer.weight, std=0.3)


def orthogonal(layer: Any) -> None:
    nn.init.orthogonal_(layer.weight)


def state_dict(layer: Any) -> None:
    layer.load_state_dict({"weight": values()}, strict=False)


def assigned_state_dict(layer: Any) -> None:
    layer.load_state_dict({"weight": values()}, strict=False, assign=True)


def as_vector(layer: Any) -> None:
    count = sum(parameter.numel() for parameter in layer.parameters())
    nn.utils.vector_to_parameters(torch.linspace(-1, 1, count), layer.parameters())


def swapped(layer: Any) -> None:
    torch.utils.swap_tensors(layer.weight, nn.Parameter(values()))  # type: ignore[no-untyped-call]


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * 2


def parametrized(layer: Any) -> None:
    nn.utils.parametrize.register_parametrization(layer, "weight", Doubled())


def frozen(layer: Any) -> None:
    layer.requires_grad_(False)


def set_storage(layer: Any) -> None:
    layer.weight.data.set_(values())


def shared_memory(layer: Any) -> None:
    layer.share_memory()


def type_and_back(layer: Any) -> None:
    layer.float().double()


def cut_off(layer: Any) -> None:
    layer.weight.data.clamp_(-0.2, 0.2)


WAYS: dict[str, Way] = {
    way.__name__: way
    for way in (
        *(
            data,
            data_of_another_size,
            data_copy,
            copy_and_change,
            row_by_row,
            by_numbers,
            from_numpy,
            new_parameter,
        ),
        *(
            by_setattr,
            drawn,
            drawn_until_it_fits,
            orthogonal,
            state_dict,
            assigned_state_dict,
            as_vector,
            swapped,
        ),
        *(parametrized, frozen, set_storage, shared_memory, type_and_back, cut_off),
    )
}


def train(
    model: nn.Module,
    optimizer: Any = None,
    change: Callable[[], object] = lambda: None,
    at: int = 0,
) -> Any:
    """Train; before a step, if not 0, of this number (after `prepare`) do something to the
    model.
    """
    indices, wanted = torch.randint(0, ROWS, (SAMPLES, 3)), torch.randn(SAMPLES, 1)
    loader: Any = DataLoader(TensorDataset(indices, wanted), batch_size=8, shuffle=True)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = hg.prepare(model, optimizer, loader)
    step = 0
    for _epoch in hg.epochs(2):
        for rows, labels in loader:
            step += 1
            if step == at:
                change()
            optimizer.zero_grad()
            functional.mse_loss(model(rows), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return [tensor.detach().clone() for tensor in model.state_dict().values()]


def dense_before(way: Way) -> Any:
    model = Model(sparse=False)
    way(model.head if way is as_vector else model.table)
    return train(model)


def sparse_before(way: Way) -> Any:
    model = Model(sparse=True)
    way(model.table)
    return train(model)


def dense_after(way: Way) -> Any:
    model = Model(sparse=False)
    return train(model, change=lambda: way(model.table), at=5)


def sparse_after(way: Way) -> Any:
    model = Model(sparse=True)
    return train(model, change=lambda: way(model.table), at=5)


# --- what is no change to a layer's weight --------------------------------------------------------


def from_pretrained() -> Any:
    model = Model(sparse=True)
    model.table = with_weights(pretrained(), freeze=False, sparse=True)
    return train(model)


def from_pretrained_adam() -> Any:
    model = Model(sparse=True)
    model.table = with_weights(pretrained(), freeze=False, sparse=True)
    return train(model, torch.optim.SparseAdam(model.table.parameters(), lr=0.1))


def from_pretrained_adagrad() -> Any:
    model = Model(sparse=True)
    model.table = with_weights(pretrained(), freeze=False, sparse=True)
    return train(model, torch.optim.Adagrad(model.parameters(), lr=0.1))


def from_pretrained_frozen() -> Any:
    model = Model(sparse=True)
    model.table = with_weights(pretrained(), sparse=True)
    return train(model)


def frozen_and_thawed() -> Any:
    model = Model(sparse=True)
    model.table.requires_grad_(False)
    return train(model, change=lambda: model.table.requires_grad_(True), at=4)


def pretrained_and_thawed() -> Any:
    model = Model(sparse=True)
    model.table = with_weights(pretrained(), sparse=True)
    return train(model, change=lambda: model.table.requires_grad_(True), at=4)


class Tied(Model):
    """Two sparse layers of one weight."""

    def __init__(self) -> None:
        super().__init__(sparse=True)
        self.other = nn.Embedding(ROWS, WIDTH, sparse=True)
        self.other.weight = self.table.weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.table(rows[:, :2]).mean(1) + self.other(rows[:, 2]))
        return out


def tied() -> Any:
    return train(Tied())


def tied_pretrained() -> Any:
    model = Tied()
    model.table.weight = model.other.weight = nn.Parameter(pretrained())
    return train(model)


class TiedToHead(Model):
    """The sparse layer's weight is that of a linear layer too."""

    def __init__(self) -> None:
        super().__init__(sparse=True)
        self.table = with_weights(pretrained(), freeze=False, sparse=True)
        self.head = nn.Linear(WIDTH, ROWS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows).mean(1, keepdim=True)


def tied_to_head() -> Any:
    return train(TiedToHead())


def tied_by_data() -> Any:
    model = Tied()
    model.other = nn.Embedding(ROWS, WIDTH, sparse=True)
    model.other.weight.data = model.table.weight.data
    return train(model)


def numpy_sizes() -> Any:
    model = Model(sparse=True)
    model.table = embedding(np.int64(ROWS), np.int32(WIDTH), sparse=True)
    lr: Any = np.float32(0.125)
    return train(model, torch.optim.SGD(model.parameters(), lr=lr))


def max_norm() -> Any:
    model = Model(sparse=False)
    model.table = nn.Embedding(ROWS, WIDTH, max_norm=0.5)
    return train(model)


def added_later() -> Any:
    """A layer that is put in place, with the optimizer, after the model was prepared."""
    model = Model(sparse=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def change() -> None:
        model.head = nn.Linear(WIDTH, 1)
        optimizer.add_param_group({"params": list(model.head.parameters())})

    return train(model, optimizer, change, at=3)


KINDS = (dense_before, sparse_before, dense_after, sparse_after)
OTHERS = {
    case.__name__: case
    for case in (
        *(
            from_pretrained,
            from_pretrained_adam,
            from_pretrained_adagrad,
            from_pretrained_frozen,
            frozen_and_thawed,
        ),
        *(
            pretrained_and_thawed,
            tied,
            tied_pretrained,
            tied_to_head,
            tied_by_data,
            numpy_sizes,
            max_norm,
            added_later,
        ),
    )
}


def main(folder: str, *names: str) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    results: dict[str, Any] = {}
    for kind in KINDS:
        for name in names or WAYS:
            if name in WAYS:
                results[f"{kind.__name__} {name}"] = tried(
                    lambda kind=kind, name=name: kind(WAYS[name])  # type: ignore[misc]
                )
    for name in names or OTHERS:
        if name in OTHERS:
            results[name] = tried(OTHERS[name])
    torch.save(results, Path(folder) / f"{right_answers.TASK}.pt")


_tried = 0


def tried(case: Callable[[], Any]) -> Any:
    global _tried
    right_answers._new_session()
    _tried += 1
    if hg._door.session is not None:
        # servers take what one training says of its epochs for no other's
        hg._door.session._phase = 10 * _tried
    torch.manual_seed(7)
    try:
        return case()
    except Exception as error:  # noqa: BLE001 - whatever refuses
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main(*sys.argv[1:])
