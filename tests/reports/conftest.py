"""A run whose every number is known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.reports.browsing import chromium

from headgate.recorded.store import Recorder

SECONDS = 40
HOSTILE = (
    '</script><img src=x onerror="window.stolen=1"><script>window.stolen=1</script><!-- '
    "\u2028 &amp; '\""
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two jobs on a node of two cores: `a` runs from 0 to 20 s; `b` waits until 10 s, fails at 20
    s, is tried again at 22 s and ends at 40 s. Text that came from a user tries to be HTML.
    """
    path = tmp_path / "run.sqlite"
    recorder = Recorder(path)
    node = {"name": "nimbus", "cores": 2.0, "memory_bytes": 8 * 2**30, "cpu_model": HOSTILE}
    meta = {
        "id": "20260314-0900-ab12",
        "began": "1773478800.0",
        "ended": "40.0",
        "state": "done",
        "policy": "equal",
        "node": json.dumps(node),
        "headgate": "0.1.0",
        "command": f"headgate run 'x.yaml' {HOSTILE}",
        "cwd": HOSTILE,
        "git_commit": "0123456789abcdef0123456789abcdef01234567+changes",
        "packages": json.dumps({"/usr/bin/python3": ["numpy==2.0", HOSTILE]}),
    }
    for key, value in meta.items():
        recorder.add("meta", key=key, value=value)
    profile = {
        "framework": "torch",
        "parameters_dense": 61706,
        "layers": {HOSTILE: 2},
        "notes": [HOSTILE],
    }
    for position, (name, start, end) in enumerate([("a", 0.0, 20.0), ("b", 10.0, 40.0)]):
        task = f"{name}/worker-0"
        recorder.add(
            "jobs",
            name=name,
            position=position,
            spec={"name": name},
            state="done",
            reason=HOSTILE if name == "b" else "finished",
            exit_code=0,
            submitted=0.0,
            started=start,
            ended=end,
            attempt=position + 1,
            profile=profile if name == "a" else None,
        )
        recorder.add(
            "tasks",
            id=task,
            job=name,
            node="nimbus",
            attempt=position + 1,
            started=start,
            ended=end,
            exit={"code": 0, "memory_peak_bytes": 300 * 2**20},
        )
        cores, reason = (2.0, "first: nothing predicted yet") if name == "a" else (1.0, HOSTILE)
        recorder.add("shares", t=start, task=task, entitled_cores=cores, reason=reason)
        for t in range(int(start), int(end) + 1):
            if name == "b" and t in (21, 22):
                continue
            first = t == start or (name == "b" and t == 23)
            recorder.add(
                "usage",
                t=float(t),
                target=task,
                cpu_cores=None if first else 1.0 if t % 2 else 0.5,
                cpu_fullest_core=None if first else 0.9,
                memory_bytes=float(2**20 * (100 + t)),
                disk_write=None if first else 1000.0,
                psi_cpu=None if first else 0.4 if name == "b" else 0.0,
            )
            recorder.add(
                "progress",
                t=t + 0.5 if t < end else end,
                task=task,
                step=t * 10,
                epoch=t // 10,
                samples=t * 640,
                loss=float("nan")
                if name == "b" and t == 30
                else (1000.0 if name == "b" else 1.0) / (1 + t),
                nan=int(name == "b" and t == 30),
                count=1,
                metrics={HOSTILE: t / 40} if name == "a" else None,
            )
        for step in (3, 4):
            for span, seconds in (("input", 0.001 * step), ("forward", 0.002), ("backward", 0.004)):
                recorder.add("spans", t=start + 1, task=task, step=step, name=span, seconds=seconds)
        recorder.add(
            "checkpoints",
            t=start + 5,
            task=task,
            path="x",
            step=50,
            epoch=0,
            bytes=10,
            seconds=0.1,
            why="epoch",
        )
    recorder.add(
        "shares",
        t=10.0,
        task="a/worker-0",
        entitled_cores=1.0,
        reason="1 before it: 30 core-seconds left",
    )
    events = [
        (0.0, "a", "running", "started"),
        (0.0, "b", "waiting", "starts in 10 s"),
        (10.0, "b", "running", "started"),
        (12.0, "b", "warning", HOSTILE),
        (20.0, "a", "done", "finished"),
        (20.0, "b", "waiting", "exit code 1; tried again in 2 s"),
        (22.0, "b", "running", "started (attempt 2)"),
        (40.0, "b", "done", HOSTILE),
    ]
    for at, job, kind, text in events:
        recorder.add("events", t=at, job=job, kind=kind, text=text)
    for t in range(SECONDS + 1):
        recorder.add(
            "usage",
            t=float(t),
            target="node:nimbus",
            cpu_cores=None if not t else 1.8 if t % 10 else 2.0,
            cpu_fullest_core=None if not t else 0.95,
            memory_bytes=2.0 * 2**30,
            cache_bytes=1.0 * 2**30,
            net_in=None if not t else 100.0,
        )
    recorder.close()
    return path


NIC = 25e6  # bytes a second
MIB = 2**20


@pytest.fixture
def distributed(tmp_path: Path) -> Path:
    """A synchronous job of two workers, the second a tenth slower, and a server on three nodes:
    steps 3 to 7 are sampled, of which step 5 takes twice as long as the others; at 10 s a worker is
    lost, after 20 s the job is thrown back from step 200 to the checkpoint of step 150.
    """
    path = tmp_path / "several.sqlite"
    recorder = Recorder(path)
    nodes = [
        {"name": name, "cores": 0.6, "memory_bytes": 2**30, "nic_bytes_per_second": rate}
        for name, rate in (("a", NIC), ("b", NIC), ("c", None))
    ]
    meta = {"id": "r", "began": "0", "ended": "40.0", "state": "done", "node": json.dumps(nodes)}
    for key, value in meta.items():
        recorder.add("meta", key=key, value=value)
    plan = {
        "strategy": "ps",
        "workers": 2,
        "servers": 1,
        "synchronous": True,
        "batch_per_worker": [32, 16],
        "backup_workers": 0,
        "staleness": None,
    }
    recorder.add(
        "jobs",
        name="cnn",
        position=0,
        state="done",
        submitted=0.0,
        started=0.0,
        ended=40.0,
        attempt=1,
        plan=plan,
    )
    tasks = [("server-0", "c"), ("worker-1", "b"), ("worker-0", "a")]
    for index, (name, node) in enumerate(tasks):
        task = f"cnn/{name}"
        end = {"code": 0, "memory_peak_bytes": (100 + index) * MIB}
        recorder.add(
            "tasks", id=task, job="cnn", node=node, attempt=1, started=0.0, ended=40.0, exit=end
        )
        for t in range(41):
            recorder.add(
                "usage", t=float(t), target=task, cpu_cores=0.25 * (index + 1) if t else None
            )
            known = {"net_in": NIC * (0.5 if t % 2 else 0.25), "net_out": NIC * 0.75} if t else {}
            recorder.add("usage", t=float(t), target=f"node:{node}", cpu_cores=0.5, **known)
    for t in range(1, 40):
        for worker in (0, 1):
            step = t * 10 if t <= 20 else 150 + (t - 21) * 10
            recorder.add(
                "progress",
                t=t + worker / 10,
                task=f"cnn/worker-{worker}",
                step=step,
                samples=step * 48,
                loss=(1.0 + worker) / t,
                count=1,
            )
    for step in range(3, 8):
        slow = 2.0 if step == 5 else 1.0
        for worker in (0, 1):
            long = slow * (1 + worker / 10)
            spans = [
                ("forward", 0.0, 0.2, 0, 0),
                ("backward", 0.2, 0.5, 0, 0),
                ("push", 0.7, 0.05, 0, 3 * MIB),
                ("wait", 0.75, 0.05, 0, 0),
                ("pull", 0.8, 0.1, 3 * MIB, 0),
                ("optimizer", 0.9, 0.1, 0, 0),
            ]
            for name, begin, seconds, bytes_in, bytes_out in spans:
                recorder.add(
                    "spans",
                    t=step * 3 + worker / 100,
                    task=f"cnn/worker-{worker}",
                    step=step,
                    name=name,
                    seconds=seconds * long,
                    begin=begin * long,
                    bytes_in=bytes_in or None,
                    bytes_out=bytes_out or None,
                )
            recorder.add(
                "transfers",
                t=step * 3 + worker / 100,
                task=f"cnn/worker-{worker}",
                step=step,
                peer="server-0",
                push_begin=0.3 * long,
                push_end=0.75 * long,
                push_bytes=3 * MIB,
                pull_begin=0.5 * long,
                pull_end=0.9 * long,
                pull_bytes=3 * MIB,
            )
        for name, begin, seconds, bytes_in, bytes_out in (
            ("idle", 0.0, 0.4, 0, 0),
            ("receive", 0.4, 0.3, 6 * MIB, 0),
            ("update", 0.7, 0.1, 0, 0),
            ("send", 0.8, 0.2, 0, 6 * MIB),
        ):
            recorder.add(
                "spans",
                t=step * 3 - 0.02,
                task="cnn/server-0",
                step=step,
                name=name,
                seconds=seconds * slow,
                begin=begin * slow,
                bytes_in=bytes_in or None,
                bytes_out=bytes_out or None,
            )
    recorder.add(
        "checkpoints", t=15.0, task="cnn/worker-0", path="x", step=150, epoch=0, why="epoch"
    )
    events = [
        (0.0, None, "running", "started", None, None),
        (10.0, "cnn/worker-1", "fault", "killed by SIGKILL; the others go on", None, None),
        (10.3, "cnn/worker-0", "fault", f"round 100 was done again {HOSTILE}", 0.25, 1),
        (
            20.5,
            "cnn/server-0",
            "fault",
            "its node is gone; all tasks are started again from step 150",
            None,
            None,
        ),
        (26.1, None, "fault", "at step 200 again, as before its tasks were lost", 5.6, 50),
        (40.0, None, "done", "finished", None, None),
    ]
    recorder.add("events", t=20.4, kind="fault", text="node c is gone")
    for at, who, kind, text, cost, lost in events:
        recorder.add(
            "events", t=at, job="cnn", task=who, kind=kind, text=text, seconds=cost, steps=lost
        )
    recorder.close()
    return path
