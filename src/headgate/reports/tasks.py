"""What the page says of a job of several tasks: its plan, its tasks, and its steps."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.analysis.jobs import JobRecord, TaskRecord
from headgate.analysis.steps import ORDER
from headgate.reports.figures import Plot
from headgate.reports.frames import frame
from headgate.reports.markup import Markup, element, figure_of
from headgate.reports.step_drawing import drawing, keys
from headgate.reports.words import MISSING, planned, say, say_step_time

_COLUMNS = (
    ("Task", "text", ""),
    ("Node", "text", ""),
    ("Cores", "", "in use: mean and most"),
    ("Memory peak", "", "most resident memory: as the kernel counted it, or the highest reading where that is more"),
    ("In a step", "", "bytes received, mean over its sampled steps"),
    ("Out a step", "", "bytes sent, mean over its sampled steps"),
    ("Step", "", "mean over its sampled steps; of a server, its rounds"),
    ("Exposed", "", "fraction of a step that only waits for communication: push, wait and pull"),
)


def plan_of(job: JobRecord) -> str:
    """Its plan in words."""
    return planned(job.plan or {}, len(job.nodes) or 1)


def section(job: JobRecord, pace: Plot | None) -> Markup:
    """All of a job."""
    workers = [task for task in job.tasks if task.is_worker]
    servers = [task for task in job.tasks if not task.is_worker]
    return element(
        "div",
        element("p", plan_of(job), class_="plan"),
        _scrolled(_tasks(job.tasks), f"Tasks of {job.name}"),
        element("div", frame(pace), class_="plots pace") if pace is not None else None,
        [element("div", drawing(step), class_="one") for step in job.sampled],
        keys(job.sampled) if job.sampled else None,
        _divided(workers, f"A step of {job.name}, by worker", "Step"),
        _divided(servers, f"A round of {job.name}, by server", "Round"),
        data_job=job.name,
        class_="tasks",
    )


def _scrolled(table: Markup, label: str) -> Markup:
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=label)


def _tasks(tasks: Sequence[TaskRecord]) -> Markup:
    header = [element("th", name, scope="col", class_=kind or None, title=why or None) for name, kind, why in _COLUMNS]
    rows = [_task(task) for task in tasks]
    return element("table", element("thead", element("tr", header)), element("tbody", rows), class_="by-task")


def _task(task: TaskRecord) -> Markup:
    division, cpu = task.division, task.signal("cpu_cores")
    exposed = division.exposed_fraction if division and task.is_worker else None
    return element(
        "tr",
        element("th", task.name, scope="row", class_="text"),
        element("td", task.node or MISSING, class_="text"),
        element(
            "td",
            figure_of(cpu.mean, key="cpu_mean_cores"),
            element("small", f"max {say(cpu.maximum)}") if cpu.maximum is not None else None,
        ),
        element("td", figure_of(task.memory_peak, "B", key="memory_peak_bytes")),
        element("td", figure_of(division.received if division else None, "B", key="received")),
        element("td", figure_of(division.sent if division else None, "B", key="sent")),
        element("td", _seconds(division.step_seconds if division else None, "step_seconds")),
        element("td", figure_of(exposed, "%", key="exposed_fraction")),
        data_task=task.name,
    )


def _seconds(value: float | None, key: str) -> Markup:
    return figure_of(value, text=MISSING if value is None else say_step_time(value), key=key)


def _divided(tasks: Sequence[TaskRecord], caption: str, whole: str) -> Markup | None:
    """Seconds and bytes by span and task: means over the sampled steps."""
    known = [(task, task.division) for task in tasks if task.division is not None]
    if not known:
        return None
    seen = {span for _, division in known for span in division.seconds}
    spans = [name for name in ORDER if name in seen] + sorted(seen - set(ORDER))
    rows = []
    for task, division in known:
        cells = []
        for span in spans:
            seconds = division.seconds.get(span)
            ways = ((division.bytes_in, "in"), (division.bytes_out, "out"))
            cells.append(
                element(
                    "td",
                    _seconds(seconds, "seconds"),
                    element("small", say(division.fraction(span), "%")) if seconds is not None else None,
                    [
                        figure_of(of[span], text=f"{say(of[span], 'B')} {way}", name="small", key=f"bytes_{way}")
                        for of, way in ways
                        if span in of
                    ],
                    data_span=span,
                )
            )
        rows.append(
            element(
                "tr",
                element("th", task.name, scope="row", class_="text"),
                element(
                    "td", _seconds(division.step_seconds, "step_seconds"), element("small", f"{division.steps:,} ×")
                ),
                cells,
                data_task=task.name,
            )
        )
    header = [element("th", name, scope="col") for name in (whole, *spans)]
    table = element(
        "table",
        element("thead", element("tr", element("th", "Task", scope="col", class_="text"), header)),
        element("tbody", rows),
        class_="by-span",
    )
    return element("div", element("h3", caption), _scrolled(table, caption), class_="divided")
