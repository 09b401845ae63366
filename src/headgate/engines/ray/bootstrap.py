"""Brings an agent to a node, as an actor that carries Headgate along."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

import headgate
from headgate.engines.remote import files
from headgate.engines.remote.link import AgentGone, AgentHandle, Lane, Unreachable
from headgate.model.shares import Lever, Uncontrolled


def package() -> Any:
    """Headgate itself, in Ray's object store."""
    return ray.put(files.pack(Path(headgate.__file__).parent))


def actor_class() -> Any:
    """The class of the actor. It travels by value, because it is made in a function. It imports
    nothing of Headgate before it has unpacked Headgate.
    """

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
                self.trouble = (
                    f"its Python {sys.executable} lacks {error.name}; install "
                    "headgate's requirements there"
                )
            except Exception as error:  # noqa: BLE001  # told in words, for its class may not be known there
                self.trouble = f"{type(error).__name__}: {error}"
            if self.trouble:
                shutil.rmtree(folder, ignore_errors=True)

        def ready(self) -> str:
            """What is wrong; empty if nothing is."""
            return self.trouble

        # One for each lane of `link.Lane`.

        def commands(self, method: str, *arguments: Any) -> Any:
            return getattr(self.agent, method)(*arguments)

        @ray.method(concurrency_group="events")  # type: ignore[untyped-decorator]
        def events(self, method: str, *arguments: Any) -> Any:
            return getattr(self.agent, method)(*arguments)

        @ray.method(concurrency_group="questions")  # type: ignore[untyped-decorator]
        def questions(self, method: str, *arguments: Any) -> Any:
            return getattr(self.agent, method)(*arguments)

        @ray.method(concurrency_group="files")  # type: ignore[untyped-decorator]
        def files(self, method: str, *arguments: Any) -> Any:
            return getattr(self.agent, method)(*arguments)

    remote: Any = ray.remote  # its types know nothing of concurrency groups
    return remote(
        num_cpus=0, max_restarts=0, concurrency_groups={"events": 1, "files": 1, "questions": 1}
    )(HeadgateAgent)


class RayAgent(AgentHandle):
    """The agent in an actor."""

    cluster = "Ray"

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def ready(self, seconds: float) -> str:
        return str(self._answer(self._actor.ready, (), seconds))

    def call(self, lane: Lane, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        return self._answer(getattr(self._actor, lane), (method, *arguments), seconds)

    def kill(self) -> None:
        with contextlib.suppress(RayError, ValueError):
            ray.kill(self._actor)

    def _answer(self, method: Any, arguments: tuple[Any, ...], seconds: float | None) -> Any:
        try:
            return ray.get(method.remote(*arguments), timeout=seconds)
        except ActorUnavailableError as error:
            raise Unreachable(_death_reason(error)) from error
        except RayError as error:
            cause = getattr(error, "cause", None)
            raise (
                cause if isinstance(cause, OSError) else AgentGone(_death_reason(error))
            ) from error


def _death_reason(error: BaseException) -> str:
    """What happened, and if Ray knows, why the process of the actor ended."""
    # what was raised there, without Ray's own words
    text = str(getattr(error, "cause", None) or error).strip()
    why = re.search(r"exit detail: (.+)", text)
    return " ".join([*text.splitlines()[:1], *([why[1]] if why else [])]) or type(error).__name__


def undo_priorities() -> tuple[Uncontrolled, ...]:
    """Undo what Ray does to the priorities of its workers, so that tasks do not inherit it. Return
    what cannot be undone.
    """
    with contextlib.suppress(OSError):  # Ray has the kernel kill its workers first
        Path("/proc/self/oom_score_adj").write_text("0")
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    if niceness > 0:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        except PermissionError:
            cause = f"Ray runs them at niceness {niceness}; start Ray with RAY_worker_niceness=0"
            return (Uncontrolled(Lever.CPU_PRIORITY, cause, scope="of tasks"),)
    return ()
