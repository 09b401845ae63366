"""What the page says of a job of several tasks: its plan, its tasks, and its steps."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.analysis.jobs import RecordedJob, RecordedTask
from headgate.reports.figures import Plot
from headgate.reports.frames import frames
from headgate.reports.step_drawing import drawing, keys, ordered
from headgate.reports.templates import Markup, render
from headgate.reports.words import planned

_COLUMNS = (
    ("Task", "text", ""),
    ("Node", "text", ""),
    ("Cores", "", "in use: mean and most"),
    ("Memory peak", "", "most resident memory: as the kernel counted it, or the highest reading where that is more"),
    ("In a step", "", "bytes received, mean over its sampled steps"),
    ("Out a step", "", "bytes sent, mean over its sampled steps"),
    ("Step", "", "mean over its sampled steps, or over a server's rounds"),
    ("Exposed", "", "fraction of a step that only waits for communication: push, wait and pull"),
)


def section(job: RecordedJob, throughput: Plot | None) -> Markup:
    """All of a job."""
    return render(
        "tasks.html",
        job=job,
        plan=planned(job.plan or {}, len(job.nodes) or 1),
        columns=_COLUMNS,
        throughput=frames([throughput], "plots throughput") if throughput is not None else None,
        drawings=[drawing(step) for step in job.sampled],
        keys=keys(job.sampled) if job.sampled else None,
        workers=_divided([task for task in job.tasks if task.is_worker], "Step"),
        servers=_divided([task for task in job.tasks if not task.is_worker], "Round"),
    )


def _divided(tasks: Sequence[RecordedTask], whole: str) -> dict[str, object] | None:
    """Tasks whose steps were sampled, and the spans that any of them has; None where there is none."""
    known = [task for task in tasks if task.division is not None]
    seen = {span for task in known if task.division is not None for span in task.division.seconds}
    spans = ordered(seen)
    columns = [("Task", "text", ""), *((name, "", "") for name in (whole, *spans))]
    return {"tasks": known, "spans": spans, "columns": columns} if known else None
