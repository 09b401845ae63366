"""The link to an agent: it sends commands in order, receives events in order, and moves files both
ways.
"""

from __future__ import annotations

import os
import pickle
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from headgate.engines.launch import snapshot_of
from headgate.engines.remote import files
from headgate.engines.remote.pipe import facts
from headgate.engines.remote.wire import (
    Ask,
    CheckpointMessage,
    Command,
    Event,
    Exited,
    NodeGone,
    Report,
    ResultReady,
    Returned,
    Send,
    StartLaunch,
    TaskMessage,
    Warned,
)
from headgate.isolation.base import Launch
from headgate.model.calls import RESULT
from headgate.model.cluster import Node
from headgate.model.endings import Exit
from headgate.model.errors import HeadgateError
from headgate.model.identifiers import TaskId
from headgate.model.paths import below
from headgate.model.shares import Uncontrolled

_POLL_SECONDS = 10.0
_RETRY_SECONDS = 0.2
_READY_SECONDS = 300.0
_CLOSE_SECONDS = 30.0

Archive = Callable[[str], Any]
"""Gives the archive of a folder, in a form to pass to `AgentHandle.call`."""

Lane = Literal["commands", "events", "files", "questions"]
"""An agent answers calls of one lane in order, and calls of different lanes at the same time."""


class Unreachable(Exception):
    """An agent cannot be reached now; the call may be made again."""


class AgentGone(Exception):
    """An agent is gone for good, or a call failed."""


class AgentHandle(ABC):
    """The way to call an agent in its cluster."""

    cluster: str
    """The cluster's name in messages."""

    @abstractmethod
    def ready(self, seconds: float) -> str:
        """Wait until the agent is there. Return why it cannot run; empty if it can.

        Raises:
            AgentGone: It did not come within `seconds`.
        """

    @abstractmethod
    def call(self, lane: Lane, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        """Call a method of `agent.Agent`, and return its result.

        Raises:
            OSError: The method raised it.
            Unreachable: The network does not carry the call.
            AgentGone: The agent is gone, failed otherwise, or did not answer within `seconds`.
        """

    @abstractmethod
    def kill(self) -> None:
        """End the agent, if it is still there."""


class AgentLink:
    """An agent, with the commands on their way to it and the events on their way from it.

    Args:
        name: The name of its node.
        id: The cluster's own name of the node.
        agent: The handle by which to call it.
        tell: Called with everything that happens there.
        archive: Packs folders for the node; None if the node sees the hub's files.
        local_files: The hub's files.
        on_gone: Called once the agent is gone.
        patience: Seconds of silence after which the agent takes itself for cut off.
    """

    def __init__(
        self,
        name: str,
        id: str,
        agent: AgentHandle,
        tell: Callable[[Report], None],
        archive: Archive | None,
        local_files: files.Files,
        on_gone: Callable[[AgentLink], None],
        patience: float,
    ) -> None:
        self.name = name
        self.id = id
        self.running: set[TaskId] = set()
        self.saves: dict[TaskId, str] = {}
        """The folder on the hub's machine for the checkpoints of each task."""
        self._agent = agent
        self._tell = tell
        self._archive = archive
        self._here = local_files
        self._on_gone = on_gone
        self._poll_seconds = min(_POLL_SECONDS, patience / 3)
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._sent: set[str] = set()
        self._lock = threading.Lock()
        self._gone = False
        self._closing = False
        self._threads = [
            threading.Thread(target=self._command, name=f"to {name}", daemon=True),
            threading.Thread(target=self._listen, name=f"from {name}", daemon=True),
        ]

    def open(self) -> tuple[Node, tuple[Uncontrolled, ...]]:
        """Wait until the agent is there. Return its node, and what cannot be controlled on it.

        Raises:
            HeadgateError: It cannot run there.
        """
        try:
            trouble = self._agent.ready(_READY_SECONDS)
            if not trouble:
                node, uncontrolled = facts(self._agent.call("commands", "describe"))
        except (AgentGone, Unreachable, OSError, pickle.UnpicklingError) as error:
            raise HeadgateError(
                f"no agent could be started on node {self.name}: {_first_line(error)}"
            ) from error
        if trouble:
            raise HeadgateError(f"no agent can run on node {self.name}: {trouble}")
        for thread in self._threads:
            thread.start()
        return node, uncontrolled

    def do(self, command: Command) -> None:
        """Queue a command for the agent, after all that came before."""
        if isinstance(command, StartLaunch):
            self.running.add(command.launch.task)
        self._commands.put(command)

    def ask(self, question: Ask) -> None:
        """Have the agent call a function at the same time as its other work, and tell the
        result.
        """
        try:
            packed = pickle.dumps((question.function, question.arguments))
            value, error = facts(self._ask("questions", "ask", packed))
        except pickle.UnpicklingError as failed:
            value, error = None, f"node {self.name} sent a malformed answer: {failed}"
        except (AgentGone, Unreachable, OSError) as failed:
            value, error = None, f"node {self.name} is gone: {self._why(failed)}"
        self._tell(Returned(question.number, value, error))

    def lose(self, reason: str) -> None:
        """Report that the node is gone."""
        with self._lock:
            if self._gone:
                return
            self._gone = True
        self._commands.put(None)
        if not self._closing:
            self._tell(NodeGone(self.name, reason))
            self._on_gone(self)

    def kill(self) -> None:
        """End an agent that does not answer as it should. Its watchdog clears up."""
        self._agent.kill()

    def close(self) -> None:
        """Kill what runs there, receive the last events, and remove the agent."""
        self._closing = True
        self._commands.put(None)
        self._threads[0].join()
        try:
            self._agent.call("commands", "close", seconds=_CLOSE_SECONDS)
            self._threads[1].join(_CLOSE_SECONDS)
            self._agent.call("commands", "depart", seconds=_CLOSE_SECONDS)
        except (AgentGone, Unreachable, OSError):  # it died, and its watchdog clears up
            pass
        self._agent.kill()

    # --- to the agent -----------------------------------------------------------------------------

    def _command(self) -> None:
        number = 0
        while (command := self._commands.get()) is not None:
            try:
                prepared = self._with_files(command)
            except (HeadgateError, OSError) as error:
                if isinstance(command, StartLaunch):
                    self._pass_on(
                        Exited(
                            command.launch.task,
                            Exit(code=None, reason=f"could not be started: {error}"),
                        )
                    )
                continue
            except (AgentGone, Unreachable) as error:
                self.lose(self._why(error))
                return
            number += 1
            try:
                self._ask("commands", "do", number, pickle.dumps([prepared]))
            except (AgentGone, Unreachable, OSError) as error:
                self.lose(self._why(error))
                return

    def _ask(self, lane: Lane, method: str, *arguments: Any) -> Any:
        """Call the agent, and repeat the call while the network does not carry it. The cluster says
        when the agent is gone for good.
        """
        while True:
            try:
                return self._agent.call(lane, method, *arguments)
            except Unreachable:
                if self._gone:
                    raise
                time.sleep(_RETRY_SECONDS)

    def _why(self, error: BaseException) -> str:
        return f"{self._agent.cluster} says: {_first_line(error)}"

    def _with_files(self, command: Command) -> Command:
        """Bring the files that a command names, and return the command as the agent can do it."""
        if self._archive is None:
            return command
        match command:
            case StartLaunch(launch, share):
                return StartLaunch(self._in_sent_folder(launch), share)
            case Send(task, {"path": str(path)} as message) if (
                brought := self._send_checkpoint(task, path)
            ) is not None:
                return Send(task, {**message, "path": brought})
            case _:
                return command

    def _in_sent_folder(self, launch: Launch) -> Launch:
        """A launch in the job's folder as it was sent to the node."""
        self._here.allow(launch)
        self.saves[launch.task] = launch.env.get("HEADGATE_CHECKPOINTS", "")
        run = launch.task.run
        key = files.key_of(f"{run} {launch.cwd}")
        if key not in self._sent and self._archive is not None:
            archive = self._archive(launch.cwd)
            self._ask("files", "unpack", key, archive)
            self._sent.add(key)
        folder = str(self._ask("files", "folder", key))
        env, argv = (
            dict(launch.env),
            tuple(_rebased(part, launch.cwd, folder) for part in launch.argv),
        )
        for variable in files.READ:
            if (path := env.get(variable)) and (
                brought := self._send_checkpoint(launch.task, path)
            ) is not None:
                env[variable] = brought
        if (saved := env.get("HEADGATE_CHECKPOINTS")) and (copy := snapshot_of(launch.task)):
            # another of the same size may be there
            self._send_checkpoint(launch.task, os.path.join(saved, copy), anew=True)
        return replace(launch, cwd=folder, env=env, argv=argv)

    def _send_checkpoint(self, task: TaskId, path: str, anew: bool = False) -> str | None:
        """Send a checkpoint of the hub's to the node, if it is not there yet or `anew`. Return its
        path there; None if the hub has no such checkpoint.
        """
        sizes = self._here.sizes(path)
        if sizes is None:
            return None
        folder = str(self._ask("files", "checkpoints", task.job))
        far_path = os.path.join(folder, os.path.basename(path))
        if anew or self._ask("files", "sizes", far_path) != sizes:
            for name, size in sizes.items():
                for offset in range(0, max(size, 1), files.CHUNK_BYTES):
                    data = self._here.read(
                        os.path.join(path, name) if name else path, offset, files.CHUNK_BYTES
                    )
                    self._ask(
                        "files",
                        "write",
                        os.path.join(far_path, name) if name else far_path,
                        offset,
                        data,
                    )
        return far_path

    # --- from the agent ---------------------------------------------------------------------------

    def _listen(self) -> None:
        arrived = 0
        while not self._gone:
            try:
                number, batch = self._agent.call("events", "next", arrived, self._poll_seconds)
                events: list[Event] = facts(batch)
            except Unreachable:
                time.sleep(_RETRY_SECONDS)
                continue
            except (AgentGone, OSError) as error:
                self.lose(self._why(error))
                return
            except pickle.UnpicklingError as error:
                self.lose(f"its agent sent a malformed message: {error}")
                return
            for event in events:
                self._pass_on(event)
            arrived = number
            if self._closing and not events and not self.running:
                return

    def _pass_on(self, event: Event) -> None:
        if isinstance(event, ResultReady):
            try:
                self._fetch(
                    event.task, event.path, os.path.join(self.saves.get(event.task, ""), RESULT)
                )
            except (HeadgateError, OSError, AgentGone, Unreachable) as error:
                text = f"its result could not be brought here: {_first_line(error)}"
                self._report(Warned(event.task, text))
            return
        if isinstance(event, CheckpointMessage):
            path = os.path.join(self.saves.get(event.task, ""), event.name)
            try:
                self._fetch(event.task, str(event.message["path"]), path)
            except (HeadgateError, OSError, AgentGone, Unreachable) as error:
                text = f"it could not be brought here: {_first_line(error)}"
                failed = {
                    "type": "checkpoint_failed",
                    "error": text,
                    "why": event.message.get("why"),
                }
                self._report(TaskMessage(event.task, failed))
                return
            event = TaskMessage(event.task, {**event.message, "path": path})
        if isinstance(event, Exited):
            self.running.discard(event.task)
            self.saves.pop(event.task, None)
        self._report(event)

    def _report(self, report: Report) -> None:
        """Tell what happened there, unless the node was reported gone: its tasks may run elsewhere
        by then.
        """
        with self._lock:
            if not self._gone:
                self._tell(report)

    def _fetch(self, task: TaskId, far_path: str, path: str) -> None:
        """Bring a checkpoint to the hub, whole or not at all, into the folder of its own job's
        checkpoints only.

        Raises:
            HeadgateError: It would lie elsewhere.
        """
        if not self.saves.get(task) or below(self.saves[task], path) is None:
            raise HeadgateError(f"{path} is not in the folder of checkpoints of its job")
        sizes: dict[str, int] | None = self._ask("files", "sizes", far_path)
        if sizes is None:
            raise FileNotFoundError(f"{far_path} is gone from node {self.name}")
        partial = f"{path}.partial"
        for name, size in sizes.items():
            if name and below(partial, os.path.join(partial, name)) is None:
                raise HeadgateError(f"its part {name!r} is not in {path}")
            for offset in range(0, max(size, 1), files.CHUNK_BYTES):
                data = self._ask(
                    "files",
                    "read",
                    os.path.join(far_path, name) if name else far_path,
                    offset,
                    files.CHUNK_BYTES,
                )
                self._here.write(os.path.join(partial, name) if name else partial, offset, data)
        self._here.rename(partial, path)


def _rebased(part: str, old: str, new: str) -> str:
    """Move a path from below one folder to below another; leave anything else as it is."""
    return (
        new + part.removeprefix(old)
        if part == old or part.startswith(old.rstrip("/") + "/")
        else part
    )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
