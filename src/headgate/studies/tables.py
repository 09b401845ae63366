"""The tables of a study, in the style of published ones: cells, axes, sharing, workers,
bottlenecks, and nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.reports.explained import SPEED_COLUMNS, say_times
from headgate.reports.words import MISSING, say, say_loss, say_step_time
from headgate.studies.cells import StudyCell
from headgate.studies.findings import Effect, Findings
from headgate.studies.published import comparisons
from headgate.studies.statistics import say_ratio
from headgate.studies.words import cause_in_words

_MORE_FIGURES = ("Moved a step", "Peak memory", "Loss")
_USES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "cores": (("cpu_cores",), "cores"),
    "network": (("net_in", "net_out"), "nic"),
    "disk": (("disk_read", "disk_write"), "disk"),
}
"""Columns of a node that use a resource, and the node's amount of it."""
_GIVES = {"cores": "cores", "nic": "network", "disk": "disk"}
"""Axes, with the resource whose amount they change."""


@dataclass(frozen=True, slots=True)
class StudyTable:
    """A table as text: names of columns, and rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(study: Findings) -> list[StudyTable]:
    """All non-empty tables of a study."""
    all_tables = [_published(study), _cells(study), *_axes(study), _sharing(study), _workers(study)]
    all_tables += [_bottlenecks(study), _cluster(study)]
    return [table for table in all_tables if table.rows]


def _published(study: Findings) -> StudyTable:
    columns = (
        "Published",
        "Measured there",
        "Compared here",
        "Holds for",
        "Here",
        "Holds?",
        "Why not",
    )
    return StudyTable(
        "Published figures, and those of this study",
        columns,
        tuple(e.row for e in comparisons(study)),
    )


def _cells(study: Findings) -> StudyTable:
    rows = []
    for cell in study.cells:
        for job in cell.workloads:
            name = cell.name if len(cell.workloads) == 1 else f"{cell.name}: {job}"
            rows.append((name, *_figures(cell, job)))
    columns = (
        "Cell",
        "Runs",
        "Throughput",
        "Step",
        "CPU a step",
        *_MORE_FIGURES,
        "Start-up",
        "Elapsed",
    )
    return StudyTable("Cells, means", columns, tuple(rows))


def _figures(cell: StudyCell, job: str) -> tuple[str, ...]:
    if not cell.figures:
        return (cell.state, *(MISSING,) * (5 + len(_MORE_FIGURES)))
    step, cpu = (cell.mean(job, name) for name in ("step_seconds", "cpu_seconds_per_step"))
    return (
        str(len(cell.figures)),
        _rate(cell, job),
        *(say_step_time(measured) if measured is not None else MISSING for measured in (step, cpu)),
        say(_over_workers(cell, job, "sent"), "B"),
        say(cell.mean(job, "memory_peak_bytes"), "B"),
        say_loss(cell.mean(job, "loss")),
        say(cell.mean(job, "startup"), "s"),
        say(cell.mean(job, "elapsed"), "s"),
    )


def _over_workers(cell: StudyCell, job: str, what: str) -> float | None:
    """The mean over blocks of a figure summed over a job's workers; None: unknown for a worker."""
    totals = []
    for figures in cell.figures.values():
        values = [worker[what] for worker in figures["jobs"][job].get("workers", {}).values()]
        if values and None not in values:
            totals.append(sum(values))
    return sum(totals) / len(totals) if totals else None


def _workers(study: Findings) -> StudyTable:
    """For jobs of several workers: time and traffic of a step, relative to the model and its part
    that a batch uses.
    """
    rows = []
    for cell, job, named in _measured(study):
        job_figures = [figures["jobs"][job] for figures in cell.figures.values()]
        names = list(job_figures[0].get("workers", {}))
        for name in names if len(names) > 1 else ():
            worker_figures = [
                figures["workers"][name] for figures in job_figures if name in figures["workers"]
            ]
            seconds, come, gone = (
                _known([of_worker[figure_name] for of_worker in worker_figures])
                for figure_name in ("step_seconds", "received", "sent")
            )
            first = name == names[0]
            model, used = (
                cell.mean(job, figure_name) if first else None
                for figure_name in ("model_bytes", "touched_bytes")
            )
            rate = _steps_a_second(cell, job) if first else None
            rows.append(
                (
                    f"{named}: {name}",
                    say_step_time(seconds) if seconds is not None else MISSING,
                    say(come, "B"),
                    say(gone, "B"),
                    say(model, "B") if first else "",
                    say(used, "B") if first else "",
                    say(rate) if rate else "",
                )
            )
    columns = (
        "Worker",
        "Its step",
        "Received",
        "Sent",
        "Model",
        "Used by a batch",
        "Steps/s in all",
    )
    return StudyTable("Workers: a step of each, and bytes of a step", columns, tuple(rows))


def _steps_a_second(cell: StudyCell, job: str) -> float | None:
    """Steps a second of all workers. Asynchronous workers make their own steps, each on a whole
    batch.
    """
    batch, seconds = cell.mean(job, "batch"), cell.mean(job, "step_seconds")
    if batch and cell.units(job) == {"samples"}:
        return (cell.mean(job, "rate") or 0.0) / batch
    return 1.0 / seconds if seconds else None


def _known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _measured(study: Findings) -> Iterator[tuple[StudyCell, str, str]]:
    """Cells with figures, without repeats; each of their jobs, and its display name."""
    for cell in study.cells:
        if not cell.is_repeat and cell.figures:
            for job in cell.workloads:
                yield cell, job, f"{cell.name}: {job}" if len(cell.workloads) > 1 else cell.name


def _axes(study: Findings) -> Iterator[StudyTable]:
    """For each axis and scenario: values as rows, workloads as columns; throughput, and time
    relative to the first value.
    """
    axes: Mapping[str, Sequence[str]] = study.about["axes"]
    for axis, values in axes.items():
        if len(values) < 2:
            continue
        cells = [
            c
            for c in study.cells
            if not c.is_repeat and c.scenario != "slice" and axis in dict(c.values)
        ]
        for scenario in dict.fromkeys(cell.scenario for cell in cells):
            cells_of_scenario = [cell for cell in cells if cell.scenario == scenario]
            heads = dict.fromkeys(
                (job, _rest(cell, axis)) for cell in cells_of_scenario for job in cell.workloads
            )
            values_with_cells = [
                value
                for value in values
                if any((axis, value) in cell.values for cell in cells_of_scenario)
            ]
            rows = []
            for value in values_with_cells if len(values_with_cells) > 1 else ():
                row = [value]
                for job, settings in heads:
                    job_cells = [
                        c
                        for c in cells_of_scenario
                        if job in c.workloads and _rest(c, axis) == settings
                    ]
                    cell = next((c for c in job_cells if (axis, value) in c.values), None)
                    known = (
                        (*_throughput(cell, job), *_relative(study.effects, cell, job, axis))
                        if cell
                        else ()
                    )
                    row += known or [MISSING] * 4
                rows.append(tuple(row))
            columns = [axis]
            for job, settings in heads:
                named = ", ".join([job, *(f"{name} {value}" for name, value in settings)])
                columns += [f"{named}: rate", "elapsed", "step, ratio", "elapsed, ratio"]
            yield StudyTable(
                f"{axis}, {scenario}; times against {values[0]}", tuple(columns), tuple(rows)
            )


def _rest(cell: StudyCell, axis: str) -> tuple[tuple[str, str], ...]:
    return tuple(setting for setting in cell.values if setting[0] != axis)


def _throughput(cell: StudyCell, job: str) -> tuple[str, str]:
    if not cell.figures:
        return cell.state, MISSING
    return _rate(cell, job), say(cell.mean(job, "elapsed"), "s")


def _rate(cell: StudyCell, job: str) -> str:
    """The rate of a job; without samples, its steps."""
    return f"{say(cell.mean(job, 'rate'))} {' or '.join(sorted(cell.units(job)))}/s"


def _relative(effects: Iterable[Effect], cell: StudyCell, job: str, axis: str) -> tuple[str, str]:
    own_effects = [
        e
        for e in effects
        if (e.job, e.scenario, e.what, e.rest) == (job, cell.scenario, axis, _rest(cell, axis))
    ]
    ratios = {
        effect.metric: say_ratio(effect.ratio)
        for effect in own_effects
        if (axis, effect.value) in cell.values
    }
    return ratios.get("step", MISSING), ratios.get("elapsed", MISSING)


def _sharing(study: Findings) -> StudyTable:
    rows: list[tuple[str, ...]] = []
    for shared in study.sharing:
        named = ", ".join(
            [" + ".join(shared.phi), *(f"{axis} {value}" for axis, value in shared.values)]
        )
        for place, (job, phi) in enumerate(shared.phi.items()):
            both = (
                (say_ratio(shared.total), say_ratio(shared.dominance)) if place == 0 else ("", "")
            )
            cause = cause_in_words(shared.cause) or MISSING
            rows.append((named, job, say_ratio(phi), *both, shared.verdicts[job], cause))
    columns = ("At once", "Job", "φ", "S", "D", "Verdict", "By")
    return StudyTable(
        "Sharing: φ together over its part alone, S together over alone, D largest φ over smallest",
        columns,
        tuple(rows),
    )


def _bottlenecks(study: Findings) -> StudyTable:
    """Use of each resource on its busiest node, the predicted gain from more of it by the last
    run's account, and the actual gain if the study gave more.
    """
    rows = []
    for cell, job, named in _measured(study):
        verdicts = sorted({figure["jobs"][job]["verdict"] for figure in cell.figures.values()})
        more = cell.figures[max(cell.figures)]["jobs"][job]["more"]
        for resource, bought in (more or {"": {}}).items():
            speeds = [
                say_times(bought_part["speedup"]) if bought_part is not None else MISSING
                for bought_part in bought.values()
            ]
            busy = [say(busy_text, "%") for busy_text in _busy(cell, job, resource)]
            changed = [effect for effect in study.effects if _changes(effect, cell, job, resource)]
            really = "; ".join(
                f"{change_text.what} {change_text.value}: {1 / change_text.ratio.value:.2f}"
                for change_text in changed
            )
            cells = speeds or [MISSING] * len(SPEED_COLUMNS)
            rows.append(
                (
                    named,
                    " or ".join(verdicts),
                    resource.replace("+", " + "),
                    *busy,
                    *cells,
                    really or MISSING,
                )
            )
    columns = ("Cell", "Verdict", "Resource", "Busy, mean", "Most", *SPEED_COLUMNS, "As measured")
    return StudyTable(
        "Bottleneck: speed with more of a resource, as predicted and as measured",
        columns,
        tuple(rows),
    )


def _changes(effect: Effect, cell: StudyCell, job: str, resource: str) -> bool:
    """Whether an effect changes the amount of a resource from a cell's."""
    if (
        effect.metric != "step"
        or _GIVES.get(effect.what) != resource
        or (effect.job, effect.scenario)
        != (
            job,
            cell.scenario,
        )
    ):
        return False
    return (effect.what, effect.base) in cell.values and _rest(cell, effect.what) == effect.rest


def _busy(cell: StudyCell, job: str, resource: str) -> tuple[float | None, float | None]:
    """Mean and highest used fraction of a resource on the node that used most of it."""
    used, capacity = _USES.get(resource, ((), ""))
    columns = []
    for figures in cell.figures.values():
        node_figures = figures["jobs"][job].get("nodes") or figures["nodes"]
        for node in (
            figures_of_node
            for name, figures_of_node in figures["nodes"].items()
            if name in node_figures
        ):
            columns += [
                tuple(part / node[capacity] for part in node[column])
                for column in used
                if node.get(capacity) and None not in node.get(column, [None])
            ]
    return max(columns, default=(None, None))


def _cluster(study: Findings) -> StudyTable:
    """Use of each node in the warm windows of each cell, as means and maxima; evaluations
    separately.
    """
    rows = []
    for cell in study.cells:
        if cell.is_repeat or not cell.figures:
            continue
        for window, when in (("nodes", ""), ("nodes_testing", ", testing")):
            windows = [figures[window] for figures in cell.figures.values() if figures.get(window)]
            rows += [
                (
                    f"{cell.name} on {node}{when}",
                    *_node(
                        [window_nodes[node] for window_nodes in windows if node in window_nodes]
                    ),
                )
                for node in (windows[0] if windows else ())
                if any(
                    window_nodes[node]["idle"][0] is not None
                    for window_nodes in windows
                    if node in window_nodes
                )
            ]
    columns = (
        "Node",
        "CPU idle",
        "Fullest core",
        "Memory",
        "Network in",
        "Network out",
        "Disk read",
        "Disk written",
    )
    return StudyTable("Use of nodes while all were warm: mean, most", columns, tuple(rows))


def _node(node_rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    idle, fullest, memory, received, sent, read, written = (
        _both([node_row[name] for node_row in node_rows])
        for name in (
            "idle",
            "cpu_fullest_core",
            "memory_bytes",
            "net_in",
            "net_out",
            "disk_read",
            "disk_write",
        )
    )
    free = (
        node_rows[0]["memory"] - memory[1]
        if node_rows[0]["memory"] and memory[1] is not None
        else None
    )
    return (
        say(idle[0], "%"),
        say(fullest[1], "%"),
        f"{say(memory[1], 'B')}, {say(free, 'B')} free",
        *(
            f"{say(mean, 'B/s')}, {say(most, 'B/s')}"
            for mean, most in (received, sent, read, written)
        ),
    )


def _both(rows: Sequence[Sequence[float | None]]) -> tuple[float | None, float | None]:
    means = [float(row_values[0]) for row_values in rows if row_values[0] is not None]
    most = [float(row_values[1]) for row_values in rows if row_values[1] is not None]
    return (sum(means) / len(means) if means else None), max(most, default=None)
