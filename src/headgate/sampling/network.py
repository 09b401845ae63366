"""Network: bytes a second in and out of a node, and of a task with its own network namespace."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from headgate.machine.namespaces import look
from headgate.machine.nics import counted, default_routes
from headgate.model.cluster import Place
from headgate.sampling.base import Boxed, Target
from headgate.sampling.columns import Column
from headgate.sampling.counters import Rates
from headgate.sampling.sources import FileSource, Source, SourcedSampler


class NetworkSampler(SourcedSampler):
    """Reads `net_in`, `net_out` and `net_retransmits`.

    For this machine: its physical interfaces (see `nics.counted`). For a place on it: all in its
    namespace except loopback and stacked ones, such as a VXLAN. For a task: every interface in its
    namespace with a default route, or all except loopback if there is none. Nothing if the task
    shares its namespace with this process or another task, because the bytes cannot be separated.
    """

    name = "network"

    def open_node(self) -> Source:
        return _Node(self._root)

    def open_task(self, box: Boxed) -> Source | None:
        return _Namespace(box, self._root)

    def open_place(self, place: Place) -> Source:
        return _NodeNamespace(place.namespace)

    def read(self, now: float, targets: Sequence[Target]) -> Mapping[str, Mapping[Column, float]]:
        readings = super().read(now, targets)
        owners: dict[int, int] = {}
        for _, source in self._sources.values():
            if isinstance(source, _Namespace) and source.inode is not None:
                owners[source.inode] = owners.get(source.inode, 0) + 1
        shared = {inode for inode, count in owners.items() if count > 1}
        if not shared:
            return readings
        return {task: values for task, values in readings.items() if not self._is_in(task, shared)}

    def _is_in(self, target: str, inodes: set[int]) -> bool:
        source = self._sources[target][1]
        return isinstance(source, _Namespace) and source.inode in inodes


class _Node(FileSource):
    """/proc/net/dev; /sys/class/net shows which interfaces count."""

    def __init__(self, root: Path) -> None:
        segments = root / "proc/self/net/snmp"
        super().__init__(root / "proc/self/net/dev", *([segments] if segments.exists() else []))
        self._root = root
        self._seen: set[bytes] = set()
        self._counted: frozenset[bytes] = frozenset()

    def read(self, now: float, /) -> dict[Column, float]:
        rows = _rows(self.files[0].read())
        if rows.keys() != self._seen:
            self._seen = set(rows)
            self._counted = frozenset(nic.name.encode() for nic in counted(self._root))
        return self.rates.of(now, _totals(rows, self._counted) | self._retransmits())

    def _retransmits(self) -> dict[Column, float]:
        return _retransmits(self.files[1].read()) if len(self.files) > 1 else {}


class _Namespace(Source):
    """/proc/PID/net/dev of one of the task's processes, which reads that process's namespace.

    It is opened anew each time. An open file would keep the namespace alive after the task, and
    with it the far ends of its links.
    """

    def __init__(self, box: Boxed, root: Path) -> None:
        self.inode: int | None = None
        self._box = box
        self._root = root
        self._proc = f"{root / 'proc'}"
        self._ours = os.stat(f"{self._proc}/self/ns/net").st_ino
        self._rates = Rates()

    def read(self, now: float, /) -> dict[Column, float]:
        pid = self._inside()
        if pid is None:
            return {}
        with open(f"{self._proc}/{pid}/net/dev", "rb") as file:
            rows = _rows(file.read())
        with open(f"{self._proc}/{pid}/net/snmp", "rb") as file:
            again = _retransmits(file.read())
        routed = frozenset(name.encode() for name in default_routes(self._root, str(pid)))
        return self._rates.of(now, _totals(rows, routed & rows.keys() or frozenset(rows)) | again)

    def _inside(self) -> int | None:
        """A process of the task in another namespace than this process. Searched in each round,
        because a task enters its namespace after its start (a container, a lab node).
        """
        for pid in self._box.pids():
            try:
                inode = os.stat(f"{self._proc}/{pid}/ns/net").st_ino
            except OSError:
                continue
            if inode != self._ours:
                if inode != self.inode:
                    self.inode, self._rates = inode, Rates()
                return pid
        self.inode = None
        return None


class _NodeNamespace(Source):
    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._inode: int | None = None
        self._rates = Rates()

    def read(self, now: float, /) -> dict[Column, float]:
        inside = look(self._namespace)
        if inside.inode != self._inode:  # the node was taken down and set up again
            self._inode, self._rates = inside.inode, Rates()
        rows = _rows(inside.table)
        return self._rates.of(
            now, _totals(rows, frozenset(rows) - inside.stacked) | _retransmits(inside.snmp)
        )


def _rows(data: bytes) -> dict[bytes, list[bytes]]:
    rows = {}
    for line in data.split(b"\n")[2:]:
        name, _, values = line.rpartition(b":")  # an alias has a colon in its name
        if name and (stripped := name.strip()) != b"lo":
            rows[stripped] = values.split()
    return rows


def _totals(rows: dict[bytes, list[bytes]], names: frozenset[bytes]) -> dict[Column, float]:
    rows_of_nics = [words for name, words in rows.items() if name in names]
    if not rows_of_nics:
        return {}
    return {
        "net_in": sum(int(words[0]) for words in rows_of_nics),
        "net_out": sum(int(words[8]) for words in rows_of_nics),
    }


def _retransmits(snmp: bytes) -> dict[Column, float]:
    """Retransmits in /proc/net/snmp, which has a line of names and one of numbers for each
    protocol.
    """
    names, numbers = (
        [line.split() for line in snmp.split(b"\n") if line.startswith(b"Tcp:")] + [[], []]
    )[:2]
    segments = dict(zip(names, numbers, strict=False)).get(b"RetransSegs")
    return {"net_retransmits": int(segments)} if segments is not None else {}
