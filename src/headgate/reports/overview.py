"""The top of the page: what the run was, what happened in it, and the figures of every job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from headgate.analysis.jobs import JobFigures
from headgate.reports.figures import job_colour
from headgate.reports.markup import Markup, element, figure_of
from headgate.reports.recording import Recording
from headgate.reports.words import counted, say, say_loss, say_moment, what_happened
from headgate.units import say_bytes

_COLUMNS = (
    ("Job", "text", ""),
    ("Ended as", "text", ""),
    ("Start, end", "", "after the run began"),
    ("Ran", "", "all attempts together"),
    ("Loss", "", "last reported, and the lowest"),
    ("Steps", "", "highest step reported, and steps a second"),
    ("Samples/s", "", "mean while it reported"),
    ("CPU time", "", "CPU seconds, all attempts together"),
    ("Cores", "", "in use: mean and most"),
    ("Memory peak", "", "most resident memory: as the kernel counted it, or the highest reading where that is more"),
    ("Granted cores", "", "mean cores that it was entitled to, and how much of that it used"),
    ("Waits for input", "", "fraction of a step, over the sampled steps"),
)


def head(run: Recording, jobs: Sequence[JobFigures]) -> Markup:
    """What it was: title, command, machine, policy, commit, when, how long; and what happened, in words."""
    names = ", ".join(job.name for job in jobs[:4]) + (f" and {len(jobs) - 4} more" if len(jobs) > 4 else "")
    when = datetime.fromtimestamp(run.began).astimezone() if run.began is not None else None
    note = {"running": " so far", "interrupted": ", then interrupted"}.get(run.state)
    commit, _, changes = run.meta.get("git_commit", "").partition("+")
    trouble = run.meta.get("trouble")
    command = run.meta.get("command")
    facts: list[tuple[str, object]] = [
        ("Run", run.id),
        ("Goes on from", run.meta.get("resumed_from")),
        ("Began", element("time", when.strftime("%Y-%m-%d %H:%M:%S %Z"), datetime=when.isoformat()) if when else None),
        ("Took", [figure_of(run.seconds, "s", key="seconds"), note]),
        ("Policy", run.meta.get("policy")),
        ("Machine", "; ".join(_machines(run)) or None),
        ("Git commit", [element("code", commit[:12]), f" with {changes}" if changes else None] if commit else None),
        ("Command", element("code", command) if command else None),
    ]
    return element(
        "header",
        element("p", "Headgate run", class_="eyebrow"),
        element("h1", names or run.id),
        element("dl", [element("div", element("dt", name), element("dd", value)) for name, value in facts if value]),
        element("div", [element("p", said) for said in what_happened(run, jobs)], class_="story", id="story"),
        element("p", element("strong", "Trouble while recording: "), trouble, class_="trouble") if trouble else None,
    )


def _machines(run: Recording) -> list[str]:
    result = []
    for node in run.nodes:
        parts = [node.name, node.description, say(node.cores, "cores") if node.cores else ""]
        parts.append(say_bytes(node.memory_bytes) if node.memory_bytes else "")
        result.append(" · ".join(part for part in parts if part))
    return result


def summary(jobs: Sequence[JobFigures]) -> Markup:
    """The figures of every job, a row each."""
    header = [element("th", name, scope="col", class_=kind or None, title=why or None) for name, kind, why in _COLUMNS]
    rows = [_row(job, index) for index, job in enumerate(jobs)]
    table = element("table", element("thead", element("tr", header)), element("tbody", rows), id="summary")
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label="Summary by job")


def _row(job: JobFigures, index: int) -> Markup:
    colour, _ = job_colour(index)
    ran = job.run_seconds if job.started is not None else None
    bad = counted(job.losses_not_numbers, "NaN")
    return element(
        "tr",
        element(
            "th", element("span", class_="swatch", style=f"--c:var(--{colour})"), job.name, scope="row", class_="text"
        ),
        element(
            "td",
            element("span", job.state, class_=f"state {job.state}"),
            element("small", job.reason) if job.reason else None,
            class_="text reason",
        ),
        _cell(
            figure_of(job.started, text=say_moment(job.started), key="started"),
            _small(job.ended, f"to {say_moment(job.ended)}", "ended"),
            element("small", f"waited {say_moment(job.waited_seconds)}") if job.waited_seconds >= 0.5 else None,
        ),
        _cell(
            figure_of(ran, "s", key="run_seconds"),
            _small(job.attempts, counted(job.attempts, "attempt"), "attempts"),
            _small(job.checkpoints or None, counted(job.checkpoints, "checkpoint"), "checkpoints"),
        ),
        _cell(
            figure_of(job.loss_final, text=say_loss(job.loss_final), key="loss_final"),
            _small(job.loss_best, f"best {say_loss(job.loss_best)}", "loss_best"),
            element("small", bad, class_="bad") if job.losses_not_numbers else None,
        ),
        _cell(
            figure_of(job.steps, key="steps", text=f"{job.steps:,}" if job.steps is not None else None),
            _small(job.steps_per_second, say(job.steps_per_second, "/s"), "steps_per_second"),
        ),
        _cell(figure_of(job.samples_per_second, key="samples_per_second")),
        _cell(figure_of(job.cpu_seconds, "s", key="cpu_seconds")),
        _cell(
            figure_of(job.cpu_mean_cores, key="cpu_mean_cores"),
            _small(job.cpu_max_cores, f"max {say(job.cpu_max_cores)}", "cpu_max_cores"),
        ),
        _cell(figure_of(job.memory_peak_bytes, "B", key="memory_peak_bytes")),
        _cell(
            figure_of(job.granted_cores, key="granted_cores"),
            _small(job.used_of_granted, f"used {say(job.used_of_granted, '%')}", "used_of_granted"),
        ),
        _cell(
            figure_of(job.input_fraction, "%", key="input_fraction"),
            _small(job.sampled_steps or None, counted(job.sampled_steps, "step"), "sampled_steps"),
        ),
        data_job=job.name,
    )


def _cell(*children: object) -> Markup:
    return element("td", children)


def _small(value: float | None, text: str, key: str) -> Markup | None:
    return figure_of(value, name="small", text=text, key=key) if value is not None else None
