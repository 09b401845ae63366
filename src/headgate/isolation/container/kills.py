"""Whom the kernel killed for want of memory, from its log: under cgroup v1 nothing else outlives its cgroup."""

from __future__ import annotations

import os
import re

LOG = "/dev/kmsg"
_RECORD_BYTES = 8192
_KILL = re.compile(rb"oom-kill:.*oom_memcg=([^,]*),task_memcg=([^,]*),")


def killed_in(container: str) -> tuple[bool, bool]:
    """Whether the kernel killed a process of a container because memory ran out, and whether by the container's own
    limit. Both are false where the kernel's log may not be read, as by users other than root.

    Args:
        container: Id of the container; it names the cgroup.
    """
    killed = own = False
    try:
        log = os.open(LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False, False
    try:
        while True:
            try:
                found = _KILL.search(os.read(log, _RECORD_BYTES))
            except BrokenPipeError:  # records that were overwritten meanwhile
                continue
            if found is not None and found[2].endswith(container.encode()):
                killed, own = True, own or found[1] == found[2]
    except OSError:  # no more for now
        return killed, own
    finally:
        os.close(log)
