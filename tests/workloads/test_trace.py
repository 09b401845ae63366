"""The trace of A·A in two workers: it comes to what one takes, and blocks that lie together never
move.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.workloads import test_alike

STEPS = 3
BLOCK = 128 * 128 * 4
COUNTED = """
import sys
import torch.distributed as dist
from headgate.workloads import trace

send, sent = dist.isend, []
def isend(block, to):
    sent.append(block.nbytes)
    return send(block, to)
dist.isend = isend
traces = trace.train(trace._options())
# In one piece: both workers share the output.
sys.stdout.write(f"sent {sum(sent)} for {traces[-1]}\\n")
"""


# of 28 pairs off the diagonal
@pytest.mark.parametrize(
    ("placed", "blocks"), [pytest.param("together", 0, marks=pytest.mark.long), ("rows", 16)]
)
@pytest.mark.slow
def test_blocks_that_lie_together_never_move(placed: str, blocks: int, tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text(COUNTED)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "counted.py",
    ]
    command += ["torch", "--placed", placed, "--steps", str(STEPS), "--warmup", "0", "--seed", "3"]
    done = subprocess.run(
        command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("sent")]
    assert len(lines) == 2
    assert sum(int(words[1]) for words in lines) == blocks * BLOCK * STEPS
    [alone, *_] = test_alike.trained("numpy", test_alike.STEPS, ("trace",))["trace"]
    assert all(float(words[3]) == pytest.approx(alone, abs=1e-3) for words in lines)
