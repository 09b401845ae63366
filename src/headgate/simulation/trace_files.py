"""Read traces from files: the CSV of a cluster, or a run of Headgate."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from headgate.model.errors import InvalidFileError, Problem, UsageError
from headgate.model.paths import opened
from headgate.simulation import recorded
from headgate.simulation.traces import Trace, TraceJob, made


def read(path: Path) -> Trace:
    """Read a trace from a CSV, a run's folder or a `run.sqlite`. Invalid lines are left out and
    mentioned in its notes.

    Raises:
        UsageError: The file cannot be read, or has no job.
        InvalidFileError: A column is missing, or at least half of the lines are invalid; the error
            lists the first of them.
    """
    if path.is_dir() or path.suffix == ".sqlite":
        return recorded.read(path)
    try:
        with opened(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            return made(path.stem, *_jobs(str(path), csv.reader(file)))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


# --- CSV ------------------------------------------------------------------------------------------

# Column names in the traces of ElasticFlow, Tiresias, Philly, Helios and Alibaba, and their names
# in Headgate.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "name": ("job_id", "jobid", "job", "name", "id"),
    "submitted": (
        *(
            "submission_time",
            "submit_time",
            "submitted_time",
            "submitted",
            "arrival_time",
            "at",
            "creation_time",
        ),
    ),
    "seconds": ("duration", "run_time", "runtime", "seconds"),
    "started": ("start_time", "started", "scheduled_time"),
    "ended": ("end_time", "ended", "finish_time", "deletion_time"),
    "gpus": ("num_gpu", "num_gpus", "gpu_num", "gpus", "gpu"),
    "cores": ("cpu_num", "num_cpu", "num_cpus", "cores", "cpus"),
    "millicores": ("cpu_milli",),
    "workers": ("workers", "num_workers"),
    "model": ("model_name", "model"),
    "profile": ("profile",),
    "priority": ("priority",),
    "user": ("user", "user_id", "username", "vc"),
}
_PROBLEMS = 10
_MOST_WORKERS = 1000


class _Wrong(ValueError):
    """What was found, and the cure."""

    def __init__(self, column: str, text: str, cure: str) -> None:
        super().__init__(text)
        self.column, self.found, self.cure = column, text, cure


def _jobs(path: str, rows: Iterator[list[str]]) -> tuple[list[TraceJob], list[str]]:
    """The jobs of the lines, and notes on ignored data."""
    try:
        header = next(rows, None)
    except csv.Error:
        header = ["\ufffd"]
    if header is None or not any(cell.strip() for cell in header):
        raise UsageError(
            f"{path} is empty; expected a line with the names of the columns, and one for each job"
        )
    if any("\ufffd" in cell or "\0" in cell for cell in header):
        raise UsageError(f"{path} is no CSV file; expected a trace, or a run's folder")
    columns = _columns(path, [cell.strip().lower() for cell in header])
    lines: dict[str, int] = {}
    jobs, wrong, count = [], list[Problem](), 0
    for number, row in _rows(rows):
        if row is not None and not any(cell.strip() for cell in row):
            continue
        count += 1
        try:
            job = _job(_cells(header, columns, row), number)
            if job is not None and job.name in lines:
                raise _Wrong(
                    "name",
                    f"found {job.name!r}, as on line {lines[job.name]}",
                    "give each job its own",
                )
        except _Wrong as error:
            column_name = (
                header[columns[error.column]].strip() if error.column in columns else error.column
            )
            wrong.append(Problem(column_name, number, error.found, error.cure))
            continue
        if job is not None:
            lines[job.name] = number
            jobs.append(job)
    if wrong and 2 * len(wrong) >= count:
        more = Problem(
            "lines",
            None,
            f"{len(wrong)} of {count} make no sense",
            "expected less than half of them",
        )
        raise InvalidFileError(
            path, [*wrong[:_PROBLEMS], *([more] if len(wrong) > _PROBLEMS else [])]
        )
    if not jobs:
        raise UsageError(
            f"{path} has no jobs; expected a line for each below that with the names of the columns"
        )
    return jobs, [*_left_out(wrong, count), *_unused(header, columns)]


def _rows(rows: Iterator[list[str]]) -> Iterator[tuple[int, list[str] | None]]:
    """The lines by number, from the second on; None: not CSV."""
    number = 1
    while True:
        number += 1
        try:
            yield number, next(rows)
        except StopIteration:
            return
        except csv.Error:
            yield number, None


def _cells(
    header: Sequence[str], columns: Mapping[str, int], row: list[str] | None
) -> dict[str, str]:
    """The used cells of a line."""
    if row is None:
        raise _Wrong("line", "it is no CSV", "expected cells with commas between")
    if any(cell.strip() for cell in row[len(header) :]):
        complaint = f"found {len(row)} cells"
        raise _Wrong(
            "line",
            complaint,
            f"expected {len(header)}, as the line with the names of the columns has",
        )
    return {column: row[i].strip() if i < len(row) else "" for column, i in columns.items()}


def _left_out(wrong: Sequence[Problem], count: int) -> Iterator[str]:
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        yield f"{len(wrong)} of {count} lines make no sense and are left out: {wrong[0]}{more}"


def _unused(header: Sequence[str], columns: Mapping[str, int]) -> Iterator[str]:
    """Notes on ignored columns, and the consequences if they change what jobs request."""
    used = set(columns.values())
    unused = [cell.strip() for i, cell in enumerate(header) if i not in used and cell.strip()]
    if unused:
        yield f"columns that count for nothing: {', '.join(unused)}"
    if "gpu_milli" in (name.lower() for name in unused):
        yield "a job that asks for a part of a GPU (gpu_milli) is taken to ask for a whole one"


def _columns(path: str, header: list[str]) -> dict[str, int]:
    columns = {
        column: header.index(name)
        for column, names in _NAMES.items()
        for name in reversed(names)
        if name in header
    }
    missing = [_NAMES["submitted"][0]] if "submitted" not in columns else []
    if "seconds" not in columns and not {"started", "ended"} <= columns.keys():
        missing.append(f"{_NAMES['seconds'][0]} (or start_time and end_time)")
    if not {"gpus", "cores", "millicores"} & columns.keys():
        missing.append("num_gpu (or cores)")
    if missing:
        complaint = f"found the columns {', '.join(header)}"
        raise InvalidFileError(path, [Problem(name, 1, complaint, "add it") for name in missing])
    return columns


def _job(cells: Mapping[str, str], number: int) -> TraceJob | None:
    """The job of a line; None: it never ran."""
    submitted = _value(cells, "submitted", _moment, "a time: seconds, or 2017-10-03 08:15:00")
    gpus = _value(cells, "gpus", _whole, "0 or more GPUs", default=0)
    cores = _value(cells, "cores", _number, "0 or more cores", default=1.0)
    if "millicores" in cells and "cores" not in cells:
        cores = (
            _value(cells, "millicores", _number, "0 or more thousandths of a core", default=1000.0)
            / 1000
        )
    if "seconds" in cells:
        seconds = _value(cells, "seconds", _number, "0 or more seconds")
    elif cells["started"] in _NOTHING or cells["ended"] in _NOTHING:
        return None
    else:
        seconds = _value(cells, "ended", _moment, "a time") - _value(
            cells, "started", _moment, "a time"
        )
        if seconds < 0:
            raise _Wrong(
                "ended", f"found {cells['ended']!r}, before its start", "expected a later time"
            )
    if seconds == 0:
        return None
    if not gpus and not cores:
        raise _Wrong("gpus", "found neither GPUs nor cores", "expected at least 1 of one of them")
    return TraceJob(
        name=cells.get("name") or f"line-{number}",
        submitted=submitted,
        seconds=seconds,
        gpus=int(gpus),
        cores=cores or 1.0,
        workers=int(_value(cells, "workers", _some, f"1 to {_MOST_WORKERS} workers", default=1)),
        model=cells.get("model", ""),
        profile=cells.get("profile", ""),
        priority=_value(cells, "priority", _positive, "a positive number", default=1.0),
        user=cells.get("user", ""),
    )


_NOTHING = ("", "None", "null", "nan", "NaN")


def _value(
    cells: Mapping[str, str],
    what: str,
    convert: Callable[[str], float],
    expected: str,
    *,
    default: float | None = None,
) -> float:
    text = cells.get(what, "")
    if text in _NOTHING and default is not None:
        return default
    try:
        return convert(text)
    except ValueError:
        raise _Wrong(
            what, f"found {text!r}" if text else "it is empty", f"expected {expected}"
        ) from None


def _number(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError
    return value


def _whole(text: str) -> float:
    value = _number(text)
    if value != int(value):
        raise ValueError
    return value


def _some(text: str) -> float:
    value = _whole(text)
    if not 0 < value <= _MOST_WORKERS:
        raise ValueError
    return value


def _positive(text: str) -> float:
    value = _number(text)
    if not value:
        raise ValueError
    return value


def _moment(text: str) -> float:
    try:
        return _number(text)
    except ValueError:
        if text[:1] == "-":
            raise
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
