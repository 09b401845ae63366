"""The report of a job of several tasks: what is on the page is what the store has."""

from __future__ import annotations

import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.reports.browsing import opened, seen_as

from headgate.recorded.reader import RunReader
from headgate.recorded.recording import read
from headgate.recorded.store import Recorder
from headgate.reports import html, terminal
from headgate.reports.measured import measured
from headgate.testing import wait


@pytest.fixture
def page(browser: Any, distributed: Path, tmp_path: Path) -> Any:
    return opened(browser, html.write(distributed, tmp_path / "report.html"))


def number(page: Any, selector: str) -> float:
    """The raw value behind a number on the page."""
    return float(
        page.execute_script("return document.querySelector(arguments[0]).dataset.value", selector)
    )


def one(store: Path, sql: str) -> Any:
    """A single value of the store."""
    with RunReader(store) as reader:
        return reader.tuples(sql)[0][0]


def test_every_task_has_its_row_with_the_numbers_of_the_store(page: Any, distributed: Path) -> None:
    told = page.execute_script(
        "return [...document.querySelectorAll('.by-task tbody tr')]"
        ".map((row) => [row.dataset.task, row.children[1].textContent])"
    )
    assert told == [["worker-0", "a"], ["worker-1", "b"], ["server-0", "c"]]
    for task in ("worker-0", "worker-1", "server-0"):
        where, row = f"FROM spans WHERE task = 'cnn/{task}'", f".by-task [data-task='{task}']"
        steps = one(distributed, f"SELECT count(DISTINCT step) {where}")
        cores = one(distributed, f"SELECT avg(cpu_cores) FROM usage WHERE target = 'cnn/{task}'")
        assert number(page, f"{row} [data-key='cpu_mean_cores']") == pytest.approx(cores)
        for key, column in (
            ("received", "bytes_in"),
            ("sent", "bytes_out"),
            ("step_seconds", "seconds"),
        ):
            total = one(distributed, f"SELECT sum({column}) {where}")
            assert number(page, f"{row} [data-key='{key}']") == pytest.approx(total / steps), (
                task,
                key,
            )
    assert number(
        page, ".by-task [data-task='worker-1'] [data-key='exposed_fraction']"
    ) == pytest.approx(0.2)
    assert (
        number(page, ".by-task [data-task='worker-1'] [data-key='memory_peak_bytes']")
        == 101 * 2**20
    )


def test_seconds_and_bytes_are_told_by_span_and_task(page: Any, distributed: Path) -> None:
    for task, spans in (
        ("worker-1", ("forward", "push", "pull")),
        ("server-0", ("receive", "send", "idle")),
    ):
        for span in spans:
            where = f"FROM spans WHERE task = 'cnn/{task}' AND name = '{span}'"
            cell = f".by-span [data-task='{task}'] [data-span='{span}']"
            mean = one(distributed, f"SELECT avg(seconds) {where}")
            assert number(page, f"{cell} [data-key='seconds']") == pytest.approx(mean)
    assert (
        number(page, ".by-span [data-task='worker-1'] [data-span='push'] [data-key='bytes_out']")
        == 3 * 2**20
    )
    assert (
        number(page, ".by-span [data-task='server-0'] [data-span='receive'] [data-key='bytes_in']")
        == 6 * 2**20
    )


def test_a_typical_and_the_slowest_step_are_drawn_where_their_spans_lie(page: Any) -> None:
    titles = page.execute_script(
        "return [...document.querySelectorAll('.sampled')]"
        ".map((f) => [f.dataset.step, f.querySelector('small').textContent])"
    )
    assert [title[0] for title in titles] == ["typical", "slowest"]
    assert titles[1][1].startswith("step 5, 2.2 s")
    drawn = page.execute_script(
        "const svg = document.querySelector(\".sampled[data-step='slowest'] .lanes > svg\");const "
        "all = svg.getBoundingClientRect();return "
        "[...svg.querySelectorAll('svg[data-span]')].map((bar) => {  const at = "
        "bar.querySelector('rect').getBoundingClientRect();  return "
        "[bar.parentElement.dataset.task, bar.dataset.span, Number(bar.dataset.begin),    "
        "Number(bar.dataset.value), (at.left - all.left) / all.width, at.width / all.width, "
        "all.width];})"
    )
    of = {(task, span): rest for task, span, *rest in drawn}
    assert of["worker-1", "backward"][:2] == pytest.approx([0.44, 1.1])
    # Both have the last sums at the same moment, 1.98 s: the faster one began later.
    assert of["worker-0", "optimizer"][:2] == pytest.approx([1.98, 0.2])
    # The server begins to receive when the first worker begins to push; it was idle before the step
    # began.
    assert of["server-0", "receive"][0] == pytest.approx(0.66)
    assert of.pop(("server-0", "idle"))[2] == 0
    for begin, seconds, left, width, pixels in of.values():
        assert left * 2.2 == pytest.approx(begin, abs=2 * 2.2 / pixels)
        assert width * 2.2 == pytest.approx(seconds, abs=2 * 2.2 / pixels)
    lanes = page.execute_script(
        "return [...document.querySelectorAll(\".sampled[data-step='slowest'] "
        "[data-task='worker-0'] [data-peer]\")].map((lane) => [lane.dataset.peer, "
        "lane.dataset.way, Number(lane.dataset.value), lane.textContent])"
    )
    assert [lane[:3] for lane in lanes] == [
        ["server-0", "push", 3 * 2**20],
        ["server-0", "pull", 3 * 2**20],
    ]
    assert lanes[0][3] == "worker-0 to server-0: 3 MiB, 3.33 MiB/s; from 780 ms to 1.68 s"
    said = page.execute_script(
        "return document.querySelector(\".sampled[data-step='slowest'] [data-span='push'] "
        'title").textContent'
    )
    assert said == "worker-0 push: 100 ms, 5.0 % of its time, 3 MiB out; from 1.58 s to 1.68 s"


def test_samples_a_second_are_drawn_over_time(page: Any) -> None:
    drawn = page.execute_script(
        "const {u, plot, ofLine} = headgate.drawn['throughput-0'];"
        "return [plot.unit, Array.from(u.data[ofLine[0].mean])]"
    )
    assert drawn[0] == "samples/s"
    # Ten steps of 48 samples in each second; to be thrown back is no negative throughput.
    rates = [v for v in drawn[1] if v is not None]
    assert len(rates) >= 37
    assert rates == pytest.approx([480.0] * len(rates), rel=0.01)


def test_nodes_tell_how_much_of_their_nic_they_used(page: Any, distributed: Path) -> None:
    for node, size in (("a", 25e6), ("b", 25e6), ("c", 1.0)):
        for column, key in (("net_in", "in"), ("net_out", "out")):
            where = f"FROM usage WHERE target = 'node:{node}' AND t > 0"
            for kind, sql in (("mean", "avg"), ("max", "max")):
                value = one(distributed, f"SELECT {sql}({column}) {where}") / size
                assert number(
                    page, f"#nics [data-node='{node}'] [data-key='{key}_{kind}']"
                ) == pytest.approx(value)
    drawn = page.execute_script(
        "return ['nic-0', 'nic-2'].map((key) => [headgate.drawn[key].plot.unit, "
        "headgate.drawn[key].u.data[1][0]])"
    )
    assert drawn == [["%", 0.5], ["B/s", 12.5e6]]
    assert (
        page.execute_script(
            "return Object.keys(headgate.drawn).filter((key) => key.endsWith('-net'))"
        )
        == []
    )


def test_faults_are_listed_with_what_they_cost(page: Any) -> None:
    rows = page.execute_script(
        "return [...document.querySelectorAll('#faults tbody tr')].map((row) => "
        "[row.children[1].textContent, row.children[2].textContent,  ...['seconds', "
        "'steps'].map((key) => Number(row.querySelector(`[data-key='${key}']`).dataset.value))])"
    )
    assert [row[0] for row in rows] == ["cnn/worker-1", "–", "cnn/server-0"]
    assert rows[1][1] == "node c is gone"
    assert rows[0][1].startswith(
        "killed by SIGKILL; the others go on\nround 100 was done again </script>"
    )
    assert rows[0][2:] == [0.25, 1]
    assert rows[2][1].endswith("\nat step 200 again, as before its tasks were lost")
    assert rows[2][2:] == [5.6, 50]
    assert page.execute_script("return document.querySelectorAll('.gantt i.fault').length") == 2
    assert page.execute_script("return window.stolen === undefined && document.images.length === 0")


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_it_fits_narrow_and_dark(page: Any, width: int, scheme: str) -> None:
    with seen_as(page, width, scheme):
        fits = f"return document.documentElement.scrollWidth <= {width}"
        wait.until(lambda: page.execute_script(fits), what=f"the page fits into {width} pixels")
        ink, paper = page.execute_script(
            "const svg = document.querySelector('.sampled text.tick');"
            "return [getComputedStyle(svg).fill, "
            "getComputedStyle(document.querySelector('.sampled')).backgroundColor]"
        )
        light = [sum(map(int, colour.strip("rgb()").split(","))) for colour in (ink, paper)]
        assert (light[0] > light[1]) == (scheme == "dark")


def test_what_happened_tells_of_faults(distributed: Path) -> None:
    text = html.page(read(distributed))
    assert "cnn survived 2 faults, which cost 5.85 s" in text


def test_a_terminal_has_a_line_a_task_and_a_line_a_nic(distributed: Path) -> None:
    out = io.StringIO()
    terminal.summary(distributed, Console(file=out, width=80))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert [
        "worker-1",
        "b",
        "0.50",
        "101",
        "MiB",
        "1.32",
        "s",
        "20",
        "%",
        "3",
        "MiB",
        "3",
        "MiB",
    ] in lines
    assert ["server-0", "c", "0.25", "100", "MiB", "1.2", "s", "–", "6", "MiB", "6", "MiB"] in lines
    assert ["a", "200", "Mbit/s", "38", "%", "50", "%", "75", "%", "75", "%"] in lines


def test_metrics_tell_every_task_apart(distributed: Path) -> None:
    found = measured(read(distributed), "cnn")
    assert [one.target for one in found] == ["cnn/worker-0", "cnn/worker-1", "cnn/server-0"]
    assert [one.learned is not None for one in found] == [True, False, False]
    divisions = [one.division for one in found if one.division is not None]
    assert [division.sent for division in divisions] == [3 * 2**20, 3 * 2**20, 6 * 2**20]
    assert divisions[2].seconds["idle"] == pytest.approx(0.48)
    out = io.StringIO()
    terminal.metrics(found, Console(file=out, width=120), spans=True)
    assert "20 % for communication of a step of 1.2 s (5 sampled)" in out.getvalue()
    assert "idle 40 % of a round of 1.2 s (5 sampled)" in out.getvalue()


def test_a_store_of_an_earlier_version_is_told_as_far_as_it_goes(distributed: Path) -> None:
    with sqlite3.connect(distributed) as db:
        db.execute("ALTER TABLE spans DROP COLUMN begin")
        db.execute("ALTER TABLE events DROP COLUMN seconds")
        db.execute("ALTER TABLE events DROP COLUMN steps")
        db.execute("DROP TABLE transfers")
    db.close()
    job = read(distributed).jobs[0]
    (task, *_) = job.sampled[0].tasks
    assert [bar.name for bar in task.bars] == [
        "forward",
        "backward",
        "push",
        "wait",
        "pull",
        "optimizer",
    ]
    assert task.transfers == ()
    assert [fault.seconds for fault in job.faults] == [None] * 4


def test_a_job_of_one_task_has_nothing_of_several(store: Path) -> None:
    text = html.page(read(store))
    assert not any(f'class="{name}"' in text for name in ("sampled", "tasks", "by-task", "by-span"))
    assert not any(f'id="{name}"' in text for name in ("nics", "faults"))


def test_a_job_whose_tasks_never_began_has_a_report(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add(
        "jobs",
        name="a",
        position=0,
        state="failed",
        plan=json.dumps({"strategy": "allreduce", "workers": 2, "batch_per_worker": None}),
    )
    for index in range(2):
        recorder.add("tasks", id=f"a/worker-{index}", job="a")
    recorder.close()
    text = html.page(read(tmp_path / "run.sqlite"))
    assert "All-reduce: 2 workers on 1 node; in every step" in text
