"""What is done when a training script ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
SCRIPT = """
import os
from headgate.task.exit_hooks import at_end

for number in range(2000):
    at_end(lambda number=number: print(number, flush=True))
child = os.fork()
if not child:
    os._exit(0)
print("child", os.waitpid(child, 0)[1], flush=True)
os._exit(0)
"""


def test_a_process_that_ends_at_once_closes_all_its_sessions_and_one_forked_from_it_none() -> None:
    command, environment = [sys.executable, "-c", SCRIPT], {"PYTHONPATH": str(SOURCE)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines() == ["child 0", *map(str, range(2000))]
