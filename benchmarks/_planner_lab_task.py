"""A task of a plan, forked on the machine from an interpreter that has imported PyTorch: goes where
the task belongs, then is its program.

    _planner_lab_task.py WHERE script.py|-m MODULE [ARGS]

WHERE is JSON: `cgroups`, folders to enter, and `namespace`, `hostname` and `hosts` of the node.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

from headgate.isolation import nsenter


def main() -> None:
    where, *command = sys.argv[1:]
    place = json.loads(where)
    for folder in place["cgroups"]:
        Path(folder, "cgroup.procs").write_text(str(os.getpid()))
    nsenter.enter(*(os.fsencode(place[name]) for name in ("namespace", "hostname", "hosts")))
    if command[0] == "-m":
        sys.argv[:] = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = command
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main()
