"""What is written for other tools, read by what these read it with."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.hub.user import User

from headgate.exports import files, perfetto, tracking
from headgate.exports.series import series
from headgate.model.errors import HeadgateError
from headgate.model.trackers import Destination, Tracker
from headgate.recorded.recording import read

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
        assert "headgate/verdict" in made.data.tags
        assert made.info.status == "FINISHED"


def test_what_a_tracker_refuses_is_said_in_one_line(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow.tracking")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(HeadgateError, match="MLflow refuses it: ") as refused:
        tracking.export(read(store), Destination(Tracker.MLFLOW, "nonsense://nowhere"))
    assert "\n" not in str(refused.value)


def slices(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_a_trace_has_the_steps_of_tasks_and_what_they_sent(
    distributed: Path, tmp_path: Path
) -> None:
    run = read(Path(shutil.copy(distributed, tmp_path / "run.sqlite")))
    trace = json.loads(perfetto.to_perfetto(run, tmp_path / "trace.json").read_text())
    events = trace["traceEvents"]
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    assert {"worker-0", "worker-1", "server-0"} <= set(names.values())
    steps = [event for event in slices(trace) if event["name"].startswith("step ")]
    assert len(steps) == sum(len(job.traced) for job in run.jobs)
    spans = {event["name"] for event in slices(trace)} - {event["name"] for event in steps}
    assert {"forward", "backward"} <= spans
    for step in steps:
        inside = [
            event
            for event in slices(trace)
            if event["tid"] == step["tid"] and event is not step and _is_within(event, step)
        ]
        assert inside, step
    sent = [event["id"] for event in events if event["ph"] == "s"]
    arrived = [event["id"] for event in events if event["ph"] == "f"]
    assert sent == arrived
    assert all(event["ts"] >= 0 for event in events)


def _is_within(event: dict[str, Any], step: dict[str, Any]) -> bool:
    end = step["ts"] + step["dur"] + 1
    return bool(step["ts"] - 1 <= event["ts"] and event["ts"] + event["dur"] <= end)


def test_a_run_is_exported_at_the_command_line(user: User) -> None:
    user.types("run", "--name", "a", "--", "sh", "-c", "echo epoch 1 loss 0.5")
    written = user.json("export", "--to", "csv")["written"]
    assert ",a,loss," in (user.folder / written).read_text()
    user.types("export", "--to", "perfetto", "--output", "trace.json")
    assert json.loads((user.folder / "trace.json").read_text())["traceEvents"]
    message = user.types("export", "--to", "csv", "--output", "no/such/folder.csv", code=4).message
    assert "cannot write no/such/folder.csv" in message
    assert "no run 'nothing'" in user.types("export", "nothing", "--to", "csv", code=5).message
