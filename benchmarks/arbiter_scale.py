"""What an arbiter costs with many users and jobs, and how soon it decides. Only root can run it.

    python benchmarks/arbiter_scale.py [--users 20] [--jobs 500] [--seconds 30] [--length 60]
                                       [--json PATH]

It starts the real daemon. For each user a process of that user connects, as a hub does, and hands
the connection over. A fifth of the jobs run, and the others wait. Each takes `--length` seconds on
average, and its hub tells its end at once. Each hub tells all again every five seconds.

Then a user connects all the time for five seconds. Last, the core alone decides with 1,000 waiting
jobs, and answers a look at 512 running ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import _frame
import psutil

from headgate.arbiter.core import Arbiter
from headgate.arbiter.records import Demand, Hub, JobDemand, Span
from headgate.arbiter.seen import seen
from headgate.model import records
from headgate.model.cluster import Gpu, Node
from headgate.model.sharing import SharingRules

FIRST_UID = 60_100
RUNNING = 5
GIB = 1 << 30


class HubOfUser:
    """A connection of a user, and what its hub would tell over it."""

    def __init__(self, user: int, jobs: int, memory_bytes: int) -> None:
        self.user, self._memory, self._count = user, memory_bytes, 0
        self.waiting: list[str] = []
        self.running: dict[str, float] = {}
        for _ in range(jobs):
            self._add()

    def _add(self) -> None:
        self._count += 1
        self.waiting.append(f"r/job-{self._count}#1")

    def ended(self, id: str) -> None:
        """A job ended, and its user submits another."""
        del self.running[id]
        self._add()

    async def join(self, connection: socket.socket) -> None:
        self.reader, self._writer = await asyncio.open_unix_connection(
            sock=connection, limit=1 << 24
        )

    def state(self) -> None:
        def job(id: str) -> dict[str, object]:
            left = [60.0, 30.0, 120.0]
            return {"id": id, "cores": 1.0, "memory_bytes": self._memory, "left": left, "name": id}

        stated = {"waiting": [*map(job, self.waiting)], "running": [*map(job, self.running)]}
        self._writer.write(json.dumps({"hub": "h", **stated}).encode() + b"\n")


def connected(uid: int, path: Path) -> tuple[socket.socket, int]:
    """A connection that a process of a user made, and the process."""
    ours, theirs = socket.socketpair()
    if (process := os.fork()) == 0:
        os.setgid(uid)
        os.setuid(uid)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            socket.send_fds(theirs, [b"x"], [connection.fileno()])
        signal.pause()
    _, [number], _, _ = socket.recv_fds(ours, 1, 1)
    ours.close()
    theirs.close()
    return socket.socket(fileno=number), process


def flood(uid: int, path: Path, seconds: float) -> int:
    """A process of a user that does nothing but connect for so long."""
    if (process := os.fork()) == 0:
        os.setuid(uid)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(0.5)
                connection.connect(str(path))
        os._exit(0)
    return process


def cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def driven(
    hubs: list[HubOfUser], daemon: psutil.Process, seconds: float, length: float
) -> dict[str, float]:
    """Have jobs start and end for so long. Returns the share of a core, and delays."""
    luck, since, delays = random.Random(7), list[float](), list[float]()

    async def hear(hub: HubOfUser) -> None:
        while line := await hub.reader.readline():
            message = json.loads(line)
            if message.get("type") == "ResourceGrant" and message["demand"]["id"] in hub.waiting:
                hub.waiting.remove(message["demand"]["id"])
                hub.running[message["demand"]["id"]] = time.monotonic()
                if since:
                    delays.append(time.monotonic() - since.pop())
                hub.state()

    async def repeat(hub: HubOfUser) -> None:
        while True:
            await asyncio.sleep(5.0)
            hub.state()

    async def end() -> None:
        while True:
            count = sum(len(hub.running) for hub in hubs)
            await asyncio.sleep(luck.expovariate(max(count, 1) / length))
            busy = [hub for hub in hubs if hub.running]
            if busy:
                hub = luck.choice(busy)
                hub.ended(next(iter(hub.running)))
                since[:] = [time.monotonic()]
                hub.state()

    await asyncio.sleep(6.0)  # the arbiter has read what others hold of the memory
    for hub in hubs:
        hub.state()
    tasks = [asyncio.create_task(work(hub)) for hub in hubs for work in (hear, repeat)]
    await asyncio.sleep(5.0)
    tasks.append(asyncio.create_task(end()))
    began, cpu_before = time.monotonic(), cpu(daemon)
    await asyncio.sleep(seconds)
    share = (cpu(daemon) - cpu_before) / (time.monotonic() - began)
    for task in tasks:
        task.cancel()
    delays.sort()
    return {
        "core_share": share,
        "rss_mb": daemon.memory_info().rss / 1e6,
        "running": sum(len(hub.running) for hub in hubs),
        "starts": len(delays),
        "to_next_start_median": statistics.median(delays) if delays else float("nan"),
        "to_next_start_p95": delays[int(0.95 * (len(delays) - 1))] if delays else float("nan"),
    }


def decided(waiting: int, users: int, rules: SharingRules) -> tuple[float, float, Arbiter]:
    """CPU seconds of a decision after a job's end, median and most, with so many waiting jobs."""
    node = Node("m", 64, 512 * GIB, gpus=tuple(Gpu(i, "A100", 80 * GIB) for i in range(8)))
    arbiter = Arbiter(node, rules)
    for user in range(users):
        jobs = []
        for i in range(waiting // users + 5):
            kind = (7 * user + i) % 5
            left = Span(600.0 * kind, 300.0 * kind, 900.0 * kind) if kind else None
            memory, gpus = (4 + 3 * kind) * GIB + i * 1_000_003, (0, 1, 1, 2, 4)[kind]
            shared = 20 * GIB if kind == 2 else None
            jobs.append(JobDemand(f"j{i}#1", 2.0 + kind, 1, memory, gpus, shared, left))
        arbiter.step(0.0, Demand(Hub(f"u{user}"), tuple(jobs)))
    costs = list[float]()
    for job in list(arbiter.room.grants)[:20]:
        own = {j: g.demand for j, g in arbiter.room.grants.items() if j.hub == job.hub}
        ids = {running.id for running in own}
        stated = arbiter.stated_jobs().items()
        queue = tuple(d for j, d in stated if j.hub == job.hub and j.id not in ids)
        demand = Demand(job.hub, queue, tuple(d for j, d in own.items() if j != job))
        began = time.thread_time()
        arbiter.step(1.0 + len(costs), demand)
        costs.append(time.thread_time() - began)
    return statistics.median(costs), max(costs), arbiter


def looked(grants: int) -> float:
    """CPU seconds of an answer to a look at a machine with so many running jobs."""
    arbiter = Arbiter(Node("m", 512, 2048 * GIB), SharingRules())
    for user in range(16):
        jobs = tuple(JobDemand(f"j{i}#1", 1.0, memory_bytes=GIB) for i in range(grants // 16))
        arbiter.step(0.0, Demand(Hub(f"u{user}"), jobs))
    assert len(arbiter.room.grants) == grants
    began = time.thread_time()
    json.dumps(records.dump(seen(arbiter, 1.0, "u1")))
    return time.thread_time() - began


async def served(users: int, jobs: int, seconds: float, length: float) -> dict[str, float]:
    """The figures of the daemon."""
    clients: list[int] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        path = folder / "socket"
        places = ("--rules", folder / "none", "--socket", path, "--folder", folder / "kept")
        arbiter = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headgate", "arbiter", *map(str, places), "--json"),
            stdout=asyncio.subprocess.PIPE,
        )
        assert arbiter.stdout is not None
        try:
            daemon = psutil.Process(json.loads(await arbiter.stdout.readline())["pid"])
            result = {"rss_mb_idle": daemon.memory_info().rss / 1e6}
            memory = int(psutil.virtual_memory().available * 0.8 / (jobs / RUNNING))
            hubs = [HubOfUser(user, jobs // users, memory) for user in range(users)]
            for hub in hubs:
                connection, process = connected(FIRST_UID + hub.user, path)
                clients.append(process)
                await hub.join(connection)
            result |= await driven(hubs, daemon, seconds, length)
            began, before = time.monotonic(), cpu(daemon)
            clients.append(flood(FIRST_UID + users, path, 5.0))
            await asyncio.sleep(5.0)
            result["flood_core_share"] = (cpu(daemon) - before) / (time.monotonic() - began)
        finally:
            for process in clients:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
            arbiter.terminate()
            await arbiter.wait()
    return result


def main() -> None:
    parser = _frame.parser(__doc__.partition("\n")[0], 1)
    parser.add_argument("--users", type=int, default=20, help="(default: 20)")
    parser.add_argument("--jobs", type=int, default=500, help="of all users (default: 500)")
    parser.add_argument("--seconds", type=float, default=30.0, help="measured (default: 30)")
    parser.add_argument("--length", type=float, default=60.0, help="of a job, seconds (60)")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("only root can run an arbiter: sudo python benchmarks/arbiter_scale.py")
    _frame.heading(options.repetitions)
    result = asyncio.run(served(options.users, options.jobs, options.seconds, options.length))
    for users in ("apart", "together"):
        median, most, _ = decided(1000, options.users, SharingRules(users=users))
        result |= {f"decision_{users}": median, f"decision_{users}_most": most}
    result["look_at_512"] = looked(512)
    rows = (
        ("share of one core", "core_share", 1.0, ""),
        ("share of one core, a user connects all the time", "flood_core_share", 1.0, ""),
        ("memory, idle", "rss_mb_idle", 1.0, "MB"),
        ("memory", "rss_mb", 1.0, "MB"),
        ("jobs that run", "running", 1.0, ""),
        ("from a job's end to the next one's grant, median", "to_next_start_median", 1e3, "ms"),
        ("the same, 95 %", "to_next_start_p95", 1e3, "ms"),
        ("a decision with 1,000 waiting jobs", "decision_apart", 1e3, "ms"),
        ("the same, users: together", "decision_together", 1e3, "ms"),
        ("an answer to a look at 512 running jobs", "look_at_512", 1e3, "ms"),
    )
    for label, key, scale, unit in rows:
        print(f"{label:52}{scale * result[key]:10.3g} {unit}")
    given = {name: value for name, value in vars(options).items() if name != "json"}
    _frame.write(options.json, "arbiter_scale", {"options": given, "result": result})


if __name__ == "__main__":
    main()
