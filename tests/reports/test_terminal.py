from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from headgate.recorded.recording import read
from headgate.recorded.store import Recorder
from headgate.reports import html, terminal
from headgate.reports.measured import measured
from headgate.reports.sparkline import sparkline


def printed(store: Path) -> str:
    out = io.StringIO()
    terminal.summary(store, Console(file=out, width=140))
    return out.getvalue()


def test_the_summary_has_verdicts_a_line_a_job_what_happened_and_the_report(
    store: Path, tmp_path: Path
) -> None:
    page = html.write(store, tmp_path / "report.html")
    lines = printed(store).splitlines()
    assert lines[0].startswith("b waited for its input for") and lines[0].endswith("(input)")
    assert lines[2].startswith("For a and b: More loader workers")
    lines = lines[
        next(index for index, line in enumerate(lines) if line.split()[:2] == ["Job", "as"]) :
    ]
    assert lines[1].split() == [
        "a",
        "done",
        "20",
        "s",
        "0.04762",
        "200",
        "15",
        "s",
        "0.75/1.50",
        "300",
        "MiB",
        "37",
        "%",
    ]
    assert lines[-1] == f"Report: {page}"
    assert lines[3].startswith(
        "2 jobs were run on nimbus (2 cores) under policy equal and all finished, the last "
        "after 40 s"
    )


def test_a_table_tells_times_and_losses_as_the_sentences_do(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add(
        "jobs",
        name="a",
        position=0,
        state="done",
        submitted=0.0,
        started=0.0,
        ended=92.0,
        attempt=1,
    )
    recorder.add(
        "tasks",
        id="a/worker-0",
        job="a",
        attempt=1,
        started=0.0,
        ended=92.0,
        exit={"cpu_seconds": 80.0},
    )
    recorder.add("progress", t=9.0, task="a/worker-0", step=1, loss=2.0, count=1)
    recorder.add("progress", t=90.0, task="a/worker-0", step=2, loss=0.12346, count=1)
    recorder.close()
    text = printed(tmp_path / "run.sqlite")
    row = next(line for line in text.splitlines() if line.split()[:2] == ["a", "done"])
    assert "1 min 32 s" in row and "1 min 20 s" in row and " 0.1235 " in row
    assert "a from 2 to 0.1235" in text


def test_what_a_user_wrote_is_no_markup(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add(
        "jobs",
        name="a",
        position=0,
        state="failed",
        reason="ended with [bold]x[/nothing]",
        submitted=0.0,
        started=0.0,
        ended=1.0,
        attempt=1,
    )
    recorder.close()
    text = printed(tmp_path / "run.sqlite")
    assert text.startswith("a failed: ended with [bold]x[/nothing].")
    assert text.count("ended with") == 1
    assert "headgate report" in text.splitlines()[-1]


def test_of_very_many_jobs_those_that_failed_have_a_row(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    for number in range(300):
        state = "failed" if number > 290 else "done"
        times = {"submitted": 0.0, "started": 0.0, "ended": 1.0}
        recorder.add("jobs", name=f"j{number}", position=number, state=state, **times)
    recorder.close()
    lines = printed(tmp_path / "run.sqlite").splitlines()
    rows = [line.split()[1] for line in lines if line.startswith("j") and "–" in line]
    assert (rows.count("done"), rows.count("failed")) == (91, 9)
    assert "... and 200 more of 300 jobs; the report has all" in lines


def test_an_empty_run_is_told_as_such(tmp_path: Path) -> None:
    Recorder(tmp_path / "run.sqlite").close()
    assert printed(tmp_path / "run.sqlite").startswith("No job was recorded.")


def test_a_sparkline_goes_from_lowest_to_highest() -> None:
    assert sparkline([0.0, 3.5, 7.0]) == "▁▅█"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([]) == ""
    assert sparkline([0.0, 2.0, 5.0, 9.0, 9.0, 9.0], width=3) == "▁▆█"
    assert sparkline([1.0, 2.0], width=24) == "▁█"
    assert sparkline([1e308, -1.7e308, 1e308, 1e308], width=3) == "█▁█"


def test_what_was_always_zero_is_one_line(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add("jobs", name="a", position=0, state="done")
    for t in (0.0, 1.0, 2.0):
        recorder.add(
            "usage", t=t, target="a/worker-0", cpu_cores=1.0, disk_read=0.0, major_faults=0.0
        )
    recorder.close()
    out = io.StringIO()
    terminal.metrics(
        measured(read(tmp_path / "run.sqlite")), Console(file=out, width=120), spans=False
    )
    assert "1 core " in out.getvalue()
    assert out.getvalue().splitlines()[-1] == "  always 0: disk read, major faults"


def test_metrics_of_a_target_without_data_say_so(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add("jobs", name="a", position=0, state="waiting")
    recorder.close()
    out = io.StringIO()
    terminal.metrics(measured(read(tmp_path / "run.sqlite")), Console(file=out), spans=True)
    assert out.getvalue().split("\n")[:2] == ["a/worker-0", "  nothing was measured"]
