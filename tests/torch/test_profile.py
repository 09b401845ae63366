"""What is measured of a training: FLOPs, parameters, data, time by batch size, and the spans of a
step.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import headgate.torch as hg
from headgate.model.profiles import Profile
from headgate.torch import costs, profiling_sweep

Step = Callable[[int], None]
Attempting = Callable[..., Any]


def mlp() -> tuple[nn.Module, torch.Tensor, int, int]:
    """Forward 2·Σ in·out; backward twice that, less the gradient of the input, which nothing
    needs.
    """
    forward = 2 * (20 * 30 + 30 * 5)
    backward = 2 * forward - 2 * 20 * 30
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))
    return model, torch.randn(24, 20), forward, forward + backward


def cnn() -> tuple[nn.Module, torch.Tensor, int, int]:
    """A convolution takes 2·k²·in·out·height·width."""
    first = 2 * 9 * 1 * 4 * 8 * 8
    second = 2 * 9 * 4 * 6 * 4 * 4
    linear = 2 * 6 * 4 * 4 * 5
    forward = first + second + linear
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 4 * 4, 5),
    )
    return model, torch.randn(24, 1, 8, 8), forward, 3 * forward - first


def transformer() -> tuple[nn.Module, torch.Tensor, int, int]:
    """Per token 2·(3·d² + d² + 2·d·f), and the attention 2 · 2·length²·d. Backward of the attention
    recomputes its scores, so it takes five products to the forward's two. The input asks for no
    gradient.
    """
    length, d, f = 6, 16, 40
    projections = 2 * length * (3 * d * d)
    rest = 2 * length * (d * d + 2 * d * f)
    product = 2 * length * length * d
    head = 2 * length * d * 5
    model = nn.Sequential(
        nn.TransformerEncoderLayer(d, 4, f, dropout=0.0, batch_first=True),
        nn.Linear(d, 5),
        nn.Flatten(),
        Last(),
    )
    forward = projections + rest + head + 2 * product
    backward = projections + 2 * rest + 2 * head + 5 * product
    return model, torch.randn(24, length, d), forward, forward + backward


class Last(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, -5:]


def train(
    model: nn.Module,
    features: torch.Tensor,
    epochs: int = 8,
    at_step: Step = lambda step: None,
    **optimizer: Any,
) -> None:
    labels = torch.randint(0, 5, (len(features),))
    chosen = torch.optim.Adam(model.parameters(), lr=1e-3, **optimizer)
    loader = DataLoader(TensorDataset(features, labels), batch_size=8)
    model, chosen, loader = hg.prepare(model, chosen, loader)
    step = 0
    for _epoch in hg.epochs(epochs):
        for batch, targets in loader:
            loss = nn.functional.cross_entropy(model(batch), targets)
            chosen.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            chosen.step()
            hg.report(loss=loss)
            step += 1
            at_step(step)


@pytest.mark.parametrize("known", [mlp, cnn, transformer])
def test_flops_of_a_known_model_are_exact(
    known: Callable[[], tuple[nn.Module, torch.Tensor, int, int]], attempt: Attempting
) -> None:
    model, features, forward, whole = known()
    (message,) = attempt(lambda at_step: train(model, features)).of("profile")
    profile = Profile(**message["profile"])
    assert profile.flops_per_sample_forward == forward
    assert profile.flops_per_sample == whole


def test_the_profile_of_a_runs_own_first_steps(attempt: Attempting) -> None:
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))
    (message,) = attempt(lambda at_step: train(model, torch.randn(30, 20))).of("profile")
    profile = Profile(**message["profile"])
    weights = 20 * 30 + 30 + 30 * 5 + 5
    assert (profile.framework, profile.framework_version, profile.source) == (
        "torch",
        torch.__version__,
        "run",
    )
    assert not profile.alone
    assert (profile.parameters_dense, profile.dense_bytes, profile.parameters_sparse) == (
        weights,
        4 * weights,
        0,
    )
    assert profile.layers == {"Linear": 2, "ReLU": 1}
    assert (profile.optimizer, profile.batch) == ("Adam", 8)
    # two moments, and a step count for each tensor
    assert profile.optimizer_state_bytes == 2 * 4 * weights + 4 * 4
    dataset = dict(message["profile"]["dataset"])
    assert dataset.pop("read_seconds_per_sample") > 0
    assert dataset == {"samples": 30, "bytes_per_sample": 20 * 4 + 8}
    assert profile.memory_peak_bytes is not None
    assert profile.memory_peak_bytes > 50e6
    times = {time["batch"]: time["steps"] for time in message["profile"]["step_times"]}
    # Steps 3 to 20, of which every fourth is the rest of the data; less those that others were in
    # the way of.
    assert times.keys() == {8, 6}
    assert 3 <= times[8] <= 13 and 3 <= times[6] <= 5


def test_a_short_run_still_sends_what_it_measured(attempt: Attempting) -> None:
    (message,) = attempt(lambda at_step: train(mlp()[0], torch.randn(24, 20), epochs=2)).of(
        "profile"
    )
    assert 3 <= message["profile"]["step_times"][0]["steps"] <= 4


def test_a_script_with_a_process_group_of_its_own_is_to_have_one_task(
    attempt: Attempting, tmp_path: Path
) -> None:
    dist: Any = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        (message,) = attempt(lambda at_step: train(mlp()[0], torch.randn(24, 20), epochs=2)).of(
            "profile"
        )
    finally:
        dist.destroy_process_group()
    assert Profile(**message["profile"]).alone == "its script has a process group of its own"


def test_sparse_shared_and_frozen_parameters_are_told_apart() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Embedding(100, 4, sparse=True)
            self.bag = nn.EmbeddingBag(10, 4, sparse=True)
            self.dense = nn.Embedding(7, 4)
            self.out = nn.Linear(4, 7, bias=False)
            self.out.weight = self.dense.weight
            self.frozen = nn.Linear(3, 3).requires_grad_(False)

    counts = costs.parameters([Shared()])
    assert counts == {
        "parameters_dense": 28,
        "parameters_sparse": 440,
        "dense_bytes": 112,
        "sparse_bytes": 1760,
    }


def test_rows_of_sparse_layers_that_a_step_touches_count_once_each() -> None:
    rows, bag = nn.Embedding(100, 4, sparse=True), nn.EmbeddingBag(10, 8, sparse=True, mode="sum")
    assert costs.rows_touched([rows, bag]) is None
    (rows(torch.tensor([3, 7, 3, 99])).sum() + bag(torch.tensor([[1, 2], [2, 1]])).sum()).backward()
    assert costs.rows_touched([rows, bag]) == (3 + 2, 3 * 16 + 2 * 32)


def test_spans_of_sampled_steps_sum_to_the_step(attempt: Attempting) -> None:
    done = attempt(lambda at_step: train(mlp()[0], torch.randn(240, 20), epochs=4))
    spans = done.of("spans")
    assert [message["step"] for message in spans][:8] == [3, 4, 5, 6, 7, 50, 51, 100]
    for message in spans:
        seconds = {span["name"]: span["seconds"] for span in message["spans"]}
        assert list(seconds) == ["input", "forward", "backward", "optimizer", "other"]
        assert all(value > 0 for value in seconds.values())
        assert sum(seconds.values()) == pytest.approx(message["seconds"], rel=1e-9)


def test_a_model_is_left_as_it_was_and_can_be_copied_and_pickled_at_any_time(
    attempt: Attempting,
) -> None:
    model = mlp()[0]
    keys = list(model.state_dict())

    def look(step: int) -> None:
        assert not model._forward_hooks
        assert not model._forward_pre_hooks

    class Copying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            copy.deepcopy(self)
            pickle.dumps(model)
            torch.save(model.state_dict(), io.BytesIO())
            output: torch.Tensor = self.inner(x)
            return output

    attempt(lambda at_step: train(model, torch.randn(80, 20), at_step=look))
    attempt(lambda at_step: train(Copying(), torch.randn(80, 20)))
    assert list(model.state_dict()) == keys


def test_a_closure_and_several_forward_passes_are_measured(attempt: Attempting) -> None:
    def training(at_step: Step) -> None:
        model = nn.Linear(20, 5)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        data = TensorDataset(torch.randn(80, 20), torch.randint(0, 5, (80,)))
        model, optimizer, loader = hg.prepare(model, optimizer, DataLoader(data, batch_size=8))
        for _epoch in hg.epochs(1):
            for features, labels in loader:

                def closure(
                    features: torch.Tensor = features, labels: torch.Tensor = labels
                ) -> torch.Tensor:
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(model(features), labels)
                    loss.backward()  # type: ignore[no-untyped-call]
                    return loss

                hg.report(loss=optimizer.step(closure))

    done = attempt(training)
    assert done.of("progress")[-1]["step"] == 10
    assert {span["name"] for span in done.of("spans")[0]["spans"]} == {
        "input",
        "optimizer",
        "other",
    }
    assert done.of("profile")[0]["profile"]["flops_per_sample"] is None


def test_profiling_times_several_sizes_and_thread_counts_and_ends(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling_sweep, "_ENOUGH_SECONDS", 0.0)
    # on a busy machine the first steps take long, and counts of threads would be left out
    monkeypatch.setattr(profiling_sweep, "BUDGET_SECONDS", 600.0)
    monkeypatch.setattr(profiling_sweep, "thread_counts", lambda: [2, 1])
    sizes = []

    def training(at_step: Step) -> str:
        model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 5))
        model.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
        train(model, torch.randn(200, 64), epochs=1)
        return "never reached"

    done = attempt(training, HEADGATE_MODE="profile")
    assert done.result is None
    profile = done.of("profile")[0]["profile"]
    assert profile["source"] == "profile"
    assert set(sizes) == {2, 4, 8}
    assert {(time["threads"], time["batch"]) for time in profile["step_times"]} == {
        (threads, size) for threads in (1, 2) for size in (2, 4, 8)
    }
    assert all(time["steps"] >= 3 for time in profile["step_times"])
    assert [fit["threads"] for fit in profile["fits"]] == [1, 2]
    for fit in profile["fits"]:
        assert fit["alpha_seconds"] + 8 * fit["beta_seconds_per_sample"] > 0
        assert fit["relative_error"] is not None
    assert profile["flops_per_sample"] == 3 * 2 * (64 * 512 + 512 * 5) - 2 * 64 * 512
    assert not done.of("checkpoint")


def test_profiling_a_script_that_ends_first_sends_what_there_is(attempt: Attempting) -> None:
    def training(at_step: Step) -> str:
        model = mlp()[0]
        data = TensorDataset(torch.randn(80, 20), torch.randint(0, 5, (80,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = hg.prepare(model, optimizer, DataLoader(data, batch_size=8))
        for _, (features, labels) in zip(range(4), loader):
            nn.functional.cross_entropy(model(features), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return "reached"

    done = attempt(training, HEADGATE_MODE="profile")
    assert done.result == "reached"
    assert "ended before all sizes" in done.of("profile")[0]["profile"]["notes"][0]
