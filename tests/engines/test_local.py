"""What the engine `local` does beyond the contract: its keeper, its throttle, and what arrives in
one round.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.engines.clock import Clock

from headgate.engines import connections
from headgate.engines import log as logs
from headgate.engines.connections import Connections
from headgate.engines.local import LocalEngine
from headgate.isolation.base import Launch
from headgate.isolation.box import ProcessBox
from headgate.isolation.process import ProcessIsolation
from headgate.machine import processes
from headgate.model.cluster import Node
from headgate.model.endings import Exit
from headgate.model.identifiers import TaskId
from headgate.model.shares import Share
from headgate.testing import engine_programs, programs
from headgate.testing.isolation_stage import descriptors
from headgate.testing.recorder import RecordingListener
from headgate.testing.wait import until


class KeptNotes:
    """A keeper that writes down what it is told."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, TaskId]] = []
        self.records: dict[TaskId, Mapping[str, object]] = {}

    def add(self, task: TaskId, record: Mapping[str, object], output_fd: int, log: str) -> None:
        os.fstat(output_fd)
        self.notes.append(("add", task))
        self.records[task] = record

    def connected(self, task: TaskId) -> None:
        self.notes.append(("connected", task))

    def remove(self, task: TaskId) -> None:
        self.notes.append(("remove", task))


class Local:
    """A local engine with what it is told."""

    def __init__(
        self,
        folder: Path,
        isolation: ProcessIsolation | None = None,
        expected: Callable[[TaskId, Callable[[], None]], None] | None = None,
    ) -> None:
        self.folder = folder
        self.keeper = KeptNotes()
        self.channel = folder / "channel.sock"
        node = Node("here", cores=2, memory_bytes=1 << 32)
        isolation = isolation or ProcessIsolation(f"local-{os.getpid()}")
        self.engine = LocalEngine(node, isolation, self.channel, self.keeper, expected=expected)
        self.told = RecordingListener(lambda task: task in self.engine.boxes())

    def start(self, argv: tuple[str, ...], name: str = "job", log: Path | None = None) -> TaskId:
        task = TaskId(f"local-{os.getpid()}/{name}/worker-0")
        launch = Launch(
            task=task,
            argv=argv,
            env={"PATH": os.defpath, "HEADGATE_TASK": task},
            cwd="/",
            threads=1,
        )
        self.engine.start(launch, Share(), str(log or self.log(name)))
        return task

    def log(self, name: str = "job") -> Path:
        return self.folder / f"{name}.log"

    def ended(self, task: TaskId) -> Exit:
        until(lambda: self.told.exit(task) is not None, 60, f"the end of {task}")
        end = self.told.exit(task)
        assert end is not None
        return end

    def said(self, task: TaskId, line: str) -> None:
        until(lambda: line in self.told.lines(task), 60, f"{line!r} of {task}")


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    local = Local(tmp_path)
    local.engine.open(local.told)
    yield local
    local.engine.close()
    assert local.told.breaches == []


def test_its_keeper_knows_of_every_box_as_long_as_it_is_there(local: Local) -> None:
    task = local.start(engine_programs.argv("obedient"))
    local.said(task, "ready")
    local.engine.stop(task, 100)
    local.ended(task)
    assert local.keeper.notes == [("add", task), ("connected", task), ("remove", task)]
    record = local.keeper.records[task]
    assert record["isolation"] == "process"
    assert record["pid"] == local.told.pid(task)


def test_its_keeper_hears_nothing_of_a_failed_start(local: Local) -> None:
    local.ended(local.start(("no-such-program",)))
    assert local.keeper.notes == []


def test_starts_that_wait_for_the_disk_hold_up_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.engines.local.EXPECTED_SECONDS", 1000.0)
    on_disk: dict[TaskId, Callable[[], None]] = {}
    local = Local(tmp_path, expected=on_disk.__setitem__)
    local.engine.open(local.told)
    runs = local.start(engine_programs.argv("obedient"), "runs")
    until(lambda: runs in on_disk, 60, "its start")
    assert local.told.of(runs) == []
    on_disk[runs]()
    local.said(runs, "ready")
    later, never = (local.start(programs.argv("rest"), name) for name in ("later", "never"))
    until(lambda: never in on_disk, 60, "the starts")
    local.engine.stop(runs, 1000)
    local.engine.stop(never, 1000)
    assert local.ended(runs).code == 5
    assert local.ended(never).reason == "it was stopped before it started"
    assert local.told.of(later) == []
    on_disk[never]()
    on_disk[later]()
    local.said(later, "ready")
    monkeypatch.setattr("headgate.engines.local.EXPECTED_SECONDS", 0.01)
    local.said(local.start(programs.argv("rest"), "disk-hangs"), "ready")
    local.engine.close()
    on_disk[later]()  # late
    assert local.told.breaches == []
    assert [task for kind, task in local.keeper.notes if kind == "add"].count(never) == 0


def test_a_task_that_runs_is_not_started_again(local: Local) -> None:
    task = local.start(programs.argv("rest"))
    local.said(task, "ready")
    local.start(programs.argv("rest"))
    until(lambda: local.told.of(task, "warned"), what="a warning")
    local.engine.stop(task, 100)
    assert local.ended(task).signal == signal.SIGTERM
    assert len(local.told.of(task, "started", "exited")) == 2


def test_a_log_that_cannot_be_written_is_told_once_and_ends_nothing(local: Local) -> None:
    task = local.start(
        engine_programs.argv("count", 20_000), log=local.folder / "no-folder" / "log"
    )
    assert local.ended(task).ok
    (warning,) = local.told.of(task, "warned")
    assert "No such file or directory" in warning.what
    assert local.told.lines(task)[0] == "line 0"


def test_a_task_that_writes_too_fast_waits_and_loses_nothing(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as slowly:
        slowly.setattr(logs, "BYTES_A_SECOND", 1)  # so it is read once a second, 64 KiB at most
        lines = [f"line {i}" for i in range(1_000_000)]
        began = time.monotonic()
        task = local.start(engine_programs.argv("count", len(lines)))
        quick = local.start(engine_programs.argv("write", "quick\\n"), "quick")
        assert local.ended(quick).ok
        until(lambda: local.log().stat().st_size > 3 << 16, what="four reads")
        assert time.monotonic() - began > 2.0, "the fast one was not held up"
        assert local.told.exit(task) is None
    assert local.ended(task).ok
    assert local.log().read_text().splitlines() == lines


def test_a_limit_that_cannot_be_held_is_told_once_and_not_with_other_figures(
    tmp_path: Path,
) -> None:
    local = Local(tmp_path, ProcessIsolation(f"local-{os.getpid()}", mode="none"))
    local.engine.open(local.told)
    try:
        task = local.start(programs.argv("rest"))
        local.said(task, "ready")
        for weight in (90, 80, 60):
            local.engine.set_share(task, Share(cpu_weight=weight))
        for rate in (1e6, 1e9):
            local.engine.set_share(task, Share(disk_bytes_per_second=rate))
        local.engine.set_share(task, Share(gpu_fraction=0.5))
        until(
            lambda: "GPU fraction 0.5" in str(local.told.of(task, "warned")),
            what="the last warning",
        )
        kinds = [told.what.split(":")[0] for told in local.told.of(task, "warned")]
        assert kinds == ["CPU weight 90", "disk rate 976.56 KiB/s", "GPU fraction 0.5"]
    finally:
        local.engine.close()


def test_the_rest_of_a_task_is_asked_to_end_when_its_grace_nears_its_end(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("headgate.engines.local.time", clock)
    monkeypatch.setattr("headgate.engines.tasks.REST_SECONDS", 200.0)
    # print() may not interrupt another print(), which may have been read before it has returned
    notes = "signal.signal(signal.SIGTERM, lambda *_: os.write(1, f'asked {name}\\n'.encode()))"
    code = (
        "import os, signal\nname = 'main' if os.fork() else "
        f"'helper'\n{notes}\nprint('ready', name, flush=True)\n"
    )
    task = local.start((sys.executable, "-c", f"{code}while True: signal.pause()"))
    for name in ("main", "helper"):
        local.said(task, f"ready {name}")
    local.engine.stop(task, 1000.0)
    local.said(task, "asked main")
    clock.ahead_seconds = 900.0
    local.said(task, "asked helper")
    assert local.told.exit(task) is None
    clock.ahead_seconds = 1000.0
    assert local.ended(task).signal == signal.SIGKILL
    assert [line for line in local.told.lines(task) if "asked" in line] == [
        "asked main",
        "asked helper",
    ]


def test_the_socket_goes_with_the_engine(local: Local) -> None:
    assert local.channel.is_socket()
    local.engine.close()
    assert not local.channel.exists()


def test_calls_after_its_end_do_nothing(local: Local) -> None:
    local.engine.close()
    local.engine.stop(TaskId("nobody"), 0)
    local.engine.send(TaskId("nobody"), {})
    local.engine.close()


def test_what_is_started_while_it_closes_is_refused(tmp_path: Path) -> None:
    local = Local(tmp_path)

    class Retrying(RecordingListener):
        """Starts a task again as soon as it has ended."""

        def exited(self, task: TaskId, exit: Exit) -> None:
            super().exited(task, exit)
            if exit.signal is not None:
                local.start(programs.argv("rest"))

    local.told = Retrying(lambda task: task in local.engine.boxes())
    local.engine.open(local.told)
    task = local.start(programs.argv("rest"))
    local.said(task, "ready")
    local.engine.close()
    reasons = [told.what.reason for told in local.told.of(task, "exited")]
    assert reasons == [None, "could not be started: this engine is closing"]
    assert local.told.breaches == []


def test_one_that_was_never_opened_is_closed_without_a_word(tmp_path: Path) -> None:
    before = descriptors()
    Local(tmp_path).engine.close()
    assert descriptors() <= before


def test_those_who_connect_and_say_nothing_are_hung_up_on_at_the_end(local: Local) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(local.channel))
        task = local.start(engine_programs.argv("talk", 3))
        assert local.ended(task).ok
        assert len(local.told.messages(task, "count")) == 3
        local.engine.close()
        silent.settimeout(60)
        assert silent.recv(1) == b""


class Backwards(selectors.DefaultSelector):
    """Gives what is ready in one round in the opposite order: the end of a task before what it
    said.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return list(reversed(super().select(timeout)))


@pytest.mark.parametrize("order", [selectors.DefaultSelector, Backwards])
def test_the_order_in_which_a_round_is_told_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Callable[[], selectors.BaseSelector]
) -> None:
    monkeypatch.setattr(selectors, "DefaultSelector", order)
    local = Local(tmp_path)
    gone = threading.Event()

    class Waiting(RecordingListener):
        """Holds the engine up until all that its tasks do has been done."""

        def started(self, task: TaskId, pid: int) -> None:
            super().started(task, pid)
            until(lambda: processes.look(pid) is None, 60, f"the end of process {pid}")
            gone.set()

    local.told = Waiting(lambda task: task in local.engine.boxes())
    local.engine.open(local.told)
    try:
        for count in (1, 100):
            task = local.start(engine_programs.argv("talk", count), f"talk-{count}")
            assert local.ended(task).ok
            assert len(local.told.messages(task, "count")) == count
            task = local.start(engine_programs.argv("write", "all\\n", "of it"), f"write-{count}")
            assert local.ended(task).ok
            assert local.told.lines(task) == ["all", "of it"]
        assert gone.is_set()
    finally:
        local.engine.close()
    assert local.told.breaches == []


def test_an_error_with_one_task_ends_neither_the_engine_nor_the_others(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    reap = ProcessBox.reap

    def fails(box: ProcessBox) -> Exit:
        reap(box)
        raise OSError("the kernel said no")

    other = local.start(programs.argv("rest"), "other")
    until(lambda: other in local.engine.boxes(), what="the other task")
    with monkeypatch.context() as broken:
        broken.setattr(ProcessBox, "reap", fails)
        assert local.ended(local.start(programs.argv("leave", 0), "broken")).reason == (
            "it ended, and how cannot be told"
        )
    until(lambda: local.told.of(None, "warned"), what="a warning")
    assert "the kernel said no" in local.told.of(None, "warned")[0].what
    local.engine.stop(other, 0.0)
    assert local.ended(other).signal == signal.SIGKILL


def test_where_it_can_open_no_more_files_those_who_connect_wait_and_nothing_spins(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "ACCEPT_PAUSE_SECONDS", 0.2)
    tried: list[float] = []
    accept_one = Connections._accept_one

    def noting(taking: Connections) -> None:
        tried.append(time.monotonic())
        accept_one(taking)

    monkeypatch.setattr(Connections, "_accept_one", noting)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as waiting:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_lowest_free(), before[1]))
        try:
            waiting.connect(str(local.channel))
            until(lambda: len(tried) >= 4, what="four attempts")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert tried[3] - tried[0] > 0.5
        (warning,) = local.told.of(None, "warned")
        assert (
            warning.what == "a task cannot connect for now: Too many open files; it is tried again"
        )
        task = local.start(engine_programs.argv("talk", 3))
        assert local.ended(task).ok
        assert len(local.told.messages(task, "count")) == 3


def _lowest_free() -> int:
    """The number that the next descriptor gets: with it as the limit there is none."""
    fd = os.open(os.devnull, os.O_RDONLY)
    os.close(fd)
    return fd
