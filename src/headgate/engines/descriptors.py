"""How many tasks the open files allow that a process may have (`ulimit -n`): one too many would cost others their
output."""

from __future__ import annotations

import os
import resource

from headgate.errors import HeadgateError

OF_A_TASK = 11
"""Its output, log, end and connection, the files of its cgroups, and some while it starts."""
_APART = 32
"""For the stores of runs, clients and samplers."""
_AMPLE = 4096  # of some 360 tasks


class Descriptors:
    """Counts what this process has open besides tasks, as it is made."""

    def __init__(self) -> None:
        self._besides = len(os.listdir("/proc/self/fd")) + _APART

    def check(self, tasks: int) -> None:
        """Whether so many tasks can be at once.

        Raises:
            HeadgateError: They cannot; the message says what to raise.
        """
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if self._besides + tasks * OF_A_TASK <= most:
            return
        fitting, ample = max(most - self._besides, 0) // OF_A_TASK, max(_AMPLE, 4 * most)
        where = "`ulimit -n`, /etc/security/limits.conf, LimitNOFILE of a service"
        raise HeadgateError(
            f"{most} open files are allowed here (`ulimit -Hn`), enough for {fitting} tasks at once; have fewer, or "
            f"raise it to {ample} ({where}) where the hub is started, once the one that runs has ended"
        )
