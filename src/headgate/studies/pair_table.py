"""Add the mutual slowdowns of a study's workloads to the table for placement and simulations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headgate.model.errors import StorageError
from headgate.model.paths import write_whole
from headgate.planning.interference import ALONE, SOLO, read_pairs
from headgate.studies.cell_sharing import CellSharing
from headgate.studies.cells import StudyCell
from headgate.studies.findings import Findings

_DEVICE = ""
"""Device: cores of any node."""


def keep(findings: Findings, path: Path) -> int:
    """Add the pairs of a study to a table: those with the first value of each axis and without
    mitigation. Rows of the same names are replaced. Returns the number of pairs.

    Raises:
        UsageError: The file has another content.
        StorageError: It cannot be written.
    """
    first = {axis: values[0] for axis, values in findings.about["axes"].items()}
    pairs = [
        shared
        for shared in findings.sharing
        if len(shared.phi) == 2
        and shared.mitigation is None
        and all(first[axis] == value for axis, value in shared.without)
    ]
    if not pairs:
        return 0
    table: dict[str, dict[str, dict[str, Any]]] = {}
    if path.exists():
        read_pairs(path)
        table = json.loads(path.read_text())
    rows = table.setdefault(_DEVICE, {})
    cells = {
        (cell.scenario, cell.workloads, cell.values): cell
        for cell in findings.cells
        if not cell.is_repeat
    }
    for pair in pairs:
        for job in pair.phi:
            _alone(rows.setdefault(job, {ALONE: 1.0}), job, pair, cells)
    for pair in pairs:
        (job, kept), (other, others) = (
            (name, phi.value * rows[name][ALONE]) for name, phi in pair.phi.items()
        )
        rows[job][other], rows[other][job] = [kept, others], [others, kept]
    try:
        write_whole(path, json.dumps(table, indent=1) + "\n")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    return len(pairs)


def _alone(
    row: dict[str, Any], job: str, pair: CellSharing, cells: Mapping[Any, StudyCell]
) -> None:
    """Store a job's rate alone on half of the cores, and its solo figures. Earlier measurements are
    scaled to that rate.
    """
    half, on_all_cores = (cells[scenario, (job,), pair.without] for scenario in ("slice", "solo"))
    steps, all_steps = (_mean(cell.seconds(job, "step").values()) for cell in (half, on_all_cores))
    scale = 1.0 / steps / row[ALONE]
    for other, (own, others_rate) in ((k, v) for k, v in row.items() if k not in (ALONE, SOLO)):
        row[other] = [own * scale, others_rate]
    row[ALONE] = 1.0 / steps
    cpu, step = (
        on_all_cores.mean(job, "cpu_seconds_per_step"),
        on_all_cores.mean(job, "step_seconds"),
    )
    figures = {
        "gain_of_all_cores": steps / all_steps,
        "cpu_seconds_per_step": cpu,
        "cores": cpu / step if cpu is not None and step else None,
        "memory_bytes": on_all_cores.mean(job, "memory_peak_bytes"),
        "disk_bytes_per_second": _of_nodes(on_all_cores, "disk_read", "disk_write"),
        "network_bytes_per_second": _of_nodes(on_all_cores, "net_in", "net_out"),
    }
    row[SOLO] = {name: value for name, value in figures.items() if value is not None}


def _mean(values: Any) -> float:
    known = list(values)
    return float(sum(known) / len(known))


def _of_nodes(cell: StudyCell, *columns: str) -> float | None:
    """The mean over all nodes while a job was alone; None: unknown."""
    totals = []
    for figures in cell.figures.values():
        nodes = figures["nodes"].values()
        totals.append(sum(node[column][0] or 0.0 for node in nodes for column in columns))
    return _mean(totals) if totals else None
