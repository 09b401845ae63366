"""The agent of a node: it runs a `LocalEngine` for the bridge, and keeps events until the bridge
has them.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from headgate import isolation
from headgate.engines.base import Listener, Slot
from headgate.engines.launch import files_of, inject, observation, transport
from headgate.engines.local import LocalEngine
from headgate.engines.remote import files, speeds
from headgate.engines.remote.outbox import Outbox, RelayedLog
from headgate.engines.remote.settings import Settings
from headgate.engines.remote.watchdog import AgentWatchdog
from headgate.engines.remote.wire import (
    ApplyShare,
    CheckpointMessage,
    Command,
    EndTask,
    Event,
    Exited,
    Release,
    Reserve,
    ResultReady,
    SampledUsage,
    Send,
    Started,
    StartLaunch,
    TaskMessage,
    Warned,
)
from headgate.isolation.base import HOST_IMAGE, Launch
from headgate.model import log_levels
from headgate.model.calls import CALL, RESULT
from headgate.model.cluster import Node
from headgate.model.endings import Exit
from headgate.model.errors import HeadgateError
from headgate.model.identifiers import TaskId
from headgate.model.paths import below
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.shares import Uncontrolled
from headgate.sampling import machine
from headgate.sampling.base import Target
from headgate.sampling.round import SamplingRound, samplers
from headgate.task.grants import TURNS

_log = logging.getLogger(__name__)

SAMPLE_SECONDS = 1.0
GRACE = 30.0
"""Seconds to save a checkpoint, for a task that the node's accounts end."""


_LOOK_SECONDS = 0.1


class NodeAccounts(Protocol):
    """Says when the tasks of a reservation may start on a node."""

    def reserve(self, key: str, slots: Mapping[TaskId, Slot]) -> None:
        """Have tasks wait for their part; `Granted` tells that they may start."""

    def release(self, key: str, tasks: Collection[TaskId]) -> None:
        """Give back what tasks have, or what they still wait for."""

    def close(self) -> None:
        """Give everything back."""


class Agent:
    """Runs tasks on its node.

    Args:
        folder: A folder of its own; removed at its end.
        settings: Pickled `Settings`.
        owner: Process id of the hub. What is found on a node can be traced to the hub by it.
        uncontrolled: What cannot be controlled in a process that the cluster started.
        accounts: Makes what keeps the accounts of the node, from its node, from where events go,
            and from what stops a task; None: the cluster keeps them.
    """

    def __init__(
        self,
        folder: str,
        settings: bytes,
        owner: str,
        uncontrolled: tuple[Uncontrolled, ...] = (),
        accounts: Callable[[Node, Callable[[Event], None], Callable[[TaskId], None]], NodeAccounts]
        | None = None,
    ) -> None:
        self._settings: Settings = pickle.loads(settings)
        log_levels.configure(self._settings.log)
        self._folder = Path(folder)
        self._uncontrolled = uncontrolled
        self._watchdog = AgentWatchdog(self._folder)
        self._outbox = Outbox()
        self._done = 0
        self._node = self._describe()
        group = f"{self._settings.engine}-{owner}-{os.getpid()}"
        self._engine = LocalEngine(
            self._node,
            isolation.make(isolation.DEFAULT, group),
            self._folder / "channel.sock",
            self._watchdog,
            lambda task: RelayedLog(TaskId(task), self._outbox),
            others=lambda name: isolation.make(name, group),
        )
        self._relay = _Relay(self._outbox)
        self._engine.open(self._relay)
        self._accounts = (
            accounts(self._node, self._outbox.put, lambda task: self._engine.stop(task, GRACE))
            if accounts is not None
            else None
        )
        self._heard: float | None = None
        self._ending = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="samplers", daemon=True)
        self._sampler.start()

    # --- what the bridge calls --------------------------------------------------------------------

    def describe(self) -> bytes:
        """Pickled: the node, and what is `uncontrolled` on it."""
        return pickle.dumps((self._node, (*self._uncontrolled, *self._engine.uncontrolled())))

    def do(self, number: int, commands: bytes) -> None:
        """Carry out commands (a pickled list). If their number came before, only the answer was
        lost: leave them alone.
        """
        if number <= self._done:
            return
        self._done = number
        for command in pickle.loads(commands):
            self._obey(command)

    def next(self, arrived: int, seconds: float) -> tuple[int, bytes]:
        """The next batch of events, as `Outbox.take` returns it."""
        self._heard = time.monotonic()
        return self._outbox.take(arrived, seconds)

    def unpack(self, key: str, archive: bytes) -> None:
        """Unpack a folder in which jobs start."""
        files.unpack(archive, Path(self.folder(key)))

    def folder(self, key: str) -> str:
        """Where `unpack` puts a folder."""
        return str(self._folder / "work" / key)

    def sizes(self, path: str) -> dict[str, int] | None:
        """Bytes of each file below a path, by name relative to it ("" for the path itself); None if
        there is no such path.
        """
        self._heard = time.monotonic()
        return files.sizes(Path(path))

    def read(self, path: str, offset: int, count: int) -> bytes:
        """Part of a file."""
        self._heard = time.monotonic()
        return files.read(Path(path), offset, count)

    def write(self, path: str, offset: int, data: bytes) -> None:
        """Write a part of a file after the parts before it."""
        files.write(Path(path), offset, data)

    def checkpoints(self, job: str) -> str:
        """The folder on this node to which a job's tasks save."""
        return str(self._checkpoints(job))

    def ask(self, question: bytes) -> bytes:
        """Call a function. The question is the pickled function and its arguments; the answer is,
        pickled, what it returned and in words why it failed.
        """
        self._heard = time.monotonic()
        function, arguments = pickle.loads(question)
        try:
            return pickle.dumps((function(*arguments), ""))
        except HeadgateError as error:
            why = str(error)
        except OSError as error:
            why = error.strerror or str(error)
        except Exception as error:  # noqa: BLE001  # told in words, for its class may not be known there
            why = f"{type(error).__name__}: {error}"
        return pickle.dumps((None, why))

    def orphaned(self, seconds: float) -> None:
        """The hub is gone: let the tasks save what they have, then remove everything."""
        deadline = time.monotonic() + seconds
        for task in self._engine.boxes():
            self._engine.stop(task, seconds)
        while self._engine.boxes() and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        self.close()
        self.depart()

    def close(self) -> None:
        """Kill what still runs. Its last events can be fetched afterwards."""
        self._ending.set()
        self._engine.close()
        if self._accounts is not None:
            self._accounts.close()
        self._sampler.join()
        self._outbox.close()

    def depart(self) -> None:
        """Remove everything of the agent from the node."""
        self._watchdog.close()

    # --- commands ---------------------------------------------------------------------------------

    def _obey(self, command: Command) -> None:
        _log.debug("%s", type(command).__name__)
        match command:
            case StartLaunch(launch, share):
                try:
                    prepared = self._prepare(launch)
                except OSError as error:
                    failure = f"could not be started: {error.strerror}: {error.filename}"
                    self._outbox.put(Exited(launch.task, Exit(code=None, reason=failure)))
                    return
                self._engine.start(prepared, share, launch.task)
            case ApplyShare(task, share):
                self._engine.set_share(task, share)
            case Send(task, message):
                self._engine.send(task, message)
            case EndTask(task, grace):
                self._engine.stop(task, grace)
            case Reserve(key, slots) if self._accounts is not None:
                self._accounts.reserve(key, slots)
            case Release(key, tasks) if self._accounts is not None:
                self._accounts.release(key, tasks)

    def _prepare(self, launch: Launch) -> Launch:
        """The launch as this node starts it: with the node's paths, the task library, and an
        interpreter that the node has.
        """
        env, argv, reads, writes = dict(launch.env), launch.argv, launch.reads, launch.writes
        if brought := env.get("HEADGATE_ZMQ"):
            injected_folder = inject(self._folder / "inject")
            hubs_folder = Path(brought.removesuffix("-zmq"))
            own_folders = {
                str(hubs_folder): str(injected_folder),
                str(observation(hubs_folder)): str(observation(injected_folder)),
            }
            env["PYTHONPATH"] = os.pathsep.join(
                own_folders.get(part, part) for part in env.get("PYTHONPATH", "").split(os.pathsep)
            )
            env["HEADGATE_ZMQ"] = str(transport(injected_folder))
            reads = (*reads, *files_of(injected_folder))
        keeps = launch.keeps if self._settings.shared else ""
        if not self._settings.shared:
            if env.get("HEADGATE_CHECKPOINTS"):
                folder = self._checkpoints(launch.task.job)
                folder.mkdir(parents=True, exist_ok=True)
                env["HEADGATE_CHECKPOINTS"] = str(folder)
                env["HEADGATE_CHECKPOINTS_AWAY"] = "1"
                self._relay.returns[launch.task] = folder
                if CALL in env:
                    self._relay.results[launch.task] = folder / RESULT
                writes = (*writes, str(folder))
            argv = self._interpreter(launch)
        if launch.gpus != ():
            turns = self._folder / "turns"
            turns.mkdir(mode=0o700, exist_ok=True)
            env[TURNS] = str(turns)
            writes = (*writes, str(turns))
        return replace(launch, env=env, argv=argv, reads=reads, writes=writes, keeps=keeps)

    def _interpreter(self, launch: Launch) -> tuple[str, ...]:
        """The program and its arguments. If this node lacks the hub's Python, one that it has takes
        its place.
        """
        program, *rest = launch.argv
        elsewhere = launch.image != HOST_IMAGE or not os.path.isabs(program)
        if elsewhere or os.path.exists(program) or "python" not in os.path.basename(program):
            return launch.argv
        path = launch.env.get("PATH", os.defpath)
        python = next(
            filter(None, (shutil.which(name, path=path) for name in ("python", "python3"))),
            sys.executable,
        )
        facts = {"node": self._node.name, "program": program, "python": python}
        self._outbox.put(Warned(launch.task, Reason(ReasonKind.OTHER_PYTHON, facts)))
        return (python, *rest)

    def _checkpoints(self, job: str) -> Path:
        return self._folder / "checkpoints" / files.key_of(job)

    # --- the node ---------------------------------------------------------------------------------

    def _describe(self) -> Node:
        """The node: its hardware, and how much of it the cluster gives to jobs."""
        given = self._settings
        description = machine.describe()
        cache = self._folder / "node.json"
        known = given.speeds.get(speeds.key(description.cpu_model, description.cores))
        if known is not None:
            cache.write_text(
                json.dumps(
                    {
                        "cpu_model": description.cpu_model,
                        "cores": description.cores,
                        "core_gflops": known,
                    }
                )
            )
        description = machine.detect(cache, {})  # the cluster says how many GPUs there are
        return replace(
            description,
            name=given.name,
            address=given.address or description.address,
            cores=description.cores if given.cores is None else given.cores,
            memory_bytes=min(given.memory_bytes, description.memory_bytes)
            if given.memory_bytes
            else description.memory_bytes,
            gpus=description.gpus[: given.gpus],
            kind=given.kind,
        )

    def _sample(self) -> None:
        """From the first command on, read the usage of the node, which others may use as well, and
        of its tasks.
        """

        def report(text: str) -> None:
            facts = {"node": self._node.name, "text": text}
            self._outbox.put(Warned(None, Reason(ReasonKind.NODE_SAYS, facts)))

        reader = SamplingRound(samplers(report), report)
        node = f"node:{self._node.name}"
        while not self._ending.wait(SAMPLE_SECONDS):
            self._end_if_cut_off()
            boxes = self._engine.boxes()
            targets = [Target(task, box) for task, box in boxes.items()]
            wanted = [*targets, Target(node, None)] if self._done else []
            readings = reader.read(time.monotonic(), wanted)
            for target, reading in readings.items():
                self._outbox.put(SampledUsage(target, reading))
        reader.read(time.monotonic(), [])

    def _end_if_cut_off(self) -> None:
        """End if the hub was silent for too long. It assumes that the node is lost, and may restart
        its tasks elsewhere. The watchdog clears up.
        """
        patience = self._settings.patience_seconds
        if self._heard is not None and time.monotonic() - self._heard > patience:
            print(
                f"headgate: heard nothing from the hub for {patience:g} s; the tasks here end",
                file=sys.stderr,
            )
            os._exit(1)


class _Relay(Listener):
    """Puts the events of the node's engine into the outbox."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.results: dict[TaskId, Path] = {}
        """The file of the result of each call on this node."""
        self.returns: dict[TaskId, Path] = {}
        """The folder of checkpoints of each task on this node. What is saved there has to go to the
        hub's machine.
        """

    def started(self, task: TaskId, pid: int) -> None:
        self._outbox.put(Started(task, pid))

    def output(self, task: TaskId, lines: Sequence[str]) -> None:
        """Nothing to do: the hub's machine divides the output into lines."""

    def message(self, task: TaskId, message: Mapping[str, object]) -> None:
        outputs, path = self.returns.get(task), message.get("path")
        name = below(outputs, path) if outputs is not None and isinstance(path, str) else None
        if name is not None:
            self._outbox.put(
                CheckpointMessage(
                    task, {**message, "path": os.path.join(outputs or "", name)}, name
                )
            )
        else:
            self._outbox.put(TaskMessage(task, message))

    def exited(self, task: TaskId, exit: Exit) -> None:
        self.returns.pop(task, None)
        result = self.results.pop(task, None)
        if result is not None and result.exists():
            self._outbox.put(ResultReady(task, str(result)))
        self._outbox.put(Exited(task, exit))

    def warned(self, task: TaskId | None, what: Reason | str) -> None:
        self._outbox.put(Warned(task, what))
