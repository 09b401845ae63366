"""Shows a run until it ends: a live table on a terminal, lines elsewhere. Ctrl-C acts on the run's
jobs.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headgate.cli import streams
from headgate.client.watching import (
    RunEvent,
    RunReported,
    RunSnapshot,
    Watch,
    WatchedJob,
    WatchedTask,
)
from headgate.model.errors import HeadgateError
from headgate.model.events import GRACE_SECONDS
from headgate.model.job_states import ENDED, state_in_words
from headgate.model.units import say_bytes, say_percent
from headgate.recorded import runs
from headgate.recorded.reader import RunReader
from headgate.recorded.rows import JobRow
from headgate.recorded.status import JobStatus, TaskStatus
from headgate.reports.sparkline import sparkline

PROGRESS_SECONDS = 5.0
_STYLES = {
    "running": "green",
    "paused": "cyan",
    "stopping": "yellow",
    "done": "bold green",
    "failed": "bold red",
    "killed": "red",
    "stopped": "yellow",
    "skipped": "yellow",
}
_RANKS = {"running": 0, "paused": 0, "stopping": 0, "failed": 1, "killed": 1}


def follow(
    watched: Watch,
    as_json: bool,
    interrupts: Interrupts,
    watch: Callable[[], None] = lambda: None,
) -> int:
    """Show a run until its report is written. Calls `watch` repeatedly.

    Returns:
        The exit code: 0 if every job is done or was ended by the rule of its sweep, 130 after a
        Ctrl-C, 1 otherwise.
    """
    console = _PlainConsole(stderr=as_json)
    view = (
        _JobTable(console)
        if console.file.isatty() and not as_json
        else _Lines(console, quiet=as_json)
    )
    interrupts.watch(watched, view.say)
    if not as_json:
        import headgate.reports.terminal  # noqa: F401  # takes its time: while the jobs start, not when they have ended
    with left_alone(watched.run):
        end, report = _final_state(watched, view, interrupts, watch)
    interrupts.release()
    try:
        conclude(watched.path, report, as_json)
    except BrokenPipeError:  # whoever has read enough
        streams.abandon()
    if interrupts.count:
        if any(job.state in ("stopped", "killed") for job in end):
            click.echo(resume_hint(watched.path), err=True)
        return 130
    if any(job.state == "stopped" for job in end):  # some of them by the rule of their sweep
        return 0 if all(job.succeeded for job in runs.summary(watched.path).jobs) else 1
    return 0 if all(job.state == "done" for job in end) else 1


@contextmanager
def left_alone(run: str) -> Iterator[None]:
    """Leave a run to itself once its output has no reader any more.

    Raises:
        HeadgateError: There is no reader, so that the end of its jobs is unknown.
    """
    try:
        yield
    except BrokenPipeError:
        streams.abandon()
        raise HeadgateError(
            f"nobody reads this output any more; run {run} goes on: headgate attach {run}"
        ) from None


def _final_state(
    watched: Watch, view: _JobTable | _Lines, interrupts: Interrupts, watch: Callable[[], None]
) -> tuple[tuple[WatchedJob, ...], str | None]:
    """How the jobs of a run ended, and the path of its report, once both are known."""
    end: tuple[WatchedJob, ...] = ()
    report = None
    with view:
        for news in watched.follow(0.2):
            interrupts.pass_on()
            watch()
            match news:
                case RunSnapshot():
                    view.snapshot(news)
                    end = news.jobs if news.has_ended else end
                case RunEvent():
                    view.event(news)
                case RunReported():
                    report = news.report
    return end, report


def resume_hint(folder: Path) -> str:
    """The command that resumes the jobs of a run that has ended."""
    with RunReader(folder / runs.STORE) as reader:
        rows = [row for row in reader.records(JobRow) if row.state != "done"]
    return runs.resume_hint(folder, [row.job() for row in rows])


def conclude(folder: Path, report: str | None, as_json: bool) -> None:
    """Print the result of a run that has ended."""
    if as_json:
        click.echo(json.dumps({**asdict(runs.summary(folder)), "report": report}, indent=2))
        return
    from headgate.reports.terminal import summary

    summary(folder / runs.STORE, wide_console())


class Interrupts:
    """First Ctrl-C: stop with a checkpoint. Second: kill. SIGTERM counts as one. A closed terminal
    detaches.

    It counts signals from its entry on, and acts once the run is known. A run that is being
    submitted may begin even if this process ends.
    """

    def __init__(self) -> None:
        self._watched: Watch | None = None
        self._say: Callable[[str], None] = click.echo
        self._sent = 0
        self._before: dict[signal.Signals, Any] = {}
        self.count = 0

    def __enter__(self) -> Interrupts:
        self._before = {
            number: signal.signal(number, self._count) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Restore the former signal handlers. May be called twice."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def watch(self, watched: Watch, say: Callable[[str], None]) -> None:
        """Act on a run from now on, and report it through `say`."""
        self._watched, self._say = watched, say

    def _count(self, _number: int, _frame: FrameType | None) -> None:
        # Nothing else in a handler, because the main loop may be in the middle of a message.
        self.count += 1

    def pass_on(self) -> None:
        """Tell the hub the requests since the last call."""
        if self._watched is None or self._sent == min(self.count, 2):
            return
        self._sent = min(self.count, 2)
        kill = self._sent == 2
        self._watched.stop(kill=kill)
        self._say(
            "killing"
            if kill
            else "stopping: jobs that use headgate.torch, .keras or .jax at the end of a step, "
            f"with a checkpoint; others are asked to end and have {GRACE_SECONDS:g} s; "
            "Ctrl-C again kills at once"
        )


class _Lines:
    """A line for each event, and for each job's progress every few seconds and just before its
    end.
    """

    def __init__(self, console: Console, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._shown: dict[str, tuple[float, tuple[object, ...]]] = {}
        self._held: list[RunEvent] = []

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self._release({})

    def say(self, text: str) -> None:
        click.echo(text, err=True)

    def event(self, event: RunEvent) -> None:
        # Only the snapshot after a job's end is sure to have its last progress, which is printed
        # first.
        if self._held or event.kind in ENDED:
            self._held.append(event)
        else:
            self._print_event(event)

    def snapshot(self, snapshot: RunSnapshot) -> None:
        jobs = {job.name: job for job in snapshot.jobs}
        self._release(jobs)
        for name, job in jobs.items():
            at, _ = self._shown.get(name, (-PROGRESS_SECONDS, ()))
            if job.state == "running" and snapshot.t - at >= PROGRESS_SECONDS:
                self._print_progress(snapshot.t, job)

    def _release(self, jobs: dict[str, WatchedJob]) -> None:
        for event in self._held:
            if event.kind in ENDED and event.job in jobs:
                self._print_progress(event.t, jobs[event.job])
            self._print_event(event)
        self._held.clear()

    def _print_event(self, event: RunEvent) -> None:
        who = f"{event.job}: " if event.job else ""
        self._print(event.t, f"{who}{state_in_words(event.kind, event.text)}")

    def _print_progress(self, t: float, job: WatchedJob) -> None:
        now = (job.epoch, job.step, job.loss)
        _, before = self._shown.get(job.name, (0.0, (None, None, None)))
        if now != before:
            self._shown[job.name] = (t, now)
            self._print(t, f"{job.name}: {progress(job)}")

    def _print(self, t: float, text: str) -> None:
        if not self._quiet:
            click.echo(f"[{t:7.1f} s] {text}")


class _JobTable:
    """A live table of the jobs."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._console = console

    def __enter__(self) -> _JobTable:
        self._live.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._live.__exit__(*exception)

    def say(self, text: str) -> None:
        self._console.print(text, style="yellow", markup=False)

    def event(self, event: RunEvent) -> None:
        style = "red" if event.kind in ("failed", "warning") else None
        who = f"{event.job}: " if event.job else ""
        state = state_in_words(event.kind, event.text)
        self._console.print(f"[{event.t:7.1f} s] {who}{state}", style=style, markup=False)

    def snapshot(self, snapshot: RunSnapshot) -> None:
        # The cursor rests on an empty line. A terminal that echoes ^C at the end of a full line
        # moves to the next, and then one line too few is erased.
        self._live.update(Group(self._fitting_table(snapshot), ""), refresh=True)

    def _fitting_table(self, snapshot: RunSnapshot) -> Table:
        """A table that fits the terminal's lines. If there are too many tasks, it leaves them out.
        If there are too many jobs, running and failed ones come first.
        """
        room = self._console.height - 1
        jobs: Sequence[WatchedJob] = snapshot.jobs
        table = self._table(snapshot, jobs, [], with_tasks=True)
        if len(self._console.render_lines(table)) <= room:
            return table
        table = self._table(snapshot, jobs, [])
        excess = len(self._console.render_lines(table)) - room
        jobs = sorted(jobs, key=lambda job: _RANKS.get(job.state, len(_RANKS)))
        shown = len(jobs)
        while excess > 0 and shown > 0:
            shown = max(shown - excess, 0)
            table = self._table(snapshot, jobs[:shown], jobs[shown:])
            excess = len(self._console.render_lines(table)) - room
        return table

    def _table(
        self,
        snapshot: RunSnapshot,
        shown: Sequence[WatchedJob],
        hidden: Sequence[WatchedJob],
        with_tasks: bool = False,
    ) -> Table:
        title = f"run {snapshot.run} · policy {snapshot.policy} · {snapshot.t:.0f} s"
        table = Table(title=Text(title, "table.title"), title_justify="left")
        if hidden:
            counts = Counter(job.state for job in hidden)
            states_left_out = ", ".join(f"{count} {state}" for state, count in counts.items())
            table.caption, table.caption_justify = (
                f"... {len(hidden)} more ({states_left_out})",
                "left",
            )
        for heading in ("job", "state", "progress", "loss"):
            table.add_column(heading, overflow="fold")
        on_gpus = any(job.gpus for job in snapshot.jobs)
        for heading in ("share", "CPU", "memory", *(["GPU"] if on_gpus else [])):
            table.add_column(heading, justify="right")
        for job in shown:
            style = _STYLES.get(job.state, "dim")
            how = position(job) if job.state != "waiting" else ""
            table.add_row(
                job.name,
                Text(job.state, style),
                how or Text(job.reason),
                self._course(job.losses) + ("" if job.loss is None else f" {job.loss:.4g}"),
                "" if job.state != "running" else f"{job.entitled_cores:.2f} cores",
                "" if job.cpu_cores is None else f"{job.cpu_cores:.2f}",
                "" if job.memory_bytes is None else say_bytes(job.memory_bytes),
                *gpu_cells(job, True, on_gpus),
            )
            for task in job.tasks if with_tasks and len(job.tasks) > 1 else ():
                table.add_row(*map(Text, task_cells(task, on_gpus)), style="dim")
        return table

    def _course(self, losses: Sequence[float]) -> str:
        width = 24 if self._console.width >= 120 else 10
        return sparkline(losses, width) if len(losses) > 1 else ""


def position(job: WatchedJob | JobStatus) -> str:
    """`epoch 3/5 step 120/200`, as far as it is known. A total below the current number is left
    out.
    """
    parts = []
    for name in ("epoch", "step"):
        if (now := getattr(job, name)) is not None:
            of = getattr(job, f"{name}s")
            parts.append(f"{name} {now}" + (f"/{of}" if of and of >= now else ""))
    return " ".join(parts)


def gpu_cells(
    of: WatchedJob | WatchedTask | JobStatus | TaskStatus, live: bool, on_gpus: bool
) -> list[str]:
    """The cell of a job's or a task's GPUs, in a table with such a column: number, utilization and
    memory in use, as far as known.
    """
    if not on_gpus:
        return []
    if not live or not of.gpus:
        return [""]
    use = [f"{say_percent(of.gpu_busy)} busy"] if of.gpu_busy is not None else []
    use += [say_bytes(of.gpu_memory_bytes)] if of.gpu_memory_bytes is not None else []
    return [f"{', '.join(map(str, of.gpus))}{': ' if use else ''}{', '.join(use)}"]


def task_cells(task: WatchedTask | TaskStatus, on_gpus: bool) -> tuple[str, ...]:
    """The row of a task below its job: name, state, node and NIC, an empty cell, share, CPU,
    memory; and GPUs.
    """
    ended = task.state == "ended"
    rates = [
        f"{way} {say_bytes(rate)}/s"
        for way, rate in (("in", task.net_in), ("out", task.net_out))
        if rate
    ]
    return (
        f"  {task.task}",
        task.state,
        ", ".join([f"on {task.node}", *([] if ended else rates)]),
        "",
        "" if ended or task.entitled_cores is None else f"{task.entitled_cores:.2f} cores",
        "" if ended or task.cpu_cores is None else f"{task.cpu_cores:.2f}",
        "" if ended or task.memory_bytes is None else say_bytes(task.memory_bytes),
        *gpu_cells(task, not ended, on_gpus),
    )


def progress(job: WatchedJob) -> str:
    """A job's progress in one line."""
    parts = [position(job)]
    if job.loss is not None:
        parts.append(f"loss {job.loss:.4g}")
    if job.cpu_cores is not None and job.state == "running":
        parts.append(f"{job.cpu_cores:.2f} cores of {job.entitled_cores:.2f}")
    return ", ".join(filter(None, parts))


class _PlainConsole(Console):
    """A console that leaves a closed reader to the command. rich would end the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def wide_console(otherwise: int = 10_000) -> Console:
    """A console for standard output. Without a terminal it is so wide that nothing is folded or
    cut, or has the given width.
    """
    console = _PlainConsole()
    if not console.file.isatty():  # whatever FORCE_COLOR says
        console.width = otherwise
    return console


def print_table(table: Table) -> None:
    """Print a table to standard output, or a line for each of its rows if the terminal is too
    narrow.
    """
    from headgate.reports.table_parts import fitting

    console = wide_console()
    for part in fitting(table, console.width):
        console.print(part)
