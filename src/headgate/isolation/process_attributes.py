"""Attributes that a process passes to its children: umask, nice value and resource limits.

A task has those of its submitter, not those of the hub, which was started from another terminal.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

LIMITS = {
    name.removeprefix("RLIMIT_").lower(): getattr(resource, name)
    for name in sorted(dir(resource))
    if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"  # another name of NOFILE
}
"""Numbers of the resource limits of this system, by name: `nofile`, `memlock`, `core`, `stack`,
...
"""
_MAY_NICE, _MAY_LIMIT = 23, 24
"""The capabilities CAP_SYS_NICE and CAP_SYS_RESOURCE."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """Attributes that a process passes to its children.

    Args:
        umask: Permissions that its new files do not get.
        nice: -20 to 19; 19 is the lowest priority.
        limits: Soft and hard resource limits by name, as in `LIMITS`; -1: no limit.
    """

    umask: int
    nice: int
    limits: Mapping[str, tuple[int, int]]

    @classmethod
    def of_this_process(cls) -> Attributes:
        limits = {name: resource.getrlimit(number) for name, number in LIMITS.items()}
        return cls(_umask(), os.getpriority(os.PRIO_PROCESS, 0), limits)

    def order(self, own: Attributes) -> tuple[int, int, list[tuple[int, int, int]]]:
        """What `launcher` has to set if its parent has the attributes `own`: umask, nice value, and
        by number the limits that differ. The limit of open files is always included, because the
        parent raised its own.
        """
        differing = [
            (LIMITS[name], *pair)
            for name, pair in self.limits.items()
            if name in LIMITS and (name == "nofile" or pair != own.limits.get(name))
        ]
        return self.umask, self.nice, differing

    def out_of_reach(self, own: Attributes) -> Iterator[str]:
        """In words, the attributes that a process with the attributes `own` cannot pass on."""
        may = _capabilities()
        if self.nice < own.nice and not may >> _MAY_NICE & 1:
            yield f"its nice value {self.nice} (it has {own.nice})"
        for name, (_, hard) in self.limits.items():
            most = own.limits.get(name, (-1, -1))[1]
            if most != -1 and (hard == -1 or hard > most) and not may >> _MAY_LIMIT & 1:
                yield f"its limit {name} of {'unlimited' if hard == -1 else hard} (it has {most})"


def _umask() -> int:
    """The umask as the kernel shows it. `os.umask` would change it for a moment, for every
    thread.
    """
    match = re.search(r"^Umask:\s*([0-7]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(match[1], 8) if match is not None else 0o22


def _capabilities() -> int:
    match = re.search(
        r"^CapEff:\s*([0-9a-f]+)", Path("/proc/self/status").read_text(), re.MULTILINE
    )
    return int(match[1], 16) if match is not None else 0
