"""Jobs for other launchers whose plans Headgate chooses, on the nodes of a lab."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from tests.hub.test_launched import MEETS
from tests.hub.user import User
from tests.planning.jobs import profile

from headgate.model.jobs import Job
from headgate.profiling import store
from headgate.recorded.reader import RunReader
from headgate.sampling import machine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("tc") is None,
        reason="a lab needs root, and the programs ip and tc",
    ),
]

LAB = "lab: true\nname: launching\noversubscribe: true\nnodes:\n" + "".join(
    f"  - {{name: {name}, cores: 1, memory: 1GiB, nic: 1Gbit}}\n" for name in "ab"
)
DDP = """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1)))
    optimizer = torch.optim.Adam(model.parameters())
    data = TensorDataset(torch.randn(1024, 64), torch.randn(1024, 1))
    for features, targets in DataLoader(data, batch_size=32):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(features), targets).backward()
        optimizer.step()
    dist.destroy_process_group()
"""
LEARNS = (
    MEETS
    + """
    saved = Path("saved")
    step = int(saved.read_text()) if saved.exists() else 0

    def save(*_):
        if rank == 0:
            saved.write_text(str(step))
        os._exit(0)

    signal.signal(signal.SIGTERM, save)
    Path(f"began-{rank}-of-{size}").write_text(str(step))
    peers = meet()
    while not os.path.exists("go"):
        step += 1
        time.sleep(0.05)
        if rank == 0:
            print(f"epoch {step // 20 + 1}/5000 step {step} loss {1 + 1 / step:.5f}", flush=True)
    """
)


@pytest.fixture
def lab(user: User) -> Iterator[User]:
    user.write("lab.yaml", LAB)
    user.types("lab", "up", "lab.yaml")
    yield user
    user.types("lab", "down", "launching")


def plans(user: User, run: str) -> list[str]:
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        return [row["text"] for row in reader.rows("events", "kind = 'plan'")]


def test_a_script_is_profiled_from_outside_by_its_first_steps(lab: User) -> None:
    lab.write("ddp.py", DDP)
    where = ("ddp.py", "--cluster", "launching")
    assert "say" not in lab.types("run", *where, "--batch", "per-worker").stderr
    [stored] = (lab.home / "profiles").glob("*.json")
    found = store.load(stored.parent, stored.stem)
    assert found is not None
    assert (found.observed, found.sharded, found.source, found.batch) == (True, False, "run", 32)
    assert (found.parameters_dense, found.dense_bytes) == (8449, 4 * 8449)
    assert found.layers == {"Linear": 2, "ReLU": 1}
    assert found.optimizer_state_bytes is not None
    assert found.optimizer_state_bytes >= 8 * 8449
    assert found.dataset is not None
    assert found.dataset.samples == 1024
    assert [(time.batch, time.threads) for time in found.step_times] == [(32, 1)]
    sizes = [
        each["plan"]["batch_per_worker"]
        for each in lab.json("plan", *where, "--batch", "per-worker")["candidates"]
    ]
    assert sizes == [32, 32]
    assert lab.json("plan", *where)["choice"]["plan"]["workers"] == 1


def test_a_job_that_resumes_by_itself_takes_the_node_of_one_that_has_ended(lab: User) -> None:
    script = lab.write("learns.py", LEARNS)
    lab.write("rest.py", "import os, time\nwhile not os.path.exists('rested'): time.sleep(0.05)\n")
    here = machine.detect(lab.home / "node.json")
    of = Job(name="a", script=str(script), workdir=str(lab.folder))
    known = profile(observed=True, dense_bytes=100_000, memory_peak_bytes=64 << 20, batch=64)
    store.save(lab.home / "profiles", store.key(of, here), known)
    lab.write(
        "jobs.yaml",
        (
            "jobs: [{script: learns.py, launch: torchrun, batch: per-worker, resumes: true, "
            "moves: 1}]\n"
        ),
    )
    rest = lab.detaches("rest.py", "--cluster", "launching")
    lab.sees_state("rest", "running", run=rest)
    run = lab.detaches("jobs.yaml", "--cluster", "launching")
    assert lab.sees("began-0-of-1") == "0"
    lab.touch("rested")
    assert int(lab.sees("began-1-of-2")) > 0  # from what it saved when it was asked to end
    lab.touch("go")
    assert lab.sees_state("learns", "done", "failed", run=run)["state"] == "done"
    first, moved = plans(lab, run)
    assert first.startswith("single, 1 worker on b: "), (first, moved)
    assert moved.startswith("moved to allreduce, 2 workers on a, b: ")
    assert moved.endswith("; the global batch grows from 64 to 128 samples")
