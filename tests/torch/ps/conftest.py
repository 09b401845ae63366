"""Jobs over parameter servers: as threads of this process, and as gangs of processes that add up
numbers.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.harness.gang import Gang

from headgate.hub.state.peers import Peers
from headgate.model.identifiers import TaskName
from headgate.model.plans import Plan
from headgate.task import Channel, Stop
from headgate.testing import wait
from headgate.torch import ps
from headgate.torch.ps.rounds.dense import Dense
from headgate.torch.ps.services import services
from headgate.torch.ps.transport.server import Server

_SECONDS = 120.0
T = TypeVar("T")


class Task:
    """A task's channel and the hub's end of it."""

    def __init__(self) -> None:
        mine, self._hub = socket.socketpair()
        self.channel = Channel(mine)
        self.messages: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message: Mapping[str, Any]) -> None:
        self._hub.sendall(json.dumps(message).encode() + b"\n")

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["type"] == kind]

    def hang_up(self) -> None:
        """The hub is gone."""
        self._hub.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        with self._hub, self._hub.makefile() as lines:
            for line in lines:
                self.messages.append(json.loads(line))


class Job:
    """The servers and workers of a synchronous plan, in this process."""

    def __init__(
        self,
        workers: int,
        servers: int,
        encrypt: bool = False,
        backups: int = 0,
        sockets: Path | None = None,
    ) -> None:
        plan = Plan(
            strategy="ps",
            workers=workers,
            servers=servers,
            batch_per_worker=None,
            backup_workers=backups,
        )
        self.peers = Peers(plan, encrypt)
        self.tasks: dict[str, Task] = {}
        self.backends: dict[int, Dense] = {}
        self._plan = plan
        self._sockets = sockets
        self._servers: dict[str, tuple[Server, Future[int]]] = {}
        self._threads = ThreadPoolExecutor(16)

    def start(self, apart: bool = True) -> None:
        """Start all tasks; `apart`: each on a node of its own."""
        names = [TaskName.of("server", index) for index in range(self._plan.servers)]
        names += [TaskName.of("worker", index) for index in range(self._plan.workers)]
        for name in names:
            self.peers.start(name, name if apart else "here", "127.0.0.1")
        for name in names:
            self._run(name)
        for name in names[: self._plan.servers]:
            self._listens(name)

    def restart_server(self, server: str) -> None:
        """The server is gone with all it had; another one in its place."""
        name = TaskName(server)
        gone = self._servers[name][0]
        gone.loop.close()
        gone.failed = True
        self.tasks.pop(name).channel.close()
        self.peers.remove(name)
        self.tell()
        self.peers.start(name, name, "127.0.0.1")
        self._run(name)
        self._listens(name)

    def lose_worker(self, index: int) -> None:
        """A worker is gone, in the middle of whatever it did."""
        name = TaskName.of("worker", index)
        self.backends.pop(index).close()
        self.tasks.pop(name).channel.close()
        self.peers.remove(name)
        self.tell()

    def together(self, act: Callable[[Dense], T], *workers: int) -> dict[int, T]:
        """Have workers, all by default, do something at once; what each came to."""
        futures = {index: self.apart(act, index) for index in workers or self.backends}
        return {index: future.result(_SECONDS) for index, future in futures.items()}

    def apart(self, act: Callable[[Dense], T], worker: int) -> Future[T]:
        """Have one worker do something meanwhile."""
        return self._threads.submit(act, self.backends[worker])

    def told(self, name: str, kind: str) -> list[dict[str, Any]]:
        """The messages of that type that a task sent up, once there are any."""
        return wait.until(lambda: self.tasks[name].of(kind), _SECONDS, f"{kind} of {name}")

    def tell(self) -> None:
        """Send the present view to all."""
        for task in self.tasks.values():
            task.send(self.peers.view())

    def run(self, name: str) -> Future[int]:
        """What the process of a server ends with."""
        return self._servers[name][1]

    def server(self, name: str) -> Server:
        return self._servers[name][0]

    def close(self) -> None:
        for backend in self.backends.values():
            # a test that failed may have left its thread waiting for sums
            backend._loop.call(backend._client.fail, Stop())
            backend.close()
        for name, (_, ended) in self._servers.items():
            if not ended.done():
                self.tasks[name].send({"type": "stop"})
        self._threads.shutdown(cancel_futures=True)
        for task in self.tasks.values():
            task.channel.close()

    def _run(self, name: TaskName) -> None:
        task = self.tasks[name] = Task()
        task.send(self.peers.welcome(name, threads=1))
        task.send(self.peers.view())
        assert task.channel.wait_for(lambda: bool(task.channel.peers), _SECONDS)
        if name.is_server:
            beside = None if self._sockets is None else self._sockets / f"{name}.sock"
            server = Server(task.channel, services, beside)
            self._servers[name] = server, self._threads.submit(server.run)
            return
        backend = ps.backend(task.channel)
        assert isinstance(backend, Dense)
        self.backends[backend.index] = backend

    def _listens(self, name: TaskName) -> None:
        self.peers.listen(name, self.told(name, "listening")[0]["endpoints"])
        self.tell()


@pytest.fixture
def job() -> Iterator[Callable[..., Job]]:
    """Makes jobs that are closed at the end."""
    with ExitStack() as stack:

        def make(workers: int, servers: int, **options: Any) -> Job:
            made = Job(workers, servers, **options)
            stack.callback(made.close)
            return made

        yield make


class Adding:
    """A gang that runs `adding.py`."""

    def __init__(self, gang: Gang) -> None:
        self.gang = gang

    def allow(self, rounds: int, index: int | None = None) -> None:
        """Let the workers, or from now on that of one index, do that many rounds in all, then wait;
        negative: then end.
        """
        fresh = self.gang.folder / "until.new"
        fresh.write_text(str(rounds))
        os.replace(fresh, self.gang.folder / ("until" if index is None else f"until-{index}"))

    def reach(self, rounds: int, *workers: str) -> None:
        """Let the workers do that many rounds in all, and wait until these have."""
        self.allow(rounds)
        for worker in workers:
            self._await(worker, "progress", rounds)

    def await_push(self, number: int, *workers: str) -> None:
        """Wait until these have pushed all of that round, counted from 0."""
        for worker in workers:
            self._await(worker, "pushed", number)

    def _await(self, worker: str, kind: str, step: int) -> None:
        def there() -> bool:
            return any(message["step"] == step for message in self.gang.of(worker, kind))

        wait.until(there, _SECONDS, f"{kind} {step} of {worker}")

    def finish(self, rounds: int) -> None:
        """Let the workers do that many rounds in all, and end well."""
        self.allow(-rounds)
        self.gang.finish()

    def seen(self, worker: str) -> list[list[Any]]:
        """From which round on which workers counted, and which took part."""
        seen: list[list[Any]] = json.loads(self.gang.output(worker).splitlines()[-1])["seen"]
        return seen


@pytest.fixture
def adding(tmp_path: Path) -> Iterator[Callable[..., Adding]]:
    """Starts the tasks of a plan; each on a node of its own unless `apart` is false."""
    with ExitStack() as stack:

        def start(
            workers: int,
            servers: int,
            *,
            apart: bool = True,
            encrypt: bool = False,
            backups: int = 0,
            environment: Mapping[str, str] | None = None,
        ) -> Adding:
            plan = Plan(
                strategy="ps",
                workers=workers,
                servers=servers,
                batch_per_worker=None,
                backup_workers=backups,
                worker_nodes=tuple(f"w{index}" for index in range(workers)) if apart else (),
                server_nodes=tuple(f"s{index}" for index in range(servers)) if apart else (),
            )
            command = [sys.executable, str(Path(__file__).with_name("adding.py"))]
            added = {**(environment or {}), **({"BACKUPS": str(backups)} if backups else {})}
            gang = stack.enter_context(Gang(tmp_path, plan, command, added, encrypt))
            running = Adding(gang)
            running.allow(0)
            gang.start()
            return running

        yield start
