"""What Headgate has on this machine at a moment: processes, cgroups and sockets of one
`HEADGATE_HOME`.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import psutil

from headgate.machine import cgroup_layout

HUB, GUARD = "headgate.hub.server", "headgate.hub.watchdog"


def variables(pid: int) -> dict[str, str]:
    """Environment of a living process; empty when it is gone or may not be looked at."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in text.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def command(pid: int) -> list[str]:
    """Command line of a process; empty when it is gone, or only waits to be waited for."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def parent(pid: int) -> int | None:
    """Process id of the parent of a process; None when it is gone."""
    try:
        return psutil.Process(pid).ppid()
    except psutil.NoSuchProcess:
        return None


class Traces:
    """Tells what belongs to one `HEADGATE_HOME` from what belongs to others."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.before = frozenset(_groups())
        """Groups that were there before it; none of them is of this home."""

    def processes(self, word: str = "") -> dict[int, list[str]]:
        """Command lines of the living processes, by number; only those that have `word` in
        theirs.
        """
        found = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit() and variables(int(entry)).get("HEADGATE_HOME") == str(self._home):
                words = command(int(entry))
                if words and (not word or word in words):
                    found[int(entry)] = words
        return found

    def tasks(self) -> dict[int, list[str]]:
        """The processes that are part of a task."""
        return {
            pid: words
            for pid, words in self.processes().items()
            if "HEADGATE_TASK" in variables(pid)
        }

    def hub(self) -> int | None:
        """Process id of the hub."""
        return next(iter(self.hubs()), None)

    def hubs(self) -> list[int]:
        """Process ids of the hubs of all allocations."""
        found = self.processes(HUB)
        # what a hub is about to start has its command line until then
        return [pid for pid in found if parent(pid) not in found]

    def guard(self) -> int | None:
        """Process id of the guard."""
        return next(iter(self.processes(GUARD)), None)

    def cgroups(self) -> list[Path]:
        """The groups of boxes, but for those of the hubs of other homes."""
        return [
            path for path in _groups() if path not in self.before and not self._of_another(path)
        ]

    def _of_another(self, group: Path) -> bool:
        home = variables(int(group.name.rsplit("-", 1)[1])).get("HEADGATE_HOME")
        if home is not None:
            return home != str(self._home)
        try:
            boxes = [entry.name for entry in group.iterdir() if entry.is_dir()]
        except FileNotFoundError:  # it went with its hub, since it was listed
            return True
        # the hub is dead; a box is named after its run
        runs = {name.partition(":")[0] for name in boxes}
        return bool(runs) and not any((self._home / "runs" / run).exists() for run in runs)

    def sockets(self) -> list[Path]:
        """The hubs' sockets, wherever they are."""
        folder = self._home / "hub"
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        spare = Path("/tmp") / f"headgate-{os.geteuid()}-{digest}"
        return [
            *folder.glob("*.sock"),
            *self._home.glob("hubs/*/*.sock"),
            *([spare] if spare.exists() else []),
        ]

    def all(self) -> list[str]:
        """Everything there is, in words."""
        return [
            *(f"process {pid}: {' '.join(words)}" for pid, words in self.processes().items()),
            *(f"cgroup {path}" for path in self.cgroups()),
            *(f"socket {path}" for path in self.sockets()),
            *(f"record {path}" for path in self._home.glob("hub/boxes/*")),
        ]


def _groups() -> list[Path]:
    found = cgroup_layout.find_layout(Path("/sys/fs/cgroup"))
    named = re.compile(rf"headgate-{os.geteuid()}-\d+")
    return [
        path
        for base in set(found.bases.values())
        for path in base.glob("headgate-*")
        if named.fullmatch(path.name)
    ]
