"""What the page says of each job's steps and model, of what happened, and of the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate.analysis.faults import KIND, survived
from headgate.analysis.jobs import FAULTS, JobRecord
from headgate.reports.figures import job_colour
from headgate.reports.job_rows import loads
from headgate.reports.markup import Markup, element, figure_of
from headgate.reports.recording import Recording
from headgate.reports.step_drawing import span_colour
from headgate.reports.words import MISSING, counted, say, say_moment, say_step_time
from headgate.units import say_bytes

_EVENTS = 500


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
            said = f"{span}: {say(part, '%')} of a step, {say_step_time(seconds)}"
            parts.append(
                element(
                    "span",
                    element("b", say(part, "%")) if part >= 0.07 else None,
                    class_="span",
                    style=f"--c:var(--{span_colour(span)});flex-grow:{part:.6f}",
                    title=said,
                    data_span=span,
                    data_value=repr(seconds),
                )
            )
        waits = (
            " · ",
            figure_of(division.input_fraction, "%", name="b", key="input_fraction"),
            f" waits for input (from {say(division.input_low, '%')} to {say(division.input_high, '%')} in 8 of 10)",
        )
        measured = waits if division.input_fraction is not None else ()
        rows.append(
            element(
                "div",
                element(
                    "span", element("span", class_="swatch", style=f"--c:var(--{colour})"), job.name, class_="label"
                ),
                element("span", parts, class_="spans"),
                element(
                    "small", f"{say_step_time(division.step_seconds)} a step, {division.steps:,} sampled", measured
                ),
                class_="step",
                data_job=job.name,
            )
        )
    if not rows:
        return None
    keys = [(element("span", class_="swatch", style=f"--c:var(--{span_colour(span)})"), span) for span in seen]
    return element("div", rows, element("p", [element("span", key, class_="span-key") for key in keys], class_="keys"))


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
    alpha, beta = say_step_time(fit["alpha_seconds"]), say_step_time(fit["beta_seconds_per_sample"])
    return f"{alpha} + {beta} · b on {fit.get('device', 'cpu')} with {threads}{sure}"


def faults(run: Recording) -> Markup | None:
    """The faults that jobs survived, and what each cost."""
    colours = {job.name: job_colour(index)[0] for index, job in enumerate(run.jobs)}
    of_run = survived(event for event in run.events if event["job"] is None)
    every = sorted((*of_run, *(fault for job in run.jobs for fault in job.faults)), key=lambda fault: fault.t)
    shown = every[-_EVENTS:]
    rows = [
        element(
            "tr",
            element("td", figure_of(fault.t, text=say_moment(fault.t)), class_="when"),
            element(
                "td",
                element("span", class_="swatch", style=f"--c:var(--{colours[fault.job]})") if fault.job else None,
                fault.task or fault.job or MISSING,
            ),
            element("td", fault.text, class_="what"),
            element("td", figure_of(fault.seconds, "s", key="seconds"), class_="cost"),
            element("td", figure_of(fault.steps, key="steps"), class_="cost"),
        )
        for fault in shown
    ]
    if not rows:
        return None
    titles = (
        ("At", ""),
        ("Task", ""),
        ("What happened", ""),
        ("Cost", "the longest wait that a task tells of, or the time until the job was as far again as it had been"),
        ("Steps", "done again or lost"),
    )
    names = [element("th", name, scope="col", title=why or None) for name, why in titles]
    return _listed("faults", "Faults", names, rows, len(every) - len(shown))


def decisions(run: Recording) -> Markup | None:
    """What jobs were granted and why, line by line; of very many, the newest."""
    named = [(each, job.name, job_colour(i)[0]) for i, job in enumerate(run.jobs) for each in job.decisions]
    every = sorted(named, key=lambda each: each[0].t)
    shown = every[-_EVENTS:]
    rows = [
        element(
            "tr",
            element("td", figure_of(decision.t, text=say_moment(decision.t)), class_="when"),
            element("td", element("span", class_="swatch", style=f"--c:var(--{colour})"), name),
            element(
                "td",
                f"{say(decision.before)} → "
                if decision.before is not None and say(decision.before) != say(decision.cores)
                else None,
                figure_of(decision.cores, key="cores", name="b"),
                class_="cores",
            ),
            element("td", decision.reason, class_="what"),
        )
        for decision, name, colour in shown
    ]
    if not rows:
        return None
    names = [element("th", name, scope="col") for name in ("At", "Job", "Cores", "Why")]
    return _listed("decisions", "Decisions", names, rows, len(every) - len(shown))


def _listed(id: str, label: str, names: Sequence[Markup], rows: Sequence[Markup], left: int) -> Markup:
    """A table with a row for each thing that happened, below how many before them it leaves out."""
    table = element("table", element("thead", element("tr", names)), element("tbody", rows), id=id)
    return element(
        "div",
        element("p", f"The {left:,} before these are in the run's store.", class_="note") if left else None,
        element("div", table, class_="scroll tall", tabindex=0, role="region", aria_label=label),
    )


def events(run: Recording) -> Markup:
    """What happened, line by line; of very many, the newest."""
    if not run.events:
        return element("p", "No events were recorded.", class_="none")
    colours = {job.name: job_colour(index)[0] for index, job in enumerate(run.jobs)}
    shown = run.events[-_EVENTS:]
    rows = [
        element(
            "tr",
            element("td", figure_of(event["t"], text=say_moment(event["t"])), class_="when"),
            element(
                "td",
                element("span", class_="swatch", style=f"--c:var(--{colours[event['job']]})")
                if event["job"] in colours
                else None,
                event["job"] or MISSING,
            ),
            element("td", event["kind"] or "", class_=_kind(event["kind"])),
            element("td", event["text"] or "", class_="what"),
        )
        for event in shown
    ]
    names = [element("th", name, scope="col") for name in ("At", "Job", "Event", "")]
    return _listed("events", "Events", names, rows, len(run.events) - len(shown))


def _kind(kind: str | None) -> str:
    return "kind bad" if kind in FAULTS else "kind warning" if kind in ("warning", KIND) else "kind"


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
    folded = []
    for interpreter, packages in (found if isinstance(found, dict) else {"": found or ()}).items():
        if isinstance(packages, list) and packages:
            items = [element("li", element("code", package)) for package in packages]
            title = f"{counted(len(items), 'package')}{f' of {interpreter}' if interpreter else ''}"
            folded.append(element("details", element("summary", title), element("ul", items, class_="packages")))
    known = [
        element("div", element("dt", name), element("dd", element("code", value))) for name, value in facts if value
    ]
    return element("div", element("dl", known), folded)
