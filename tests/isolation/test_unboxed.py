"""Without a cgroup: who belongs to a task, and what stands in for its limits."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.isolation import unboxed
from headgate.isolation.base import Launch
from headgate.isolation.process import ProcessIsolation
from headgate.isolation.unboxed import Unboxed
from headgate.machine import processes
from headgate.machine.fallbacks import Cores, Fallbacks
from headgate.machine.process_table import TAG, ProcessTable
from headgate.model.identifiers import TaskId
from headgate.model.shares import UNLIMITED, Lever, Share, Uncontrolled
from headgate.testing import programs
from headgate.testing.wait import until

TASK = TaskId(f"run-{os.getpid()}/job/worker-0")
MIB = 1 << 20


@pytest.fixture
def isolation() -> ProcessIsolation:
    return ProcessIsolation("unboxed", mode="none")


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[bytes]]:
    """A process that starts one with a scrubbed environment in the same session, and waits."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], env={})"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True, env={TAG: TASK}
    ) as process:
        yield process
        os.killpg(process.pid, signal.SIGKILL)


def test_a_child_with_a_scrubbed_environment_is_found_by_its_parent(
    leader: subprocess.Popen[bytes],
) -> None:
    until(lambda: len(ProcessTable().members(TASK, None)) == 2, what="the child")


def test_one_whose_parent_has_ended_is_found_by_its_session(
    leader: subprocess.Popen[bytes],
) -> None:
    until(lambda: len(ProcessTable().members(TASK, None)) == 2, what="the child")
    first = processes.look(leader.pid)
    assert first is not None
    os.kill(leader.pid, signal.SIGKILL)
    until(lambda: processes.look(leader.pid) is None, what="the end of the leader")
    left = ProcessTable().members(TASK, first)
    assert len(left) == 1
    stranger = processes.Process(first.pid, first.parent, first.session, first.started - 1)
    assert ProcessTable().members(TASK, stranger) == [], "the session of a recycled process id"


def test_what_is_held_stops_in_any_session_and_what_had_stopped_by_itself_stays_so() -> None:
    command = ["sh", "-c", "setsid sleep 60 & sleep 60 & wait"]
    variables = {TAG: TASK, "PATH": os.environ["PATH"]}
    with subprocess.Popen(command, start_new_session=True, env=variables) as process:
        box = Unboxed(TASK, Fallbacks(Cores()), ProcessTable(), processes.look(process.pid))
        until(lambda: len({os.getsid(pid) for pid in box.pids()}) == 2, what="its session")
        until(lambda: len(box.pids()) == 3, what="its processes")
        [by_itself] = [pid for pid in box.pids() if os.getsid(pid) == pid != process.pid]
        os.kill(by_itself, signal.SIGSTOP)
        until(lambda: processes.stopped([by_itself]), what="one that has stopped by itself")
        box.hold(0.05)
        until(lambda: len(processes.stopped(box.pids())) == 3, what="all stand still")
        box.release()
        until(lambda: len(processes.stopped(box.pids())) == 1, what="the others go on")
        assert [stopped.pid for stopped in processes.stopped(box.pids())] == [by_itself]
        box.kill()


def test_what_was_first_seen_late_is_held_in_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unboxed, "HOLD_SECONDS", 0.0)
    with subprocess.Popen(["sleep", "60"], start_new_session=True, env={TAG: TASK}) as process:
        box = Unboxed(TASK, Fallbacks(Cores()), ProcessTable(), processes.look(process.pid))
        box.hold(0.0)
        until(lambda: processes.stopped([process.pid]), what="it stands still")
        box.kill()


def test_a_signal_does_not_reach_a_recycled_process_id() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        seen = processes.look(stranger.pid)
        assert seen is not None
        processes.send(
            [processes.Process(seen.pid, seen.parent, seen.session, seen.started - 1)],
            signal.SIGKILL,
        )
        stranger.communicate(b"\n")
    assert stranger.returncode == 0


def test_what_stands_in(isolation: ProcessIsolation) -> None:
    launch = Launch(TASK, programs.argv("rest"), {}, "/", 1)
    with open(os.devnull, "w") as nowhere:
        box = isolation.start(launch, Share(), nowhere.fileno())
    try:
        limits = box.apply(
            Share(
                cpu_weight=30, cpu_cap_cores=0.5, memory_bytes=256 * MIB, disk_bytes_per_second=1e6
            )
        )
        assert [(limit.lever, limit.value) for limit in limits] == [
            (Lever.CPU_WEIGHT, "30"),
            (Lever.CPU_CAP, "0.5"),
            (Lever.MEMORY, "256 MiB"),
            (Lever.DISK_RATE, "976.56 KiB/s"),
        ]
        assert os.getpriority(os.PRIO_PROCESS, box.pid) == os.getpriority(os.PRIO_PROCESS, 0) + 5
        assert len(os.sched_getaffinity(box.pid)) == 1
        assert resource.prlimit(box.pid, resource.RLIMIT_DATA)[0] == 256 * MIB
        assert box.apply(Share(cpu_cap_cores=UNLIMITED, memory_bytes=UNLIMITED)) == ()
        assert os.sched_getaffinity(box.pid) == os.sched_getaffinity(0)
        assert resource.prlimit(box.pid, resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY
    finally:
        box.close()


def test_tasks_are_pinned_where_the_fewest_others_are() -> None:
    cores, among = Cores(), frozenset({0, 1, 2})
    taken = [cores.take(owner, 1, among) for owner in ("a", "b", "c")]
    assert frozenset().union(*taken) == among
    cores.release("b")
    assert cores.take("d", 1, among) == taken[1]
    assert cores.take("e", 5, among) == among


def test_the_niceness_of_a_session_that_the_kernel_puts_off_follows(
    leader: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, taken, written = Path.write_text, threading.Event(), []

    def puts_off(path: Path, text: str) -> int:
        if not taken.is_set():
            raise BlockingIOError
        written.append(text)
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", puts_off)
    fallbacks = Fallbacks(Cores())
    for weight, reason in ((80, "by nice 1"), (30, "by nice 5")):
        limit = fallbacks.apply("cpu_weight", weight, [leader.pid])
        assert limit == Uncontrolled(Lever.CPU_WEIGHT, reason, str(weight))
    taken.set()
    until(lambda: bool(written), what="the second attempt")
    assert written == [str(os.getpriority(os.PRIO_PROCESS, 0) + 5)]


def test_every_loss_names_its_cause_and_its_cure(isolation: ProcessIsolation) -> None:
    uncontrolled = isolation.uncontrolled()
    assert {limit.lever for limit in uncontrolled} > {
        Lever.CPU_WEIGHT,
        Lever.CPU_CAP,
        Lever.MEMORY,
        Lever.DISK_RATE,
    }
    for limit in uncontrolled:
        assert "no cgroup (" in limit.reason
        assert limit.reason.endswith("systemd-run --user --scope -p Delegate=yes headgate ...")
