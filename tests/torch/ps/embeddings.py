"""A model with sparse tables, trained with the three calls: `python embeddings.py FOLDER CASE...`;
saves for each case what it came to as `FOLDER/CASE.pt`. As one process, or as a worker of a job.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import headgate.torch as hg
from headgate.testing import wait

sys.path.append(str(Path(__file__).parents[1]))
import right_answers  # type: ignore[import-not-found]

ROWS, WIDTH = 503, 4
BROKEN = 7
EPOCHS = int(os.environ.get("EPOCHS", "10"))
SAMPLES = 50  # in batches of 12: five to an epoch, of which the last has two samples


class Recommender(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32, mode: str = "mean") -> None:
        super().__init__()
        self.users = nn.Embedding(ROWS, WIDTH, sparse=True, padding_idx=3, dtype=dtype)
        self.items = nn.EmbeddingBag(
            ROWS * 2, WIDTH, sparse=True, mode=mode, padding_idx=-1, dtype=dtype
        )
        nn.init.xavier_uniform_(self.items.weight)
        with torch.no_grad():
            self.items.weight[-1].zero_()
        self.out = nn.Linear(WIDTH * 2, 1, dtype=dtype)
        self.overflows = False

    def forward(
        self, users: torch.Tensor, items: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        mixed = self.items(items, per_sample_weights=weights if self.items.mode == "sum" else None)
        looked_up = self.users(users)
        # nothing but rows of that table gets to know
        if self.overflows and (users == BROKEN).any():
            looked_up.register_hook(lambda gradient: gradient * torch.inf)
        out: torch.Tensor = self.out(torch.cat([looked_up.mean(1), mixed], 1))
        return out


def dataset(dtype: torch.dtype) -> TensorDataset:
    users = torch.randint(0, 40, (SAMPLES, 3))
    items = torch.randint(ROWS * 2 - 60, ROWS * 2, (SAMPLES, 5))
    return TensorDataset(
        users, items, torch.rand(SAMPLES, 5, dtype=dtype), torch.randn(SAMPLES, 1, dtype=dtype)
    )


def optimizer_of(case: str, model: Recommender) -> tuple[Any, ...]:
    tables = [model.users.weight, model.items.weight]
    if case.startswith("adagrad"):
        return (torch.optim.Adagrad(model.parameters(), lr=0.05),)
    if case.startswith("adam"):
        return torch.optim.AdamW(model.out.parameters(), lr=0.01), torch.optim.SparseAdam(
            tables, lr=0.02
        )
    return (torch.optim.SGD(model.parameters(), lr=0.1),)


def train(case: str) -> dict[str, Any]:
    """Cases: optimizer, and after dashes `double`, `sum` (the loss is one), `bag` (its items are
    summed), `twice` (two batches to a step), `scaled` (by a gradient scaler, which finds that
    gradients of one user are not finite).
    """
    torch.manual_seed(1)
    torch.set_num_threads(1)
    dtype = torch.float64 if "double" in case else torch.float32
    model = Recommender(dtype, "sum" if "bag" in case else "mean")
    following = torch.rand(2)
    reduction = "sum" if "sum" in case else "mean"
    loss_of = nn.MSELoss(reduction=reduction)
    loader: Any = DataLoader(dataset(dtype), batch_size=12, shuffle=True)
    optimizers = optimizer_of(case, model)
    schedulers = [
        torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) for optimizer in optimizers
    ]
    if len(optimizers) == 1:
        model, _, loader = hg.prepare(
            model, optimizers[0], loader, scheduler=schedulers[0], loss_reduction=reduction
        )
    else:
        tables = nn.ModuleList([model.users, model.items])
        hg.prepare(model.out, optimizers[0], scheduler=schedulers[0], loss_reduction=reduction)
        tables, _, loader = hg.prepare(
            tables, optimizers[1], loader, scheduler=schedulers[1], loss_reduction=reduction
        )
    every = 2 if "twice" in case else 1
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=4.0, growth_interval=7, enabled="scaled" in case
    )
    done = 0
    for epoch in hg.epochs(EPOCHS):
        wait_at(epoch)
        for users, items, weights, wanted in loader:
            model.overflows = "scaled" in case and epoch % 3 == 1
            loss = loss_of(model(users, items, weights), wanted) / (10 if reduction == "sum" else 1)
            scaler.scale(loss).backward()
            done += 1
            if done % every == 0:
                for optimizer in optimizers:
                    scaler.step(optimizer)
                scaler.update()
                for optimizer in optimizers:
                    optimizer.zero_grad()
            hg.report(loss=loss)
        for scheduler in schedulers:
            scheduler.step()
    states = [optimizer.state_dict() for optimizer in optimizers]
    return {
        "model": model.state_dict(),
        "optimizers": states,
        "next": following,
        "scale": scaler.get_scale(),
    }


def wait_at(epoch: int) -> None:
    """Wait until what has to happen before this epoch has: until there is a file of that name in
    the folder.
    """
    if str(epoch) in os.environ.get("WAIT_AT", "").split():
        wait.until((Path(sys.argv[1]) / f"epoch-{epoch}").exists, 200, f"epoch {epoch} may begin")


def main() -> None:
    folder = Path(sys.argv[1])
    task = os.environ.get("HEADGATE_TASK", "plain").rpartition("/")[2]
    for case in sys.argv[2:]:
        right_answers._new_session()
        result = train(case)
        if task in ("plain", "worker-0"):
            torch.save(result, folder / f"{task}-{case}.pt")


if __name__ == "__main__":
    main()
