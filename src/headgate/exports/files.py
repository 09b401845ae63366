"""Tables: CSV and Parquet, a row for each point of each figure."""

from __future__ import annotations

import csv
from pathlib import Path

from headgate.exports.series import series
from headgate.recorded.recording import Recording

COLUMNS = ("run", "job", "metric", "t", "step", "value")
"""`t` is in seconds since the run began."""


def to_csv(run: Recording, to: Path) -> Path:
    """Write a CSV file.

    Raises:
        OSError: It cannot be written.
    """
    with to.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for figure in series(run):
            for point in figure.points:
                step = "" if point.step is None else point.step
                writer.writerow(
                    [run.id, figure.job, figure.name, f"{point.t:.3f}", step, repr(point.value)]
                )
    return to


def to_parquet(run: Recording, to: Path) -> Path:
    """Write a Parquet file.

    Raises:
        ImportError: pyarrow is not installed.
        OSError: It cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        (run.id, figure.job, figure.name, point.t, point.step, point.value)
        for figure in series(run)
        for point in figure.points
    ]
    types = (pa.string(), pa.string(), pa.string(), pa.float64(), pa.int64(), pa.float64())
    columns = zip(*rows, strict=True) if rows else [()] * len(COLUMNS)
    arrays = [pa.array(list(column), kind) for column, kind in zip(columns, types, strict=True)]
    pq.write_table(pa.Table.from_arrays(arrays, COLUMNS), to)
    return to
