"""How jobs stand, from what was recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from headgate.recorded import runs, status
from headgate.recorded.store import Recorder


def test_a_limit_that_was_lifted_is_none(home: Path) -> None:
    (folder := home / "runs" / "20260314-0900-ab12").mkdir(parents=True)
    recorder = Recorder(folder / runs.STORE)
    recorder.add("jobs", name="a", position=0, state="running")
    recorder.add("tasks", id="a/worker-0", job="a", attempt=1, started=1.0, node="n")
    limited: dict[str, Any] = {
        "cpu_cap_cores": 1.0,
        "gpu_fraction": 0.5,
        "entitled_cores": 1.0,
        "threads": 1,
    }
    recorder.add("shares", t=1.0, task="a/worker-0", cpu_weight=50.0, reason="two jobs", **limited)
    recorder.flush()
    [before] = status.read(folder).jobs
    assert replace(before, **limited, cpu_weight=50.0) == before
    lifted = {"cpu_weight": 50.0, "entitled_cores": 2.0, "threads": 2, "reason": "alone"}
    recorder.add("shares", t=2.0, task="a/worker-0", **lifted)
    recorder.close()
    [now] = status.read(folder).jobs
    assert (now.cpu_cap_cores, now.gpu_fraction, now.entitled_cores) == (None, None, 2.0)
    assert now.tasks[0].cpu_cap_cores is None
