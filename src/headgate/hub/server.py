"""The hub's process: one for each allocation of a user, on a socket for this user only; it ends
when idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import math
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import headgate
from headgate import isolation, policies
from headgate.engines.local import LocalEngine
from headgate.hub.allocations import publish_allocation
from headgate.hub.changes import Changes
from headgate.hub.live import LiveHub
from headgate.hub.standard_input import GivenInput, taken
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import Watcher
from headgate.hub.submission import parse
from headgate.hub.taking_up import former_runs
from headgate.hub.watchdog import HubWatchdog, leftovers
from headgate.machine import systemd
from headgate.model import defaults, log_levels
from headgate.model.errors import HeadgateError, HubError, UsageError
from headgate.model.reasons import Reason, ReasonKind
from headgate.policies import Policy
from headgate.recorded import runs
from headgate.sampling import machine
from headgate.scripts import variables

_log = logging.getLogger("headgate.hub.server")  # this module runs as `__main__`

PROTOCOL = 1
HELLO_SECONDS = 30.0
"""Most seconds until a client's hello."""
WRITTEN_SECONDS = 5.0
"""Longest wait of a client that attaches for what happened before to be in the run's store."""
LOG = "messages.log"
"""Log of Headgate's modules in a hub's folder, if logging is on."""
LOG_BYTES = 4 * 2**20
HELLO_BYTES = 2**16
REQUEST_BYTES = 16 * 2**20
_READ_BYTES = 2**16
_UNREAD_BYTES = 2**20


def idle_seconds() -> float:
    """How long a hub without work waits (`HEADGATE_IDLE_SECONDS`, default 60).

    Raises:
        UsageError: The variable is not a number of seconds.
    """
    idle_text = os.environ.get("HEADGATE_IDLE_SECONDS") or str(defaults.IDLE_SECONDS)
    try:
        seconds = float(idle_text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UsageError(f"found HEADGATE_IDLE_SECONDS={idle_text!r}; expected a number of seconds")
    return seconds


class HubServer:
    """Answers clients with one JSON object on each line, in both directions."""

    def __init__(self, hub: LiveHub) -> None:
        self._hub = hub
        self._clients = 0
        self._idle_since = time.monotonic()
        self._ending = False
        self.stopping = asyncio.Event()

    def asked_to_stop(self) -> None:
        """Stop the jobs; if the machine is being shut down, leave them to the next hub."""
        if not self.stopping.is_set() and systemd.is_stopping():
            self._hub.leave()
        self.stopping.set()

    async def serve(self, path: Path) -> None:
        """Serve until the hub was idle for a while or `stopping` is set. Setting it again kills the
        jobs.
        """
        path.unlink(missing_ok=True)
        socket = ServedSocket(path, self._client)
        await socket.make()
        try:
            while not self.stopping.is_set():
                if await socket.make():
                    removed = Reason.of(ReasonKind.SOCKET_MADE_AGAIN, path=str(path))
                    self._hub.warn(removed)
                if self._hub.busy or self._clients:
                    self._idle_since = time.monotonic()
                left = self._idle_since + idle_seconds() - time.monotonic()
                if left <= 0:
                    break
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.stopping.wait(), min(left, 1.0))
            # Later clients find no socket, and wait for the lock to start another hub.
            self._ending = True
            path.unlink(missing_ok=True)
            self._hub.begins_to_end()
            await self._stop_jobs()
        finally:
            # not awaited: from Python 3.12 on that would last until the last client has gone
            socket.close()

    async def _stop_jobs(self) -> None:
        """Stop what still runs, each job with a checkpoint. The engine kills a task after its grace
        period.
        """
        self.stopping.clear()
        for run in list(self._hub.runs):
            self._hub.requests.stop(run, None, kill=False)
        while self._hub.runs and not self.stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), 0.05)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._ending:  # it connected before the socket closed: let it wait for the next hub
            writer.close()
            return
        self._clients += 1
        closers: list[Callable[[], None]] = []
        try:
            async for line in _requests(reader):
                try:
                    if line is None:
                        raise HubError(
                            f"a request is longer than {REQUEST_BYTES // 2**20} MiB, or a hello "
                            "than 64 KiB"
                        )
                    answer = await self._answer(json.loads(line), writer, closers)
                except HeadgateError as error:
                    answer = {"error": str(error), "exit_code": error.exit_code}
                except (ValueError, RecursionError) as error:  # also if it is nested too deep
                    answer = {
                        "error": f"this request makes no sense: {error}",
                        "exit_code": HubError.exit_code,
                    }
                except Exception as error:  # noqa: BLE001  # a plug-in's fault, or ours: no other client's to suffer
                    traceback.print_exc()
                    answer = {
                        "error": f"the hub failed at it: {error!r}",
                        "exit_code": HubError.exit_code,
                    }
                _write(writer, answer)
                await writer.drain()
        except (ConnectionError, TimeoutError):
            pass
        finally:
            for close in closers:
                close()
            self._clients -= 1
            writer.close()

    async def _answer(
        self, request: object, writer: asyncio.StreamWriter, closers: list[Callable[[], None]]
    ) -> dict[str, Any]:
        if not isinstance(request, dict):
            raise ValueError(f"found {request!r}; expected an object")
        run = str(request.get("run"))
        _log.debug("asked for %r of run %s", request.get("op"), run)
        match request.get("op"):
            case "hello":
                return {
                    "type": "hello",
                    "protocol": PROTOCOL,
                    "headgate": headgate.__version__,
                    "pid": os.getpid(),
                }
            case "submit" if self._ending:
                raise HubError("the hub is ending; try again in a moment")
            case "submit":
                # The next run does not inherit the policy of an earlier one.
                usual = request.get("usual_policy") or policies.DEFAULT
                policy = request.get("policy") or (None if self._hub.has_runs else usual)
                if policy is not None:
                    self._hub.set_policy(_policy(request, str(policy)))
                submitted = await self._submit(request)
                if self._ending:  # the hub began to end meanwhile
                    self._hub.requests.stop(submitted.id, None, kill=False)
                if request.get("attach"):
                    closers.append(submitted.left)
                    closers.append(
                        self._hub.watchers.add(submitted.id, lambda message: _show(writer, message))
                    )
                return {"type": "submitted", "run": submitted.id, "path": str(submitted.folder)}
            case "attach" | "prove" if run in self._hub.runs:
                return await self._attach(run, request, partial(_show, writer), closers)
            case "attach" if (last := self._hub.unreported.get(run)) is not None:
                closers.append(self._hub.watchers.add(run, partial(_show, writer)))
                _write(writer, {"type": "attached", "run": run})
                return dict(last)  # what other watchers were told, behind the answer
            case "stop" | "checkpoint" | "pause" | "unpause" if run in self._hub.runs:
                return await self._order(run, request, _names(request))
            case "change" if run in self._hub.runs:
                changes = Changes.of(request.get("changes"))
                changed = self._hub.requests.change(run, str(request.get("job")), changes)
                return {"type": "changing", "run": run, "jobs": changed}
            case "attach" | "stop" | "checkpoint" | "change" | "prove" | "pause" | "unpause":
                raise UsageError(f"run {run} is not running")
            case "warn":
                self._hub.warn(Reason.read(request["reason"]))
                return {"type": "warned"}
            case "runs":
                return {
                    "type": "runs",
                    "policy": self._hub.policy,
                    "runs": list(self._hub.runs),
                    "unreported": list(self._hub.unreported),
                }
            case op:
                raise HubError(
                    f"this hub does not know {op!r}; it is version {headgate.__version__}"
                )

    async def _order(
        self, run: str, request: Mapping[str, Any], names: list[str] | None
    ) -> dict[str, Any]:
        """Do what is asked of jobs of a run (None: all)."""
        hub = self._hub
        match request["op"]:
            case "stop":
                kill = bool(request.get("kill"))
                return {"type": "stopping", "jobs": hub.requests.stop(run, names, kill)}
            case "pause":
                paused = await hub.holder.pause(run, names, bool(request.get("release")))
                return {"type": "pausing", "jobs": paused}
            case "unpause":
                return {"type": "unpausing", "jobs": await hub.holder.unpause(run, names)}
        asked, silent = hub.requests.checkpoint(run, names), hub.requests.unconnected(run, names)
        return {"type": "checkpointing", "jobs": asked, "unconnected": silent}

    async def _submit(self, request: Mapping[str, Any]) -> LiveRun:
        """Take in a run, with the standard input that comes with it, if any."""
        submission, path = parse(request.get("submission")), request.get("stdin")
        submission.check()
        given = GivenInput(await asyncio.to_thread(taken, str(path))) if path is not None else None
        try:
            run = await self._hub.submit(submission, given)
        except BaseException:
            if given is not None:
                given.close()
            raise
        with contextlib.suppress(OSError):  # a resume then reports them as unknown
            variables.write(run.folder, submission.environment)
        return run

    async def _attach(
        self, run: str, request: Mapping[str, Any], show: Watcher, closers: list[Callable[[], None]]
    ) -> dict[str, Any]:
        """Send a client all messages of a run from now on, or start a proof that ends when the
        client leaves.

        If it asks for `written`, what happened before is in the run's store once it is answered,
        unless the hub cannot write for `WRITTEN_SECONDS`.
        """
        if request["op"] == "attach":
            closers.append(self._hub.watchers.add(run, show))
            if request.get("written") and not (live := self._hub.runs[run]).ended:
                await asyncio.to_thread(live.recorder.flush, WRITTEN_SECONDS)
            return {"type": "attached", "run": run}
        most = request.get("most")
        if not isinstance(most, float | int):
            raise ValueError(f"found most {most!r:.80}; expected a part of time")
        culprits = _names(request, "neighbours")
        proof = self._hub.proving.begin(run, _names(request), culprits, float(most), show)
        closers.append(proof.cancel)
        return {"type": "proving", "run": run, "jobs": proof.victims, "neighbours": proof.culprits}


class ServedSocket:
    """The listening socket, made again if somebody removed it.

    Args:
        path: Path of the socket.
        serve: Called with each connection.
    """

    def __init__(
        self,
        path: Path,
        serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    ) -> None:
        self._path = path
        self._serve = serve
        self._servers: list[asyncio.Server] = []
        self._number = 0

    async def make(self) -> bool:
        """Make the socket if it is missing. Returns whether it existed before and was removed. A
        failure is retried at the next call.
        """
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._number:
                return False
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._servers.append(await asyncio.start_unix_server(self._serve, self._path))
            os.chmod(self._path, 0o600)
            self._number = self._path.stat().st_ino
        except OSError as error:
            if not self._servers:
                raise
            print(f"cannot make {self._path}: {error.strerror}", file=sys.stderr)
            return False
        return len(self._servers) > 1

    def close(self) -> None:
        """Accept no more connections."""
        for server in self._servers:
            server.close()


def _policy(request: Mapping[str, Any], name: str) -> Policy:
    """The policy of a run.

    Raises:
        UsageError: There is none of this name.
    """
    try:
        return policies.make(name)
    except UsageError as error:
        if request.get("policy"):
            raise
        raise UsageError(f"{error}; your settings name it: headgate config") from None


def _names(request: Mapping[str, Any], key: str = "jobs") -> list[str] | None:
    names = request.get(key)
    if names is None:
        return None
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        return names
    raise ValueError(f"found {key} {names!r:.80}; expected names, or null for all")


async def _requests(reader: asyncio.StreamReader) -> AsyncIterator[bytes | None]:
    """The lines of a client; None, and no more, after a line that is too long.

    Raises:
        TimeoutError: The hello did not come in time.
    """
    buffer, most = bytearray(), HELLO_BYTES
    deadline: float | None = asyncio.get_running_loop().time() + HELLO_SECONDS
    while len(buffer) <= most:
        async with asyncio.timeout_at(deadline):
            data = await reader.read(_READ_BYTES)
        if not data:
            return
        *lines, partial = data.split(b"\n")
        for line in lines:
            yield bytes(buffer + line)
            buffer.clear()
            most, deadline = REQUEST_BYTES, None
        buffer += partial
    yield None


def _write(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    if not writer.is_closing():
        writer.write(json.dumps(message).encode() + b"\n")


def _show(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    """Send a message about a run. Snapshots are skipped for a client that does not read, such as a
    stopped process.
    """
    if message["type"] != "snapshot" or writer.transport.get_write_buffer_size() < _UNREAD_BYTES:
        _write(writer, message)


async def _serve(home: Path, lock: int) -> None:
    folder, sockets = runs.hub(), runs.make_sockets()
    publish_allocation(folder)
    leftovers(folder)
    # The name is unique to this hub, so that leftovers of a dead hub are never taken for its own.
    group = f"{os.geteuid()}-{os.getpid()}"
    boxes = isolation.make(isolation.DEFAULT, group)
    node = await asyncio.to_thread(machine.detect, home / "node.json", {})
    guard = HubWatchdog(folder, lock)
    loop = asyncio.get_running_loop()
    loop.add_reader(guard.pidfd, _guard_died, loop, guard)
    channel = sockets / "channel.sock"
    engine = LocalEngine(
        node,
        boxes,
        channel,
        guard,
        others=lambda name: isolation.make(name, group),
        expected=lambda task, then: hub.expect(task, then),  # noqa: PLW0108  # it is made later
    )
    former = former_runs()
    last = max((run.last_entry for run in former), default=0)
    hub = LiveHub(home, node, engine, policies.make(policies.DEFAULT), last)
    if former:
        await hub.take_up(former)
    server = HubServer(hub)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.asked_to_stop)
    await server.serve(sockets / "hub.sock")
    await hub.close()
    loop.remove_reader(guard.pidfd)
    guard.close()
    runs.remove_sockets(folder)


def _guard_died(loop: asyncio.AbstractEventLoop, guard: HubWatchdog) -> None:
    loop.remove_reader(guard.pidfd)
    guard.restart()
    loop.add_reader(guard.pidfd, _guard_died, loop, guard)


def main() -> int:
    """Run the hub of `HEADGATE_HOME` and this allocation, unless one runs. Returns the exit status.

    Raises:
        HeadgateError: A hub cannot run here.
    """
    home = runs.home()
    idle_seconds()
    lock = os.open(runs.hub() / "hub.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    log_levels.configure(
        handler=RotatingFileHandler(
            runs.hub() / LOG, maxBytes=LOG_BYTES, backupCount=1, delay=True, encoding="utf-8"
        )
    )
    _log.info("hub of version %s, process %d", headgate.__version__, os.getpid())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # A task takes about eight descriptors here, and three in the watchdog, which inherits this
    # limit.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_serve(home, lock))
    _log.info("the hub has ended")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HeadgateError as error:
        # into its log: the last line is shown to the user who started it
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
