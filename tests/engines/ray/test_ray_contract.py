"""The engine `ray` keeps the contract, over a real Ray on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.engines.ray.cluster import folders_left

from headgate.engines.base import Engine
from headgate.engines.ray import RayEngine
from headgate.events import TaskId
from headgate.shares import Share
from headgate.testing.engine import EngineContract
from headgate.testing.wait import until


class TestRay(EngineContract):
    accounts = True

    @pytest.fixture
    def engine(self, ray_address: str, tmp_path: Path) -> Engine:
        return RayEngine(ray_address, shared_files=True, speeds=tmp_path.parent / "speeds.json")

    def wait(self, predicate: Callable[[], object], what: str, seconds: float = 20.0) -> None:
        until(lambda: bool(predicate()), max(seconds, 60.0), what)  # what it waits for passes through four processes

    def traces(self) -> list[str]:
        return folders_left()

    def boxed(self) -> set[TaskId]:
        """By their cgroups: Ray's tasks are on this machine here, but its engine need not be."""
        found = (Path(folder) for folder in folders_left() if folder.startswith("/sys/fs/cgroup"))
        return {box.name.replace(":", "/") for folder in found for box in folder.glob("*:*")}

    def watch_shares(self, task: TaskId) -> Callable[[], list[Share]]:
        """The weights that the task's cgroup is seen to have, one after the other."""
        pid = self.told.pid(task)
        seen: list[Share] = []

        def look() -> list[Share]:
            weight = _weight(pid or 0)
            if weight != 100.0 and (not seen or seen[-1].cpu_weight != weight):
                seen.append(Share(cpu_weight=weight))
            return seen

        return look


def _weight(pid: int) -> float:
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for file, scale in (("cpu.shares", 100 / 1024), ("cpu.weight", 1.0)):
            for base in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup"):
                found = Path(base + path, file)
                if ("cpu" in controllers.split(",") or not controllers) and found.exists():
                    return round(int(found.read_text()) * scale)
    return 100.0
