"""A run whose every number is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headgate.telemetry.store import Recorder

SECONDS = 40
HOSTILE = '</script><img src=x onerror="window.stolen=1"><script>window.stolen=1</script><!-- \u2028 &amp; \'"'


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two jobs on a node of two cores: `a` runs from 0 to 20 s; `b` waits until 10 s, fails at 20 s, is tried again at
    22 s and ends at 40 s. Text that came from a user tries to be HTML."""
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
    profile = {"framework": "torch", "parameters_dense": 61706, "layers": {HOSTILE: 2}, "notes": [HOSTILE]}
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
        recorder.add("shares", t=start, task=task, entitled_cores=2.0 if name == "a" else 1.0, reason="equal")
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
                loss=float("nan") if name == "b" and t == 30 else (1000.0 if name == "b" else 1.0) / (1 + t),
                nan=int(name == "b" and t == 30),
                count=1,
                metrics={HOSTILE: t / 40} if name == "a" else None,
            )
        for step in (3, 4):
            for span, seconds in (("input", 0.001 * step), ("forward", 0.002), ("backward", 0.004)):
                recorder.add("spans", t=start + 1, task=task, step=step, name=span, seconds=seconds)
        recorder.add(
            "checkpoints", t=start + 5, task=task, path="x", step=50, epoch=0, bytes=10, seconds=0.1, why="epoch"
        )
    recorder.add("shares", t=10.0, task="a/worker-0", entitled_cores=1.0, reason="equal")
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
