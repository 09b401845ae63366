"""`report.html`: one self-contained file for each run, without network requests."""

from __future__ import annotations

import base64
import hashlib
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import ParamSpec, TypeVar

from headgate.diagnosis.account import Account
from headgate.diagnosis.job_figures import figures
from headgate.model.job_states import FAULTS
from headgate.recorded.jobs import RecordedJob
from headgate.recorded.reader import told_as_damage
from headgate.recorded.recording import Recording, read
from headgate.reports import results, run_verdicts, sections, sharing, timeline
from headgate.reports.explained import explained
from headgate.reports.figures import (
    Plot,
    entitled_plot,
    job_plots,
    loss_plots,
    nic_plots,
    nic_uses,
    node_plots,
    share_plots,
    throughput_plot,
)
from headgate.reports.frames import frames, payload
from headgate.reports.saving import save
from headgate.reports.templates import Markup, render, script_json

MOST_JOBS = 50
"""Most jobs that a page shows individually: plots of more lines are unreadable, and pages of
thousands open slowly.
"""
_LEFT_OUT = (
    "{} jobs are shown: those that failed, and those that took the most CPU time. {} more are in "
    "the run's store; `headgate explain` and `headgate status --json` tell of all."
)
T = TypeVar("T")
P = ParamSpec("P")

Section = tuple[str, Sequence[Markup | None]]
"""Title and parts."""


def write(store: Path, to: Path) -> Path:
    """Write the report of a run.

    Args:
        store: The run's `run.sqlite`; it may still be written.
        to: The file to write; see `saving.save`.

    Returns:
        `to`.

    Raises:
        NotFoundError: There is no such store.
        StorageError: It cannot be read, or the report cannot be written.
    """
    with told_as_damage(store):
        text = page(read(store))
    return save(text, to)


def write_at_end(store: Path, to: Path) -> None:
    """Write the report of an ended run, and store its verdicts for `headgate status`.

    Raises:
        NotFoundError, StorageError: As of `write`.
    """
    with told_as_damage(store):
        run, accounts = read(store), list[Account]()

        def explain(run: Recording) -> list[Account]:
            accounts[:] = explained(run)
            return accounts

        save(page(run, explain), to)
        if accounts:
            with suppress(OSError):  # otherwise it is computed at each look
                run_verdicts.keep(run, accounts)


def page(run: Recording, explain: Callable[[Recording], list[Account]] = explained) -> str:
    """The whole page; `explain` makes the accounts of a run's jobs."""
    content = contents(run, explain)
    return document(f"{content.title} – Headgate", content.body, content.data)


@dataclass(frozen=True, slots=True)
class Contents:
    """What a page of a run shows.

    Args:
        title: The names of its jobs.
        body: The sections.
        data: What `report.js` draws in them.
    """

    title: str
    body: Markup
    data: Mapping[str, object]


def contents(run: Recording, explain: Callable[[Recording], list[Account]] = explained) -> Contents:
    """The sections of a run's page; `explain` makes the accounts of its jobs."""
    parts = _Parts()
    heading = parts.of("heading", sections.heading, run, [figures(job) for job in run.jobs])
    story = parts.section("What happened", sections.story, run, [figures(job) for job in run.jobs])
    few = shown_jobs(run)
    left_out = len(run.jobs) - len(few)
    names = frozenset(job.name for job in few)
    only = replace(run, whole=names) if left_out else run
    accounts = parts.of("accounts", explain, only) or []
    if left_out:
        run = replace(
            run, jobs=few, events=[event for event in run.events if event.job in (None, *names)]
        )
    jobs = [
        markup
        for job in run.jobs
        if (markup := parts.of(f"figures of {job.name}", figures, job)) is not None
    ]
    losses = parts.of("losses", loss_plots, run) or []
    shares = parts.of("shares", share_plots, run) or []
    by_job = parts.of("use by job", job_plots, run) or []
    entitled = parts.of("shares", entitled_plot, run)
    several = [
        (index, job, parts.of(f"throughput of {job.name}", throughput_plot, run, index))
        for index, job in enumerate(run.jobs)
        if job.distributed
    ]
    nics = parts.of("network", nic_uses, run) or []
    network_plots = parts.of("network", nic_plots, run, nics) or []
    nodes = {use.node for use in nics}
    by_node = [
        (
            node,
            parts.of(f"use of {node.name}", node_plots, run, node, index, node.name not in nodes)
            or [],
        )
        for index, node in enumerate(run.nodes)
    ]
    every = [
        *([entitled] if entitled is not None else ()),
        *losses,
        *shares,
        *by_job,
        *(throughput for _, _, throughput in several if throughput is not None),
        *network_plots,
        *(plot for _, plots in by_node for plot in plots),
    ]
    titled = [
        ("Jobs that are left out", [_none(_LEFT_OUT.format(len(few), left_out))])
        if left_out
        else None,
        parts.section("What held each job back", sections.verdicts, run, accounts),
        parts.section("Results of sweeps", results.section, run.results),
        story,
        parts.section("Summary", sections.summary, run, jobs, accounts) if jobs else None,
        parts.section("Where the time went", sections.accounts, run.jobs, accounts),
        parts.section("How jobs shared the machines", sharing.section, run),
        parts.section("Timeline", timeline.timeline, run) if jobs else None,
        parts.section("Faults", sections.faults, run),
        *(
            parts.section(f"Tasks of {job.name}", sections.tasks, job, throughput)
            for _, job, throughput in several
        ),
        ("Network", [sections.network(nics), frames(network_plots, "plots small")])
        if nics
        else None,
        _course(entitled, losses),
        parts.section("Decisions", sections.decisions, run),
        ("Share: granted against used", [frames(shares, "plots small")]) if shares else None,
        ("Use by job", [frames(by_job) or _none("Nothing was recorded.")]),
        *((f"Use of {node.name}", [frames(plots)]) for node, plots in by_node if plots),
        parts.section("How a step divides", sections.steps, run.jobs),
        parts.section("Profile", sections.profiles, run.jobs),
        parts.section("Events", sections.events, run),
        parts.section("Environment", sections.environment, run),
    ]
    plots = parts.of("plots", payload, every) or []
    shown = [section for section in titled if section is not None]
    body = render(
        "report.html", heading=heading, broken=parts.broken, sections=shown, anchor=_anchor
    )
    data = {"id": run.id, "seconds": run.seconds, "plots": plots}
    return Contents(", ".join(job.name for job in jobs) or run.id, body, data)


def shown_jobs(run: Recording) -> tuple[RecordedJob, ...]:
    """Jobs shown on a page, in the order of submission. Among very many: failed jobs, then those
    with most CPU time.
    """
    if len(run.jobs) <= MOST_JOBS:
        return run.jobs
    ranked = sorted(run.jobs, key=lambda job: (job.state not in FAULTS, -(job.cpu_seconds or 0.0)))
    names = {job.name for job in ranked[:MOST_JOBS]}
    return tuple(job for job in run.jobs if job.name in names)


class _Parts:
    """Makes the parts of a page. If odd values in the record make one part fail, the others are
    still shown.
    """

    def __init__(self) -> None:
        self.broken: list[str] = []
        """Parts that failed, and why."""

    def of(self, what: str, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """The result of `make`; None: it raised."""
        try:
            return make(*args, **kwargs)
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            self.broken.append(f"{what}: {error!r:.300}")
            return None

    def section(
        self, title: str, make: Callable[P, Markup | None], *args: P.args, **kwargs: P.kwargs
    ) -> Section | None:
        """A section with the result of `make`; None: it has none."""
        markup = self.of(title, make, *args, **kwargs)
        return (title, [markup]) if markup else None


def _course(entitled: Plot | None, losses: Sequence[Plot]) -> Section:
    """Shares above the losses on a common time axis, and the other loss plots below."""
    nothing = None if losses else _none("No job reported a loss.")
    if entitled is None:
        return "Loss", [frames(losses), nothing]
    return "Shares and losses", [
        frames([entitled, *losses[:1]], "stack"),
        frames(losses[1:]),
        nothing,
    ]


def _anchor(title: str) -> str:
    """The end of a link to that section."""
    return "-".join(["section", *re.findall(r"\w+", title.lower())])


def _none(text: str) -> Markup:
    return Markup('<p class="none">{}</p>').format(text)


def _asset(name: str) -> Markup:
    return Markup(
        resources.files("headgate.reports").joinpath("assets", name).read_text(encoding="utf-8")
    )


def document(title: str, body: Markup, data: object) -> str:
    """A self-contained page whose script draws the plots of `data`."""
    scripts = [_asset("uplot.min.js"), _asset("report.js")]
    # Only these two scripts may run, and nothing may be fetched: job output remains text.
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'"
        for s in scripts
    )
    return render(
        "page.html",
        title=title,
        policy=f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:",
        styles=_asset("uplot.min.css") + _asset("report.css"),
        body=body,
        data=script_json(data),
        licence=Markup("\nuPlot, inlined below:\n") + _asset("uplot.LICENSE"),
        scripts=scripts,
    )
