"""Pressure stall information: the fraction of time that some task waited for a resource."""

from __future__ import annotations

from pathlib import Path

from headgate.sampling.base import Boxed
from headgate.sampling.columns import Column
from headgate.sampling.counters import OpenFile, Rates
from headgate.sampling.sources import Source, SourcedSampler

_FILES: tuple[tuple[Column, str], ...] = (
    ("psi_cpu", "cpu"),
    ("psi_memory", "memory"),
    ("psi_io", "io"),
)


class PressureSampler(SourcedSampler):
    """Reads `psi_cpu`, `psi_memory` and `psi_io`.

    They come from the running total in the `some` line, not from the kernel's averages over 10 s
    and more. Nothing if the kernel has no PSI; of a task only in a cgroup2 folder.
    """

    name = "pressure"

    def open_node(self) -> Source | None:
        folder = self._root / "proc/pressure"
        return _open({column: folder / name for column, name in _FILES})

    def open_task(self, box: Boxed) -> Source | None:
        folder = box.cgroups.get("unified")
        if folder is None:
            return None
        return _open({column: Path(f"{folder}/{name}.pressure") for column, name in _FILES})


def _open(paths: dict[Column, Path]) -> Source | None:
    files: dict[Column, OpenFile] = {}
    for column, path in paths.items():
        try:
            files[column] = OpenFile(path)
            # a kernel started with psi=0 lets these files be opened, but refuses to read them
            files[column].read()
        except OSError:
            if column in files:
                files.pop(column).close()
    return _Pressure(files) if files else None


class _Pressure(Source):
    def __init__(self, files: dict[Column, OpenFile]) -> None:
        self._files = files
        self._rates = Rates()

    def read(self, now: float, /) -> dict[Column, float]:
        totals: dict[Column, float] = {}
        for column, file in self._files.items():
            data = file.read()
            start = data.index(b"total=") + 6
            totals[column] = int(data[start : data.index(b"\n", start)]) / 1e6
        return {column: min(1.0, rate) for column, rate in self._rates.of(now, totals).items()}

    def close(self) -> None:
        for file in self._files.values():
            file.close()
