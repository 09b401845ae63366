"""Hooks that a script has on gradients see those of the whole batch, or it is told that they do
not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.harness.gang import Gang
from tests.torch.conftest import run_alone

from headgate.model.plans import Plan
from headgate.torch import gradient_hooks
from headgate.torch.control_vector import ReduceError

CASES = ("hooked", "hooked_and_summed", "stepped_in_backward")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["allreduce", pytest.param("ps", marks=pytest.mark.long)])
def test_hooks_on_parameters_see_the_gradient_of_the_whole_batch(
    strategy: Any, wrong_answers: Callable[..., dict[str, float]]
) -> None:
    plan = Plan(
        strategy=strategy, workers=2, servers=int(strategy == "ps"), batch_per_worker=(9, 3)
    )
    assert wrong_answers(plan, *CASES) == {}


SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import headgate.torch as hg

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
kind = sys.argv[1]

class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.view_as(values)
    @staticmethod
    def backward(ctx, gradient):
        return gradient.sign()

data = TensorDataset(torch.randint(0, 30, (24, 3)), torch.randn(24, 2))
table = nn.EmbeddingBag(30, 4, mode="sum", sparse=True)
hidden, head = nn.Linear(4, 4), nn.Linear(4, 2)
model = nn.Sequential(table, hidden, nn.Tanh(), head)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
if kind == "sparse rows":
    table.weight.register_hook(lambda gradient: (gradient.coalesce() * 3).coalesce())
elif kind == "a module":
    clamped = lambda module, gradients, _: (gradients[0].clamp(-1e-3, 1e-3),)
    hidden.register_full_backward_hook(clamped)
model, optimizer, loader = hg.prepare(model, optimizer, DataLoader(data, batch_size=6))
if kind == "a module later":
    hidden.register_full_backward_pre_hook(lambda module, gradients: (gradients[0].sign(),))
elif kind == "a module in proportion":
    hidden.register_full_backward_hook(lambda module, gradients, _: (gradients[0] * 0.1,))
elif kind == "several parameters":
    torch.autograd.graph.register_multi_grad_hook([hidden.weight, head.weight], print)
elif kind == "inside of backward":
    hidden.register_full_backward_hook(lambda module, *_: optimizer.step())
for epoch in hg.epochs(2):
    for rows, targets in loader:
        optimizer.zero_grad()
        features = model[:3](rows)
        if kind == "a tensor":
            features.register_hook(lambda gradient: gradient / gradient.norm())
        elif kind == "a tensor in proportion":
            features.register_hook(lambda gradient: -gradient * (torch.arange(4) % 2))
        elif kind == "a tensor that is looked at":
            features.register_hook(lambda gradient: print(gradient.norm()))
        elif kind == "a function":
            features = Function.apply(features)
        nn.functional.mse_loss(head(features), targets).backward()
        optimizer.step()
print("weights", *(p.sum().item() for p in model.parameters()))
"""
REFUSED = {
    "a module": "a hook on Linear at 1 of the model changes gradients",
    "a module later": "a hook on a Linear changes gradients",
    "a tensor": "a hook on a tensor of shape (3, 4) inside of the model changes gradients",
    "several parameters": "register_multi_grad_hook is called for parameters",
    "a function": "the backward of Function changes gradients not in proportion",
    "inside of backward": "an optimizer takes its step while backward runs",
}
RIGHT = (
    "sparse rows",
    "a module in proportion",
    "a tensor in proportion",
    "a tensor that is looked at",
)


@pytest.mark.parametrize(
    "kind",
    ["a tensor", *(pytest.param(k, marks=pytest.mark.long) for k in REFUSED if k != "a tensor")],
)
def test_a_hook_that_sees_one_worker_s_samples_is_refused_unless_it_only_scales(
    kind: str, tmp_path: Path
) -> None:
    with _gang(tmp_path, kind) as gang:
        gang.start()
        assert gang.left("worker-0") != 0
        assert REFUSED[kind] in gang.output("worker-0").strip().splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [RIGHT[0], *(pytest.param(k, marks=pytest.mark.long) for k in RIGHT[1:])]
)
def test_a_hook_that_scales_gradients_comes_to_what_one_process_comes_to(
    kind: str, tmp_path: Path
) -> None:
    with _gang(tmp_path, kind) as gang:
        alone = run_alone(tmp_path / "script.py", tmp_path, kind)
        gang.start()
        gang.finish()
        output = gang.output("worker-1")
    assert _weights(output) == pytest.approx(_weights(alone), rel=1e-12)


@pytest.mark.long
def test_a_hook_on_a_table_on_servers_is_refused(tmp_path: Path) -> None:
    with _gang(tmp_path, "sparse rows", "ps") as gang:
        gang.start()
        assert gang.left("worker-0") != 0
        assert "use --strategy allreduce" in gang.output("worker-0")


def _gang(folder: Path, kind: str, strategy: Any = "allreduce") -> Gang:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    plan = Plan(strategy=strategy, workers=2, servers=int(strategy == "ps"), batch_per_worker=None)
    return Gang(folder, plan, [sys.executable, str(script), kind])


def _weights(output: str) -> list[float]:
    return [
        float(word)
        for line in output.splitlines()
        if line.startswith("weights")
        for word in line.split()[1:]
    ]


def test_a_hook_of_a_tensor_that_is_no_part_of_a_model_runs_as_ever() -> None:
    tensor = torch.ones(2, requires_grad=True)
    tensor.register_hook(lambda gradient: gradient * 5)  # type: ignore[no-untyped-call]
    tensor.sum().backward()  # type: ignore[no-untyped-call]
    assert tensor.grad is not None and tensor.grad.tolist() == [5, 5]


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, most: float) -> torch.Tensor:
        ctx.most = most
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0].clamp_(-ctx.most, ctx.most), None


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(values)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -0.5 * gradients[0] * (ctx.saved_tensors[0] > 0)


def test_a_backward_of_the_script_s_own_is_refused_unless_it_only_scales() -> None:
    values = torch.arange(4.0, requires_grad=True)
    reversed_ = _Reversed.apply(values).sum()  # type: ignore[no-untyped-call]
    gradient_hooks.compare_functions([reversed_.grad_fn.next_functions[0][0]])
    reversed_.backward()
    assert values.grad is not None and values.grad.tolist() == [0, -0.5, -0.5, -0.5]
    clipped = _Clipped.apply(values, 0.1).sum()  # type: ignore[no-untyped-call]
    gradient_hooks.compare_functions([clipped.grad_fn.next_functions[0][0]])
    with pytest.raises(
        ReduceError, match="the backward of _Clipped changes gradients not in proportion"
    ):
        clipped.backward()
