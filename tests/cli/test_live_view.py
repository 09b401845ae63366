"""What is shown of a run while it goes on, from the messages that its hub sends."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from headgate.cli.live_view import _JobTable, _Lines, gpu_cells
from headgate.client.watching import RunEvent, RunSnapshot, WatchedJob, WatchedTask

NO_GPU: dict[str, Any] = {"gpus": [], "gpu_busy": None, "gpu_memory_bytes": None}


def job(
    name: str,
    state: str = "running",
    epoch: int | None = None,
    reason: str = "",
    tasks: Sequence[WatchedTask] = (),
) -> WatchedJob:
    return WatchedJob(
        name=name,
        state=state,
        reason=reason,
        epoch=epoch,
        epochs=90,
        step=None,
        steps=None,
        loss=None,
        losses=[],
        cpu_cores=None,
        memory_bytes=None,
        entitled_cores=1.0,
        tasks=tasks or [task("worker-0")],
        **NO_GPU,
    )


def task(name: str, state: str = "running", node: str = "b") -> WatchedTask:
    used = {"cpu_cores": 0.25, "memory_bytes": 2**20, "net_in": 3e6, "net_out": None, **NO_GPU}
    return WatchedTask(task=name, node=node, state=state, entitled_cores=0.5, **used)


def snapshot(t: float, *jobs: WatchedJob, end: bool = False) -> RunSnapshot:
    return RunSnapshot("r", t, "equal", jobs, has_ended=end)


def ends(t: float, name: str) -> RunEvent:
    return RunEvent(t, "done", "finished", name)


def test_last_progress_is_a_line_before_the_end_of_its_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with _Lines(Console(), quiet=False) as view:
        view.snapshot(snapshot(50.0, job("vae", epoch=88), job("lm", epoch=1)))
        view.event(ends(51.0, "vae"))
        view.snapshot(snapshot(51.2, job("vae", "done", 90), job("lm", epoch=2)))
        view.event(ends(108.5, "lm"))
        view.snapshot(snapshot(108.5, job("vae", "done", 90), job("lm", "done", 2), end=True))
    assert capsys.readouterr().out.splitlines() == [
        "[   50.0 s] vae: epoch 88/90",
        "[   50.0 s] lm: epoch 1/90",
        "[   51.0 s] vae: epoch 90/90",
        "[   51.0 s] vae: done, finished",
        "[  108.5 s] lm: epoch 2/90",
        "[  108.5 s] lm: done, finished",
    ]


def test_an_end_is_told_though_the_hub_says_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    with _Lines(Console(), quiet=False) as view:
        view.event(ends(1.0, "a"))
    assert capsys.readouterr().out == "[    1.0 s] a: done, finished\n"


def shown(*jobs: WatchedJob, height: int) -> list[str]:
    """The lines of the live table; what is below the last is where the cursor rests."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system=None, width=80, height=height)
    view = _JobTable(console)
    with view:
        screen.truncate(0)
        view.snapshot(snapshot(1.0, *jobs))
        return screen.getvalue().split("\n")


def test_of_too_many_jobs_those_that_run_or_failed_are_shown() -> None:
    jobs = [
        *(job(f"w{i}", "waiting") for i in range(10)),
        *(job(f"d{i}", "done") for i in range(5)),
    ]
    lines = shown(*jobs, job("b", "failed"), job("a"), height=12)
    assert len(lines) == 12
    rows = [line.split()[1] for line in lines if line.startswith("│")]
    assert rows == ["a", "b", "w0", "w1", "w2"]
    assert lines[-2].strip() == "... 12 more (7 waiting, 5 done)"
    assert "more" not in "".join(shown(*jobs, height=40))


def test_a_job_that_waits_says_for_what_though_it_has_taken_steps() -> None:
    waits = job("a", "waiting", epoch=2, reason="for Ray")
    [row] = [line for line in shown(waits, height=12) if "waiting" in line]
    assert "for Ray" in row


@pytest.mark.parametrize("said", [r"\[/INST\]", r"\[abc]", "[/red]"])
def test_what_others_wrote_is_shown_as_it_is(said: str) -> None:
    waits = job("a", "waiting", reason=said)
    assert any(said in line for line in shown(waits, height=12))
    several = job("a", tasks=[task(f"worker-{i}", "ended", said) for i in range(2)])
    assert any(f"on {said}" in line for line in shown(several, height=14))


def test_the_cursor_rests_on_an_empty_line_so_that_an_echoed_control_c_moves_nothing() -> None:
    assert not shown(job("a"), height=12)[-1].strip()


def test_the_tasks_of_a_job_that_has_several_are_below_it_where_there_is_room() -> None:
    tasks = [task("worker-0"), task("worker-1", "joining"), task("server-0", "ended")]
    shown = job("cnn", epoch=2, tasks=tasks)

    def lines(height: int) -> list[str]:
        console = Console(
            file=io.StringIO(), force_terminal=True, width=120, height=height, color_system=None
        )
        table = _JobTable(console)._fitting_table(snapshot(1.0, shown))
        return ["".join(segment.text for segment in line) for line in console.render_lines(table)]

    roomy = lines(40)
    assert sum("worker-" in line for line in roomy) == 2
    [joining] = [line for line in roomy if "worker-1" in line]
    assert "joining" in joining and "on b, in 2.86 MiB/s" in joining and "0.50 cores" in joining
    assert not any("worker-" in line for line in lines(7))


@pytest.mark.parametrize(
    ("gpus", "busy", "held", "shown"),
    [
        ([], None, None, ""),
        ([1], None, None, "1"),
        ([0, 2], 0.875, 10 << 30, "0, 2: 88 % busy, 10 GiB"),
        ([400], 0.0, None, "400: 0 % busy"),
    ],
)
def test_which_gpus_a_job_has_and_what_it_uses_of_them_is_shown(
    gpus: list[int], busy: float | None, held: int | None, shown: str
) -> None:
    use = replace(job("a"), gpus=gpus, gpu_busy=busy, gpu_memory_bytes=held)
    assert gpu_cells(use, True, True) == [shown]
