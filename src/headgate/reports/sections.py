"""The parts of the page without plots: the input of each template."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from headgate.diagnosis.account import Account
from headgate.diagnosis.attribution import LEAST_SECONDS
from headgate.diagnosis.job_figures import JobFigures
from headgate.diagnosis.nics import NicUse
from headgate.diagnosis.own_steps import PARTS, Part
from headgate.diagnosis.verdicts import verdict
from headgate.model.job_states import FAULTS
from headgate.model.profiles import Dataset, Profile, TimeFit
from headgate.model.records import read
from headgate.model.units import counted, say_bytes
from headgate.recorded.faults import KIND, survived
from headgate.recorded.jobs import RecordedJob, RecordedTask
from headgate.recorded.recording import Recording
from headgate.reports.explained import SPEED_COLUMNS, culprit, headlines, say_speedup
from headgate.reports.figures import Plot, job_colour
from headgate.reports.frames import frames
from headgate.reports.step_drawing import drawing, keys, ordered, span_colour
from headgate.reports.templates import Markup, render
from headgate.reports.words import (
    planned,
    said_gpus,
    said_threads,
    say,
    say_step_time,
    ways,
    what_happened,
)
from headgate.verification.verdict import Verification
from headgate.verification.wording import sentence

_MOST_LINES = 30
"""Most jobs with a verdict at the top; the summary has all."""
_MOST = 500
"""Most rows of an event table."""

_NO_DATA = Dataset(None, None, None)

_Columns = Sequence[tuple[str, str, str]]
"""Name, kind and meaning of each column."""

_ARGUMENTS = ("Arguments", "text", "of its script, or its command")
_ON_GPUS = ("GPUs", "text", "which; how busy, on average; and the most memory that it held of them")
_SUMMARY = (
    ("Job", "text", ""),
    ("Ended as", "text", ""),
    ("Verdict", "text", "what held it back most, and what that cost"),
    _ARGUMENTS,
    ("Start, end", "", "after the run began"),
    ("Ran", "", "all attempts together"),
    ("Loss", "", "last reported, and the lowest"),
    ("Steps", "", "highest step reported, and steps a second"),
    ("Samples/s", "", "mean while it reported"),
    ("CPU time", "", "CPU seconds, all attempts together"),
    ("Cores", "", "in use: mean and most"),
    (
        "Memory peak",
        "",
        "most resident memory: as the kernel counted it, or the highest reading where that is more",
    ),
    _ON_GPUS,
    (
        "Granted cores",
        "",
        (
            "mean cores that it was entitled to, its compute threads, and how much of the "
            "cores it used"
        ),
    ),
    ("Waits for input", "", "fraction of a step, over the sampled steps"),
)
_FAULTS = (
    ("At", "", ""),
    ("Task", "", ""),
    ("What happened", "", ""),
    (
        "Cost",
        "",
        (
            "the longest wait that a task tells of, or the time until the job was as far again "
            "as it had been"
        ),
    ),
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
        (
            "counted: the kernel saw it wait; compared: steps with and without the neighbour; "
            "proved: while it was held"
        ),
    ),
)
_MORE = (
    ("Job", "text", ""),
    ("More of", "text", ""),
    *(
        (name, "", "steps a second over the present ones; in brackets a band of 90 %")
        for name in SPEED_COLUMNS
    ),
)
_TASKS = (
    ("Task", "text", ""),
    ("Node", "text", ""),
    ("Cores", "", "in use: mean and most"),
    (
        "Memory peak",
        "",
        "most resident memory: as the kernel counted it, or the highest reading where that is more",
    ),
    ("In a step", "", "bytes received, mean over its sampled steps"),
    ("Out a step", "", "bytes sent, mean over its sampled steps"),
    ("Step", "", "mean over its sampled steps, or over a server's rounds"),
    ("Exposed", "", "fraction of a step that only waits for communication: push, wait and pull"),
)
_NICS = ("NIC", "In, mean", "In, max", "Out, mean", "Out, max")
_DECISIONS = tuple((name, "", "") for name in ("At", "Job", "Cores", "Why"))
_EVENTS = tuple((name, "", "") for name in ("At", "Job", "Event", ""))


def heading(run: Recording, jobs: Sequence[JobFigures]) -> Markup:
    """The heading: title, command, machine, policy, commit, time, length."""
    names = ", ".join(job.name for job in jobs[:4]) + (
        f" and {len(jobs) - 4} more" if len(jobs) > 4 else ""
    )
    commit, _, changes = run.description.git_commit.partition("+")
    return render(
        "overview.html",
        run=run,
        names=names,
        began=datetime.fromtimestamp(run.began).astimezone() if run.began is not None else None,
        so_far={"running": " so far", "interrupted": ", then interrupted"}.get(run.state, ""),
        machines=_machines(run),
        commit=commit,
        changes=changes,
    )


def story(run: Recording, jobs: Sequence[JobFigures]) -> Markup:
    """What happened, in words."""
    return render("story.html", sentences=what_happened(run, jobs))


def verdicts(run: Recording, accounts: Sequence[Account]) -> Markup | None:
    """A line for each job: its state, verdict, loss and culprit; sentence and next step open on
    demand.
    """
    lines, advice = headlines(accounts)
    colours = {job.name: job_colour(index)[0] for index, job in enumerate(run.jobs)}
    states = {job.name: job.state for job in run.jobs}
    shown = lines[:_MOST_LINES]
    given = {
        "lines": shown,
        "left": len(lines) - len(shown),
        "advice": advice,
        "colours": colours,
        "states": states,
    }
    return render("verdicts.html", **given) if lines else None


def _machines(run: Recording) -> list[str]:
    result = []
    for node in run.nodes:
        parts = [node.name, node.description, say(node.cores, "cores") if node.cores else ""]
        parts.append(say_bytes(node.memory_bytes) if node.memory_bytes else "")
        result.append(" · ".join(part for part in parts if part))
    return result


def summary(run: Recording, jobs: Sequence[JobFigures], accounts: Sequence[Account]) -> Markup:
    """The figures of each job, in a row."""
    findings = {account.job: verdict(account) for account in accounts}
    arguments = {job.name: job.arguments for job in run.jobs if job.arguments}
    on_gpus = any(job.gpus for job in jobs)
    left_out = [
        column for column, needed in ((_ARGUMENTS, arguments), (_ON_GPUS, on_gpus)) if not needed
    ]
    return render(
        "summary.html",
        jobs=jobs,
        columns=[column for column in _SUMMARY if column not in left_out],
        verdicts=findings,
        arguments=arguments,
        on_gpus=on_gpus,
        said_gpus=said_gpus,
        said_threads=said_threads,
    )


def accounts(jobs: Sequence[RecordedJob], every: Sequence[Account]) -> Markup | None:
    """How each job spent its time, to whom it lost time, and the gain from more of each
    resource.
    """
    if not every:
        return None
    colours = {job.name: job_colour(index)[0] for index, job in enumerate(jobs)}
    shown = [
        part
        for part in PARTS
        if any(account.parts[part].seconds >= LEAST_SECONDS for account in every)
    ]
    columns = (
        ("Job", "text", ""),
        ("Elapsed", "", "from its submission on"),
        *((part, "", PARTS[part]) for part in shown),
    )
    bought = [
        (account, name, speeds)
        for account in every
        for name, speeds in account.around.speedups.named().items()
    ]
    losses = [(account, loss) for account in every for loss in account.losses]
    return render(
        "accounts.html",
        accounts=every,
        parts=shown,
        part_colour=_part_colour,
        columns=columns,
        colours=colours,
        losses=losses,
        culprit=culprit,
        loss_columns=_LOSSES,
        bought=bought,
        more_columns=_MORE,
        say_speedup=say_speedup,
    )


def _part_colour(part: Part) -> str:
    """A custom property of the style sheet, without its dashes."""
    return f"part-{part}"


def tasks(job: RecordedJob, throughput: Plot | None) -> Markup:
    """A job of several tasks: its plan, its tasks, and its steps."""
    return render(
        "tasks.html",
        job=job,
        plan=planned(job),
        columns=_TASKS,
        throughput=frames([throughput], "plots throughput") if throughput is not None else None,
        drawings=[drawing(step) for step in job.sampled],
        keys=keys(job.sampled) if job.sampled else None,
        workers=_sampled([task for task in job.tasks if task.is_worker], "Step"),
        servers=_sampled([task for task in job.tasks if not task.is_worker], "Round"),
    )


def _sampled(every: Sequence[RecordedTask], whole: str) -> dict[str, object] | None:
    """Tasks with sampled steps, and all their spans; None: there are none."""
    known = [task for task in every if task.division is not None]
    seen = {span for task in known if task.division is not None for span in task.division.seconds}
    spans = ordered(seen)
    columns = [("Task", "text", ""), *((name, "", "") for name in (whole, *spans))]
    return {"tasks": known, "spans": spans, "columns": columns} if known else None


def network(uses: Sequence[NicUse]) -> Markup:
    """A row for each node: mean and maximum in each direction."""
    columns = (("Node", "text", ""), *((name, "", "") for name in _NICS))
    return render("network.html", uses=uses, columns=columns)


def steps(jobs: Sequence[RecordedJob]) -> Markup | None:
    """The parts of a step of each job."""
    divided = [
        (job, job_colour(index)[0], job.division)
        for index, job in enumerate(jobs)
        if job.division is not None and job.division.step_seconds > 0
    ]
    seen = dict.fromkeys(span for _, _, division in divided for span in division.seconds)
    return (
        render("steps.html", jobs=divided, spans=seen, span_colour=span_colour) if divided else None
    )


def profiles(jobs: Sequence[RecordedJob]) -> Markup | None:
    """The measured profile of each job."""
    cards = [
        {
            "job": job,
            "colour": job_colour(index)[0],
            "facts": [*(_facts(job.profile) if job.profile else ()), *_verified(job)],
            "notes": job.cost.notes,
        }
        for index, job in enumerate(jobs)
        if job.profile or job.verified
    ]
    return render("profiles.html", cards=cards) if cards else None


def _verified(job: RecordedJob) -> list[tuple[str, object]]:
    """Whether its workers train the same as one, if that was verified."""
    return [("Several workers", sentence(read(Verification, job.verified)))] if job.verified else []


def _facts(profile: Profile) -> list[tuple[str, object]]:
    """Names and values; numbers as arguments of the template's `figure`."""
    data, sparse = profile.dataset or _NO_DATA, profile.parameters_sparse
    layers = ", ".join(f"{count}\u00a0{kind}" for kind, count in profile.layers.items())
    forward = profile.flops_per_sample_forward
    return [
        ("Framework", f"{profile.framework or 'none'} {profile.framework_version}".strip()),
        ("Parameters", _count(profile.parameters_dense, "parameters_dense")),
        ("… sparse", _count(sparse, "parameters_sparse") if sparse else None),
        ("Layers", layers or None),
        ("FLOPs a sample", _count(profile.flops_per_sample, "flops_per_sample")),
        ("… forward", _count(forward, "flops_per_sample_forward")),
        ("Computes", ", ".join(ways(profile)) or None),
        ("Batch", _count(profile.batch, "batch")),
        ("Data set", f"{say(data.samples)} samples" if data.samples else None),
        ("A sample", _size(data.bytes_per_sample)),
        (
            "Reading one",
            say_step_time(data.read_seconds_per_sample) if data.read_seconds_per_sample else None,
        ),
        ("Optimizer", profile.optimizer),
        ("Its state", _size(profile.optimizer_state_bytes)),
        ("Memory peak", _size(profile.memory_peak_bytes)),
        *[("Step of b samples", _fit(fit)) for fit in profile.fits],
    ]


def _size(count: float | None) -> str | None:
    return say_bytes(count) if count else None


def _count(value: float | None, key: str) -> dict[str, object] | None:
    if value is None:
        return None
    for size, suffix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= size:
            return {
                "value": value,
                "text": f"{value / size * (10 if size == 1e4 else 1):.3g}{suffix}",
                "key": key,
            }
    return {"value": value, "text": say(value), "key": key}


def _fit(fit: TimeFit) -> str:
    threads = counted(fit.threads, "thread")
    sure = f", ±{say(fit.relative_error, '%')}" if fit.relative_error is not None else ""
    alpha, beta = say_step_time(fit.alpha_seconds), say_step_time(fit.beta_seconds_per_sample)
    return f"{alpha} + {beta} · b on {fit.device} with {threads}{sure}"


def faults(run: Recording) -> Markup | None:
    """The faults that jobs survived, and their cost."""
    of_run = survived(event for event in run.events if event.job is None)
    every = sorted(
        (*of_run, *(fault for job in run.jobs for fault in job.faults)), key=lambda fault: fault.t
    )
    return _listed("faults", _FAULTS, every, run) if every else None


def decisions(run: Recording) -> Markup | None:
    """Grants with their reasons, line by line; if there are many, the newest."""
    every = sorted(
        ((decision, job.name) for job in run.jobs for decision in job.decisions),
        key=lambda entry: entry[0].t,
    )
    return _listed("decisions", _DECISIONS, every, run) if every else None


def events(run: Recording) -> Markup:
    """Events, line by line; if there are many, the newest."""
    if not run.events:
        return Markup('<p class="none">No events were recorded.</p>')
    return _listed("events", _EVENTS, run.events, run, bad=FAULTS, warnings=("warning", KIND))


def _listed(
    name: str, columns: _Columns, every: Sequence[object], run: Recording, **more: object
) -> Markup:
    """The table of that name, with the newest entries."""
    shown = every[-_MOST:]
    colours = {job.name: job_colour(index)[0] for index, job in enumerate(run.jobs)}
    given = {
        name: shown,
        "left": len(every) - len(shown),
        "columns": columns,
        "colours": colours,
        **more,
    }
    return render(f"{name}.html", **given)


def environment(run: Recording) -> Markup:
    """What is needed to repeat the run."""
    facts = [
        ("Headgate", run.description.headgate),
        ("Working folder", run.description.cwd),
        ("Git commit", run.description.git_commit),
        ("Seed", run.description.seed),
    ]
    return render("environment.html", facts=facts, installed=run.description.packages.items())


# --- the timeline ---------------------------------------------------------------------------------
