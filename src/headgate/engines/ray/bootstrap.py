"""How an agent comes to a node: as an actor that brings Headgate along."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import ray

import headgate
from headgate.engines.remote import files

_NICE = "CPU priority of tasks: Ray runs them at niceness {}; start Ray with RAY_worker_niceness=0"


def package() -> Any:
    """Headgate itself, in Ray's object store."""
    return ray.put(files.pack(Path(headgate.__file__).parent))


def actor_class() -> Any:
    """The class of the actor. It travels by value, as classes do that are made in a function, and imports nothing of
    Headgate before it has unpacked it."""

    class HeadgateAgent:
        def __init__(self, package: bytes, settings: bytes, owner: str) -> None:
            import io
            import os
            import shutil
            import sys
            import tarfile
            import tempfile

            self.agent: Any = None
            self.trouble = ""
            folder = tempfile.mkdtemp(prefix=f"headgate-ray-{owner}-", dir="/tmp")
            library = os.path.join(folder, "library")
            with tarfile.open(fileobj=io.BytesIO(package)) as packed:
                packed.extractall(os.path.join(library, "headgate"), filter="tar")
            sys.path.insert(0, library)
            os.environ["PYTHONPATH"] = library
            os.environ["HEADGATE_HOME"] = os.path.join(folder, "home")
            try:
                from headgate.engines.ray.bootstrap import undo_priorities
                from headgate.engines.remote.agent import Agent

                self.agent = Agent(folder, settings, owner, undo_priorities())
            except ImportError as error:
                self.trouble = f"its Python {sys.executable} lacks {error.name}; install headgate's requirements there"
            except Exception as error:  # noqa: BLE001  # told in words, for its class may not be known there
                self.trouble = f"{type(error).__name__}: {error}"
            if self.trouble:
                shutil.rmtree(folder, ignore_errors=True)

        def ready(self) -> str:
            """What is wrong, empty when nothing is."""
            return self.trouble

        def call(self, method: str, *arguments: Any) -> Any:
            return getattr(self.agent, method)(*arguments)

        @ray.method(concurrency_group="events")
        def next(self, arrived: int, seconds: float) -> Any:
            return self.agent.next(arrived, seconds)

        @ray.method(concurrency_group="questions")
        def ask(self, question: bytes) -> Any:
            return self.agent.ask(question)

        @ray.method(concurrency_group="files")
        def file(self, method: str, *arguments: Any) -> Any:
            return getattr(self.agent, method)(*arguments)

    remote: Any = ray.remote  # its types know nothing of concurrency groups
    return remote(num_cpus=0, max_restarts=0, concurrency_groups={"events": 1, "files": 1, "questions": 1})(
        HeadgateAgent
    )


def undo_priorities() -> tuple[str, ...]:
    """Undo what Ray does to the priorities of its workers, lest tasks inherit it; a line for what cannot be undone."""
    with contextlib.suppress(OSError):  # Ray has the kernel kill its workers first
        Path("/proc/self/oom_score_adj").write_text("0")
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    if niceness > 0:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        except PermissionError:
            return (_NICE.format(niceness),)
    return ()
