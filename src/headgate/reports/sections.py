"""The parts of the page that are text and tables."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from headgate.analysis.jobs import FAULTS, JobFigures, JobRecord
from headgate.reports.figures import job_colour
from headgate.reports.markup import Markup, element, figure_of
from headgate.reports.recording import Recording, loads
from headgate.reports.words import MISSING, counted, say, say_loss, what_happened
from headgate.units import say_bytes, say_seconds

_EVENTS = 500


def head(run: Recording, jobs: Sequence[JobFigures]) -> Markup:
    """What it was: title, command, machine, policy, commit, when, how long."""
    names = ", ".join(job.name for job in jobs[:4]) + (f" and {len(jobs) - 4} more" if len(jobs) > 4 else "")
    argv = loads(run.meta.get("command"))
    command = shlex.join(map(str, argv)) if isinstance(argv, list) else run.meta.get("command")
    when = datetime.fromtimestamp(run.began).astimezone() if run.began is not None else None
    machines = [
        " · ".join(
            part
            for part in (
                node.name,
                node.description,
                say(node.cores, "cores") if node.cores else "",
                say_bytes(node.memory_bytes) if node.memory_bytes else "",
            )
            if part
        )
        for node in run.nodes
    ]
    took = figure_of(run.seconds, "s", key="seconds")
    note = {"running": " so far", "interrupted": ", then interrupted"}.get(run.state)
    facts: list[tuple[str, object]] = [
        ("Run", run.id),
        ("Began", element("time", when.strftime("%Y-%m-%d %H:%M:%S %Z"), datetime=when.isoformat()) if when else None),
        ("Took", [took, note]),
        ("Policy", run.meta.get("policy")),
        ("Machine", "; ".join(machines) or None),
        ("Git commit", element("code", run.meta["git_commit"][:12]) if run.meta.get("git_commit") else None),
        ("Command", element("code", command) if command else None),
    ]
    return element(
        "header",
        element("p", "Headgate run", class_="eyebrow"),
        element("h1", names or run.id),
        element("dl", [element("div", element("dt", name), element("dd", value)) for name, value in facts if value]),
        element("div", [element("p", said) for said in what_happened(run, jobs)], class_="story", id="story"),
        _trouble(run),
    )


def _trouble(run: Recording) -> Markup | None:
    trouble = run.meta.get("trouble")
    return element("p", element("strong", "Trouble while recording: "), trouble, class_="trouble") if trouble else None


def summary(jobs: Sequence[JobFigures]) -> Markup:
    """The figures of every job, a row each."""
    columns = [
        ("Job", "text", ""),
        ("Ended as", "text", ""),
        ("Start", "", "seconds since the run began"),
        ("End", "", "seconds since the run began"),
        ("Ran", "", "all attempts together"),
        ("Loss", "", "last and lowest reported"),
        ("Steps", "", "highest step reported, and steps a second"),
        ("Samples/s", "", "mean while it reported"),
        ("CPU time", "", "CPU seconds, since the first reading of each attempt"),
        ("CPU", "", "mean and most cores in use"),
        ("Memory", "", "most resident memory"),
        ("Granted", "", "mean cores that it was entitled to"),
        ("Used of it", "", "mean cores in use over granted cores"),
        ("Waits for input", "", "fraction of a step, over the sampled steps"),
    ]
    header = [element("th", name, scope="col", class_=kind or None, title=why or None) for name, kind, why in columns]
    rows = [_job_row(job, index) for index, job in enumerate(jobs)]
    table = element("table", element("thead", element("tr", header)), element("tbody", rows), id="summary")
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label="Summary by job")


def _job_row(job: JobFigures, index: int) -> Markup:
    colour, _ = job_colour(index)
    waited = element("small", f"waited {say_seconds(job.waited_seconds)}") if job.waited_seconds >= 0.5 else None
    attempts = figure_of(job.attempts, name="small", text=counted(job.attempts, "attempt"), key="attempts")
    checkpoints = element("small", counted(job.checkpoints, "checkpoint")) if job.checkpoints else None
    band = None
    if job.sampled_steps:
        band = element("small", f"{job.sampled_steps:,} steps", data_key="sampled_steps", data_value=job.sampled_steps)
    bad = counted(job.losses_not_numbers, "NaN")
    return element(
        "tr",
        element("th", element("span", class_="swatch", style=f"--c:var(--{colour})"), job.name, scope="row", class_="text"),
        element(
            "td",
            element("span", job.state, class_=f"state {job.state}"),
            element("small", job.reason) if job.reason else None,
            class_="text reason",
        ),
        _cell(figure_of(job.started, "s", key="started"), waited),
        _cell(figure_of(job.ended, "s", key="ended")),
        _cell(figure_of(job.run_seconds if job.started is not None else None, "s", key="run_seconds"), attempts, checkpoints),
        _cell(
            figure_of(job.loss_final, text=say_loss(job.loss_final), key="loss_final"),
            figure_of(job.loss_best, name="small", text=f"best {say_loss(job.loss_best)}", key="loss_best")
            if job.loss_best is not None
            else None,
            element("small", bad, class_="bad") if job.losses_not_numbers else None,
        ),
        _cell(
            figure_of(job.steps, key="steps", text=f"{job.steps:,}" if job.steps is not None else None),
            figure_of(job.steps_per_second, "/s", name="small", key="steps_per_second") if job.steps_per_second else None,
        ),
        _cell(figure_of(job.samples_per_second, key="samples_per_second")),
        _cell(figure_of(job.cpu_seconds, "s", key="cpu_seconds")),
        _cell(
            figure_of(job.cpu_mean_cores, "cores", key="cpu_mean_cores"),
            figure_of(job.cpu_max_cores, name="small", text=f"max {say(job.cpu_max_cores)}", key="cpu_max_cores")
            if job.cpu_max_cores is not None
            else None,
        ),
        _cell(figure_of(job.memory_peak_bytes, "B", key="memory_peak_bytes")),
        _cell(figure_of(job.granted_cores, "cores", key="granted_cores")),
        _cell(figure_of(job.used_of_granted, "%", key="used_of_granted")),
        _cell(figure_of(job.input_fraction, "%", key="input_fraction"), band),
        data_job=job.name,
    )


def _cell(*children: object) -> Markup:
    return element("td", children)


def steps(jobs: Sequence[JobRecord]) -> Markup | None:
    """How a step of each job divides."""
    rows = []
    seen: dict[str, None] = {}
    for index, job in enumerate(jobs):
        division = job.division
        if division is None or division.step_seconds <= 0:
            continue
        colour, _ = job_colour(index)
        parts = []
        for span, seconds in division.seconds.items():
            seen[span] = None
            part = division.fraction(span)
            said = f"{span}: {say(part, '%')} of a step, {say_milliseconds(seconds)}"
            parts.append(
                element(
                    "span",
                    element("b", say(part, "%")) if part >= 0.07 else None,
                    class_="span",
                    style=f"--c:var(--{_span_colour(span)});flex-grow:{part:.6f}",
                    title=said,
                    data_span=span,
                    data_value=repr(seconds),
                )
            )
        waits = (
            figure_of(division.input_fraction, "%", name="b", key="input_fraction"),
            f" waits for input ({say(division.input_low, '%')} to {say(division.input_high, '%')} in the middle 80 % of steps)",
        )
        rows.append(
            element(
                "div",
                element("span", element("span", class_="swatch", style=f"--c:var(--{colour})"), job.name, class_="label"),
                element("span", parts, class_="spans"),
                element("small", f"{say_milliseconds(division.step_seconds)} a step, {division.steps:,} sampled · ", waits),
                class_="step",
                data_job=job.name,
            )
        )
    if not rows:
        return None
    keys = [(element("span", class_="swatch", style=f"--c:var(--{_span_colour(span)})"), span) for span in seen]
    return element("div", rows, element("p", [element("span", key, class_="span-key") for key in keys], class_="keys"))


def _span_colour(span: str) -> str:
    known = ("input", "forward", "backward", "optimizer", "push", "wait", "pull", "update")
    return f"span-{span}" if span in known else "span-other"


def say_milliseconds(seconds: float) -> str:
    """Short times as they are told of steps."""
    return say_seconds(seconds) if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def profiles(jobs: Sequence[JobRecord]) -> Markup | None:
    """What each job was measured to cost."""
    cards = [_profile(job, index) for index, job in enumerate(jobs) if job.profile]
    return element("div", cards, class_="cards") if cards else None


def _profile(job: JobRecord, index: int) -> Markup:
    profile: Mapping[str, Any] = job.profile or {}
    data: Mapping[str, Any] = profile.get("dataset") or {}
    layers: Mapping[str, int] = profile.get("layers") or {}
    sparse = profile.get("parameters_sparse")
    facts: list[tuple[str, object]] = [
        ("Framework", f"{profile.get('framework') or 'none'} {profile.get('framework_version') or ''}".strip()),
        ("Parameters", _count(profile.get("parameters_dense"), "parameters_dense")),
        ("… sparse", _count(sparse, "parameters_sparse") if sparse else None),
        ("Layers", ", ".join(f"{count} {kind}" for kind, count in layers.items()) or None),
        ("FLOPs a sample", _count(profile.get("flops_per_sample"), "flops_per_sample")),
        ("… forward", _count(profile.get("flops_per_sample_forward"), "flops_per_sample_forward")),
        ("Batch", _count(profile.get("batch"), "batch")),
        ("Data set", f"{say(data['samples'])} samples" if data.get("samples") else None),
        ("A sample", say_bytes(data["bytes_per_sample"]) if data.get("bytes_per_sample") else None),
        ("Reading one", say_milliseconds(data["read_seconds_per_sample"]) if data.get("read_seconds_per_sample") else None),
        ("Optimizer", profile.get("optimizer")),
        ("Its state", say_bytes(profile["optimizer_state_bytes"]) if profile.get("optimizer_state_bytes") else None),
        ("Memory peak", say_bytes(profile["memory_peak_bytes"]) if profile.get("memory_peak_bytes") else None),
        *[("Step of b samples", _fit(fit)) for fit in profile.get("fits") or ()],
    ]
    colour, _ = job_colour(index)
    return element(
        "article",
        element("h3", element("span", class_="swatch", style=f"--c:var(--{colour})"), job.name),
        element("dl", [element("div", element("dt", name), element("dd", value)) for name, value in facts if value]),
        [element("p", note, class_="note") for note in profile.get("notes") or ()],
        class_="card",
        data_job=job.name,
    )


def _count(value: float | None, key: str) -> Markup | None:
    if value is None:
        return None
    for size, suffix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= size:
            return figure_of(value, text=f"{value / size * (10 if size == 1e4 else 1):.3g}{suffix}", key=key)
    return figure_of(value, key=key)


def _fit(fit: Mapping[str, Any]) -> str:
    error = fit.get("relative_error")
    threads = counted(int(fit.get("threads") or 1), "thread")
    sure = f", ±{say(error, '%')}" if error is not None else ""
    alpha, beta = say_milliseconds(fit["alpha_seconds"]), fit["beta_seconds_per_sample"]
    slope = f"{beta * 1e6:.3g} µs" if beta < 1e-3 else say_milliseconds(beta)
    return f"{alpha} + {slope} · b on {fit.get('device', 'cpu')} with {threads}{sure}"


def events(run: Recording) -> Markup:
    """What happened, line by line; of very many, the newest."""
    if not run.events:
        return element("p", "No events were recorded.", class_="none")
    colours = {job.name: job_colour(index)[0] for index, job in enumerate(run.jobs)}
    shown = run.events[-_EVENTS:]
    rows = [
        element(
            "tr",
            element("td", figure_of(event["t"], "s"), class_="when"),
            element(
                "td",
                element("span", class_="swatch", style=f"--c:var(--{colours[event['job']]})") if event["job"] in colours else None,
                event["job"] or MISSING,
            ),
            element("td", event["kind"] or "", class_="kind bad" if event["kind"] in FAULTS else "kind"),
            element("td", event["text"] or "", class_="what"),
        )
        for event in shown
    ]
    left = len(run.events) - len(shown)
    names = [element("th", name, scope="col") for name in ("At", "Job", "Event", "")]
    table = element("table", element("thead", element("tr", names)), element("tbody", rows), id="events")
    return element(
        "div",
        element("p", f"The {left:,} before these are in the run's store.", class_="note") if left else None,
        element("div", table, class_="scroll tall", tabindex=0, role="region", aria_label="Events"),
    )


def environment(run: Recording) -> Markup:
    """What is needed to do it again."""
    packages = loads(run.meta.get("packages"))
    pairs = sorted(packages.items()) if isinstance(packages, dict) else [(str(name), "") for name in packages or ()]
    facts = [
        ("Headgate", run.meta.get("headgate")),
        ("Working folder", run.meta.get("cwd")),
        ("Git commit", run.meta.get("git_commit")),
        ("Seed", run.meta.get("seed")),
    ]
    return element(
        "div",
        element("dl", [element("div", element("dt", name), element("dd", element("code", value))) for name, value in facts if value]),
        element(
            "details",
            element("summary", counted(len(pairs), "package")),
            element("ul", [element("li", element("code", f"{name} {version}".strip())) for name, version in pairs], class_="packages"),
        )
        if pairs
        else None,
    )
