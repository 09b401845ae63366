"""Trainings that have to come to the same whatever the number of workers and whatever carries their
gradients.

As a script, in each worker of a job and once under plain Python: goes through all cases, in one
process, and saves what each came to: `python right_answers.py FOLDER`. The same three calls as
anywhere; only between two cases the session is made anew, on the ties that are there.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

import headgate.torch as hg

TrainingState = list[torch.Tensor]
TASK = os.environ.get("HEADGATE_TASK", "plain").rpartition("/")[2]
EPOCHS = 6
SAMPLES = 50  # in batches of 12: five to an epoch, of which the last has two samples
FEATURES, CLASSES = 6, 3


def dataset() -> TensorDataset:
    return TensorDataset(torch.randn(SAMPLES, FEATURES), torch.randint(0, CLASSES, (SAMPLES,)))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 10), nn.Tanh(), nn.Linear(10, 10), nn.Tanh(), nn.Linear(10, CLASSES)
    )


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(dataset(), **{"batch_size": 12, "shuffle": True, **options})


def weights(*models: nn.Module) -> TrainingState:
    return [tensor.detach().clone() for model in models for tensor in model.state_dict().values()]


def train(
    optimizer_of: Callable[[Any], Any],
    model: nn.Module | None = None,
    batches: Any = None,
    loss_of: Callable[..., torch.Tensor] = functional.cross_entropy,
    before_step: Callable[[nn.Module], object] = lambda model: None,
    at_epoch: Callable[[nn.Module, int], object] = lambda model, epoch: None,
    loss_reduction: str = "mean",
    every: int = 1,
) -> TrainingState:
    """The loop that most scripts have."""
    model = network() if model is None else model
    optimizer = optimizer_of(model.parameters())
    batches = loader() if batches is None else batches
    model, optimizer, batches = hg.prepare(model, optimizer, batches, loss_reduction=loss_reduction)
    count = 0
    for epoch in hg.epochs(EPOCHS * every):
        at_epoch(model, epoch)
        for features, labels in batches:
            loss = loss_of(model(features), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            count += 1
            if count % every == 0:
                before_step(model)
                optimizer.step()
                optimizer.zero_grad()
            hg.report(loss=loss)
    return weights(model)


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1)


def adamw(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=0.01)


def momentum() -> TrainingState:
    return train(lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9))


def adagrad() -> TrainingState:
    return train(lambda parameters: torch.optim.Adagrad(parameters, lr=0.05))


def clipped() -> TrainingState:
    return train(sgd, before_step=lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1))


def accumulated() -> TrainingState:
    """A step after every third batch, also across the end of an epoch."""
    return train(adamw, every=3)


def hooked() -> TrainingState:
    """Hooks change gradients by more than a factor, before they are added to those of the batch
    before.
    """
    model: Any = network()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    model[0].weight.register_hook(lambda gradient: gradient / (gradient.norm() + 1e-6))
    dropped = model[2].weight.register_hook(lambda gradient: gradient * torch.nan)
    begun = False

    def more(model: Any, epoch: int) -> None:
        nonlocal begun
        if not begun:
            begun = True
            dropped.remove()
            model[4].bias.register_hook(lambda gradient: gradient.sign())
            model[4].weight.register_post_accumulate_grad_hook(
                lambda weight: [None, weight.grad.clamp_(-0.02, 0.02)][0]
            )

    return train(adamw, model, at_epoch=more, every=3)


def hooked_and_summed() -> TrainingState:
    model: Any = Branched()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))

    def loss_of(out: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(out, labels, reduction="sum")

    return train(sgd, model, loss_of=loss_of, loss_reduction="sum", every=2)


def stepped_in_backward() -> TrainingState:
    """Each parameter is stepped by an optimizer of its own as soon as its gradient is complete."""
    model: Any = network()
    batches = loader()
    optimizers = {parameter: adamw([parameter]) for parameter in model.parameters()}

    def step(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    model, _, batches = hg.prepare(model, None, batches)
    for _epoch in hg.epochs(EPOCHS):
        for features, labels in batches:
            functional.cross_entropy(model(features), labels).backward()  # type: ignore[no-untyped-call]
    return weights(model)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, 8)
        self.hidden = nn.Linear(FEATURES, 8)
        self.head = nn.Linear(8, CLASSES)
        self.head.weight = self.embedding.weight

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        chosen = (features[:, 0] > 0).long()
        out: torch.Tensor = self.head(torch.tanh(self.hidden(features) + self.embedding(chosen)))
        return out


def tied() -> TrainingState:
    return train(sgd, Tied())


def summed() -> TrainingState:
    def loss_of(out: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(out, labels, reduction="sum")

    return train(
        lambda parameters: torch.optim.SGD(parameters, lr=0.005),
        loss_of=loss_of,
        loss_reduction="sum",
    )


def summed_and_accumulated() -> TrainingState:
    def loss_of(out: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(out, labels, reduction="sum")

    return train(
        lambda parameters: torch.optim.SGD(parameters, lr=0.005),
        loss_of=loss_of,
        loss_reduction="sum",
        every=2,
    )


IGNORED = -100


def masked(features: torch.Tensor) -> torch.Tensor:
    """Which samples count, by themselves."""
    return (features[:, 0] > 0.4) | (features[:, 1] > 1)


def train_masked(
    loss_of: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    say: str = "",
    every: int = 1,
    model: Any = None,
    **options: Any,
) -> TrainingState:
    """With a loss that is a mean over some of the samples; `say`: where the script says of how
    many.
    """
    model = network() if model is None else model
    optimizer, batches = sgd(model.parameters()), loader()
    model, optimizer, batches = hg.prepare(model, optimizer, batches, **options)
    count = 0
    for _epoch in hg.epochs(EPOCHS * every):
        for features, labels in batches:
            count += 1
            mask = masked(features) if loss_of is not of_classes else labels != 1
            loss = loss_of(model(features), labels, mask)
            # else its loss is none, also alone
            if not mask.any() and loss_of not in (labelled_and_all, guarded):
                loss = model(features).sum() * 0
            if say == "before":
                hg.report(loss=loss, weight=mask.sum())
            loss.backward()  # type: ignore[no-untyped-call]
            if say == "after":
                hg.report(loss=loss, weight=mask.sum())
            if count % every == 0:
                nn.utils.clip_grad_norm_(
                    [p for p in model.parameters() if p.grad is None or not p.grad.is_sparse], 0.5
                )
                optimizer.step()
                optimizer.zero_grad()
    return weights(model)


def ignoring(out: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(out, labels.masked_fill(~mask, IGNORED))


class Hidden(torch.autograd.Function):
    """A loss of which PyTorch's graph shows nothing."""

    @staticmethod
    def forward(
        ctx: Any, out: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        with torch.enable_grad():
            ctx.out = out.detach().requires_grad_()
            ctx.loss = ignoring(ctx.out, labels, mask)
        value: torch.Tensor = ctx.loss.detach()
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.autograd.grad(ctx.loss, ctx.out)[0] * gradients[0], None, None


def hidden(out: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = Hidden.apply(out, labels, mask)  # type: ignore[no-untyped-call]
    return loss


def of_classes(out: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    loss_of = nn.CrossEntropyLoss(
        weight=torch.tensor([0.2, 1.0, 3.0]), label_smoothing=0.1, ignore_index=1
    )
    loss: torch.Tensor = loss_of(out, labels)
    return loss


def likelihood(out: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = nn.NLLLoss(ignore_index=IGNORED)(
        out.log_softmax(1), labels.masked_fill(~mask, IGNORED)
    )
    return loss


def masked_mean(out: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    losses = functional.cross_entropy(out, labels, reduction="none")
    return (losses * mask).sum() / mask.sum().clamp(min=1)


def selected(out: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(out[mask], labels[mask])


def selected_and_scaled(
    out: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    return functional.l1_loss(out[mask], torch.ones_like(out[mask])) * 0.5


def labelled_and_all(out: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Two means, over other numbers: that of the labelled samples may be missing in a part."""
    loss = 0.1 * out.square().mean()
    return loss + 0.7 * functional.cross_entropy(out[mask], labels[mask]) if mask.any() else loss


def guarded(out: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A sum over all, divided by how many are of a kind, as detectors have it."""
    losses = functional.cross_entropy(out, labels, reduction="none")
    return losses.sum() / max(1, int(mask.sum())) + (losses * mask).sum() / mask.sum().clamp(min=1)


MASKED: dict[str, Callable[[], TrainingState]] = {
    "ignoring": lambda: train_masked(ignoring),
    "ignoring_accumulated": lambda: train_masked(ignoring, every=3),
    "of_classes": lambda: train_masked(of_classes),
    "likelihood": lambda: train_masked(likelihood),
    "masked_mean": lambda: train_masked(masked_mean),
    "selected": lambda: train_masked(selected),
    "selected_and_scaled": lambda: train_masked(selected_and_scaled),
    "labelled_and_all": lambda: train_masked(labelled_and_all, every=2),
    "guarded": lambda: train_masked(guarded),
    "said_before": lambda: train_masked(hidden, say="before"),
    "said_after": lambda: train_masked(hidden, say="after"),
    "said_after_each": lambda: train_masked(hidden, say="after", every=2),
    "told_by_batch": lambda: train_masked(
        hidden, loss_reduction=lambda batch: masked(batch[0]).sum()
    ),
}
"""Losses that are means over a part of the samples."""


class Branched(nn.Module):
    """One branch is used for some samples only, so that not every worker uses it in every step, and
    one never.
    """

    def __init__(self) -> None:
        super().__init__()
        self.main = network()
        self.sometimes = nn.Linear(FEATURES, CLASSES)
        self.never = nn.Linear(FEATURES, CLASSES)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.main(features)
        chosen = features[:, 0] > 0.8
        if chosen.any():
            extra = torch.zeros_like(out)
            extra[chosen] = self.sometimes(features[chosen])
            out = out + extra
        return out


def unused() -> TrainingState:
    """Momentum and weight decay go on where a gradient is zero, and stand still where there is
    none.
    """
    return train(adamw, Branched())


def frozen() -> TrainingState:
    model = network()
    for parameter in model[0].parameters():  # type: ignore[index]
        parameter.requires_grad = False

    def thaw(model: nn.Module, epoch: int) -> None:
        for parameter in model[0].parameters():  # type: ignore[index]
            parameter.requires_grad = epoch >= 4
        for parameter in model[4].parameters():  # type: ignore[index]
            parameter.requires_grad = epoch < 7

    return train(sgd, model, at_epoch=thaw)


def scaled() -> TrainingState:
    """A gradient scaler skips the steps in which any gradient is infinite."""
    model, batches = network(), loader()
    optimizer = adamw(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=5)
    model, optimizer, batches = hg.prepare(model, optimizer, batches)
    for epoch in hg.epochs(EPOCHS):
        for number, (features, labels) in enumerate(batches):
            loss = functional.cross_entropy(model(features), labels)
            if epoch == 3 and number == 2 and (labels == 0).any():
                loss = loss * torch.inf
            optimizer.zero_grad()
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    return [*weights(model), torch.tensor(scaler.get_scale())]


def mixed() -> TrainingState:
    """In bfloat16 nobody gets the same to the last bit, but what is learned is near."""

    def loss_of(out: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(out.float(), labels)

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network().float()

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out: torch.Tensor = self.inner(features.float())
            return out

    return train(sgd, Mixed(), loss_of=loss_of)


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(40, 5, mode="sum", sparse=True)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        rows = ((features[:, :3].abs() * 13).long() % 40).contiguous()
        out: torch.Tensor = self.head(self.table(rows))
        return out


def sparse() -> TrainingState:
    return train(sgd, Sparse())


def sparse_adagrad() -> TrainingState:
    return train(lambda parameters: torch.optim.Adagrad(parameters, lr=0.1), Sparse())


def two_backwards() -> TrainingState:
    """Two losses, each with a backward of its own, add up in one step."""
    model, batches = network(), loader()
    optimizer = sgd(model.parameters())
    model, optimizer, batches = hg.prepare(model, optimizer, batches)
    for _epoch in hg.epochs(EPOCHS):
        for features, labels in batches:
            optimizer.zero_grad()
            functional.cross_entropy(model(features), labels).backward()  # type: ignore[no-untyped-call]
            (0.1 * model(features).square().mean()).backward()
            optimizer.step()
    return weights(model)


def two_models() -> TrainingState:
    """Each with an optimizer; the loss of one reaches into the other, whose gradient is then thrown
    away.
    """
    maker, judge = (
        nn.Linear(FEATURES, FEATURES),
        nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1)),
    )
    makes, judges = sgd(maker.parameters()), sgd(judge.parameters())
    maker, makes, batches = hg.prepare(maker, makes, loader())
    judge, judges = hg.prepare(judge, judges)
    for _epoch in hg.epochs(EPOCHS):
        for features, _ in batches:
            judges.zero_grad()
            (
                judge(maker(features).detach()).sigmoid().mean() - judge(features).sigmoid().mean()
            ).backward()
            judges.step()
            makes.zero_grad()
            (-judge(maker(features)).sigmoid().mean()).backward()
            makes.step()
    return weights(maker, judge)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 10)
        self.hidden = nn.Linear(10, 10)
        self.head = nn.Linear(10, CLASSES)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.hidden, torch.tanh(self.first(features)), use_reentrant=True)
        out: torch.Tensor = self.head(torch.tanh(hidden))
        return out


def checkpointed() -> TrainingState:
    """A backward within the backward."""
    return train(
        sgd,
        Checkpointed(),
        before_step=lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1),
    )


def quasi_newton() -> TrainingState:
    """An optimizer that calls for gradients as often as it likes."""
    model, batches = network(), loader(batch_size=25)
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=0.5, max_iter=3, line_search_fn="strong_wolfe"
    )
    model, optimizer, batches = hg.prepare(model, optimizer, batches)
    for _epoch in hg.epochs(EPOCHS):
        for features, labels in batches:

            def closure(
                features: torch.Tensor = features, labels: torch.Tensor = labels
            ) -> torch.Tensor:
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(features), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                return loss

            optimizer.step(closure)
    return weights(model)


class Large(nn.Module):
    """Several buffers, and layers that are used in another order than they were made in."""

    def __init__(self) -> None:
        super().__init__()
        self.third = nn.Linear(600, CLASSES)
        self.first = nn.Linear(FEATURES, 600)
        self.second = nn.Linear(600, 600)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.third(torch.tanh(self.second(torch.tanh(self.first(features)))))
        return out


def large() -> TrainingState:
    return train(sgd, Large())


class Stream(IterableDataset[Any]):
    """Draws its samples while it is read."""

    def __iter__(self) -> Iterator[Any]:
        for _ in range(SAMPLES):
            yield torch.randn(FEATURES), torch.randint(0, CLASSES, ())


def streamed() -> TrainingState:
    return train(sgd, batches=DataLoader(Stream(), batch_size=12))


def in_a_list() -> TrainingState:
    return train(sgd, batches=list(loader()))


class Recurrent(nn.Module):
    """Takes samples along dimension 1, as PyTorch's recurrent layers do by default."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GRU(2, 5)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.inner(series)[0][-1])
        return out


def along_another_dimension() -> TrainingState:
    """As many steps in a series as samples in a batch: nothing but what the script says tells one
    from the other.
    """
    batches: Any = [(torch.randn(12, 12, 2), torch.randint(0, CLASSES, (12,))) for _ in range(3)]
    batches.append((torch.randn(12, 5, 2), torch.randint(0, CLASSES, (5,))))
    model = Recurrent()
    optimizer = sgd(model.parameters())
    model, optimizer, batches = hg.prepare(model, optimizer, batches, batch_dim=1)
    for _epoch in hg.epochs(EPOCHS):
        for series, labels in batches:
            optimizer.zero_grad()
            functional.cross_entropy(model(series), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return weights(model)


def sampled_in_batches() -> TrainingState:
    data = dataset()
    return train(
        sgd,
        batches=DataLoader(
            data, batch_sampler=BatchSampler(RandomSampler(data), 12, drop_last=True)
        ),
    )


def with_replacement() -> TrainingState:
    data = dataset()
    generator = torch.Generator().manual_seed(3)
    sampler = RandomSampler(data, replacement=True, num_samples=40, generator=generator)
    return train(sgd, batches=DataLoader(data, batch_size=12, sampler=sampler, generator=generator))


class Shuffling:
    """A batch sampler of someone's own, that draws anew for every batch."""

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(5):
            yield torch.randint(0, SAMPLES, (7,)).tolist()

    def __len__(self) -> int:
        return 5


def sampled_by_own() -> TrainingState:
    return train(sgd, batches=DataLoader(dataset(), batch_sampler=Shuffling()))


def read_ahead() -> TrainingState:
    return train(sgd, batches=loader(num_workers=2, persistent_workers=True))


def validated() -> TrainingState:
    """Between epochs the whole validation set is gone through, with no gradients and in evaluation
    mode.
    """
    model, batches = network(), loader()
    optimizer = adamw(model.parameters())
    model, optimizer, validation, batches = hg.prepare(
        model, optimizer, loader(batch_size=20), batches
    )
    total = torch.zeros(())
    for _epoch in hg.epochs(EPOCHS):
        model.train()
        for features, labels in batches:
            optimizer.zero_grad()
            functional.cross_entropy(model(features), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for features, labels in validation:
                total += functional.cross_entropy(model(features), labels, reduction="sum")
    return [*weights(model), total]


CASES: dict[str, Callable[[], TrainingState]] = {
    "sgd": lambda: train(sgd),
    "adamw": lambda: train(adamw),
    **{
        case.__name__: case
        for case in (
            momentum,
            adagrad,
            clipped,
            accumulated,
            hooked,
            hooked_and_summed,
            stepped_in_backward,
            tied,
            summed,
            summed_and_accumulated,
            unused,
            frozen,
            scaled,
            mixed,
            two_backwards,
            two_models,
            checkpointed,
            quasi_newton,
            large,
            streamed,
            in_a_list,
            along_another_dimension,
            sampled_in_batches,
            with_replacement,
            sampled_by_own,
            read_ahead,
            validated,
        )
    },
    **MASKED,
}
USUAL = (
    "sgd",
    "momentum",
    "adamw",
    "adagrad",
    "clipped",
    "accumulated",
    "tied",
    "summed",
    "sparse",
    "mixed",
)
"""What most trainings do, in float32 too; special cases only where more digits tell of a smaller
mistake.
"""
SPARSE_MASKED: dict[str, Callable[[], TrainingState]] = {
    "sparse_ignoring": lambda: train_masked(ignoring, model=Sparse()),
    "sparse_said_after_each": lambda: train_masked(hidden, say="after", every=2, model=Sparse()),
}
SPARSE_CASES: dict[str, Callable[[], TrainingState]] = {
    **{case.__name__: case for case in (sparse, sparse_adagrad)},
    **SPARSE_MASKED,
}
BOUNDS = {"float32": 1e-5, "float64": 1e-10}
LOOSE = {"mixed": 2e-2}


def differences(actual: Path, expected: Path) -> dict[str, float]:
    """By case, what was saved in `actual` against `expected`: the largest relative norm, as a
    multiple of the bound.
    """
    far = {}
    results, references = (
        torch.load(actual, weights_only=True),
        torch.load(expected, weights_only=True),
    )
    for (dtype, name), result in results.items():
        reference = references[dtype, name]
        assert [t.shape for t in result] == [t.shape for t in reference]
        far[f"{name} {dtype}"] = max(
            float((a.double() - b.double()).norm() / max(float(b.double().norm()), 1e-12))
            / LOOSE.get(name, BOUNDS[dtype])
            for a, b in zip(result, reference)
        )
    return far


def main(folder: str, *names: str) -> None:
    torch.set_num_threads(1)
    results = {}
    cases = {**CASES, **SPARSE_CASES}
    for dtype in BOUNDS:
        torch.set_default_dtype(getattr(torch, dtype))
        for name in names or cases:
            if dtype == "float32" and name not in USUAL:
                continue
            _new_session()
            torch.manual_seed(7)
            results[dtype, name] = cases[name]()
    torch.save(results, Path(folder) / f"{TASK}.pt")


_link: list[Any] = []


def _new_session() -> None:
    """As a script that just began, but on the ties of the one before."""
    before = hg._door.session
    if before is None:
        return
    from headgate.task import TaskEnvironment
    from headgate.torch import distributed
    from headgate.torch.session import Session

    if before._worker is not None and not _link:
        link = before._worker._link
        _link.append(link)
        distributed.Worker._connected = lambda self, device: link  # type: ignore[method-assign, assignment, return-value]
    if before._worker is not None:
        before._worker.sync_points.close(None)
    before._channel.positions.clear()
    atexit.unregister(before.close)
    environment = TaskEnvironment(
        channel="", task="", checkpoints=os.environ.get("HEADGATE_CHECKPOINTS")
    )
    hg._door.session = Session(environment, before._channel)


if __name__ == "__main__":
    main(*sys.argv[1:])
