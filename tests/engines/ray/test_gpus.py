"""Tasks see the GPUs that Ray gave them, and no others."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.engines.ray.running import Running


def test_each_task_sees_those_that_were_set_aside_for_it(ray_address: str, tmp_path: Path) -> None:
    running = Running(ray_address, tmp_path)
    shows = (sys.executable, "-c", "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))")
    seen = []
    for name, gpus in (("one", 1), ("other", 1)):
        running.reserve(name, 0.5, gpus)
        task = running.start(shows, name)
        assert running.ended(task).ok
        seen += running.told.lines(task)
    assert sorted(seen) == ["0", "1"]
    running.release("one")
    running.release("other")
    running.reserve("both", 0.5, 2)
    task = running.start(shows, "both")
    assert running.ended(task).ok
    assert running.told.lines(task) == ["0,1"]
    running.reserve("many", 0.5, 3)
    reason = running.ended(running.start(shows, "many")).reason
    node = running.engine.cluster().nodes[0].name
    assert reason == f"could not be started: asked for 3 GPUs on node {node}, where Ray has 2 GPUs"
    running.engine.close()
