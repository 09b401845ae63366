"""The parts of the page that are text and tables: what each template is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from headgate.analysis.accounts import PARTS, Account
from headgate.analysis.faults import KIND, survived
from headgate.analysis.jobs import FAULTS, JobFigures, RecordedJob
from headgate.analysis.losing import LEAST_SECONDS
from headgate.analysis.nics import NicUse
from headgate.reports.explained import SPEED_COLUMNS, culprit, headlines, say_speedup
from headgate.reports.figures import job_colour
from headgate.reports.job_rows import loads
from headgate.reports.recording import Recording
from headgate.reports.step_drawing import span_colour
from headgate.reports.templates import Markup, render
from headgate.reports.words import counted, say, say_step_time, what_happened
from headgate.units import say_bytes

_MOST = 500
"""Rows of a table of what happened."""

_Columns = Sequence[tuple[str, str, str]]
"""Name, kind and meaning of each."""

_SUMMARY = (
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
_FAULTS = (
    ("At", "", ""),
    ("Task", "", ""),
    ("What happened", "", ""),
    ("Cost", "", "the longest wait that a task tells of, or the time until the job was as far again as it had been"),
    ("Steps", "", "done again or lost"),
)
_LOSSES = (
    ("Job", "text", ""),
    ("Lost to", "text", ""),
    ("Seconds", "", ""),
    ("At least", "", "the low end of a band of 90 %"),
    ("At most", "", "the high end of a band of 90 %"),
    ("Resource", "text", ""),
    (
        "Evidence",
        "text",
        "counted: the kernel saw it wait; compared: steps with and without the neighbour; proved: while it was held",
    ),
)
_MORE = (
    ("Job", "text", ""),
    ("More of", "text", ""),
    *((name, "", "steps a second over the present ones; in brackets a band of 90 %") for name in SPEED_COLUMNS),
)
_NICS = ("NIC", "In, mean", "In, max", "Out, mean", "Out, max")
_DECISIONS = tuple((name, "", "") for name in ("At", "Job", "Cores", "Why"))
_EVENTS = tuple((name, "", "") for name in ("At", "Job", "Event", ""))


def heading(run: Recording, jobs: Sequence[JobFigures], accounts: Sequence[Account]) -> Markup:
    """What it was: title, command, machine, policy, commit, when, how long; what held its jobs back, and what happened,
    in words."""
    names = ", ".join(job.name for job in jobs[:4]) + (f" and {len(jobs) - 4} more" if len(jobs) > 4 else "")
    commit, _, changes = run.meta.get("git_commit", "").partition("+")
    return render(
        "overview.html",
        run=run,
        names=names,
        began=datetime.fromtimestamp(run.began).astimezone() if run.began is not None else None,
        so_far={"running": " so far", "interrupted": ", then interrupted"}.get(run.state, ""),
        machines=_machines(run),
        commit=commit,
        changes=changes,
        verdicts=headlines(accounts),
        story=what_happened(run, jobs),
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
    return render("summary.html", jobs=jobs, columns=_SUMMARY)


def accounts(jobs: Sequence[RecordedJob], found: Sequence[Account]) -> Markup | None:
    """Where the time of each job went, to whom it was lost, and what more of each resource would buy."""
    if not found:
        return None
    colours = {job.name: job_colour(index)[0] for index, job in enumerate(jobs)}
    shown = [part for part in PARTS if any(account.parts[part].seconds >= LEAST_SECONDS for account in found)]
    columns = (
        ("Job", "text", ""),
        ("Elapsed", "", "from its submission on"),
        *((part, "", PARTS[part]) for part in shown),
    )
    bought = [(account, name, speeds) for account in found for name, speeds in account.more.named().items()]
    losses = [(account, loss) for account in found for loss in account.losses]
    return render(
        "accounts.html",
        accounts=found,
        parts=shown,
        columns=columns,
        colours=colours,
        losses=losses,
        culprit=culprit,
        loss_columns=_LOSSES,
        bought=bought,
        more_columns=_MORE,
        say_speedup=say_speedup,
    )


def network(uses: Sequence[NicUse]) -> Markup:
    """A row a node: mean and maximum each way."""
    columns = (("Node", "text", ""), *((name, "", "") for name in _NICS))
    return render("network.html", uses=uses, columns=columns)


def steps(jobs: Sequence[RecordedJob]) -> Markup | None:
    """How a step of each job divides."""
    divided = [
        (job, job_colour(index)[0], job.division)
        for index, job in enumerate(jobs)
        if job.division is not None and job.division.step_seconds > 0
    ]
    seen = dict.fromkeys(span for _, _, division in divided for span in division.seconds)
    return render("steps.html", jobs=divided, spans=seen, span_colour=span_colour) if divided else None


def profiles(jobs: Sequence[RecordedJob]) -> Markup | None:
    """What each job was measured to cost."""
    cards = [
        {
            "job": job,
            "colour": job_colour(index)[0],
            "facts": _facts(job.profile),
            "notes": job.profile.get("notes") or (),
        }
        for index, job in enumerate(jobs)
        if job.profile
    ]
    return render("profiles.html", cards=cards) if cards else None


def _facts(profile: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Names and values; numbers as arguments of the template's `figure`."""
    data: Mapping[str, Any] = profile.get("dataset") or {}
    layers: Mapping[str, int] = profile.get("layers") or {}
    sparse = profile.get("parameters_sparse")
    return [
        ("Framework", f"{profile.get('framework') or 'none'} {profile.get('framework_version') or ''}".strip()),
        ("Parameters", _count(profile.get("parameters_dense"), "parameters_dense")),
        ("… sparse", _count(sparse, "parameters_sparse") if sparse else None),
        ("Layers", ", ".join(f"{count}\u00a0{kind}" for kind, count in layers.items()) or None),
        ("FLOPs a sample", _count(profile.get("flops_per_sample"), "flops_per_sample")),
        ("… forward", _count(profile.get("flops_per_sample_forward"), "flops_per_sample_forward")),
        ("Batch", _count(profile.get("batch"), "batch")),
        ("Data set", f"{say(data['samples'])} samples" if data.get("samples") else None),
        ("A sample", say_bytes(data["bytes_per_sample"]) if data.get("bytes_per_sample") else None),
        (
            "Reading one",
            say_step_time(data["read_seconds_per_sample"]) if data.get("read_seconds_per_sample") else None,
        ),
        ("Optimizer", profile.get("optimizer")),
        ("Its state", say_bytes(profile["optimizer_state_bytes"]) if profile.get("optimizer_state_bytes") else None),
        ("Memory peak", say_bytes(profile["memory_peak_bytes"]) if profile.get("memory_peak_bytes") else None),
        *[("Step of b samples", _fit(fit)) for fit in profile.get("fits") or ()],
    ]


def _count(value: float | None, key: str) -> dict[str, object] | None:
    if value is None:
        return None
    for size, suffix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= size:
            return {"value": value, "text": f"{value / size * (10 if size == 1e4 else 1):.3g}{suffix}", "key": key}
    return {"value": value, "text": say(value), "key": key}


def _fit(fit: Mapping[str, Any]) -> str:
    error = fit.get("relative_error")
    threads = counted(int(fit.get("threads") or 1), "thread")
    sure = f", ±{say(error, '%')}" if error is not None else ""
    alpha, beta = say_step_time(fit["alpha_seconds"]), say_step_time(fit["beta_seconds_per_sample"])
    return f"{alpha} + {beta} · b on {fit.get('device', 'cpu')} with {threads}{sure}"


def faults(run: Recording) -> Markup | None:
    """The faults that jobs survived, and what each cost."""
    of_run = survived(event for event in run.events if event["job"] is None)
    every = sorted((*of_run, *(fault for job in run.jobs for fault in job.faults)), key=lambda fault: fault.t)
    return _listed("faults", _FAULTS, every, run) if every else None


def decisions(run: Recording) -> Markup | None:
    """What jobs were granted and why, line by line; of very many, the newest."""
    every = sorted(((each, job.name) for job in run.jobs for each in job.decisions), key=lambda each: each[0].t)
    return _listed("decisions", _DECISIONS, every, run) if every else None


def events(run: Recording) -> Markup:
    """What happened, line by line; of very many, the newest."""
    if not run.events:
        return Markup('<p class="none">No events were recorded.</p>')
    return _listed("events", _EVENTS, run.events, run, bad=FAULTS, warnings=("warning", KIND))


def _listed(name: str, columns: _Columns, every: Sequence[object], run: Recording, **more: object) -> Markup:
    """The table of that name, with the newest of what happened."""
    shown = every[-_MOST:]
    colours = {job.name: job_colour(index)[0] for index, job in enumerate(run.jobs)}
    given = {name: shown, "left": len(every) - len(shown), "columns": columns, "colours": colours, **more}
    return render(f"{name}.html", **given)


def environment(run: Recording) -> Markup:
    """What is needed to do it again."""
    facts = [
        ("Headgate", run.meta.get("headgate")),
        ("Working folder", run.meta.get("cwd")),
        ("Git commit", run.meta.get("git_commit")),
        ("Seed", run.meta.get("seed")),
    ]
    # A list of packages for each interpreter, or only one list.
    found = loads(run.meta.get("packages"))
    lists = found.items() if isinstance(found, dict) else [("", found)]
    installed = [(interpreter, names) for interpreter, names in lists if isinstance(names, list) and names]
    return render("environment.html", facts=facts, installed=installed)
