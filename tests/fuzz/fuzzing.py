"""Damaged and odd input for all that Headgate reads: command lines, files of users, output and
messages of jobs, requests, stores.

Whatever comes in, what reads it answers with a value or with one of Headgate's own errors, within a
second:

    python tests/fuzz/fuzzing.py --inputs 100000 --seed 1
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import os
import random
import socket
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import (
    ExitStack,
    closing,
    contextmanager,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import yaml

from headgate.arbiter import daemon, messages
from headgate.arbiter.acts import Act, ActKind
from headgate.arbiter.core import Arbiter
from headgate.arbiter.daemon import ArbiterDaemon
from headgate.arbiter.events import Booked, HubJoined, JobOrdered, UserLimited
from headgate.arbiter.records import Booking, Demand, Hub, JobDemand, MachineJob
from headgate.arbiter.seen import seen
from headgate.arbiter.store import ArbiterStore
from headgate.arbiter.usage import DayUse, UsageLedger
from headgate.config import arbiterfile, clusterfile, jobfile, planfile
from headgate.engines.channel import Connection
from headgate.engines.log import TaskLog
from headgate.hub.parts.listener import HubListener
from headgate.hub.server import HubServer
from headgate.hub.state.attempt import Attempt
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.hub.submission import Submission, parse
from headgate.machine.arbiter_socket import Peer
from headgate.model import records
from headgate.model.cluster import Gpu, Node
from headgate.model.errors import HeadgateError, StorageError, UsageError
from headgate.model.identifiers import JobId, TaskId, TaskName
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.progress_rule import ProgressRule
from headgate.model.reasons import Reason
from headgate.model.sharing import Amounts, SharingRules
from headgate.output.patterns import ProgressReader
from headgate.recorded import runs
from headgate.recorded.store import Recorder
from headgate.recorded.tables import TABLES
from headgate.reports import html, terminal
from headgate.simulation import trace_files

SLOWEST_SECONDS = 1.0
"""CPU time that one input may take."""

_NUMBERS = [
    "0",
    "-1",
    "1e400",
    "1e999",
    "-1e308",
    "nan",
    ".inf",
    "NaN",
    "Infinity",
    "9" * 400,
    "0x1F",
    "1_000",
    "07",
    "1.5",
]
_WORDS = [
    *(
        "x",
        "",
        " ",
        "yes",
        "null",
        "~",
        "\x1b[2J",
        "\ud800",
        "\udcff",
        "\x00",
        "é",
        "日本",
        "\u202e",
        "a" * 300,
        "../..",
        "/etc",
    ),
    *(
        "!!timestamp x",
        "!!binary x",
        "!!set {a}",
        "!!float x",
        "!!python/object:os.system x",
        "&a [*a]",
        "*a",
        "<<: *a",
        "2020-99-99",
    ),
    *(
        "5s",
        "2GiB",
        "1..8",
        "8..1",
        "1/3",
        "single",
        "allreduce",
        "train.py",
        "loss",
        ".*.*.*(?P<loss>x)",
        "(?P<loss>",
        "[" * 50,
    ),
]
_LINES = [
    "Epoch 1/10 loss: 0.5 acc=0.9",
    "[1, 2000] loss: 2.2",
    "Epoch 3:  45%|####5     | 45/100 [00:10<00:12, 4.4it/s, loss=0.3, v_num=1]",
    "10/10 [==============================] - 1s 10ms/step - loss: 0.1 - val_loss: 0.2",
    "{'loss': 0.5, 'learning_rate': 1e-4, 'epoch': 1.0}",
    "step 1,000 | lm loss: 2.1E+00 | grad norm: 1.0",
    "[10]\ttrain-rmse:0.5\teval-rmse:0.6",
    "Test: [ 0/20]\tLoss 2.0 (2.1)\tAcc@1 50.00 (51.0)",
    "Traceback (most recent call last):",
    "ValueError: no",
]
_MESSAGES: list[dict[str, Any]] = [
    {"type": "hello", "v": 1, "framework": "torch", "pid": 1, "seed": 3},
    {
        "type": "progress",
        "step": 1,
        "epoch": 0,
        "epochs": 3,
        "within": 0.5,
        "loss": 0.5,
        "count": 2,
        "metrics": {"acc": 0.9},
    },
    {
        "type": "spans",
        "step": 1,
        "spans": [{"name": "input", "seconds": 0.1, "begin": 0.0, "bytes_in": 5}],
        "transfers": [],
    },
    {
        "type": "checkpoint",
        "path": "step-1.pt",
        "step": 1,
        "epoch": 0,
        "position": 1,
        "bytes": 1,
        "seconds": 0.1,
        "why": "epoch",
    },
    {"type": "checkpoint_failed", "error": "full", "why": "join"},
    {"type": "stopping", "patience": 3, "min_delta": 0.1, "monitor": "val_loss"},
    {
        "type": "profile",
        "profile": {"framework": "torch", "parameters_dense": 10, "batch": 4, "fits": []},
    },
    {"type": "listening", "endpoints": ["tcp://127.0.0.1:1"]},
    {"type": "joining"},
    {"type": "gpus", "gpus": [0, 1]},
    {"type": "fault", "text": "lost", "seconds": 1.0, "steps": 2},
    {"type": "note", "text": "told"},
]
_REQUESTS: list[dict[str, Any]] = [
    {"op": "hello"},
    {
        "op": "submit",
        "submission": {
            "jobs": [{"name": "a", "run": "true"}],
            "environment": {},
            "cwd": "/",
            "command": ["x"],
        },
    },
    {"op": "attach", "run": "r"},
    {"op": "stop", "run": "r", "jobs": ["a"], "kill": True},
    {"op": "checkpoint", "run": "r", "jobs": None},
    {"op": "resize", "run": "r", "job": "a", "workers": 3},
    {"op": "runs"},
]
_JOBS = """
jobs:
  - name: digits
    script: train.py
    args: [--epochs, "5"]
    env: {SEED: "1"}
    workdir: .
    at: 5s
    priority: 1
    share: 1/3
    limits: {cores: 2, memory: 2GiB, gpus: 0, workers: 1..8}
    allow: [async]
    progress: {metric: loss, pattern: 'loss (?P<loss>\\S+)', goal: 0.1, patience: 3}
    retries: 1
    timeout: 1h
    plan: {strategy: ps, workers: 2, servers: 1, batch_per_worker: [16, 16]}
  - {run: [echo, x], after: digits, isolation: container, image: host, mounts: [/data]}
"""
_CLUSTER = """
name: lab
lab: true
nodes:
  - {name: a, address: 10.77.0.1, cores: 0.6, memory: 2GiB, nic: 200Mbit, disk: 100MB/s, gpus: []}
  - {kind: b, count: 3, cores: 1, memory: 1GiB}
"""
_PLAN = (
    "{strategy: ps, workers: 2, servers: 1, batch_per_worker: 16, worker_nodes: [a, b], "
    "server_nodes: [a]}\n"
)
_ARBITER = """
users: together
half_life: 3d
administrators: [wheel]
parts:
  - {user: ada, shares: 2, guaranteed: {cores: 4, memory: 8GiB, gpus: 1}, largest: {jobs: 9}}
  - {group: students, largest: {cores: 8, gpus: 1}}
  - {shares: 0.5}
"""
_DEMAND: dict[str, Any] = {
    "hub": "1",
    "waiting": [
        {"id": "r/a#1", "cores": 2.5, "workers": 2, "memory_bytes": 1 << 30, "gpus": 1},
        {"id": "r/b#1", "gpus": 1, "gpu_memory_bytes": 1 << 30, "left": [2.0, 1.0, 3.0]},
    ],
    "running": [{"id": "r/c#1", "memory_bytes": 1 << 20, "name": "c", "private": True}],
}
_ASKED: tuple[dict[str, Any], ...] = (
    {"type": "Look", "version": 1},
    {"type": "AskHold", "user": "nobody", "name": "c", "number": 1, "seconds": 0.4},
    {"type": "JobHeld", "by": ["nobody", "h"], "number": 1, "begin": 1.0, "end": 1.4},
    {"type": "Book", "demand": {"id": "", "gpus": 2}, "seconds": 60.0, "begin": 5.0},
    {"type": "Unbook", "id": 1},
    {"type": "OrderJob", "job": [["nobody", "1"], "r/a#1"], "held": True},
    {"type": "Drain", "drained": False},
    {"type": "LimitUser", "user": "nobody", "largest": {"cores": 1.5, "memory_bytes": 1 << 30}},
    {"type": "ShowUsage", "since": 3, "user": "nobody"},
)
_TRACES = (
    "name,submitted,seconds,gpus,model\na,0,100,1,resnet\nb,5,50,2,bert\nc,7.5,20,0,\n",
    (
        "job_id,submit_time,duration,num_gpu\n1,2020-01-01 00:00:00,100,1\n2,2020-01-01 "
        "00:01:00,50,8\n"
    ),
    "timestamp,duration,num_gpus,gpu_milli\n0,100,1,500\n10,20,2,1000\n",
)
_SPEEDS = "model,cores,throughput\nresnet,1,10\nresnet,2,18\n"
_PAIRS = '{"V100": {"resnet": {"null": 8.1, "bert": [5.6, 5.2]}}}'
_PROFILE = (
    '{"framework": "torch", "framework_version": "2", "parameters_dense": 1000, '
    '"parameters_sparse": 0, "batch": 64, "dense_bytes": 4000, "flops_per_sample": 1e6, "source": '
    '"profile", "step_times": [{"batch": 64, "threads": 1, "device": "cpu", "seconds": 0.1, '
    '"steps": 20}]}'
)


class Chance(random.Random):
    """Where damage comes from."""

    def text(self) -> str:
        return self.choice(
            [self.choice(_WORDS), self.choice(_NUMBERS), "".join(self.choices(_WORDS, k=3))]
        )

    def value(self, depth: int = 0) -> Any:
        """Any JSON value, those included that nobody should send."""
        kind = self.randrange(9 if depth < 3 else 6)
        if kind == 0:
            return self.choice(
                [
                    None,
                    True,
                    False,
                    math.inf,
                    -math.inf,
                    math.nan,
                    2**53,
                    2**64,
                    10**400,
                    -1,
                    0,
                    1e308,
                    5e-324,
                ]
            )
        if kind < 3:
            return self.randint(-5, 5)
        if kind < 6:
            return self.text()
        if kind == 6:
            return [self.value(depth + 1) for _ in range(self.randrange(4))]
        if kind == 7:
            return {self.text(): self.value(depth + 1) for _ in range(self.randrange(4))}
        return self.random() * 10 ** self.randint(-320, 300)

    def altered(self, value: Any, depth: int = 0) -> Any:
        """A JSON value with some of its parts changed."""
        if depth and self.random() < 0.25:
            return self.value()
        if isinstance(value, dict):
            kept = {
                key: self.altered(each, depth + 1)
                for key, each in value.items()
                if self.random() > 0.08
            }
            return {**kept, self.text(): self.value()} if self.random() < 0.1 else kept
        if isinstance(value, list):
            return [self.altered(each, depth + 1) for each in value] * self.choice([1, 1, 1, 2, 30])
        return value

    def damaged(self, data: bytes) -> bytes:
        """Bytes with some overwritten, cut out, doubled or put in."""
        made = bytearray(data)
        for _ in range(self.choice([1, 1, 2, 5])):
            at = self.randrange(len(made) + 1)
            end = min(at + self.randrange(1, 12), len(made))
            put = self.choice(
                [
                    os.urandom(0),
                    self.randbytes(4),
                    self.text().encode("utf-8", "surrogatepass"),
                    bytes(made[at:end]) * 2,
                ]
            )
            made[at : end if self.random() < 0.5 else at] = put
        if self.random() < 0.05:
            bracket = self.choice([b"[", b"{", b"- ", b"a: ", b"&a ", b"'"])
            made += b"\nx: " + bracket * self.choice([50, 3000, 20_000])
        if self.random() < 0.03:
            rows = [
                f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9) if i else 'x'}]"
                for i in range(self.choice([3, 9, 30]))
            ]
            made = bytearray("\n".join(rows).encode() + b"\n" + made)
        return bytes(made[: 2 * len(data) + 70_000])


Read = Callable[[Chance], object]


@dataclass
class Outcome:
    """What came of the inputs: how many of each kind, the slowest of each, what failed."""

    inputs: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


class _Files:
    """Files of users, damaged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "train.py").write_text("print('loss 1')\n")
        (folder / "loop").symlink_to("loop")

    def yaml(self, load: Callable[[str], object], text: str) -> Read:
        """Reads a YAML file: damaged as bytes, or one of altered values."""
        data = yaml.safe_load(text)

        def read(chance: Chance) -> object:
            kind = chance.random()
            if kind < 0.1:
                made = text.encode()
            elif kind < 0.5:
                made = chance.damaged(text.encode())
            else:
                made = json.dumps(chance.altered(data)).encode()
            path = self._folder / "file.yaml"
            path.write_bytes(made)
            return load(str(path))

        return read

    def trace(self, chance: Chance) -> object:
        text = chance.choice(_TRACES)
        rows = text.splitlines()
        if chance.random() < 0.5:
            cells = rows[-1].split(",")
            cells[chance.randrange(len(cells))] = chance.text()
            text = "\n".join([*rows, ",".join(cells)])
        path = self._folder / "trace.csv"
        path.write_bytes(
            chance.damaged(text.encode("utf-8", "surrogatepass"))
            if chance.random() < 0.7
            else text.encode("utf-8", "replace")
        )
        return trace_files.read(path)


class _Task:
    """A task that a hub hears, and what it says: lines and messages."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        submission = Submission((Job(name="a", run="true"),), {}, str(Path.cwd()), ("headgate",))
        self._run = LiveRun(
            submission, (Node("here", 2, 2**30),), "none", time.monotonic(), lambda _: None
        )
        self._task = f"{self._run.id}/a/worker-0"
        self._loop = loop
        live = self._run.jobs["a"]
        plan = Plan(strategy="ps", workers=1, servers=1, batch_per_worker=None)
        self._attempt = Attempt(JobId(f"{self._run.id}/a"), 1, plan, False, lambda *_: None)
        live.begin(self._attempt, 0)
        self._attempt.start(
            TaskName("worker-0"), "here", "127.0.0.1", ProgressReader(ProgressRule()), joins=False
        )
        self._failed: list[str] = []
        hears = {
            "attempt_of": lambda task: (self._run, live, self._attempt, task.name),
            "event": self._event,
            "failed": self._fail,
        }
        live_runs = cast(LiveRuns, SimpleNamespace(**hears))
        self._listener = HubListener(
            live_runs,
            self._run.folder,
            lambda _: None,
            lambda _: None,
            lambda *_: None,
            lambda: None,
        )
        self._log = TaskLog(os.devnull)
        self._live = live

    def _event(self, run: LiveRun, kind: str, reason: Reason, *_: object, **more: object) -> None:
        run.event(kind, reason)

    def _fail(self, what: str, error: BaseException, id: str = "") -> None:
        self._failed.append("".join(traceback.format_exception(error)))

    def _hear(self) -> None:
        """Have the loop do what it was given, and show the run as whoever watches it sees it."""
        self._loop.run_until_complete(asyncio.sleep(0))
        json.dumps(self._run.snapshot("none", lambda _: None))
        if self._failed:
            raise AssertionError(self._failed.pop())

    def line(self, chance: Chance) -> None:
        data = chance.damaged(chance.choice(_LINES).encode())
        if chance.random() < 0.05:
            data *= chance.choice([10, 500])
        lines = self._log.write(data + b"\n", time.monotonic())
        self._listener.output(
            TaskId(self._task),
            [line[:4096] for line in (lines or [data.decode("utf-8", "replace")])],
        )
        self._hear()

    def message(self, chance: Chance) -> None:
        message = chance.altered(chance.choice(_MESSAGES))
        if chance.random() < 0.5 and message.get("type") == "checkpoint":
            message["path"] = str(
                self._run.checkpoints("a") / chance.choice(["step-1.pt", "../x", "a/../b"])
            )
        self._listener.message(TaskId(self._task), json.loads(json.dumps(message)))
        self._hear()

    def channel(self, chance: Chance) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            connection = Connection(ours, {"t": "key"}.get)
            hello = b'{"type": "hello", "task": "t", "key": "key"}\n'
            said = chance.damaged(json.dumps(chance.choice(_MESSAGES)).encode()) + b"\n"
            theirs.setblocking(False)
            try:
                theirs.sendall(
                    hello + said if chance.random() < 0.7 else chance.damaged(hello + said)
                )
                for message in connection.receive() or ():
                    self._listener.message(TaskId(self._task), message)
            except BlockingIOError:
                pass
            connection.close()
        self._hear()

    def close(self) -> None:
        assert self._run.recorder.flush(60)
        html.write(self._run.folder / runs.STORE, self._run.folder / "report.html")
        self._run.close()


class _Hub:
    """The hub's answers to requests, of a hub that does nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hub: object) -> None:
        self._server = HubServer(cast(Any, hub))
        self._loop = loop

    def request(self, chance: Chance) -> object:
        """As of a client: its hello, then a request that is odd or damaged; the answers are JSON
        lines.
        """
        request = json.dumps(chance.altered(chance.choice(_REQUESTS))).encode()
        line = chance.damaged(request) if chance.random() < 0.5 else request
        said = self._loop.run_until_complete(self._answers(b'{"op": "hello"}\n' + line + b"\n"))
        for answer in said.splitlines():
            found = json.loads(answer)
            if "hub failed at it" in str(found.get("error")):
                raise AssertionError(f"{found['error']} at {line[:2000]!r}")
        return said

    async def _answers(self, data: bytes) -> bytes:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        said = bytearray()

        async def drain() -> None: ...

        writer = SimpleNamespace(
            write=said.extend, drain=drain, close=lambda: None, is_closing=lambda: False
        )
        await self._server._client(reader, cast(Any, writer))
        return bytes(said)

    def submission(self, chance: Chance) -> object:
        return parse(json.loads(json.dumps(chance.altered(_REQUESTS[1]["submission"]))))


class _Arbiter:
    """An arbiter of users who send anything; it holds each demand to what there is."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        gpus = tuple(Gpu(i, "g", 8 << 30) for i in range(2))
        self._loop, self._now = loop, 0.0
        self._arbiter = Arbiter(Node("m", 4, 16 << 30, gpus=gpus), SharingRules())
        daemon._LINE_SECONDS = daemon._PACE = 0.0
        store = ArbiterStore(folder / "arbiter.db", "boot")
        self._daemon = ArbiterDaemon(self._arbiter, store, clock=self._clock)

    def _clock(self) -> float:
        self._now += 1.0
        return self._now

    def demand(self, chance: Chance) -> object:
        """Of a hub, or whatever a user or root asks; the answers are JSON lines."""
        asked = _DEMAND if chance.random() < 0.5 else chance.choice(_ASKED)
        line = json.dumps(chance.altered(asked)).encode()
        line = chance.damaged(line) if chance.random() < 0.5 else line
        uid = chance.choice((0, 65_534, 4_000_000))
        answers = self._loop.run_until_complete(self._answers(line + b"\n", uid))
        for answer in answers.splitlines():
            json.loads(answer)
        grants = self._arbiter.room.grants.values()
        assert sum(grant.demand.all_memory_bytes for grant in grants) <= 16 << 30
        if b'"error"' in answers:
            raise UsageError(answers.decode())
        return answers

    async def _answers(self, data: bytes, uid: int) -> bytes:
        reader, answers = asyncio.StreamReader(limit=1 << 16), bytearray()
        reader.feed_data(data)
        reader.feed_eof()

        async def nothing() -> None: ...

        writer = SimpleNamespace(
            write=answers.extend,
            drain=nothing,
            wait_closed=nothing,
            close=lambda: None,
            transport=SimpleNamespace(get_write_buffer_size=lambda: 0),
        )
        await self._daemon._converse(reader, cast(Any, writer), Peer(1, uid, uid))
        return bytes(answers)


class _ArbiterFile:
    """The file that an arbiter keeps, damaged, as the next arbiter takes it up."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._path = folder / "arbiter.db"
        self._node = Node("m", 4, 16 << 30, gpus=(Gpu(0, "g", 8 << 30), Gpu(1, "g", 8 << 30)))
        store = ArbiterStore(self._path, "boot")
        arbiter = Arbiter(self._node, SharingRules())
        for event in (
            HubJoined(Hub("ada", "1"), uid=1),
            messages.request(json.dumps(_DEMAND).encode(), "ada"),
            Booked(Booking(1, "bob", JobDemand("", gpus=1), 5.0, 9.0)),
            JobOrdered(MachineJob(Hub("ada", "1"), "r/b#1"), held=True),
            UserLimited("bob", Amounts(gpus=1)),
        ):
            arbiter.step(1.0, cast(Any, event))
        store.keep(arbiter.state(1.0), {("ada", 1): DayUse(1.0, 2.0), ("bob", 2): DayUse()})
        store.record(Act(1.0, "root", ActKind.LIMIT, "bob", largest=Amounts(gpus=1)))
        store.close()
        with closing(sqlite3.connect(self._path)) as db:
            db.execute("PRAGMA journal_mode = DELETE")
            self._columns = [
                (table, column[1])
                for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                for column in db.execute(f"PRAGMA table_info({table})")
            ]
        self._whole = self._path.read_bytes()
        self._marks = [i for i in range(len(self._whole)) if self._whole[i]]

    def read(self, chance: Chance) -> object:
        """As the next arbiter reads it, goes on with it, and shows it."""
        data, is_odd = bytearray(self._whole), chance.random() < 0.6
        for _ in range(0 if is_odd else chance.choice([1, 3, 20])):
            data[chance.choice(self._marks)] = chance.randrange(256)
        for left in self._path.parent.iterdir():
            left.unlink()
        self._path.write_bytes(data)
        if is_odd:
            self._put_odd_value(chance)
        with closing(ArbiterStore(self._path, "boot")) as store:
            arbiter = Arbiter(self._node, SharingRules(), 2.0, store.state())
            arbiter.metering.usage = UsageLedger(store.usage(0))
            arbiter.step(3.0, Demand(Hub("eve"), (JobDemand("e"),)))
            shown = records.dump(seen(arbiter, 4.0, "eve", store.acts(None, 20)))
            store.keep(arbiter.state(5.0), arbiter.metering.usage.changed())
        return json.dumps(shown)

    def _put_odd_value(self, chance: Chance) -> None:
        with closing(sqlite3.connect(self._path)) as db, db:
            table, column = chance.choice(self._columns)
            [value] = db.execute(f"SELECT {column} FROM {table} LIMIT 1").fetchone()
            if isinstance(value, str) and value.startswith("{"):
                odd = json.dumps(chance.altered(json.loads(value))).encode()
                odd = chance.damaged(odd) if chance.random() < 0.3 else odd
                value = odd.decode("utf-8", "replace") if chance.random() < 0.9 else odd
            else:
                value = chance.choice([None, -1, 2**62, 1e308, "", b"\xff", math.inf])
            with suppress(sqlite3.IntegrityError):  # the column takes no such value
                db.execute(f"UPDATE OR REPLACE {table} SET {column} = ?", (value,))


class _Stores:
    """Stores of runs, damaged, read by each command that reads one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        path = folder / runs.STORE
        recorder = Recorder(path)
        node = [{"name": "n", "cores": 2, "memory_bytes": 2**30}]
        for key, value in {
            "id": "r",
            "began": "1.5",
            "state": "done",
            "ended": "9.0",
            "node": json.dumps(node),
            "command": "run a.py",
        }.items():
            recorder.add("meta", key=key, value=value)
        plan = {"strategy": "single", "workers": 1, "batch_per_worker": 4}
        spec = {"name": "a", "script": "a.py"}
        recorder.add(
            "jobs",
            name="a",
            position=0,
            spec=spec,
            state="done",
            reason="",
            submitted=0,
            started=1,
            ended=9,
            attempt=1,
            plan=plan,
            profile={"batch": 4},
        )
        recorder.add(
            "tasks",
            id="a/worker-0",
            job="a",
            node="n",
            attempt=1,
            pid=1,
            started=1,
            ended=9,
            exit={"code": 0, "cpu_seconds": 3.0},
        )
        for t in range(8):
            recorder.add(
                "progress",
                t=t,
                task="a/worker-0",
                step=t,
                epoch=1,
                epochs=2,
                loss=1 / (t + 1),
                count=1,
                metrics={"acc": t / 8},
            )
            recorder.add("usage", t=t, target="a/worker-0", cpu_cores=0.5, memory_bytes=1e6)
            recorder.add("usage", t=t, target="node:n", cpu_cores=0.5, memory_bytes=1e6, net_in=5.0)
            recorder.add(
                "spans", t=t, task="a/worker-0", step=t, name="input", seconds=0.1, begin=0.0
            )
            recorder.add(
                "shares", t=t, task="a/worker-0", entitled_cores=1.0, threads=1, reason="alone"
            )
            recorder.add("events", t=t, job="a", kind="note", text="told")
        recorder.close()
        self.whole = path.read_bytes()
        self._marks = [i for i in range(len(self.whole)) if self.whole[i]]

    def read(self, chance: Chance) -> object:
        """A store with some bytes changed, more often where there is something, or with odd values
        in its rows.
        """
        data = bytearray(self.whole)
        path = self._folder / runs.STORE
        odd = chance.random() < 0.5
        for _ in range(0 if odd else chance.choice([1, 3, 20])):
            data[chance.choice(self._marks)] = chance.choice(
                [0, 1, 7, 9, 0x7F, 0xFF, chance.randrange(256)]
            )
        if not odd and chance.random() < 0.1:
            del data[chance.randrange(len(data)) :]
        path.write_bytes(data)
        if odd:
            self._put_odd_values(path, chance)
        refused = ""
        for look in (self._summary, self._table, self._page):
            try:
                look(path)
            except HeadgateError as error:
                # not itself: with it, what it was reading would stay open
                refused = refused or str(error)
        if refused:
            raise StorageError(refused)
        return None

    def _put_odd_values(self, path: Path, chance: Chance) -> None:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("PRAGMA journal_mode = DELETE")
            for _ in range(chance.choice([1, 3])):
                table = chance.choice(list(TABLES))
                column = chance.choice(TABLES[table]).split()[0]
                value = chance.value()
                if isinstance(value, int) and not -(2**63) <= value < 2**63:
                    value = float("inf")
                if isinstance(value, list | dict):
                    value = json.dumps(value)
                if isinstance(value, str):
                    value = chance.choice(
                        [
                            value.encode("utf-8", "replace").decode(),
                            value.encode("utf-8", "replace"),
                        ]
                    )
                db.execute(
                    f"UPDATE OR REPLACE {table} SET {column} = ? WHERE rowid % ? = 0",
                    (value, chance.choice([1, 3])),
                )

    def _summary(self, path: Path) -> None:
        runs.summary(path.parent)

    def _table(self, path: Path) -> None:
        from rich.console import Console

        terminal.summary(path, Console(file=StringIO()))

    def _page(self, path: Path) -> None:
        html.write(path, path.with_name("report.html"))


@contextmanager
def readers() -> Iterator[dict[str, Read]]:
    """All that reads, by name; in a `HEADGATE_HOME` of its own."""
    from tests.fuzz.command_lines import (  # found from the root, which `main` sees to
        CommandLines,
        idle_hub,
    )

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-fuzz-")))
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # a disk would be waited for
        store = tempfile.TemporaryDirectory(prefix="headgate-fuzz-", dir=memory)
        in_memory = Path(stack.enter_context(store))
        before = {name: os.environ.get(name) for name in ("HEADGATE_HOME",)}
        os.environ["HEADGATE_HOME"] = str(folder / "home")
        loop = asyncio.new_event_loop()
        stack.callback(loop.close)
        stack.callback(
            lambda: os.environ.update({k: v for k, v in before.items() if v is not None})
        )
        (folder / "files").mkdir()
        files, stores = _Files(folder / "files"), _Stores(folder / "store")

        async def made() -> tuple[_Task, _Hub]:
            return _Task(loop), _Hub(loop, idle_hub())

        task, hub = loop.run_until_complete(made())
        files_of = {
            "jobs.yaml": _JOBS,
            "cluster.yaml": _CLUSTER,
            "plan.yaml": _PLAN,
            "trace.csv": _TRACES[0],
        }
        files_of |= {"speeds.csv": _SPEEDS, "pairs.json": _PAIRS, "profile.json": _PROFILE}
        lines = CommandLines(folder / "lines", stores.whole, files_of)
        stack.enter_context(lines.served())
        yield {
            "job file": files.yaml(jobfile.load, _JOBS),
            "cluster file": files.yaml(clusterfile.read, _CLUSTER),
            "plan file": files.yaml(planfile.load, _PLAN),
            "arbiter file": files.yaml(lambda path: arbiterfile.read(Path(path)), _ARBITER),
            "arbiter": _Arbiter(folder, loop).demand,
            "arbiter store": _ArbiterFile(in_memory / "arbiter").read,
            "trace": files.trace,
            "log line": task.line,
            "message": task.message,
            "channel": task.channel,
            "request": hub.request,
            "submission": hub.submission,
            "store": stores.read,
            "command line": lines.line,
        }
        task.close()


WEIGHTS = {
    "store": 1,
    "command line": 2,
    "job file": 3,
    "cluster file": 3,
    "plan file": 3,
    "arbiter file": 3,
    "arbiter store": 3,
}
"""How often what reads slowly comes, where the others come ten times."""


def fuzz(
    inputs: int, seed: int, only: Sequence[str] = (), tell: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Hand odd input to all that reads.

    Args:
        inputs: How many.
        seed: The same one gives the same inputs.
        only: Names of readers; empty: all of them.
        tell: Told each failure.
    """
    outcome = Outcome()
    with readers() as every:
        names = list(only or every)
        weights = [WEIGHTS.get(name, 10) for name in names]
        order = random.Random(seed)
        for number in range(inputs):
            name = order.choices(names, weights)[0]
            began = time.thread_time()
            answer = "value"
            try:
                with redirect_stderr(StringIO()), redirect_stdout(StringIO()):
                    every[name](Chance(f"{seed} {number}"))
            except (HeadgateError, click.ClickException) as error:
                answer = type(error).__name__
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                answer = "failure"
                outcome.failures.append(
                    f"{name} (input {number} of seed {seed}): {traceback.format_exc()}"
                )
                tell(outcome.failures[-1])
            seconds = time.thread_time() - began
            if seconds > SLOWEST_SECONDS:
                gc.collect()  # one that had to clear away what others left is asked once more
                began = time.thread_time()
                with redirect_stderr(StringIO()), redirect_stdout(StringIO()), suppress(Exception):
                    every[name](Chance(f"{seed} {number}"))
                seconds = time.thread_time() - began
            if seconds > SLOWEST_SECONDS:
                outcome.failures.append(
                    f"{name} (input {number} of seed {seed}) took {seconds:.1f} s"
                )
                tell(outcome.failures[-1])
            outcome.inputs[name] += 1
            outcome.answers[f"{name}: {answer}"] += 1
            outcome.slowest[name] = max(outcome.slowest.get(name, 0.0), seconds)
    return outcome


def main() -> int:
    """Fuzz by hand; 1 where anything failed."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    parser = argparse.ArgumentParser(
        description="Hand odd and damaged input to all that Headgate reads."
    )
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", action="append", default=[], help="a reader, such as 'job file'; may come again"
    )
    said = parser.parse_args()
    outcome = fuzz(
        said.inputs, said.seed, said.only, tell=lambda text: print(text, file=sys.stderr)
    )
    for name, count in outcome.inputs.items():
        answers = {
            key.split(": ")[1]: n
            for key, n in outcome.answers.items()
            if key.startswith(f"{name}: ")
        }
        print(
            f"{name:<13}{count:>8,} inputs, slowest {outcome.slowest[name] * 1000:7.1f} "
            f"ms, {answers}"
        )
    print(f"{outcome.inputs.total():,} inputs, {len(outcome.failures)} failures")
    return bool(outcome.failures)


if __name__ == "__main__":
    sys.exit(main())
