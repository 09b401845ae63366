from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.model.errors import NotFoundError, StorageError
from headgate.recorded.store import Recorder
from headgate.recorded.tables import TABLES
from headgate.reports import html, timeline
from headgate.reports.templates import render
from headgate.sampling.columns import COLUMNS


def data_of(page: Path) -> dict[str, Any]:
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL
    )
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def insert(path: Path, table: str, rows: Sequence[tuple[object, ...]]) -> None:
    """Insert rows, whose last columns may be left out."""
    names = [column.split()[0] for column in TABLES[table][: len(rows[0])]]
    with sqlite3.connect(path) as db:
        db.executemany(
            f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})", rows
        )
    db.close()


@pytest.mark.long
def test_a_day_of_ten_tasks_stays_under_five_megabytes(tmp_path: Path) -> None:
    path, seconds = tmp_path / "run.sqlite", 24 * 3600
    recorder = Recorder(path)
    recorder.add("meta", key="ended", value=str(float(seconds)))
    recorder.add("meta", key="state", value="done")
    for i in range(10):
        recorder.add(
            "jobs",
            name=f"job-{i}",
            position=i,
            state="done",
            submitted=0,
            started=0,
            ended=seconds,
            attempt=1,
        )
        recorder.add("tasks", id=f"job-{i}/worker-0", job=f"job-{i}", started=0)
    recorder.close()
    columns = len(COLUMNS) - 5  # no GPU and no pressure, as on most machines
    for target in [*(f"job-{i}/worker-0" for i in range(10)), "node:nimbus"]:
        filler = (None,) * 5
        rows = [
            (float(t), target, *[(t * 7919 % 1009) * 1.37 + 0.123] * columns, *filler)
            for t in range(seconds)
        ]
        insert(path, "usage", rows)
        if not target.startswith("node:"):
            reports = [
                (float(t), target, t, 0, 1, t * 64, 1 / (1 + t) + t % 7, 0, 1, None)
                for t in range(0, seconds, 2)
            ]
            insert(path, "progress", reports)
            name = target.split("/")[0]
            insert(
                path,
                "events",
                [(float(t), name, target, "note", "x" * 80, None, None) for t in range(500)],
            )
            insert(
                path,
                "checkpoints",
                [(float(t), target, "x", t, 0, 0, 1, 0.1, "epoch") for t in range(0, seconds, 60)],
            )
    page = html.write(path, tmp_path / "report.html")
    assert 500_000 < page.stat().st_size < 5_000_000
    assert all(plot["count"] <= 600 for plot in data_of(page)["plots"])


def test_a_day_of_a_job_of_ten_tasks_on_ten_nodes_stays_under_five_megabytes(
    tmp_path: Path,
) -> None:
    """More readings would make no larger page: each plot has as many points as it may have."""
    path, seconds, every = tmp_path / "run.sqlite", 24 * 3600, 20
    recorder = Recorder(path)
    names = [*(f"worker-{i}" for i in range(8)), *(f"server-{i}" for i in range(2))]
    nodes = [
        {"name": f"node-{i}", "cores": 4.0, "memory_bytes": 2**33, "nic_bytes_per_second": 1e8}
        for i in range(10)
    ]
    for key, value in (
        ("ended", str(float(seconds))),
        ("state", "done"),
        ("node", json.dumps(nodes)),
    ):
        recorder.add("meta", key=key, value=value)
    plan = {"strategy": "ps", "workers": 8, "servers": 2, "synchronous": True}
    recorder.add(
        "jobs",
        name="a",
        position=0,
        state="done",
        submitted=0,
        started=0,
        ended=seconds,
        attempt=1,
        plan=plan,
    )
    for i, name in enumerate(names):
        recorder.add("tasks", id=f"a/{name}", job="a", node=f"node-{i}", started=0)
    recorder.close()
    columns, filler = len(COLUMNS) - 5, (None,) * 5
    for target in [*(f"a/{name}" for name in names), *(f"node:node-{i}" for i in range(10))]:
        values = [(float(t), (t * 7919 % 1009) * 1.37 + 0.123) for t in range(0, seconds, every)]
        insert(path, "usage", [(t, target, *[value] * columns, *filler) for t, value in values])
    workers = names[:8]
    steps = range(0, seconds, 40)
    for name in workers:
        task = f"a/{name}"
        insert(
            path,
            "progress",
            [(float(t), task, t, 0, 1, t * 64, 1 / (1 + t) + t % 7, 0, 1, None) for t in steps],
        )
        spans = ("input", "forward", "backward", "push", "wait", "pull", "optimizer", "other")
        insert(
            path,
            "spans",
            [(float(t), task, t, span, 0.1, 1e6, 1e6, None) for t in steps for span in spans],
        )
        insert(
            path,
            "transfers",
            [
                (float(t), task, t, peer, 0.1, 0.3, 1e6, 0.2, 0.5, 1e6)
                for t in steps
                for peer in names[8:]
            ],
        )
    for name in names[8:]:
        rounds = ("receive", "update", "send", "idle")
        insert(
            path,
            "spans",
            [
                (float(t), f"a/{name}", t, span, 0.2, 1e6, 1e6, None)
                for t in steps
                for span in rounds
            ],
        )
    lost = [
        (float(t), "a", "a/worker-7", "fault", "killed by SIGKILL; " + "x" * 80, 1.5, 3)
        for t in range(1000)
    ]
    insert(path, "events", lost)
    page = html.write(path, tmp_path / "report.html")
    assert 500_000 < page.stat().st_size < 5_000_000
    plots = {plot["key"]: plot["count"] for plot in data_of(page)["plots"]}
    assert {"throughput-0", *(f"nic-{i}" for i in range(10))} <= plots.keys()
    assert max(plots.values()) <= 600


def test_a_page_asks_nobody_for_anything(store: Path, tmp_path: Path) -> None:
    text = html.write(store, tmp_path / "report.html").read_text()
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", text)
    assert "default-src 'none'" in unescape(text)
    assert "Copyright (c) 2022 Leon Sorokin" in text


@pytest.mark.parametrize("jobs", [0, 1])
def test_a_run_of_which_nothing_is_known_has_a_page(tmp_path: Path, jobs: int) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    if jobs:
        recorder.add("jobs", name="a", position=0)
    recorder.close()
    text = html.write(tmp_path / "run.sqlite", tmp_path / "report.html").read_text()
    assert ("No job was recorded." in text) == (not jobs)
    assert "interrupted" in text


def test_a_damaged_value_does_not_cost_the_page(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    for key in ("began", "ended", "node", "packages"):
        recorder.add("meta", key=key, value="{not json")
    recorder.add(
        "jobs",
        name="a",
        position=0,
        spec="{",
        profile="[1]",
        plan="nothing",
        state="failed",
        attempt=1,
    )
    recorder.add("tasks", id="a/worker-0", job="a", exit="}")
    recorder.add("progress", t=1.0, task="a/worker-0", metrics="x")
    recorder.close()
    assert html.write(tmp_path / "run.sqlite", tmp_path / "report.html").stat().st_size > 50_000


def test_a_report_that_cannot_be_written_says_so_and_leaves_nothing(
    store: Path, tmp_path: Path
) -> None:
    with pytest.raises(NotFoundError):
        html.write(tmp_path / "none.sqlite", tmp_path / "report.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="--output"):
        html.write(store, tmp_path / "folder")
    with pytest.raises(StorageError, match="--output"):
        html.write(store, tmp_path / "missing" / "report.html")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


EXTREME = (1e308, -1e308, 1.7e308, 5e-324, 0.0, 2.0**53)


def test_numbers_at_the_edge_of_what_there_is_leave_no_run_without_its_report(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.sqlite"
    recorder = Recorder(path)
    for job in ("a", "b"):
        recorder.add(
            "jobs", name=job, position=0, state="done", submitted=0, started=0, ended=9, attempt=1
        )
        recorder.add("tasks", id=f"{job}/worker-0", job=job, started=0, ended=9)
        for t, number in enumerate(EXTREME):
            task = f"{job}/worker-0"
            metrics = {"odd": number, "inf": float("inf"), "nan": float("nan"), "large": 10**400}
            recorder.add(
                "progress",
                t=t,
                task=task,
                step=int(number),
                loss=number,
                count=2**53,
                metrics=metrics,
            )
            recorder.add("usage", t=t, target=task, cpu_cores=number, memory_bytes=number)
            recorder.add(
                "usage", t=t, target="node:n", cpu_cores=number, memory_bytes=number, net_in=number
            )
            recorder.add(
                "spans",
                t=t,
                task=task,
                step=t,
                name="input",
                seconds=number,
                bytes_in=number,
                begin=number,
            )
            recorder.add("shares", t=t, task=task, entitled_cores=number, threads=1)
            recorder.add(
                "checkpoints",
                t=t,
                task=task,
                step=int(number),
                epoch=1,
                bytes=int(number),
                seconds=number,
            )
    recorder.close()
    page = html.write(path, tmp_path / "report.html")
    assert data_of(page)["plots"]
    assert "Infinity" not in page.read_text()


def test_a_part_of_a_report_that_cannot_be_made_costs_nothing_but_itself_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OverflowError("cannot convert float infinity to integer")

    monkeypatch.setattr(timeline, "timeline", fails)
    monkeypatch.setattr(html, "loss_plots", fails)
    path = tmp_path / "run.sqlite"
    recorder = Recorder(path)
    recorder.add(
        "jobs", name="a", position=0, state="done", submitted=0, started=0, ended=9, attempt=1
    )
    recorder.add("events", t=1.0, kind="note", text="of the job")
    recorder.close()
    page = html.write(path, tmp_path / "report.html").read_text()
    assert "What could not be drawn" in page
    assert page.count("cannot convert float infinity to integer") == 2
    assert "of the job" in page


def test_what_can_be_pasted_is_set_as_code_and_names_that_look_like_markup_are_not() -> None:
    said = ["vae slowed <b>cnn</b>. Next: `after: vae` in its job.", "a file called `"]
    study = SimpleNamespace(name="s", notes=[])
    shown = {"conditions": "", "sentences": said, "notes": [], "tables": [], "plot": None}
    page = render("study.html", study=study, **shown)
    assert "vae slowed &lt;b&gt;cnn&lt;/b&gt;. Next: <code>after: vae</code> in its job." in page
    assert "a file called `" in page
