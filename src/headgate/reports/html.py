"""`report.html`: one file a run, which needs nothing else and asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import traceback
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import ParamSpec, TypeVar

from headgate.analysis.jobs import figures
from headgate.reports import network, overview, sections, tasks
from headgate.reports.figures import (
    Plot,
    entitled_plot,
    job_plots,
    loss_plots,
    nic_plots,
    node_plots,
    pace_plot,
    share_plots,
)
from headgate.reports.frames import frame, payload
from headgate.reports.markup import Markup, element, joined, save, script_json
from headgate.reports.recording import Recording, read
from headgate.reports.timeline import timeline
from headgate.telemetry.store import told_as_damage

T = TypeVar("T")
P = ParamSpec("P")


def write(store: Path, to: Path) -> Path:
    """Write the report of a run.

    Args:
        store: The run's `run.sqlite`; it may still be written.
        to: The file to write; see `markup.save`.

    Returns:
        `to`.

    Raises:
        NotFoundError: There is no such store.
        StorageError: It cannot be read, or the report cannot be written.
    """
    with told_as_damage(store):
        text = page(read(store))
    return save(text, to)


def page(run: Recording) -> str:
    """The whole page."""
    parts = _Parts()
    jobs = [found for job in run.jobs if (found := parts.of(f"figures of {job.name}", figures, job)) is not None]
    losses = parts.of("losses", loss_plots, run) or []
    shares = parts.of("shares", share_plots, run) or []
    by_job = parts.of("use by job", job_plots, run) or []
    entitled = parts.of("shares", entitled_plot, run)
    several = [
        (index, job, parts.of(f"pace of {job.name}", pace_plot, run, index))
        for index, job in enumerate(run.jobs)
        if job.distributed
    ]
    nics = parts.of("network", network.nic_uses, run) or []
    network_plots = parts.of("network", nic_plots, run, nics) or []
    told = {use.node for use in nics}
    by_node = [
        (node, parts.of(f"use of {node.name}", node_plots, run, node, index, node.name not in told) or [])
        for index, node in enumerate(run.nodes)
    ]
    every = [
        *([entitled] if entitled is not None else ()),
        *losses,
        *shares,
        *by_job,
        *(pace for _, _, pace in several if pace is not None),
        *network_plots,
        *(plot for _, plots in by_node for plot in plots),
    ]
    nothing = "Nothing was recorded."
    body = [
        parts.of("heading", overview.head, run, jobs),
        parts.section("Summary", overview.summary, jobs) if jobs else None,
        parts.section("Timeline", timeline, run) if jobs else None,
        parts.section("Faults", sections.faults, run),
        *(parts.section(f"Tasks of {job.name}", tasks.section, job, pace) for _, job, pace in several),
        _section("Network", network.table(nics), _frames(network_plots, "plots small")) if nics else None,
        _course(entitled, losses),
        parts.section("Decisions", sections.decisions, run),
        _section("Share: granted against used", _frames(shares, "plots small")) if shares else None,
        _section("Use by job", _frames(by_job) or _none(nothing)),
        *(_section(f"Use of {node.name}", _frames(plots)) for node, plots in by_node if plots),
        parts.section("How a step divides", sections.steps, run.jobs),
        parts.section("Profile", sections.profiles, run.jobs),
        parts.section("Events", sections.events, run),
        parts.section("Environment", sections.environment, run),
    ]
    plots = parts.of("plots", payload, every) or []
    if parts.broken:
        body.insert(1, _section("What could not be drawn", [_none(text) for text in parts.broken]))
    data = {"id": run.id, "seconds": run.seconds, "plots": plots}
    return document(f"{', '.join(job.name for job in jobs) or run.id} – Headgate", joined(body), data)


class _Parts:
    """Makes the parts of a page. One that cannot be made, for odd numbers that were recorded, costs only itself."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        """What could not be made, and why."""

    def of(self, what: str, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """What `make` returns; None where it raises."""
        try:
            return make(*args, **kwargs)
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            self.broken.append(f"{what}: {error!r:.300}")
            return None

    def section(self, title: str, make: Callable[P, Markup | None], *args: P.args, **kwargs: P.kwargs) -> Markup | None:
        """A section of what `make` returns; None where that is nothing."""
        found = self.of(title, make, *args, **kwargs)
        return _section(title, found) if found else None


def _section(title: str, *children: object) -> Markup:
    return element("section", element("h2", title), children)


def _course(entitled: Plot | None, losses: Sequence[Plot]) -> Markup:
    """Shares above the losses that they follow, on one axis of time, and the other plots of losses below."""
    nothing = None if losses else _none("No job reported a loss.")
    if entitled is None:
        return _section("Loss", _frames(losses), nothing)
    return _section("Shares and losses", _frames([entitled, *losses[:1]], "stack"), _frames(losses[1:]), nothing)


def _none(text: str) -> Markup:
    return element("p", text, class_="none")


def _frames(plots: Sequence[Plot], kind: str = "plots") -> Markup | None:
    return element("div", [frame(plot) for plot in plots], class_=kind) if plots else None


def _asset(name: str) -> Markup:
    return Markup(resources.files("headgate.reports").joinpath("assets", name).read_text(encoding="utf-8"))


def document(title: str, body: Markup, data: object) -> str:
    """A page that needs nothing else, whose script draws the plots of `data`."""
    scripts = [_asset("uplot.min.js"), _asset("report.js")]
    licence = "\n".join(("uPlot, inlined below:", _asset("uplot.LICENSE")))
    # Only these two scripts may run, and nothing may be fetched: whatever a job printed stays text.
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:"
    whole = element(
        "html",
        element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=policy),
            element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name_="color-scheme", content="light dark"),
            element("title", title),
            element("style", _asset("uplot.min.css"), _asset("report.css")),
        ),
        element(
            "body",
            element("main", body),
            element("script", script_json(data), type="application/json", id="data"),
            Markup(f"<!--\n{licence}-->"),
            [element("script", script) for script in scripts],
        ),
        lang="en",
    )
    return f"<!doctype html>\n{whole}\n"
