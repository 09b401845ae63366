"""Terminal output about a run: the summary at its end, and `headgate metrics`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.diagnosis.job_figures import JobFigures, figures
from headgate.model.job_states import FAULTS
from headgate.model.units import counted, say_bits, say_seconds
from headgate.recorded.jobs import RecordedTask
from headgate.recorded.reader import told_as_damage
from headgate.recorded.recording import Recording, read
from headgate.recorded.steps import StepBreakdown
from headgate.recorded.tables import NODE
from headgate.reports.explained import as_lines, explained
from headgate.reports.figures import nic_uses
from headgate.reports.measured import Learned, Level, MeasuredTarget
from headgate.reports.sparkline import sparkline
from headgate.reports.table_parts import TableColumn, tables
from headgate.reports.words import (
    MISSING,
    planned,
    said_gpus,
    say,
    say_loss,
    say_step_time,
    what_happened,
)
from headgate.sampling.columns import Column

_MOST_ROWS = 100
_NAMES: dict[Column, tuple[str, str]] = {
    "cpu_cores": ("CPU", "cores"),
    "cpu_fullest_core": ("fullest core", "%"),
    "memory_bytes": ("memory", "B"),
    "memory_available": ("memory left", "B"),
    "cache_bytes": ("page cache", "B"),
    "disk_read": ("disk read", "B/s"),
    "disk_write": ("disk written", "B/s"),
    "net_in": ("network in", "B/s"),
    "net_out": ("network out", "B/s"),
    "gpu_busy": ("GPU busy", "%"),
    "gpu_memory_bytes": ("GPU memory", "B"),
    "psi_cpu": ("pressure of CPU", "%"),
    "psi_memory": ("pressure of memory", "%"),
    "psi_io": ("pressure of I/O", "%"),
    "cpu_waiting": ("waiting for a core", "threads"),
    "cpu_ready": ("ready to run", "%"),
    "any_ready": ("any thread ready", "%"),
    "main_ready": ("main process ready", "%"),
    "helper_cores": ("wanted by its helpers", "cores"),
    "cpu_system": ("in the kernel", "cores"),
    "cpu_throttled": ("throttled", "cores"),
    "cpu_stolen": ("stolen", "cores"),
    "disk_waiting": ("blocked on disk", "threads"),
    "major_faults": ("major faults", "pages/s"),
    "refaults": ("refaults", "pages/s"),
    "tcp_in": ("TCP in", "B/s"),
    "tcp_out": ("TCP out", "B/s"),
    "net_retransmits": ("TCP retransmits", "segments/s"),
    "cpu_cycles": ("cycles", "/s"),
    "cpu_instructions": ("instructions", "/s"),
    "memory_bandwidth": ("memory bandwidth", "B/s"),
    "cache_occupancy": ("last cache in use", "B"),
}


def summary(store: Path, console: Console) -> None:
    """Print how a run went: what held its jobs back, a table of them, a few sentences, and the path
    of its report.

    Raises:
        NotFoundError: There is no such store.
        StorageError: It cannot be read.
    """
    run = read(store)
    with told_as_damage(store):  # not around printing: errors of a terminal are no damage
        parts = list(_summary(run, store, console.width))
    for part in parts:
        console.print(
            part, soft_wrap=isinstance(part, Text) and (part.no_wrap or not console.is_terminal)
        )


def _summary(run: Recording, store: Path, width: int) -> Iterator[Text | Table]:
    for text, failed in as_lines(explained(run)):
        yield Text(text, style="red" if failed else "")
    jobs = [figures(job) for job in run.jobs]
    headings = (
        "Ran",
        "Loss",
        "Steps",
        "CPU\ntime",
        "Cores of\ngranted",
        "Memory\npeak",
        "Input\nwait",
    )
    columns = [
        TableColumn("Job"),
        TableColumn("Ended\nas", figures=False),
        *map(TableColumn, headings),
    ]
    on_gpus = any(job.gpus for job in jobs)
    columns += [TableColumn("GPU: busy,\nmemory peak", figures=False)] if on_gpus else []
    if jobs:
        # failed ones first, where not all get a row
        first = sorted(jobs, key=lambda job: job.state not in FAULTS)[:_MOST_ROWS]
        names = {job.name for job in first}
        shown = [job for job in jobs if job.name in names]
        rows = [
            ([*_row(job), *([said_gpus(job)] if on_gpus else [])], _style(job)) for job in shown
        ]
        yield from tables(columns, rows, width)
        if unshown := len(jobs) - len(shown):
            more = f"... and {unshown:,} more of {counted(len(jobs), 'job')}; the report has all"
            yield Text(more)
    yield from _together(run, width)
    for sentence in what_happened(run, jobs):
        yield Text(sentence)
    page = store.parent / "report.html"
    where = str(page) if page.exists() else f"none yet; write it with: headgate report {run.id}"
    # A wrapped path cannot be clicked or copied.
    yield Text(f"Report: {where}", no_wrap=True)


def _together(run: Recording, width: int) -> Iterator[Text | Table]:
    """For each job with several tasks, its plan and a line for each task; then the NIC of each
    node.
    """
    for job in run.jobs:
        if job.distributed:
            yield Text(f"{job.name}: {planned(job)}")
            headings = ("Cores", "Memory\npeak", "Step", "Exposed", "In a\nstep", "Out a\nstep")
            columns = [
                TableColumn("Task"),
                TableColumn("Node", figures=False),
                *map(TableColumn, headings),
            ]
            yield from tables(columns, [(_task(task), "") for task in job.tasks], width)
    rows = []
    for use in nic_uses(run):
        values = (use.received.mean, use.received.maximum, use.sent.mean, use.sent.maximum)
        cells = [say(value, "%" if use.rate else "B/s") for value in values]
        rows.append(([use.node, say_bits(use.rate) if use.rate else MISSING, *cells], ""))
    if rows:
        columns = list(
            map(TableColumn, ("Node", "NIC", "In,\nmean", "\nmax", "Out,\nmean", "\nmax"))
        )
        yield from tables(columns, rows, width)


def _task(task: RecordedTask) -> list[str]:
    division, cores = task.division, task.signal("cpu_cores").mean
    exposed = division.exposed_fraction if division and task.is_worker else None
    return [
        task.name,
        task.node or MISSING,
        MISSING if cores is None else f"{cores:.2f}",
        say(task.memory_peak, "B"),
        MISSING if division is None else say_step_time(division.step_seconds),
        say(exposed, "%"),
        say(division.received if division else None, "B"),
        say(division.sent if division else None, "B"),
    ]


def _style(job: JobFigures) -> str:
    return "red" if job.state in FAULTS else ""


def _row(job: JobFigures) -> list[str]:
    used, granted = (
        MISSING if cores is None else f"{cores:.2f}"
        for cores in (job.cpu_mean_cores, job.granted_cores)
    )
    return [
        job.name,
        job.state,
        say_seconds(job.run_seconds) if job.started is not None else MISSING,
        say_loss(job.loss_final),
        f"{job.steps:,}" if job.steps is not None else MISSING,
        say(job.cpu_seconds, "s"),
        f"{used}/{granted}",
        say(job.memory_peak_bytes, "B"),
        say(job.input_fraction, "%"),
    ]


def metrics(targets: Sequence[MeasuredTarget], console: Console, *, spans: bool) -> None:
    """Print the measurements of each target; with `spans`, also the parts of a step."""
    for index, measured_target in enumerate(targets):
        if index:
            console.print()
        target = (
            f"node {measured_target.target.removeprefix(NODE)}"
            if measured_target.target.startswith(NODE)
            else measured_target.target
        )
        console.print(Text(target, style="bold"))
        if measured_target.learned is not None:
            console.print(Text(f"  {_told(measured_target.learned)}"), soft_wrap=True)
        if measured_target.division is not None:
            console.print(Text(f"  {_divided(measured_target.division)}"), soft_wrap=True)
        if measured_target.usage:
            console.print(_levels(measured_target))
            if zero := [
                _NAMES[column][0]
                for column in measured_target.usage
                if _is_zero(measured_target.usage[column])
            ]:
                console.print(Text(f"  always 0: {', '.join(zero)}", style="dim"), soft_wrap=True)
        elif measured_target.learned is None:
            console.print(Text("  nothing was measured", style="dim"))
        if spans and measured_target.division is not None:
            console.print(_spans(measured_target.division))


def _told(learned: Learned) -> str:
    parts = []
    if learned.loss is not None:
        parts.append(f"loss {say_loss(learned.loss)} {sparkline(learned.losses)}")
    if learned.step is not None:
        parts.append(f"step {learned.step:,}")
    if learned.steps_per_second is not None:
        parts.append(f"{say(learned.steps_per_second)} steps/s")
    if learned.samples_per_second is not None:
        parts.append(f"{say(learned.samples_per_second)} samples/s")
    return ", ".join(parts) or "no progress reported"


def _divided(division: StepBreakdown) -> str:
    apart = (
        f"{say(division.exposed_fraction, '%')} for communication"
        if division.exposed_fraction
        else ""
    )
    heading = f"a step of {say_step_time(division.step_seconds)} ({division.steps:,} sampled)"
    if "receive" in division.seconds:  # a server's round
        return (
            f"idle {say(division.fraction('idle'), '%')} of {heading.replace('a step', 'a round')}"
        )
    waits = (
        ""
        if division.input_fraction is None
        else f"waits for input {say(division.input_fraction, '%')}"
    )
    parts = [part for part in (waits, apart) if part]
    return f"{', '.join(parts)} of {heading}" if parts else heading


def _levels(one: MeasuredTarget) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    for name in ("", "latest", "mean", "max"):
        table.add_column(name, justify="left" if not name else "right")
    for column, level in one.usage.items():
        if _is_zero(level):
            continue
        name, unit = _NAMES[column]
        table.add_row(
            "", name, *(say(value, unit) for value in (level.latest, level.mean, level.max))
        )
    return table


def _is_zero(level: Level) -> bool:
    return level == Level(0.0, 0.0, 0.0)


def _spans(division: StepBreakdown) -> Table:
    moved = bool(division.bytes_in or division.bytes_out)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    for name in ("span", "of a step", "mean", *(("in", "out") if moved else ())):
        table.add_column(name, justify="left" if name == "span" else "right")
    for span, seconds in division.seconds.items():
        sizes = (
            [say(of.get(span), "B") for of in (division.bytes_in, division.bytes_out)]
            if moved
            else []
        )
        table.add_row(
            "", Text(span), say(division.fraction(span), "%"), say_step_time(seconds), *sizes
        )
    return table
