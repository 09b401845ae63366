"""An isolation that waits for another program, as for Docker: a start keeps no other task waiting,
nor loses a word.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.engines.clock import Clock

from headgate.engines import local, per_task_executor
from headgate.engines.local import LocalEngine
from headgate.isolation.base import NEVER, Box, Launch, ignore
from headgate.isolation.process import ProcessIsolation
from headgate.model.cluster import Node
from headgate.model.endings import Exit
from headgate.model.errors import IsolationError
from headgate.model.identifiers import TaskId
from headgate.model.shares import Share, Uncontrolled
from headgate.testing import engine_programs
from headgate.testing.recorder import RecordingListener
from headgate.testing.wait import until

GROUP = f"beside-{os.getpid()}"
SECONDS = 60.0


class Waiting(ProcessIsolation):
    """Its tasks run at once; those whose name begins with `slow` are said to do so when `answered`
    is set, and those whose name begins with `never` wait for somebody who does not come.
    """

    waits = True

    def __init__(self) -> None:
        super().__init__(GROUP)
        self.answered = threading.Event()
        self.applied: list[tuple[TaskId, Share]] = []
        self.boxes: dict[TaskId, Box] = {}
        self.begun: list[TaskId] = []

    def start(
        self,
        launch: Launch,
        share: Share,
        output_fd: int,
        stopped: threading.Event = NEVER,
        made: Callable[[Box], None] = ignore,
    ) -> Box:
        self.begun.append(launch.task)
        if launch.task.split("/")[1].startswith("never") and stopped.wait():
            raise IsolationError("nobody answers")
        box = super().start(launch, share, output_fd, stopped, made)
        self.boxes[launch.task] = box
        if launch.task.split("/")[1].startswith("slow"):
            self.answered.wait()
        apply = box.apply

        def noted(share: Share) -> tuple[Uncontrolled, ...]:
            self.applied.append((launch.task, share))
            return apply(share)

        box.apply = noted  # type: ignore[method-assign]
        return box


class Setting:
    """An engine whose isolation waits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.isolation = Waiting()
        node = Node("here", cores=2, memory_bytes=1 << 32)
        self.engine = LocalEngine(node, self.isolation, folder / "channel.sock")
        self.told = RecordingListener(lambda task: task in self.engine.boxes())

    def start(self, name: str, argv: tuple[str, ...]) -> TaskId:
        task = TaskId(f"{GROUP}/{name}/worker-0")
        launch = Launch(
            task=task,
            argv=argv,
            env={"PATH": os.defpath, "HEADGATE_TASK": task},
            cwd="/",
            threads=1,
        )
        self.engine.start(launch, Share(), str(self.folder / f"{name}.log"))
        return task


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    setting = Setting(tmp_path)
    setting.engine.open(setting.told)
    yield setting
    setting.isolation.answered.set()
    setting.engine.close()
    assert setting.told.breaches == []


def test_others_start_and_end_while_one_is_being_started(setting: Setting) -> None:
    slow = setting.start("slow", engine_programs.argv("write", "slow\\n"))
    quick = setting.start("quick", engine_programs.argv("write", "quick\\n"))
    until(lambda: setting.told.exit(quick) is not None, SECONDS, "the end of the quick one")
    assert setting.told.of(slow, "started", "output", "exited") == []
    setting.isolation.answered.set()
    until(lambda: setting.told.exit(slow) is not None, SECONDS, "the end of the slow one")
    assert setting.told.lines(slow) == ["slow"]


def test_what_it_says_before_it_is_said_to_run_is_told_after_that(setting: Setting) -> None:
    slow = setting.start("slow", engine_programs.argv("talk", 3))
    until(lambda: slow in setting.isolation.boxes, SECONDS, "its box")
    assert select.select([setting.isolation.boxes[slow].exit_fd], [], [], SECONDS)[0], (
        "it has spoken, and ended"
    )
    # What arrived before another task connected has been read when that is heard.
    quick = setting.start("quick", engine_programs.argv("talk", 3))
    until(
        lambda: len(setting.told.messages(quick, "count")) == 3, SECONDS, "what the quick one says"
    )
    assert setting.told.of(slow) == []
    setting.isolation.answered.set()
    until(lambda: setting.told.exit(slow) is not None, SECONDS, "the end of the slow one")
    assert [each["n"] for each in setting.told.messages(slow, "count")] == [0, 1, 2]
    assert setting.told.of(slow)[0].kind == "started"


def test_changes_that_wait_are_made_in_one_and_a_stop_is_not_forgotten(setting: Setting) -> None:
    slow = setting.start("slow", engine_programs.argv("rest"))
    setting.engine.set_share(slow, Share(cpu_weight=300.0))
    setting.engine.set_share(slow, Share(cpu_cap_cores=1.0))
    setting.engine.set_share(slow, Share(cpu_weight=50.0))
    until(lambda: slow in setting.isolation.boxes, SECONDS, "its box")
    setting.engine.stop(slow, SECONDS)
    setting.isolation.answered.set()
    until(lambda: setting.told.exit(slow) is not None, SECONDS, "its end")
    exit = setting.told.exit(slow)
    assert exit is not None
    assert exit.signal == signal.SIGTERM
    shares = [share for task, share in setting.isolation.applied if task == slow]
    assert len(shares) < 3
    assert shares[-1].cpu_weight == 50.0


STOPPED = "it was stopped before it started"


def test_a_stop_reaches_starts_that_wait_and_those_that_have_not_begun(setting: Setting) -> None:
    waiting = [
        setting.start(f"never-{i}", engine_programs.argv("rest"))
        for i in range(per_task_executor.AT_ONCE)
    ]
    until(
        lambda: set(setting.isolation.begun) == set(waiting),
        SECONDS,
        "as many starts as there can be",
    )
    queued = [setting.start(f"late-{i}", engine_programs.argv("rest")) for i in range(2)]
    setting.engine.stop(queued[0], 0.0)
    until(
        lambda: setting.told.exit(queued[0]) is not None, what="the end of one that has not begun"
    )
    setting.engine.stop(waiting[0], SECONDS)
    until(lambda: setting.told.exit(waiting[0]) is not None, what="the end of one that waits")
    until(lambda: queued[1] in setting.engine.boxes(), what="the start of the one after it")
    last = setting.start("never-last", engine_programs.argv("rest"))
    setting.engine.close()
    ends = [setting.told.exit(task) for task in (*waiting, queued[0], last)]
    assert {(end.reason, end.shell_code) for end in ends if end is not None} == {
        (STOPPED, 128 + signal.SIGTERM)
    }
    assert None not in ends
    assert queued[0] not in setting.isolation.begun


def test_a_kill_that_takes_its_time_holds_up_no_other_task_and_waits_for_no_change(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = setting.start("stays", engine_programs.argv("rest"))
    until(lambda: task in setting.engine.boxes(), what="its box")
    box, changing, killing = setting.isolation.boxes[task], threading.Event(), threading.Event()
    kill = box.kill

    def changes(share: Share) -> tuple[Uncontrolled, ...]:
        changing.set()
        setting.isolation.answered.wait()
        return ()

    def asks() -> None:
        killing.set()
        setting.isolation.answered.wait()
        kill()

    monkeypatch.setattr(box, "apply", changes)
    monkeypatch.setattr(box, "kill", asks)
    setting.engine.set_share(task, Share(cpu_weight=50.0))
    assert changing.wait(SECONDS)
    setting.engine.stop(task, 0.0)
    assert killing.wait(SECONDS)
    quick = setting.start("quick", engine_programs.argv("write", "quick\n"))
    until(lambda: setting.told.exit(quick) is not None, SECONDS, "the end of the quick one")
    assert setting.told.exit(task) is None
    setting.isolation.answered.set()
    until(lambda: setting.told.exit(task) is not None, SECONDS, "its end")


def test_closing_tells_how_a_task_ended_whose_box_is_not_removed_in_time(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(local, "time", clock)
    task = setting.start("stays", engine_programs.argv("rest"))
    until(lambda: task in setting.engine.boxes(), what="its box")
    box = setting.isolation.boxes[task]
    held, reaped, closed = threading.Event(), threading.Event(), threading.Event()
    apply, reap, close = box.apply, box.reap, box.close

    def hangs(share: Share) -> tuple[Uncontrolled, ...]:
        held.set()
        setting.isolation.answered.wait()
        return apply(share)

    def reaps() -> Exit:
        reaped.set()
        return reap()

    def closes() -> None:
        close()
        closed.set()

    monkeypatch.setattr(box, "apply", hangs)
    monkeypatch.setattr(box, "reap", reaps)
    monkeypatch.setattr(box, "close", closes)
    setting.engine.set_share(task, Share(cpu_weight=50.0))
    assert held.wait(SECONDS)
    closing = threading.Thread(target=setting.engine.close)
    closing.start()
    assert reaped.wait(SECONDS)
    clock.ahead_seconds = local.CLOSE_SECONDS
    until(lambda: setting.told.exit(task) is not None, what="its end")
    setting.isolation.answered.set()
    closing.join()
    end = setting.told.exit(task)
    assert end is not None
    assert (end.signal, end.reason) == (signal.SIGKILL, None)
    assert [told.what for told in setting.told.of(task, "warned")] == [
        "its box could not be removed in time"
    ]
    assert closed.is_set()


def test_closing_ends_what_is_being_started(setting: Setting) -> None:
    slow = setting.start("slow", engine_programs.argv("rest"))
    quick = setting.start("quick", engine_programs.argv("write", "quick\\n"))
    until(lambda: setting.told.exit(quick) is not None, SECONDS, "the end of the quick one")
    threading.Timer(0.5, setting.isolation.answered.set).start()
    setting.engine.close()
    exit = setting.told.exit(slow)
    assert exit is not None
    assert not exit.ok
    assert setting.engine.boxes() == {}
