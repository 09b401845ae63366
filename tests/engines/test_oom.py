"""Kills for want of memory: which end of a task is put down to them, and what is told of the
others.
"""

from __future__ import annotations

import signal

import pytest

from headgate.engines.oom import OomMonitor
from headgate.isolation.base import Launch
from headgate.model.endings import Exit
from headgate.model.identifiers import TaskId
from headgate.model.reason_text import in_words
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.shares import Share
from headgate.testing.memory_isolation import MemoryBox, MemoryIsolation

OVER = "killed: over its memory limit of 64 MiB"


class Counted(MemoryBox):
    """A box in memory whose count the test moves on."""

    count = 0

    def kills(self) -> int:
        return self.count

    def shortage(self) -> str:
        return "over its memory limit of 64 MiB"


@pytest.fixture
def box() -> Counted:
    launch = Launch(TaskId("run/job/worker-0"), ("true",), {}, "/", 1)
    return Counted(MemoryIsolation(), launch, Share(), 1)


def failed(code: int | None = 1, number: int | None = None, kills: int = 1) -> Exit:
    """As an isolation has it, which puts any bad end down to kills."""
    return Exit(code=code, signal=number, over_memory=True, reason=OVER, kills=kills)


TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>']
POOL = [
    *TRACEBACK,
    "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated",
]
LOADER = [*TRACEBACK, "RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed. "]
KEY = [*TRACEBACK, "KeyError: 'lr'"]
PIPE = [*TRACEBACK, "EOFError"]
DURING = "During handling of the above exception, another exception occurred:"
DIRECT = "The above exception was the direct cause of the following exception:"


@pytest.mark.parametrize(
    ("seconds", "lines", "exit"),
    [
        (0.2, [], failed(None, signal.SIGKILL)),
        (4.0, [], failed(None, signal.SIGKILL)),  # a large process takes a while until it is gone
        (0.2, [], failed(137)),  # a shell says so of its child
        (0.2, ["epoch 1"], failed()),
        (1.0, POOL, failed()),
        (60.0, POOL, failed()),
        (30.0, LOADER, failed()),
        (1.0, PIPE, failed()),
        (1.0, [*TRACEBACK, "    assert worker.exitcode == 0", "AssertionError"], failed()),
        (1.0, [*TRACEBACK, "RuntimeError: a data worker died"], failed()),
        (1.0, [*POOL, DURING, *KEY], failed()),
        (1.0, [*LOADER, DIRECT, *TRACEBACK, "RuntimeError: no batch"], failed()),
        (1.0, ["train.sh: line 3: 4711 Killed     python train.py"], failed(2)),
        (1.0, ["make: *** [train] Error 137"], failed(2)),
    ],
)
def test_an_end_that_comes_of_a_kill_has_it_as_its_reason(
    box: Counted, seconds: float, lines: list[str], exit: Exit
) -> None:
    kills = OomMonitor(box)
    box.count = 1
    assert kills.look(0.0) is None  # it may be about to end
    kills.read(lines)
    end, _ = kills.ended(exit, seconds, by_us=False)
    assert end.over_memory
    assert end.reason is not None
    assert OVER in end.reason
    assert end.reason.startswith("exit code ") == (exit.code in (1, 2))


@pytest.mark.parametrize(
    ("seconds", "lines", "exit", "by_us"),
    [
        (1.0, KEY, failed(), False),
        (300.0, KEY, failed(), False),
        (300.0, ["epoch 1"], failed(), False),
        (300.0, POOL, failed(), False),
        (300.0, [], failed(None, signal.SIGKILL), False),  # of somebody else
        (60.0, PIPE, failed(), False),
        (1.0, [*POOL, "epoch 2 goes on without it", *KEY], failed(), False),
        (1.0, [*TRACEBACK, "torch.OutOfMemoryError: CUDA out of memory"], failed(), False),
        (1.0, ["error: argument --lr", "ValueError: lr"], failed(2), False),
        (0.2, [], failed(None, signal.SIGKILL), True),  # ours
        (0.2, [], Exit(code=0, kills=1), False),
    ],
)
def test_another_end_does_not_and_the_kill_is_told_all_the_same(
    box: Counted, seconds: float, lines: list[str], exit: Exit, by_us: bool
) -> None:
    kills = OomMonitor(box)
    box.count = 1
    assert kills.look(0.0) is None
    kills.read(lines)
    end, told = kills.ended(exit, seconds, by_us)
    assert (end.over_memory, end.reason, end.kills) == (False, None, 1)
    facts = {"count": 1, "shortage": box.shortage(), "waits": False}
    assert told == Reason(ReasonKind.PROCESSES_KILLED, facts)


def test_kills_that_a_task_outlives_are_told_while_it_runs_and_those_that_go_on_ever_more_rarely(
    box: Counted,
) -> None:
    kills = OomMonitor(box)
    told: list[tuple[float, Reason]] = []
    for i in range(1200):  # ten minutes; a pool starts a process again whenever it is killed
        box.count += 1
        if (killed := kills.look(i / 2)) is not None:
            told.append((i / 2, killed))
    assert told[0][0] == 0.5
    assert "a process that waits for it may wait in vain" in in_words(told[0][1])
    assert 8 < len(told) < 20
    _, rest = kills.ended(Exit(code=0, kills=box.count), 600.0, by_us=False)
    every = [killed for _, killed in told] + [rest] * (rest is not None)
    assert sum(killed.facts["count"] for killed in every if killed is not None) == 1200


def test_nothing_is_told_where_the_first_process_was_killed(box: Counted) -> None:
    kills = OomMonitor(box)
    box.count = 3  # under cgroup v2 all processes of a task at once
    assert kills.look(0.0) is None
    end, told = kills.ended(failed(None, signal.SIGKILL, kills=3), 0.3, by_us=False)
    assert (end.reason, told) == (OVER, None)
