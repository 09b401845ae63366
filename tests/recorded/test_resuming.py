"""What a job of a run goes on from."""

from __future__ import annotations

import os
import zipfile
from itertools import product
from pathlib import Path

import pytest

from headgate.model.jobs import Job
from headgate.recorded import at_stake, resuming, runs, script_checkpoints
from headgate.recorded.reader import RunReader
from headgate.recorded.store import Recorder


def saves(path: Path, date: float) -> None:
    """A whole checkpoint, by a clock that says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("state", path.name)
    os.utime(path, (date, date))


@pytest.mark.parametrize("set_by", [-7200.0, 0.0, 7200.0])
def test_what_was_saved_when_the_hub_had_died_is_the_newest_though_the_clock_was_set(
    set_by: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path))
    run, began = runs.create(), 1_800_000_000.0
    saved = run / "jobs" / "learns" / "checkpoints"
    recorder = Recorder(run / runs.STORE)
    recorder.add("meta", key="began", value=repr(began))
    recorder.add("jobs", name="learns", position=0, started=1.0)
    for step, t in ((10, 100.0), (20, 200.0)):
        saves(saved / f"step-{step}.pt", began + set_by + t)
        recorder.add(
            "checkpoints",
            t=t,
            task="learns/worker-0",
            path=str(saved / f"step-{step}.pt"),
            step=step,
            epoch=0,
        )
    recorder.close()
    saves(saved / "step-30.pt", began + set_by + 260.0)
    found = resuming.origin(run, Job(name="learns", run="true"))
    assert found.checkpoint is not None
    assert Path(found.checkpoint.path).name == "step-30.pt"
    saves(saved / "step-5.pt", began + set_by + 60.0)  # that nobody was told of, before the others
    (saved / "step-30.pt").unlink()
    found = resuming.origin(run, Job(name="learns", run="true"))
    assert found.checkpoint is not None
    assert Path(found.checkpoint.path).name == "step-20.pt"


@pytest.mark.parametrize(
    ("by_itself", "lacks"), [(True, ""), (False, "job learns can only be run again from its")]
)
def test_a_script_that_goes_on_from_its_own_checkpoint_lacks_none(
    by_itself: bool, lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path))
    run = runs.create()
    recorder = Recorder(run / runs.STORE)
    recorder.add("jobs", name="learns", position=0, started=1.0)
    recorder.close()
    found = resuming.origin(run, Job(name="learns", run="true", resumes=by_itself))
    assert found.lacks.startswith(lacks)
    assert bool(found.lacks) != by_itself


def test_of_several_jobs_that_saved_nothing_the_reason_is_told_once() -> None:
    plain = [resuming.Origin(name, began=True) for name in "abc"]
    saves = resuming.Origin("d", began=True, reached="step 5", uses_headgate=True)
    told = resuming.lacking([*plain, saves, resuming.Origin("waits")])
    assert told.startswith("jobs a, b, c can only be run again from their beginning, because ")
    assert told.endswith("; job d had come to step 5, and had saved no checkpoint yet")
    assert told.count("saved nothing") == 1
    assert resuming.lacking(plain[:1]) == plain[0].lacks


def test_a_checkpoint_that_another_node_has_is_named_and_not_resumed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path))
    run, path = runs.create(), tmp_path / "ckpt-20.pt"
    saves(path, 0.0)  # an older one of the same name, here
    recorder = Recorder(run / runs.STORE)
    recorder.add("jobs", name="learns", position=0, started=1.0)
    own = {"path": str(path), "epoch": 0, "own": 1, "why": "script", "task": "learns/worker-0"}
    recorder.add("checkpoints", t=20.0, step=20, node="b", **own)
    recorder.close()
    job = Job(name="learns", run="true", resume_with="--resume {checkpoint}")
    origin = resuming.origin(run, job)
    assert origin.checkpoint is None
    assert "ckpt-20.pt" in origin.lacks
    assert "lies on node b" in origin.lacks


def test_a_shorter_interval_is_advised_only_where_it_saves_much_and_costs_little(
    tmp_path: Path,
) -> None:
    recorder = Recorder(tmp_path / "run.db")
    own = {"epoch": 0, "own": 1, "why": "script"}
    saving = {"rare": (3600.0, 2.0), "slow": (3600.0, 60.0), "often": (300.0, 1.0)}
    for job, (interval, seconds) in saving.items():
        for n, part in product((1, 2, 3), (0, 1)):
            part_of = {"step": n, "path": f"{part}-{n}.pt", "task": f"{job}/worker-0", **own}
            recorder.add("checkpoints", t=interval * n + part, seconds=seconds, **part_of)
    recorder.close()
    with RunReader(tmp_path / "run.db") as reader:
        rhythms = {job: script_checkpoints.rhythm(reader, job) for job in saving}
    assert [rhythms[job].every for job in rhythms] == [3600.0, 3600.0, 300.0]
    assert {job: at_stake.advised(rhythm) for job, rhythm in rhythms.items()} == {
        "rare": 400.0,
        "slow": None,
        "often": None,
    }
