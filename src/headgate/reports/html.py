"""`report.html`: one file a run, which needs nothing else and asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from headgate.analysis.jobs import figures
from headgate.errors import StorageError
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
from headgate.reports.markup import Markup, element, joined, script_json
from headgate.reports.recording import Recording, read
from headgate.reports.timeline import timeline


def write(store: Path, to: Path) -> Path:
    """Write the report of a run.

    Args:
        store: The run's `run.sqlite`; it may still be written.
        to: The file to write, replaced as a whole.

    Returns:
        `to`.

    Raises:
        NotFoundError: There is no such store.
        StorageError: It cannot be read, or the report cannot be written.
    """
    text = page(read(store))
    # Surrogates come from output that was not UTF-8; a page has to be.
    beside = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8", errors="replace")
        beside.replace(to)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise StorageError(f"cannot write {to}: {error.strerror}; name another file with --output") from error
    return to


def page(run: Recording) -> str:
    """The whole page."""
    jobs = [figures(job) for job in run.jobs]
    losses, shares, by_job = loss_plots(run), share_plots(run), job_plots(run)
    entitled = entitled_plot(run)
    several = [(index, job, pace_plot(run, index)) for index, job in enumerate(run.jobs) if job.distributed]
    nics = network.nic_uses(run)
    network_plots = nic_plots(run, nics)
    told = {use.node for use in nics}
    by_node = [
        (node, node_plots(run, node, index, network=node.name not in told)) for index, node in enumerate(run.nodes)
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
        overview.head(run, jobs),
        _section("Summary", overview.summary(jobs)) if jobs else None,
        _section("Timeline", timeline(run)) if jobs else None,
        _section("Faults", found) if (found := sections.faults(run)) else None,
        *(_section(f"Tasks of {job.name}", tasks.section(job, pace)) for _, job, pace in several),
        _section("Network", network.table(nics), _frames(network_plots, "plots small")) if nics else None,
        _course(entitled, losses),
        _section("Decisions", decisions) if (decisions := sections.decisions(run)) else None,
        _section("Share: granted against used", _frames(shares, "plots small")) if shares else None,
        _section("Use by job", _frames(by_job) or _none(nothing)),
        *(_section(f"Use of {node.name}", _frames(plots)) for node, plots in by_node if plots),
        _section("How a step divides", found) if (found := sections.steps(run.jobs)) else None,
        _section("Profile", found) if (found := sections.profiles(run.jobs)) else None,
        _section("Events", sections.events(run)),
        _section("Environment", sections.environment(run)),
    ]
    data = {"id": run.id, "seconds": run.seconds, "plots": payload(every)}
    return document(f"{', '.join(job.name for job in jobs) or run.id} – Headgate", joined(body), data)


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
