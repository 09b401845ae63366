"""Training scripts of many kinds, none of which knows of Headgate. Run as a program, it runs all of
them, and prints for each the bits of what it computed, and the steps that were observed.
"""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import gc
import hashlib
import json
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

Script = Callable[[], list[Any]]
SCRIPTS: dict[str, tuple[Script, int | None]] = {}
"""Each script, and its number of steps; None: none can be told."""


def steps(count: int | None) -> Callable[[Script], Script]:
    def add(script: Script) -> Script:
        SCRIPTS[script.__name__] = script, count
        return script

    return add


def network(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *more, nn.Linear(16, 3))


def data(samples: int = 32) -> TensorDataset:
    return TensorDataset(torch.randn(samples, 8), torch.randint(0, 3, (samples,)))


def loader(**options: Any) -> Any:
    return DataLoader(data(), **{"batch_size": 8, "shuffle": True, **options})


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)


def loop(model: Any, batches: Any, optimizer: Any, epochs: int = 2) -> list[Any]:
    losses = []
    for _ in range(epochs):
        for batch in batches:
            optimizer.zero_grad()
            loss = cross_entropy(model, batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return [*losses, *model.parameters()]


@steps(8)
def plain_loop() -> list[Any]:
    model = network()
    return loop(model, loader(), sgd(model))


@steps(4)
def accumulation() -> list[Any]:
    model, batches = network(), loader()
    optimizer = sgd(model)
    for _ in range(2):
        for number, batch in enumerate(batches, 1):
            (cross_entropy(model, batch) / 2).backward()
            if number % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
    return list(model.parameters())


@steps(4)
def accumulation_of_batches_read_ahead() -> list[Any]:
    model, optimizer_steps = network(), 2
    optimizer = sgd(model)
    for _ in range(2):
        reader = iter(loader())
        for _ in range(optimizer_steps):
            for batch in [next(reader), next(reader)]:
                cross_entropy(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    return list(model.parameters())


@steps(8)
def gan() -> list[Any]:
    generator, judge = nn.Linear(4, 8), nn.Linear(8, 1)
    of_generator, of_judge = torch.optim.Adam(generator.parameters()), sgd(judge)
    for _ in range(2):
        for features, _ in loader():
            of_judge.zero_grad()
            fake = generator(torch.randn(len(features), 4))
            (judge(fake.detach()).mean() - judge(features).mean()).backward()
            of_judge.step()
            of_generator.zero_grad()
            (-judge(fake).mean()).backward()
            of_generator.step()
    return [*generator.parameters(), *judge.parameters()]


@steps(8)
def critic_with_gradient_penalty() -> list[Any]:
    generator, critic = nn.Linear(4, 8), nn.Linear(8, 1)
    of_generator, of_critic = sgd(generator), sgd(critic)
    for number, (features, _) in enumerate([*loader(), *loader()], 1):
        fake = generator(torch.randn(len(features), 4)).detach().requires_grad_()
        score = critic(fake)
        (gradient,) = torch.autograd.grad(score.sum(), fake, create_graph=True)
        of_critic.zero_grad()
        (
            score.mean() - critic(features).mean() + (gradient.norm(dim=1) - 1).pow(2).mean()
        ).backward()
        of_critic.step()
        if number % 4 == 0:
            of_generator.zero_grad()
            (-critic(generator(torch.randn(8, 4))).mean()).backward()
            of_generator.step()
    return [*generator.parameters(), *critic.parameters()]


@steps(24)
def two_phases() -> list[Any]:
    model, batches = network(), loader()
    warm_up = torch.optim.SGD(model[-1].parameters(), lr=0.1)  # type: ignore[index]
    return loop(model, batches, warm_up) + loop(model, batches, sgd(model), epochs=4)


@steps(8)
def an_optimizer_for_each_epoch() -> list[Any]:
    model, batches = network(), loader()
    return loop(model, batches, sgd(model), 1) + loop(model, batches, sgd(model), 1)


@steps(4)
def closures() -> list[Any]:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    for batch in loader():

        def closure() -> Any:
            optimizer.zero_grad()
            loss = cross_entropy(model, batch)  # noqa: B023
            loss.backward()
            return loss

        optimizer.step(closure)
    return list(model.parameters())


@steps(3)
def scaler_that_skips_a_step() -> list[Any]:
    model = network()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=2.0**8)
    for number, batch in enumerate(loader()):
        optimizer.zero_grad()
        loss = cross_entropy(model, batch)
        scaler.scale(loss * (float("inf") if number == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    return [*model.parameters(), scaler.get_scale()]


@steps(8)
def autocast() -> list[Any]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return loop(model, loader(), optimizer)


@steps(8)
def compiled_model() -> list[Any]:
    model = network()
    return loop(torch.compile(model, backend="eager"), loader(), sgd(model))


@steps(None)
def compiled_step_of_the_optimizer() -> list[Any]:
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.step = torch.compile(optimizer.step, backend="eager")  # type: ignore[method-assign]
    return loop(model, loader(), optimizer)


@steps(8)
def loader_workers() -> list[Any]:
    model = network()
    return loop(model, loader(num_workers=2), sgd(model))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for _ in range(32):
            yield torch.randn(8), random.randrange(3)


@steps(8)
def stream() -> list[Any]:
    model = network()
    return loop(model, DataLoader(Stream(), batch_size=8), sgd(model))


class Nested(torch.utils.data.Dataset[Any]):
    """Reads another loader for each sample."""

    def __init__(self) -> None:
        self._inner = DataLoader(data(), batch_size=1)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        features, label = next(iter(self._inner))
        return features[0], label[0]


@steps(4)
def loader_in_a_loader() -> list[Any]:
    model = network()
    return loop(model, DataLoader(Nested(), batch_size=8), sgd(model))


@steps(6)
def hooks_of_modules() -> list[Any]:
    model, seen = network(), []
    for layer in list(model.modules())[2:]:
        layer.register_forward_hook(lambda module, args, output: seen.append(output.mean().item()))
        layer.register_full_backward_hook(lambda module, into, out: None)
    model.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    return [
        *loop(model, loader(), sgd(model), 1),
        *seen,
        *loop(model, loader(batch_size=16), sgd(model), 1),
    ]


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.head, self.reentrant = network(nn.Dropout(0.5)), nn.Linear(3, 3), reentrant

    def forward(self, features: torch.Tensor) -> Any:
        hidden = features.requires_grad_()
        return self.head(checkpoint(self.inner, hidden, use_reentrant=self.reentrant))


@steps(16)
def checkpointing() -> list[Any]:
    within, apart = Checkpointed(True), Checkpointed(False)
    return loop(within, loader(), sgd(within)) + loop(apart, loader(), sgd(apart))


@steps(8)
def dropout_and_batch_norm_with_evaluation() -> list[Any]:
    model, batches, others = network(nn.BatchNorm1d(16), nn.Dropout(0.5)), loader(), loader()
    optimizer, results = sgd(model), []
    for _ in range(2):
        model.train()
        results += loop(model, batches, optimizer, 1)
        model.eval()
        with torch.no_grad():
            results += [cross_entropy(model, batch).item() for batch in others]
    return results


@steps(8)
def evaluation_with_gradients() -> list[Any]:
    model, batches, others = network(), loader(), loader()
    optimizer, results = sgd(model), []
    for _ in range(2):
        results += loop(model, batches, optimizer, 1)
        results += [cross_entropy(model, batch).item() for batch in others]
    return results


@steps(8)
def schedule_and_averaged_weights() -> list[Any]:
    model = network()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=8)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for batch in [*loader(), *loader()]:
        optimizer.zero_grad(set_to_none=False)
        cross_entropy(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        averaged.update_parameters(model)
    return [*averaged.parameters(), *schedule.get_last_lr()]


@steps(4)
def sparse_gradients() -> list[Any]:
    table, head = nn.Embedding(64, 8, sparse=True), network()
    sparse, dense = torch.optim.SparseAdam(table.parameters()), sgd(head)
    for _, labels in loader():
        sparse.zero_grad()
        dense.zero_grad()
        nn.functional.cross_entropy(head(table(labels)), labels).backward()
        sparse.step()
        dense.step()
    return [*table.parameters(), *head.parameters()]


@steps(8)
def several_losses_of_one_graph() -> list[Any]:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    for batch in [*loader(), *loader()]:
        optimizer.zero_grad()
        loss = cross_entropy(model, batch)
        loss.backward(retain_graph=True)
        torch.autograd.backward([loss, loss * 2])
        optimizer.step()
    return list(model.parameters())


@steps(8)
def batches_without_a_loader() -> list[Any]:
    model, whole = network(), data()
    batches = [whole[torch.randint(0, 32, (8,))] for _ in range(4)]
    return loop(model, batches, torch.optim.Adam(model.parameters(), fused=True))


@steps(8)
def scripted_model() -> list[Any]:
    model = torch.jit.trace(network(), torch.randn(2, 8))
    return loop(model, loader(), sgd(model))


@steps(None)
def gradients_by_hand() -> list[Any]:
    model = network()
    for batch in loader():
        grads = torch.autograd.grad(cross_entropy(model, batch), list(model.parameters()))
        with torch.no_grad():
            for parameter, grad in zip(model.parameters(), grads):
                parameter.sub_(0.1 * grad)
    return list(model.parameters())


@steps(4)
def attention_and_labels_in_a_dictionary() -> list[Any]:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.Sequential(layer, nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters())
    samples = [{"x": torch.randn(4, 8), "y": torch.randint(0, 3, (4,))} for _ in range(32)]
    for batch in DataLoader(samples, batch_size=8):  # type: ignore[arg-type]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch["x"]).transpose(1, 2), batch["y"]).backward()
        optimizer.step()
    return list(model.parameters())


def digest(values: list[Any]) -> str:
    """All bits of what a script computed, and of the random states that it leaves."""
    bits = hashlib.sha256()
    for value in [*values, torch.get_rng_state()]:
        if isinstance(value, torch.Tensor):
            bits.update(value.detach().numpy().tobytes())
        else:
            bits.update(repr(value).encode())
    bits.update(repr(random.getstate()).encode())
    return bits.hexdigest()


def main() -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    observing = sys.modules.get("headgate.task.observing")
    results = {}
    for name in sys.argv[1:] or SCRIPTS:
        script, _ = SCRIPTS[name]
        torch.manual_seed(0)
        random.seed(0)
        before = observed(observing)
        results[name] = digest(script()), observed(observing) - before
        gc.collect()
    print(json.dumps(results))


def observed(observing: Any) -> int:
    if observing is None or observing.observer is None or observing.observer.session is None:
        return 0
    return int(observing.observer.session.steps)


if __name__ == "__main__":
    main()
