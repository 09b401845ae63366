"""What `headgate status` tells of a job, from what was recorded."""

from __future__ import annotations

from pathlib import Path

from headgate.cli.status import latest
from headgate.telemetry.store import Recorder, RunReader


def test_a_limit_that_was_lifted_is_none(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add("tasks", id="a/worker-0", job="a", attempt=1, started=1.0)
    limited = {"cpu_cap_cores": 1.0, "gpu_fraction": 0.5, "entitled_cores": 1.0, "threads": 1}
    recorder.add("shares", t=1.0, task="a/worker-0", cpu_weight=50.0, reason="two jobs", **limited)
    recorder.flush()
    with RunReader(tmp_path / "run.sqlite") as reader:
        assert {**latest(reader, "a"), **limited, "cpu_weight": 50.0} == latest(reader, "a")
        recorder.add("shares", t=2.0, task="a/worker-0", cpu_weight=50.0, entitled_cores=2.0, threads=2, reason="alone")
        recorder.close()
        found = latest(reader, "a")
    assert (found["cpu_cap_cores"], found["gpu_fraction"], found["entitled_cores"]) == (None, None, 2.0)
    assert found["tasks"][0]["cpu_cap_cores"] is None
