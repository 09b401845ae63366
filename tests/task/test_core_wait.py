"""Whether a machine was busy with others, by what the kernel counts."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import headgate
from headgate.task.core_wait import CoreWait
from headgate.task.step_timing import Read, Timing, are_calm, busy_notes, read_seconds, step_times


def proc(folder: Path, threads: dict[int, tuple[int, int]], used: int, stolen: int = 0) -> str:
    """A /proc in which threads ran and waited for so many nanoseconds."""
    for thread, (ran, waited) in threads.items():
        path = folder / "self" / "task" / str(thread)
        path.mkdir(parents=True, exist_ok=True)
        (path / "schedstat").write_text(f"{ran} {waited} 7\n")
    (folder / "stat").write_text(f"cpu  {used} 0 0 5 0 0 0 {stolen} 0 0\n")
    return str(folder)


def test_the_part_of_the_time_counts_in_which_threads_wait(tmp_path: Path) -> None:
    wait = CoreWait(proc(tmp_path, {1: (100, 100), 2: (50, 0)}, 10))
    proc(tmp_path, {1: (400, 200), 2: (50, 0), 3: (300, 300)}, 20)
    assert wait.lap() == pytest.approx(400 / 1000)
    assert wait.lap() is None  # nothing ran
    proc(tmp_path, {1: (800, 200)}, 25, stolen=5)
    assert wait.lap() == pytest.approx(0.5)  # half of what was used a hypervisor took


def test_a_kernel_that_does_not_count_says_nothing(tmp_path: Path) -> None:
    assert CoreWait(str(tmp_path)).lap() is None


SPINS = """
import multiprocessing, os, sys, time
from headgate.task.core_wait import CoreWait

def spin(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

def started(does, count=1):
    # which end with this process at the latest
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=does, daemon=True) for _ in range(count)]
    for other in others:
        other.start()
    return others
"""


def measured(script: str) -> list[float]:
    """The numbers that a script prints, in a session of its own as an engine starts it: of those in
    another one, such as of tests beside this one, none counts as its own.
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(headgate.__file__).parents[1])}
    command = [sys.executable, "-c", SPINS + textwrap.dedent(script)]
    program = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, start_new_session=True
    )
    return [float(word) for word in program.stdout.split()]


@pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"),
    reason="the kernel does not count how long threads wait",
)
def test_others_that_use_all_cores_are_noticed() -> None:
    waited, used = measured(
        """
        def spins_apart():
            os.setsid()
            spin(60.0)

        started(spins_apart, 3 * len(os.sched_getaffinity(0)))
        wait = CoreWait()
        spin(0.3)
        print(wait.lap(), wait.others())
        """
    )
    assert waited > 0.3
    assert used > 0.5


def test_what_a_task_starts_itself_is_none_of_the_others() -> None:
    own, with_helper = measured(
        """
        (done, says), (told, lets_end) = os.pipe(), os.pipe()

        def helps():
            os.close(lets_end)
            spin(0.3)
            os.write(says, b"x")
            os.read(told, 1)

        wait, begun = CoreWait(), sum(os.times()[:4])
        [helper] = started(helps)
        os.close(says)
        spin(0.3)
        assert os.read(done, 1)
        own = wait._own_ticks() - wait._begun_own  # while the helper lives
        os.close(lets_end)
        helper.join()
        print(own / os.sysconf("SC_CLK_TCK"), sum(os.times()[:4]) - begun)
        """
    )
    assert own > 0.7 * with_helper


def test_of_steps_that_others_were_in_the_way_of_the_calm_ones_count() -> None:
    calm = [Timing(1, 8, 0.01 + i * 1e-4, 0.0) for i in range(4)]
    held_up = [Timing(1, 8, 0.3, 0.9)] * 9
    [timed] = step_times("cpu", [*held_up, *calm])
    assert (timed["seconds"], timed["steps"]) == (pytest.approx(0.01015), 4)
    assert timed["waited"] == 0.0
    assert timed["spread"] == pytest.approx(0.011, rel=0.1)
    assert are_calm([*held_up, *calm])
    assert not are_calm([*calm, *(Timing(1, 16, 0.3, 0.9) for _ in range(4))])
    assert are_calm([*calm, Timing(1, 3, 0.3, 0.9)])  # the odd last batch comes too seldom


def test_of_reads_that_others_were_in_the_way_of_the_calm_ones_count() -> None:
    held_up = [Read(0.01, 0.9 - 0.01 * i) for i in range(9)]
    assert read_seconds([*held_up, Read(1e-3, 0.0), Read(2e-3, 0.05), Read(3e-3)]) == 2e-3
    # none is calm
    assert read_seconds([*held_up, Read(1e-3, 0.1), Read(2e-3, 0.2), Read(3e-3, 0.3)]) == 2e-3
    assert read_seconds([]) is None


def test_where_no_step_is_calm_the_calmest_count_and_it_is_said(tmp_path: Path) -> None:
    held_up = [Timing(1, 8, 0.1 * (i + 1), 0.5 + 0.04 * i) for i in range(10)]
    [timed] = step_times("cpu", held_up)
    assert (timed["steps"], timed["waited"]) == (3, pytest.approx(0.54))
    [note] = busy_notes([timed], 0.2)
    assert (
        "threads waited 54 % of the time for one: steps may take much less on a calm machine"
        in note
    )
    [note] = busy_notes([timed], 0.02)
    assert note.endswith("its own processes and threads are more than the cores"), (
        "nobody else is to blame"
    )
    calm = step_times("cpu", [Timing(1, 8, 0.01, 0.0)] * 4)
    assert busy_notes(calm, 0.2) == []
    [note] = busy_notes(calm, 0.6)
    assert note.startswith(
        "others used 60 % of the machine's cores, and threads waited 0 % of the time for one"
    )
