"""Who slowed whom, on real jobs that share this machine's cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COUNTING = """
import time
end = time.monotonic() + {seconds}
step = 0
while time.monotonic() < end:
    sum(range(200_000))
    step += 1
    print(f"step {{step}} loss {{1 / step:.4f}}", flush=True)
"""


@pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"),
    reason="this kernel does not count what threads wait",
)
def test_more_jobs_than_cores_slow_each_other_and_are_named(tmp_path: Path) -> None:
    """One more job than there are cores, each of one thread: every one waits, and nobody else can
    be to blame alone.
    """
    names = [f"j{index}" for index in range(len(os.sched_getaffinity(0)) + 1)]
    (tmp_path / "count.py").write_text(COUNTING.format(seconds=6))
    jobs = [{"name": name, "script": "count.py", "python": sys.executable} for name in names]
    (tmp_path / "jobs.yaml").write_text(json.dumps({"jobs": jobs}))
    command = [sys.executable, "-m", "headgate", "run", "jobs.yaml", "--policy", "none"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)

    asked = subprocess.run(
        [sys.executable, "-m", "headgate", "explain", "--json"],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    for job in json.loads(asked.stdout)["jobs"]:
        assert sum(part["seconds"] for part in job["account"].values()) == pytest.approx(
            job["elapsed"]
        )
        assert job["account"]["neighbours"]["seconds"] >= 1.0
        assert job["verdict"]["name"] == "neighbour-cores", job["verdict"]
        assert {loss["to"] for loss in job["lost"]} >= {
            name for name in names if name != job["job"]
        }
        assert all(
            loss["evidence"] == "counted" for loss in job["lost"] if loss["resource"] == "cores"
        )


LOADING = """
import time, torch
import headgate.torch as hg
from torch.utils.data import DataLoader, Dataset

class Far(Dataset):
    def __len__(self):
        return {samples}
    def __getitem__(self, index):
        time.sleep(0.012)
        return torch.ones(4)

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = DataLoader(Far(), batch_size=8, num_workers=1)
model, optimizer, loader = hg.prepare(model, optimizer, loader)
for epoch in hg.epochs(1):
    for rows in loader:
        loss = model(rows).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        hg.report(loss=loss)
"""


@pytest.mark.long
def test_a_job_that_waits_for_its_loader_is_told_what_twice_the_workers_buy(tmp_path: Path) -> None:
    """A process that sleeps a tenth of a second a batch: with two of them a step takes half of
    that.
    """
    (tmp_path / "far.py").write_text(LOADING.format(samples=8 * 56))
    command = [sys.executable, "-m", "headgate", "run", "far.py", "--policy", "none"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)

    asked = subprocess.run(
        [sys.executable, "-m", "headgate", "explain", "--json"],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    [job] = json.loads(asked.stdout)["jobs"]
    assert not job["more_lacks"], job["replay_error"]
    twice = job["more"]["loader"]["x2"]
    assert twice["low"] < 2.0 < twice["high"]
    assert twice["speedup"] > 1.6
    assert job["verdict"]["next"].startswith("`num_workers=2` instead of 1"), job["verdict"]


LEAKING = """
import time
kept, end, step = [], time.monotonic() + 16.0, 0
while time.monotonic() < end:
    kept.append(b"x" * (4 << 20))
    step += 1
    print(f"step {step} loss 0.5", flush=True)
    time.sleep(0.2)
"""


@pytest.mark.long  # tests/diagnosis/test_creeping.py has what is told of readings
def test_a_leak_is_told_with_what_a_step_leaks(tmp_path: Path) -> None:
    """Memory is read once a second, and ten readings after a warm-up tell: 16 s."""
    (tmp_path / "leak.py").write_text(LEAKING)
    headgate = [sys.executable, "-m", "headgate"]
    run = [*headgate, "run", "leak.py", "--memory", "2GiB"]
    subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    asked = [*headgate, "explain", "--json"]
    output = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=120).stdout
    (job,) = json.loads(output)["jobs"]
    (creep,) = (item for item in job["findings"] if item["kind"] == "memory-creeps")
    assert creep["facts"]["bytes_per_step"] == pytest.approx(4 << 20, rel=0.1)
    assert creep["facts"]["limit"] == 2 << 30 and creep["facts"]["seconds_left"] > 0.0


FORMS = {
    "trainer": {"evaluation", "checkpoints", "garbage-collection"},
    "lightning": {"loader"},
    "accelerate": {"between-steps"},
    "plain": {"small-steps"},
}
"""The causes in scripts that are written as for these trainers."""


@pytest.mark.long  # tests/diagnosis has these causes, tests/torch the spans of such scripts
@pytest.mark.parametrize("forms", [["trainer", "lightning"], ["accelerate", "plain"]])
def test_causes_that_need_spans_are_told_of_unchanged_scripts(
    forms: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    jobs = [
        {
            "name": form,
            "script": str(Path(__file__).with_name("plain_forms.py")),
            "python": sys.executable,
            "args": [form, "6"],
            "env": {"OMP_NUM_THREADS": "1"},
        }
        for form in forms
    ]
    (tmp_path / "jobs.yaml").write_text(json.dumps({"jobs": jobs}))
    headgate = [sys.executable, "-m", "headgate"]
    run = [*headgate, "run", "jobs.yaml", "--policy", "none"]
    subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, timeout=200)
    asked = [*headgate, "explain", "--json"]
    output = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=120).stdout
    for job in json.loads(output)["jobs"]:
        causes = {finding["kind"] for finding in job["findings"]}
        assert causes >= FORMS[job["job"]], (job["job"], causes)
