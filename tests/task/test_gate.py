"""What a task is held to at its step boundaries."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from headgate.task import Channel, Gate, TaskEnvironment
from headgate.task import gate as gate_module
from headgate.task.grants import (
    MOST_HELD_SECONDS,
    MOST_PAUSED_SECONDS,
    MOST_WAITED_SECONDS,
    TURNS,
    Grant,
    Turns,
)
from headgate.task.overheads import OverheadClock
from headgate.testing import wait
from headgate.testing.listener import ChannelListener


class Engine:
    """What a gate sees of the channel, and of the time: waiting takes none, and tells when which
    order comes.
    """

    def __init__(self, **grant: float) -> None:
        self.gate = Grant.read(grant) if grant else None
        self.pending, self.pending_since, self.stopping, self.connected = False, 0.0, "", True
        self.now = self.cpu = 0.0
        self.sent: list[dict[str, object]] = []
        self.at: list[tuple[float, Callable[[], None]]] = []

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        ends = self.now + seconds
        while self.at and self.at[0][0] <= ends and not condition():
            self.now, act = self.at.pop(0)
            act()
        if not condition():
            self.now = ends
        return condition()

    def send(self, message: dict[str, object]) -> None:
        self.sent.append(message)

    def order(self) -> None:
        self.pending, self.pending_since = True, self.now

    def grant(self, **grant: float) -> Callable[[], None]:
        def act() -> None:
            self.gate = Grant.read(grant)

        return act


def gate_of(engine: Engine, **more: object) -> Gate:
    return Gate(engine, clock=lambda: engine.now, used=lambda: engine.cpu, **more)  # type: ignore[arg-type]


def steps(engine: Engine, gate: Gate, count: int, seconds: float, cpu: float = 0.0) -> float:
    """Take steps; how long they and the holds between them took."""
    began = engine.now
    for _ in range(count):
        engine.now += seconds
        engine.cpu += cpu
        gate.boundary()
    return engine.now - began


def test_a_pause_holds_the_next_step_until_it_is_lifted_and_never_for_long() -> None:
    engine = Engine(paused=True)
    gate = gate_of(engine)
    engine.at.append((0.4, engine.grant()))
    assert steps(engine, gate, 1, 0.1) == pytest.approx(0.4)
    assert steps(engine, gate, 10, 0.1) == pytest.approx(1.0)
    engine.grant(paused=True)()
    assert steps(engine, gate, 1, 0.1) == pytest.approx(0.1 + MOST_PAUSED_SECONDS)
    assert steps(engine, gate, 1, 0.1) == pytest.approx(0.1), (
        "a hub that lifts it no more holds nobody"
    )


def test_what_a_step_waits_for_its_turn_is_told_and_no_other_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = OverheadClock()
    monkeypatch.setattr(gate_module, "overheads", clock)
    sent: list[dict[str, object]] = []
    engine = Engine(cores=0.5)
    steps(engine, gate_of(engine), 20, 0.1, cpu=0.1)
    engine = Engine(paused=True)
    steps(engine, gate_of(engine), 3, 0.1)
    clock.tell(sent.append, now=True)
    assert sent == []
    # A part of a GPU's time where no file is shared, as on a node of Ray.
    engine = Engine(fraction=0.25)
    gate = gate_of(engine)
    steps(engine, gate, 20, 0.1)
    clock.tell(sent.append, now=True)
    assert sent.pop() == {"type": "asides", "seconds": {"turns": pytest.approx(gate.held)}}
    assert gate.held > 1.0
    engine.gate = Grant(0.25, turns=(str(tmp_path / "turn"),))
    gate = gate_of(engine)
    # The first round is spent, and another has the turn for a while.
    other = Turns.open(engine.gate)
    assert other is not None and other.wait(engine.now, 0.0) == 0.0
    engine.at.append((engine.now + 0.4, other.close))
    steps(engine, gate, 3, 0.1)
    clock.tell(sent.append, now=True)
    assert sent == [{"type": "asides", "seconds": {"turns": pytest.approx(gate.held)}}]
    assert gate.held >= 0.3


@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.9])
def test_steps_run_for_their_fraction_of_time(fraction: float) -> None:
    engine = Engine(fraction=fraction)
    gate = gate_of(engine)
    assert steps(engine, gate, 1, 5.0) == 5.0  # the first is not held
    for seconds in (0.01, 0.3, 2.0):  # the same for steps of any length
        assert 100 * seconds / steps(engine, gate, 100, seconds) == pytest.approx(
            fraction, abs=0.001
        )


def test_of_cores_what_counts_is_cpu_time() -> None:
    engine = Engine(cores=1.5)
    gate = gate_of(engine)
    steps(engine, gate, 1, 0.1, cpu=0.2)
    # no more than granted: never held
    assert steps(engine, gate, 20, 0.1, cpu=0.15) == pytest.approx(2.0)
    assert steps(engine, gate, 20, 0.1, cpu=0.2) == pytest.approx(20 * 0.2 / 1.5)


def test_what_was_not_used_is_made_up_for_only_in_part() -> None:
    engine = Engine(cores=1.0)
    gate = gate_of(engine)
    steps(engine, gate, 1, 0.1)
    steps(engine, gate, 1, 100.0)  # a long wait for input
    took = steps(engine, gate, 30, 0.1, cpu=0.2)
    assert took == pytest.approx(30 * 0.2 - 1.0)


def test_a_change_counts_while_a_step_is_held_and_a_gate_that_is_lifted_lets_it_go() -> None:
    engine = Engine(fraction=0.1)
    gate = gate_of(engine)
    steps(engine, gate, 1, 1.0)
    engine.at = [(3.0, engine.grant(fraction=0.5))]
    # 0.9 s over after the step, 0.1 s of it made up for in the first of its second: the rest at
    # 0.5.
    assert steps(engine, gate, 1, 1.0) == pytest.approx(1.0 + 1.0 + (0.9 - 0.1) / 0.5)
    engine.at = [(engine.now + 1.2, engine.grant())]
    assert steps(engine, gate, 1, 1.0) == pytest.approx(1.2)
    assert steps(engine, gate, 5, 1.0) == pytest.approx(5.0)
    assert gate.held == pytest.approx(1.0 + 1.6 + 0.2)


def test_an_order_ends_a_hold_once_and_what_is_owed_stays_owed() -> None:
    engine = Engine(fraction=0.5)
    gate = gate_of(engine)
    steps(engine, gate, 1, 1.0)
    engine.at = [(2.25, engine.order)]
    assert steps(engine, gate, 1, 1.0) == pytest.approx(1.25)
    # It is to be obeyed at the end of the epoch, and does not open the gate until then.
    assert steps(engine, gate, 2, 1.0) == pytest.approx(4.75)
    engine.stopping = "stop"
    assert steps(engine, gate, 3, 1.0) == pytest.approx(3.0)


def test_a_boundary_is_not_held_for_long_however_long_a_step_was() -> None:
    engine = Engine(fraction=0.05)
    gate = gate_of(engine)
    steps(engine, gate, 1, 1.0)
    assert steps(engine, gate, 1, 600.0) == pytest.approx(600.0 + MOST_HELD_SECONDS)


@pytest.mark.parametrize("total", [1.0, 1.5])
def test_turns_divide_a_device_by_fractions_whatever_they_sum_to_and_the_length_of_steps(
    tmp_path: Path, total: float
) -> None:
    engine = Engine()
    shares = {"a": (0.6 * total, 0.05), "b": (0.3 * total, 0.7), "c": (0.1 * total, 0.02)}
    had = dict.fromkeys(shares, 0.0)
    grants = {
        name: Grant(rate, turns=(str(tmp_path / "turn"),)) for name, (rate, _) in shares.items()
    }
    turns = {name: Turns.open(grant) for name, grant in grants.items()}
    again = dict.fromkeys(shares, 0.0)
    running: tuple[str, float] | None = None
    while engine.now < 400.0:
        if running is not None:
            name, engine.now = running
            turns[name].over(engine.now, 0.0)  # type: ignore[union-attr]
            had[name] += shares[name][1]
            again[name], running = engine.now, None
        for name in sorted(again, key=again.__getitem__):
            if running is None or again[name] <= engine.now:
                engine.now = max(engine.now, again[name]) if running is None else engine.now
                seconds = turns[name].wait(engine.now, 0.0)  # type: ignore[union-attr]
                again[name] = engine.now + seconds
                if seconds == 0.0:
                    assert running is None, "two run at once"
                    running = name, engine.now + shares[name][1]
    for name, (rate, _) in shares.items():
        assert had[name] / engine.now == pytest.approx(rate / total, abs=0.05)


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_a_turn_is_not_left_out_for_long_however_long_a_step_was(
    tmp_path: Path, rate: float
) -> None:
    path = (str(tmp_path / "turn"),)
    long, other = Turns.open(Grant(rate, turns=path)), Turns.open(Grant(1.0 - rate, turns=path))
    assert long is not None and other is not None
    assert long.wait(0.0, 0.0) == 0.0
    now, asks_at, other_at, steps_on = 600.0, 600.0, 600.0, False
    long.over(now, 0.0)
    while True:
        now = min(asks_at, other_at)
        if now == other_at:
            if steps_on:
                other.over(now, 0.0)
            seconds = other.wait(now, 0.0)
            steps_on = seconds == 0.0
            other_at = now + (seconds or 0.1)
        else:
            seconds = long.wait(now, 0.0)
            if seconds == 0.0:
                break
            asks_at = now + seconds
    assert now - 600.0 == pytest.approx(MOST_HELD_SECONDS, rel=0.1)


def test_who_has_its_turn_and_does_not_step_is_waited_for_once(tmp_path: Path) -> None:
    grant = Grant(0.5, turns=(str(tmp_path / "turn"),))
    evaluates, steps_on = Turns.open(grant), Turns.open(grant)
    assert evaluates is not None and steps_on is not None
    assert evaluates.wait(0.0, 0.0) == 0.0
    now, begun = 0.0, list[float]()
    while len(begun) < 5:
        seconds = steps_on.wait(now, 0.0)
        if seconds == 0.0:
            begun.append(now)
            seconds = 0.5
            steps_on.over(now + seconds, 0.0)
        now += seconds
    assert begun == pytest.approx([MOST_WAITED_SECONDS + 0.5 * i for i in range(5)], abs=0.01)
    evaluates.release()
    assert steps_on.wait(now, 0.0) == 0.0
    assert evaluates.wait(now, 0.0) > 0.0


def test_who_uses_several_devices_has_its_turn_on_all_of_them_at_once(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"gpu-{i}") for i in range(2)]
    opened = [
        Turns.open(Grant(0.5, turns=turns))
        for turns in ((paths[1], paths[0]), (paths[1],), (paths[0],))
    ]
    both, second, first = (turns for turns in opened if turns is not None)
    assert second.wait(0.0, 0.0) == 0.0
    assert both.wait(0.1, 0.0) > 0.0
    assert first.wait(0.2, 0.0) > 0.0  # the first device is kept for who comes to have both
    second.over(0.6, 0.0)
    assert both.wait(0.6, 0.0) == 0.0
    assert second.wait(0.7, 0.0) > 0.0
    both.over(1.2, 0.0)
    assert (first.wait(1.2, 0.0), second.wait(1.2, 0.0)) == (0.0, 0.0)
    first.over(1.7, 0.0)
    # it has the first lock again, and gives it back for a step without its turn
    assert both.wait(1.8, 0.0) > 0.0
    both.release()
    assert first.wait(1.9, 0.0) == 0.0


def test_the_engine_is_told_once_of_the_gpus_that_a_task_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    engine, seen = Engine(), list[int]()
    gate = gate_of(engine, gpus=lambda: seen)
    steps(engine, gate, 2, 1.0)
    seen.append(1)
    steps(engine, gate, 3, 1.0)
    assert engine.sent == [{"type": "gpus", "gpus": [5]}]


HELD = """
import time
from headgate.task import Channel, Gate, ProgressReporter, TaskEnvironment

channel = Channel.open(TaskEnvironment.claim(), "none", "", None)
gate, progress = Gate(channel), ProgressReporter(channel.send, list)
held = longest = 0.0
while not channel.stopping:
    began = time.monotonic()
    time.sleep(0.01)
    progress.step += 1
    took = time.monotonic() - began
    held, longest = held + took, max(longest, took)
    progress.report(held, {"longest": longest})
    gate.boundary()
"""


def test_two_processes_that_take_turns_get_what_they_are_granted(tmp_path: Path) -> None:
    """Steps that only sleep, on a device that is none: what counts is how long they run, which on a
    busy machine differs. What they get changes.
    """
    listeners = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        listeners.append(ChannelListener(tmp_path / name, welcome={"plan": {}, "threads": 1}))
    processes = []
    try:
        for listener in listeners:
            environment = {
                "PYTHONPATH": ":".join(sys.path),
                **listener.environment(),
                TURNS: str(tmp_path),
            }
            processes.append(subprocess.Popen([sys.executable, "-c", HELD], env=environment))
        for listener in listeners:
            listener.wait_for("progress")

        def held() -> list[float]:
            """Seconds of the steps of each."""
            return [listener.of("progress")[-1]["loss"] for listener in listeners]

        def has_held(seconds: float, before: list[float]) -> bool:
            return sum(held()) - sum(before) > seconds

        for part in (0.75, 0.3):
            for listener, fraction in zip(listeners, (part, 1.0 - part), strict=True):
                listener.send({"type": "gate", "fraction": fraction, "turns": ["turn"]})
            wait.until(partial(has_held, 0.5, held()), 60, "they have heard of it")
            before = held()
            wait.until(partial(has_held, 3.0, before), 60, "steps are done")
            first, second = (after - before for after, before in zip(held(), before, strict=True))
            longest = sum(
                listener.of("progress")[-1]["metrics"]["longest"] for listener in listeners
            )
            total = first + second
            # nobody gives its turn away within a step
            assert first / total == pytest.approx(part, abs=0.1 + longest / total)
        listeners[1].send({"type": "stop"})  # whoever waits for its turn too
        assert processes[1].wait(60) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for listener in listeners:
            listener.close()


BURNS = """
import sys, time
from headgate.task import Channel, Gate, TaskEnvironment

channel = Channel.open(TaskEnvironment.claim(), "none", "", None)
gate = Gate(channel)
channel.wait_for(lambda: channel.gate is not None, 60.0)
gate.boundary()
began, used = time.monotonic(), time.process_time()
while time.process_time() - used < 0.5:
    step = time.process_time()
    while time.process_time() - step < 0.02:
        pass
    gate.boundary()
channel.send({"type": "note", "used": time.process_time() - used, "took": time.monotonic() - began})
channel.flush(10.0)
"""


def test_a_process_without_a_cgroup_uses_no_more_cores_than_it_is_granted(tmp_path: Path) -> None:
    with ChannelListener(tmp_path, welcome={}) as listener:
        environment = {"PYTHONPATH": ":".join(sys.path), **listener.environment()}
        process = subprocess.Popen([sys.executable, "-c", BURNS], env=environment)
        try:
            listener.wait_for("hello")
            listener.send({"type": "gate", "cores": 0.25})
            [note] = listener.wait_for("note", seconds=60)
        finally:
            process.kill()
            process.wait()
    assert note["used"] / note["took"] <= 0.25 + 0.05  # less, where the machine has no more to give


def test_a_gate_comes_down_the_channel_and_goes_with_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TURNS, "/turns")
    with ChannelListener(tmp_path, welcome={}) as listener:
        channel = Channel.open(TaskEnvironment.read(listener.environment()), "torch", "2.0", 7)
        wait.until(lambda: channel.welcome)
        listener.send({"type": "gate", "fraction": 0.25, "turns": ["x"]})
        wait.until(lambda: channel.gate == Grant(0.25, turns=("/turns/x",)))
        listener.send({"type": "gate", "fraction": "much"})
        wait.until(lambda: channel.gate is None)
        listener.send({"type": "gate", "cores": 1.5})
        wait.until(lambda: channel.gate == Grant(1.5, cores=True))
        monkeypatch.delenv(TURNS)
        listener.send({"type": "gate", "fraction": 0.5, "turns": ["x"]})
        wait.until(lambda: channel.gate == Grant(0.5))
        listener.hang_up()
        wait.until(lambda: not channel.connected)
        assert channel.gate is None
