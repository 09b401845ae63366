"""The data of the plots, as buckets of time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headgate.diagnosis.nics import NicUse, nic_use
from headgate.recorded.jobs import RecordedNode, running
from headgate.recorded.progress import growth_rate
from headgate.recorded.recording import Recording
from headgate.recorded.usage import Array, Signal, TimeBuckets, means
from headgate.sampling.columns import Column

BUCKETS = 600
"""Buckets of a plot with few lines."""
_FEW_JOBS, _LEAST_BUCKETS = 10, 120
"""With more jobs than this, buckets become proportionally fewer so that the page keeps its size,
down to this minimum. Lines are thin then.
"""
COLOURS = 8
"""Colours in the style sheet; a ninth job has the first one's, dashed."""
_METRICS = 12
_READ_ONLY = (
    "The maximum is that of the readings; the memory peak in the summary is the "
    "kernel's, and may be higher."
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plot.

    Args:
        colour: A custom property of the style sheet, without its dashes.
        dash: 0 solid, 1 dashed, 2 dotted.
        summary: Its value in the legend.
        unit: Unit of the summary, if different from the plot's.
        stepped: Whether it is a setting, which jumps between values.
        notes: Notes with the time from which they hold, in order.
    """

    label: str
    colour: str
    data: TimeBuckets
    summary: tuple[tuple[str, float | None], ...]
    dash: int = 0
    stepped: bool = False
    band: bool = True
    unit: str | None = None
    notes: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot.

    Args:
        x: `time`, seconds of the run; `cpu`, CPU seconds of a job; or `step`, its steps.
        top: Least upper end of its scale.
        options: Options for the reader: `log`, `relative`.
        chosen: Options that are on at first.
    """

    key: str
    title: str
    unit: str
    edges: Array
    lines: Sequence[Line]
    note: str = ""
    x: str = "time"
    top: float | None = None
    options: Sequence[str] = ()
    chosen: Sequence[str] = ()


def job_colour(index: int) -> tuple[str, int]:
    """Colour and dash of a job, the same in every plot."""
    return f"job-{index % COLOURS}", index // COLOURS


def _most_buckets(run: Recording) -> int:
    return max(BUCKETS * _FEW_JOBS // max(len(run.jobs), _FEW_JOBS), _LEAST_BUCKETS)


def grid(run: Recording, finest: float) -> Array:
    """Evenly spaced edges of a limited number of buckets, none shorter than `finest` seconds."""
    end = max(run.seconds, 1e-3)
    return np.linspace(0.0, end, min(max(math.ceil(end / finest), 1), _most_buckets(run)) + 1)


def entitled_plot(run: Recording) -> Plot | None:
    """The entitled cores of each job with reasons, over the same time as the losses; None: not
    recorded.
    """
    edges = _fine(run)
    lines = []
    for index, job in enumerate(run.jobs):
        if len(job.entitled):
            colour, dash = job_colour(index)
            notes = [(decision.t, decision.reason) for decision in job.decisions]
            mean = (("mean", job.entitled.mean),)
            data = job.entitled.buckets(edges)
            lines.append(
                Line(job.name, colour, data, mean, dash, stepped=True, band=False, notes=notes)
            )
    return Plot("shares", "Shares", "cores", edges, lines) if lines else None


def loss_plots(run: Recording) -> list[Plot]:
    """Loss over time and over CPU seconds, and other metrics over time."""
    edges = _fine(run)
    spent = {job.name: job.signal("cpu_cores").cumulative(job.progress.t) for job in run.jobs}
    most = max((float(at[-1]) for at in spent.values() if len(at)), default=0.0)
    cpu_edges = np.linspace(0.0, max(most, 1e-3), _most_buckets(run) + 1)
    over_time: list[Line] = []
    over_cpu: list[Line] = []
    metrics: dict[str, list[Line]] = {}
    for index, job in enumerate(run.jobs):
        colour, dash = job_colour(index)
        progress, cpu = job.progress, job.signal("cpu_cores")
        known = progress.loss[np.isfinite(progress.loss)]
        if len(known):
            known_losses = (("final", float(known[-1])), ("best", float(known.min())))
            data = means(progress.t, progress.loss, progress.count, edges)
            over_time.append(Line(job.name, colour, data, known_losses, dash))
        if len(known) and len(cpu):
            data = means(spent[job.name], progress.loss, progress.count, cpu_edges)
            over_cpu.append(
                Line(job.name, colour, data, (("CPU time", cpu.integral),), dash, unit="s")
            )
        for name, (times, values) in progress.metrics.items():
            data = means(times, values, np.ones_like(values), edges)
            line = Line(job.name, colour, data, (("final", float(values[-1])),), dash)
            metrics.setdefault(name, []).append(line)
    options = ("log", "relative")
    chosen = ("relative",) if _apart(over_time) else ()
    note = "What each job learned for the CPU time that it got."
    plots = [
        Plot("loss", "Loss over time", "loss", edges, over_time, options=options, chosen=chosen),
        Plot(
            "loss-cpu",
            "Loss over CPU time",
            "loss",
            cpu_edges,
            over_cpu,
            note,
            "cpu",
            options=options,
            chosen=chosen,
        ),
        *(
            Plot(f"metric-{i}", name, "", edges, metrics[name])
            for i, name in enumerate(list(metrics)[:_METRICS])
        ),
    ]
    return [plot for plot in plots if plot.lines]


def prediction_plot(
    metric: str,
    seen: Sequence[tuple[float, float]],
    ahead: Sequence[tuple[float, float, float, float]],
    colour: str,
) -> Plot:
    """What a job has reported by its steps, and how that is expected to go on.

    Args:
        metric: What it is.
        seen: Step and value of each report, at least one.
        ahead: Step, middle, low and high end of a band of 90 %, by growing steps; may be empty.
        colour: Of the job.
    """
    steps, values = np.array(seen, dtype=float).T
    last = max(float(steps[-1]), ahead[-1][0] if ahead else 0.0, 1.0)
    edges = np.linspace(0.0, last, BUCKETS + 1)
    data = means(steps, values, np.ones_like(values), edges)
    lines = [Line("reported", colour, data, (("last", float(values[-1])),))]
    if ahead:
        at, *curves = np.array(ahead, dtype=float).T
        middles = (edges[:-1] + edges[1:]) / 2
        middle, low, high = (
            np.where(middles >= at[0], np.interp(middles, at, curve), np.nan) for curve in curves
        )
        summary = (("then", float(curves[0][-1])),)
        lines.append(Line("expected", "ink-soft", TimeBuckets(low, middle, high), summary, 1))
    return Plot(
        "prediction", f"{metric} by steps", "loss", edges, lines, x="step", options=("log",)
    )


def _fine(run: Recording) -> Array:
    return grid(run, run.seconds / BUCKETS if run.seconds else 1.0)


def _apart(lines: Sequence[Line]) -> bool:
    """Whether some lines would lie flat at the bottom of the others' scale."""
    spans = [float(np.nanmax(line.data.mean) - np.nanmin(line.data.mean)) for line in lines]
    moving = [span for span in spans if span > 0]
    return len(moving) > 1 and max(moving) > 8 * min(moving)


def share_plots(run: Recording) -> list[Plot]:
    """For each job, its entitled cores and its used cores."""
    edges = _usage_grid(run)
    cores = max((node.cores or 0.0 for node in run.nodes), default=0.0)
    plots = []
    for index, job in enumerate(run.jobs):
        used, granted = job.signal("cpu_cores"), job.entitled
        if not (len(used) and len(granted)):
            continue
        colour, _ = job_colour(index)
        lines = [
            Line(
                "granted",
                "ink-soft",
                granted.buckets(edges),
                (("mean", granted.mean),),
                1,
                stepped=True,
                band=False,
            ),
            Line("used", colour, used.buckets(edges), (("mean", used.mean), ("max", used.maximum))),
        ]
        plots.append(Plot(f"share-{index}", job.name, "cores", edges, lines, top=cores or None))
    return plots


def job_plots(run: Recording) -> list[Plot]:
    """Use by the jobs, one plot for each resource."""
    wanted: list[tuple[str, str, str, Column, float | None]] = [
        ("cpu", "CPU", "cores", "cpu_cores", None),
        ("fullest", "Fullest core of each job", "%", "cpu_fullest_core", 1.0),
        ("memory", "Memory, resident", "B", "memory_bytes", None),
        ("read", "Disk, read", "B/s", "disk_read", None),
        ("written", "Disk, written", "B/s", "disk_write", None),
        ("in", "Network, in", "B/s", "net_in", None),
        ("out", "Network, out", "B/s", "net_out", None),
        ("gpu", "GPU busy", "%", "gpu_busy", 1.0),
        ("gpu-memory", "GPU memory", "B", "gpu_memory_bytes", None),
        ("psi-cpu", "Waiting for CPU (pressure)", "%", "psi_cpu", 1.0),
        ("psi-memory", "Waiting for memory (pressure)", "%", "psi_memory", 1.0),
        ("psi-io", "Waiting for disk (pressure)", "%", "psi_io", 1.0),
    ]
    edges = _usage_grid(run)
    plots = []
    for key, title, unit, column, top in wanted:
        lines = []
        for index, job in enumerate(run.jobs):
            colour, dash = job_colour(index)
            if len(signal := job.signal(column)):
                lines.append(_line(job.name, colour, signal, edges, dash))
        note = _READ_ONLY if key == "memory" else ""
        plots.append(Plot(f"job-{key}", title, unit, edges, lines, note, top=top))
    return [plot for plot in plots if _says_anything(plot)]


def throughput_plot(run: Recording, index: int) -> Plot | None:
    """Samples a second of a job; steps if it counts no samples."""
    job = run.jobs[index]
    least = min(1.0, max(run.seconds / 20, 1e-3))
    samples, steps = (
        growth_rate(job.progress.t, counter, least).during(running(job.phases))
        for counter in (job.progress.samples, job.progress.step)
    )
    signal, unit = (samples, "samples/s") if len(samples) else (steps, "steps/s")
    if not len(signal):
        return None
    edges = grid(run, max(float(np.median(signal.end - signal.start)), run.seconds / BUCKETS, 1e-3))
    line = _line(job.name, job_colour(index)[0], signal, edges, 0)
    return Plot(
        f"throughput-{index}",
        "Samples a second" if len(samples) else "Steps a second",
        unit,
        edges,
        [line],
    )


def nic_uses(run: Recording) -> list[NicUse]:
    """For each node of a multi-node job with NIC readings."""
    used = {node for job in run.jobs if len(job.nodes) > 1 for node in job.nodes}
    uses = [
        nic_use(node.name, node.nic_bytes_per_second, node.signal("net_in"), node.signal("net_out"))
        for node in run.nodes
        if node.name in used
    ]
    return [use for use in uses if use is not None]


def nic_plots(run: Recording, uses: Sequence[NicUse]) -> list[Plot]:
    """NIC use, one plot for each node."""
    edges = _usage_grid(run)
    plots = []
    for index, use in enumerate(uses):
        ways = [("in", use.received), ("out", use.sent)]
        lines = [
            _line(label, f"role-{i}", way, edges, 0)
            for i, (label, way) in enumerate(ways)
            if len(way)
        ]
        unit, top = ("%", 1.0) if use.rate else ("B/s", None)
        plots.append(Plot(f"nic-{index}", use.node, unit, edges, lines, top=top))
    return plots


def node_plots(run: Recording, node: RecordedNode, index: int, network: bool = True) -> list[Plot]:
    """Total use of a node, one plot for each resource; its network only with `network`."""
    edges = _usage_grid(run)
    cpu = node.signal("cpu_cores")
    if node.cores:
        cpu = Signal(cpu.start, cpu.end, cpu.value / node.cores)
    pressure = _named(
        node, ("psi_cpu", "for CPU"), ("psi_memory", "for memory"), ("psi_io", "for disk")
    )
    wanted: list[tuple[str, str, str, list[tuple[str, Signal]], float | None]] = [
        (
            "cpu",
            "CPU",
            "%" if node.cores else "cores",
            [("all cores", cpu), *_named(node, ("cpu_fullest_core", "fullest core"))],
            1.0 if node.cores else None,
        ),
        (
            "memory",
            "Memory",
            "B",
            _named(node, ("memory_bytes", "resident"), ("cache_bytes", "page cache")),
            node.memory_bytes,
        ),
        (
            "disk",
            "Disk",
            "B/s",
            _named(node, ("disk_read", "read"), ("disk_write", "written")),
            None,
        ),
        (
            "net",
            "Network",
            "B/s",
            _named(node, ("net_in", "in"), ("net_out", "out")) if network else [],
            None,
        ),
        ("gpu", "GPU busy", "%", _named(node, ("gpu_busy", "mean of its GPUs")), 1.0),
        ("gpu-memory", "GPU memory", "B", _named(node, ("gpu_memory_bytes", "used")), None),
        ("psi", "Waiting (pressure)", "%", pressure, 1.0),
    ]
    plots = []
    for key, title, unit, signals, top in wanted:
        lines = [
            _line(label, f"role-{i}", signal, edges, 0)
            for i, (label, signal) in enumerate(signals)
            if len(signal)
        ]
        plots.append(Plot(f"node-{index}-{key}", title, unit, edges, lines, top=top))
    return [plot for plot in plots if _says_anything(plot)]


def _named(node: RecordedNode, *columns: tuple[Column, str]) -> list[tuple[str, Signal]]:
    return [(label, node.usage[column]) for column, label in columns if column in node.usage]


def _line(label: str, colour: str, signal: Signal, edges: Array, dash: int) -> Line:
    return Line(
        label, colour, signal.buckets(edges), (("mean", signal.mean), ("max", signal.maximum)), dash
    )


def _says_anything(plot: Plot) -> bool:
    """Whether a plot has content: an unused resource needs none."""
    return any(np.nanmax(line.data.high, initial=0.0) > 0 for line in plot.lines)


def _usage_grid(run: Recording) -> Array:
    """Buckets no shorter than the usual sampling interval: finer ones would only repeat
    readings.
    """
    signals = [node.signal("cpu_cores") for node in run.nodes] + [
        job.signal("cpu_cores") for job in run.jobs
    ]
    intervals = [float(np.median(signal.end - signal.start)) for signal in signals if len(signal)]
    return grid(run, max(min(intervals, default=1.0), 1e-3))
