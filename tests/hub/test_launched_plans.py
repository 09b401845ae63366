"""Jobs for other launchers whose plans Headgate chooses, on the nodes of a lab."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from tests.hub.user import User

from headgate.telemetry.store import RunReader
from headgate.testing import wait

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("tc") is None, reason="a lab needs root, and the programs ip and tc"
    ),
]

LAB = "lab: true\nname: launching\noversubscribe: true\nnodes:\n" + "".join(
    f"  - {{name: {name}, cores: 1, memory: 1GiB, nic: 1Gbit}}\n" for name in "ab"
)
DDP = """
    import os, signal, sys
    from pathlib import Path
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    saved, step, total = Path("saved"), 0, 100_000
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    if saved.exists():
        step = int(saved.read_text())

    def save(*_):
        if rank == 0:
            saved.write_text(str(step))
        os._exit(0)

    signal.signal(signal.SIGTERM, save)
    Path(f"began-{rank}-of-{size}").write_text(str(step))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(2048, 256), torch.randn(2048, 1)), batch_size=512)
    while not os.path.exists("go"):
        for features, targets in loader:
            loss = nn.functional.mse_loss(model(features), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0:
                print(f"step {step}/{total} loss {loss.item():.6f}", flush=True)
    os._exit(0)
"""


@pytest.fixture
def lab(user: User) -> Iterator[User]:
    user.write("lab.yaml", LAB)
    user.write("ddp.py", DDP)
    user.types("lab", "up", "lab.yaml")
    yield user
    user.types("lab", "down", "launching")


def events(user: User, run: str, kind: str) -> list[str]:
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        return [row["text"] for row in reader.rows("events", "kind = ?", [kind])]


def test_a_script_is_profiled_from_outside_and_moved_by_its_own_checkpoint(lab: User) -> None:
    lab.write(
        "jobs.yaml",
        "jobs: [{script: ddp.py, batch: per-worker, resumes: true, moves: 1, progress: {metric: loss}}]\n",
    )
    run = lab.detaches("jobs.yaml", "--cluster", "launching")
    assert lab.sees("began-0-of-1") == "0"
    assert int(lab.sees("began-1-of-2")) >= 20  # from what it saved when it was asked to end
    [first, moved] = events(lab, run, "plan")
    assert "because no profile of it is stored" in first
    assert moved.startswith("moved to allreduce, 2 workers on a, b: ")
    assert moved.endswith("; the global batch grows from 512 to 1,024 samples")
    lab.touch("go")
    lab.sees_state("ddp", "done", "failed", run=run)
    assert lab.jobs(run)["ddp"]["state"] == "done"

    lab.types("plan", "ddp.py", "--cluster", "launching", "--batch", "per-worker")  # by what the run's steps told
    planned = lab.json("plan", "ddp.py", "--cluster", "launching", "--batch", "per-worker")
    assert planned["choice"]["plan"]["workers"] == 2
    (lab.folder / "saved").unlink()
    run = lab.detaches("ddp.py", "--cluster", "launching", "--batch", "per-worker")
    wait.until(lambda: (lab.jobs(run)["ddp"]["step"] or 0) > 0, 60, what="it trains")
    lab.types("stop", "ddp")
    assert len(lab.jobs(run)["ddp"]["tasks"]) == 2
