"""What is written for other tools, read by what these read it with."""

from __future__ import annotations

import csv
import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.hub.user import User

from headgate.exports import files, perfetto, tracking
from headgate.exports.series import series
from headgate.exports.trackers import run_type
from headgate.exports.trackers.base import TrackedEnd
from headgate.model.errors import HeadgateError
from headgate.model.trackers import Destination, Tracker
from headgate.recorded.recording import read
from headgate.recorded.store import Recorder

Rows = dict[tuple[str, str], list[tuple[float, float]]]
"""Times and values by job and metric."""


def expected(store: Path) -> Rows:
    return {
        (figure.job, figure.name): [(round(point.t, 3), point.value) for point in figure.points]
        for figure in series(read(store))
    }


def test_series_have_what_jobs_reported_and_what_they_used(store: Path) -> None:
    run = read(store)
    known = expected(store)
    for job in run.jobs:
        losses = [value for _, value in known[job.name, "loss"]]
        assert losses == [float(loss) for loss in job.progress.loss if loss == loss]
        assert (job.name, "headgate/cpu_cores") in known
    steps = [
        point.step for figure in series(run) if figure.name == "loss" for point in figure.points
    ]
    assert None not in steps


def test_tables_have_a_row_for_each_point(store: Path, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    with files.to_csv(read(store), tmp_path / "run.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    by_name: Rows = {}
    for row in rows:
        place = by_name.setdefault((row["job"], row["metric"]), [])
        place.append((float(row["t"]), float(row["value"])))
    assert by_name == expected(store)
    table = pq.read_table(files.to_parquet(read(store), tmp_path / "run.parquet"))
    assert table.column_names == list(files.COLUMNS)
    assert table.num_rows == len(rows)
    assert table["value"].to_pylist() == [float(row["value"]) for row in rows]


def test_tensorboard_reads_its_event_files(store: Path, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = read(store)
    tracking.export(run, Destination(Tracker.TENSORBOARD, str(tmp_path / "runs")))
    known = expected(store)
    for job in run.jobs:
        reader = accumulator.EventAccumulator(str(tmp_path / "runs" / job.name))
        reader.Reload()
        losses = reader.Scalars("loss")
        assert [event.value for event in losses] == pytest.approx(
            [value for _, value in known[job.name, "loss"]]
        )
        assert losses[0].wall_time == pytest.approx(
            (run.began or 0.0) + known[job.name, "loss"][0][0]
        )
        names = {name for of, name in known if of == job.name}
        assert set(reader.Tags()["scalars"]) == {*names, "headgate/lost_seconds"}
        [verdict] = reader.Tensors("headgate/verdict")
        assert b"waited for its input" in verdict.tensor_proto.string_val[0]


def test_mlflow_has_a_run_for_each_job(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a server keeps them in a database
    uri = (tmp_path / "mlruns").as_uri()
    run = read(store)
    tracking.export(run, Destination(Tracker.MLFLOW, uri))
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("headgate")
    found = {made.info.run_name: made for made in client.search_runs([experiment.experiment_id])}
    assert set(found) == {f"{run.id}/{job.name}" for job in run.jobs}
    known = expected(store)
    for job in run.jobs:
        made = found[f"{run.id}/{job.name}"]
        history = client.get_metric_history(made.info.run_id, "loss")
        assert sorted(metric.value for metric in history) == sorted(
            value for _, value in known[job.name, "loss"]
        )
        assert made.data.params["policy"] == "equal"
        assert "exclusive" not in made.data.params  # it has no limits
        assert "headgate/verdict" in made.data.tags
        assert made.info.status == "FINISHED"
    again = run_type(Tracker.MLFLOW)(tracking.tracked_job(run, job), uri, made.info.run_id)
    assert client.get_run(again.id).info.status == "RUNNING"
    again.end(TrackedEnd.KILLED)  # as where its hub dies
    assert client.get_run(made.info.run_id).info.status == "KILLED"


def test_what_a_tracker_refuses_is_said_in_one_line(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow.tracking")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(HeadgateError, match="MLflow refuses it: ") as refused:
        tracking.export(read(store), Destination(Tracker.MLFLOW, "nonsense://nowhere"))
    assert "\n" not in str(refused.value)


def slices(trace: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The slices of a trace by the name of their track, once nothing in it breaks the format."""
    events = trace["traceEvents"]
    tracks: dict[int, str] = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    by_track: dict[str, list[dict[str, Any]]] = {name: [] for name in tracks.values()}
    for event in (event for event in events if event["ph"] == "X"):
        by_track[tracks[event["tid"]]].append(event)
    for track in by_track.values():
        assert [event["ts"] for event in track] == sorted(event["ts"] for event in track)
        ends: list[float] = []
        for event in track:
            while ends and ends[-1] <= event["ts"] + 1e-3:
                ends.pop()
            end = event["ts"] + event["dur"]
            assert event["dur"] >= 0 and (not ends or end <= ends[-1] + 1e-3), event
            ends.append(end)
    arrows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in (event for event in events if event["ph"] in "sf"):
        arrows[event["id"]].append(event)
        assert any(
            place["ts"] - 1e-3 <= event["ts"] <= place["ts"] + place["dur"] + 1e-3
            for place in by_track[tracks[event["tid"]]]
        )
    assert all([event["ph"] for event in arrow] == ["s", "f"] for arrow in arrows.values())
    assert {event["ph"] for event in events} <= {"M", "X", "s", "f", "C"}
    return by_track


def test_a_trace_has_the_steps_of_tasks_and_what_they_sent(
    distributed: Path, tmp_path: Path
) -> None:
    run = read(Path(shutil.copy(distributed, tmp_path / "run.sqlite")))
    trace = json.loads(perfetto.to_perfetto(run, tmp_path / "trace.json").read_text())
    by_track = slices(trace)
    assert list(by_track) == ["states", "worker-0", "worker-1", "server-0"]
    steps = [
        event for track in by_track.values() for event in track if event["name"].startswith("step ")
    ]
    assert len(steps) == sum(len(job.traced) for job in run.jobs)
    assert {"forward", "backward", "wait"} <= {event["name"] for event in by_track["worker-0"]}
    assert any(event["ph"] == "s" for event in trace["traceEvents"])


def test_a_trace_tells_for_whom_workers_wait_though_reports_come_late(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    meta = {"id": "r", "began": "0", "ended": "9.0", "state": "done", "node": "[]"}
    for key, value in meta.items():
        recorder.add("meta", key=key, value=value)
    plan = {"strategy": "allreduce", "workers": 2, "servers": 0, "batch_per_worker": None}
    job = {"name": "a", "position": 0, "state": "done", "submitted": 0.0, "attempt": 1}
    recorder.add("jobs", **job, plan=plan)
    for worker, (peer, work, late) in enumerate(((1, 0.1, 0.05), (0, 0.4, 0.0))):
        task = f"a/worker-{worker}"
        recorder.add("tasks", id=task, job="a", node="n", attempt=1, started=0.0, ended=9.0)
        for step in (3, 4):
            at = {"t": 1.0 + step * 0.5 + late * (step == 3), "task": task, "step": step}
            for name, begin, seconds in (("backward", 0.0, work), ("push", work, 0.5 - work)):
                recorder.add("spans", **at, name=name, begin=begin, seconds=seconds)
            sent = {"push_begin": work, "push_end": 0.5, "push_bytes": 8}
            got = {"pull_begin": work, "pull_end": 0.5, "pull_bytes": 8}
            recorder.add("transfers", **at, peer=f"worker-{peer}", **sent, **got)
    recorder.close()
    run = read(tmp_path / "run.sqlite")
    trace = json.loads(perfetto.to_perfetto(run, tmp_path / "trace.json").read_text())
    by_track = slices(trace)
    times = {
        name: [(event["name"], event["ts"] / 1e6, event["dur"] / 1e6) for event in track]
        for name, track in by_track.items()
        if name != "states"
    }
    assert times["worker-0"][:4] == [
        ("step 3", 2.0, 0.5),
        ("backward", 2.0, 0.1),
        ("wait for worker-1", 2.1, pytest.approx(0.3)),
        ("push", 2.4, pytest.approx(0.1)),
    ]
    assert times["worker-1"][:3] == [
        ("step 3", 2.0, 0.5),
        ("backward", 2.0, 0.4),
        ("push", 2.4, pytest.approx(0.1)),
    ]
    begins = [event["ts"] / 1e6 for event in trace["traceEvents"] if event["ph"] == "s"]
    assert begins == [2.1, 2.4, 2.6, 2.9]  # one for each way, though both ends tell of it


def test_a_run_is_exported_at_the_command_line(user: User) -> None:
    user.types("run", "--name", "a", "--", "sh", "-c", "echo epoch 1 loss 0.5")
    written = user.json("export", "--to", "csv")["written"]
    assert ",a,loss," in (user.folder / written).read_text()
    user.types("export", "--to", "perfetto", "--output", "trace.json")
    assert json.loads((user.folder / "trace.json").read_text())["traceEvents"]
    message = user.types("export", "--to", "csv", "--output", "no/such/folder.csv", code=4).message
    assert "cannot write no/such/folder.csv" in message
    assert "no run 'nothing'" in user.types("export", "nothing", "--to", "csv", code=5).message
