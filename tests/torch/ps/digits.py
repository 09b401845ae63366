"""A small convolutional network on scikit-learn's digits: trains, says how right it is, and which
samples it used.

A worker of index 1 ends itself with SIGKILL in the middle of step `KILL`, in its first life; until
it is there, that of index 0 is at most a step ahead. With `HOLD`, a worker that has come to the
last epoch writes `held-TASK` and waits there for a file `go`.
"""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import headgate.torch as hg
from headgate.testing import wait

EPOCHS = int(os.environ.get("EPOCHS", "8"))
TASK = os.environ.get("HEADGATE_TASK", "plain").rpartition("/")[2]
KILL = int(os.environ.get("KILL", "0"))
TRAINED = 1440
HOW: Any = {"batch_size": 32, "shuffle": True, "num_workers": int(os.environ.get("READERS", "0"))}

torch.manual_seed(0)
torch.set_num_threads(1)
# Its data alone: to import scikit-learn takes longer than to train.
library = find_spec("sklearn")
assert library is not None and library.origin is not None
file = Path(library.origin).parent / "datasets" / "data" / "digits.csv.gz"
digits = torch.from_numpy(np.loadtxt(file, np.float32, delimiter=","))
images, labels = digits[:, :-1].reshape(-1, 1, 8, 8) / 16, digits[:, -1].long()
numbers = torch.arange(len(labels))
loader = DataLoader(TensorDataset(images[:TRAINED], labels[:TRAINED], numbers[:TRAINED]), **HOW)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3),
    nn.ReLU(),
    nn.Flatten(),
    nn.Dropout(0.1),
    nn.Linear(512, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.8)
model, optimizer, loader = hg.prepare(model, optimizer, loader, scheduler=scheduler)


def only_mine_are_left() -> bool:
    """Whether the other worker, in the first epoch, has used all but what this one has used and
    holds.
    """
    other = sum(file.read_text().count("\n") for file in Path().glob("worker-0-*.used"))
    held: int = sum(len(each) for each in hg._door.session._worker._link.assigner.held.values())  # type: ignore[union-attr,misc]
    return bool(other + steps - 1 + held == len(loader))


def wait_for_the_other() -> None:
    """However late the other worker begins, it gets the batches of its first `KILL` steps."""
    its = min(steps - 1, KILL)
    if its:
        wait.until(Path(f"worker-1-begins-{its}").exists, 100, f"step {its} of the other worker")


used = open(Path(f"{TASK}-{os.getpid()}.used"), "w")  # noqa: SIM115 - a kill -9 ends it
steps = 0
for epoch in hg.epochs(EPOCHS):
    if "HOLD" in os.environ and epoch == EPOCHS - 1:
        Path(f"held-{TASK}").touch()
        wait.until(Path("go").exists, 200, "the last epoch may begin")
    for pixels, wanted, which in loader:
        loss = nn.functional.cross_entropy(model(pixels), wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        steps += 1
        if TASK == "worker-1" and steps <= KILL:
            Path(f"worker-1-begins-{steps}").touch()
        elif TASK == "worker-0":
            wait_for_the_other()
        if TASK == "worker-1" and steps == KILL:
            if "LAST" in os.environ:
                wait.until(
                    only_mine_are_left,
                    100,
                    "all batches to be used but those that this worker holds",
                )
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        used.write(f"{epoch} {' '.join(map(str, which.tolist()))}\n")
        used.flush()
        hg.report(loss=loss)
    scheduler.step()
model.eval()
with torch.no_grad():
    right = (model(images[TRAINED:]).argmax(1) == labels[TRAINED:]).float().mean()
print("accuracy", float(right), "steps", steps, "lr", optimizer.param_groups[0]["lr"])
