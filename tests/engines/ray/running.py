"""An engine `ray` with what it is told, for tests."""

from __future__ import annotations

import os
from pathlib import Path

from tests.engines.staying_open import StaysOpen

from headgate.engines.base import Slot
from headgate.engines.ray.engine import RayEngine
from headgate.isolation.base import Launch
from headgate.machine import processes
from headgate.model.endings import Exit
from headgate.model.identifiers import JobId, TaskId
from headgate.model.shares import Share
from headgate.testing.recorder import RecordingListener
from headgate.testing.wait import until

PATIENCE_SECONDS = 60.0


class RayStaysOpen(StaysOpen, RayEngine):
    """What an open costs is several processes that import Ray."""


class Running:
    """An open engine.

    Args:
        address: Of a cluster's head.
        folder: For logs.
        kept: An engine that stays open over several tests; None: one of its own.
    """

    def __init__(
        self,
        address: str,
        folder: Path,
        *,
        shared_files: bool = True,
        kept: RayStaysOpen | None = None,
    ) -> None:
        self.folder = folder
        self.engine: RayEngine = kept or RayEngine(
            address, shared_files=shared_files, speeds=folder.parent / "speeds.json"
        )
        self.told = RecordingListener(lambda _: False)
        self.engine.open(self.told)

    def start(
        self,
        argv: tuple[str, ...],
        name: str = "job",
        cwd: str = "/",
        role: str = "worker",
        isolation: str = "",
        **env: str,
    ) -> TaskId:
        task = TaskId(f"ray-{os.getpid()}/{name}/{role}-0")
        whole = {"PATH": os.environ.get("PATH", os.defpath), "HEADGATE_TASK": task, **env}
        launch = Launch(task=task, argv=argv, env=whole, cwd=cwd, threads=1, isolation=isolation)
        self.engine.start(launch, Share(), str(self.log(name)))
        return task

    def log(self, name: str = "job") -> Path:
        return self.folder / f"{name}.log"

    def reserve(self, name: str, cores: float, gpus: int = 0) -> None:
        job = JobId(f"ray-{os.getpid()}/{name}")
        node = self.engine.cluster().nodes[0].name
        self.engine.reserve(job, 1, {TaskId(f"{job}/worker-0"): Slot(node, cores, gpus=gpus)})

    def release(self, name: str) -> None:
        job = JobId(f"ray-{os.getpid()}/{name}")
        self.engine.release(job, 1, [TaskId(f"{job}/worker-0")])

    def said(self, task: TaskId, line: str) -> None:
        until(lambda: line in self.told.lines(task), PATIENCE_SECONDS, f"{line!r} of {task}")

    def ended(self, task: TaskId) -> Exit:
        until(lambda: self.told.exit(task) is not None, PATIENCE_SECONDS, f"the end of {task}")
        end = self.told.exit(task)
        assert end is not None
        return end


def bridge() -> int:
    """The bridge that this process started."""
    for path in Path("/proc").glob("[0-9]*"):
        found = processes.look(int(path.name))
        if (
            found
            and found.parent == os.getpid()
            and b"engines.ray.bridge" in (path / "cmdline").read_bytes()
        ):
            return found.pid
    raise AssertionError("there is no bridge")
