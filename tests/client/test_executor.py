"""`headgate.Executor`: calls of functions as jobs of a real hub."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hub.user import SECONDS, User

from headgate import Client, Executor, Job, Run
from headgate.client import executor as module
from headgate.client.calls import CallFuture, CallLostError, RemoteTraceback
from headgate.client.submitting import hand_in
from headgate.client.watching import Watch
from headgate.hub.connection import TAKE_IN_SECONDS, HubConnection, connect
from headgate.model.errors import HubError, MissingExtraError, NotFoundError, UsageError
from headgate.recorded import retention, runs
from headgate.testing import wait


@pytest.fixture(autouse=True)
def _in_the_folder(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(user.folder)


@pytest.fixture
def executor() -> Iterator[Executor]:
    with Executor(max_workers=2) as executor:
        yield executor
        executor.stop(kill=True)


def divide(numerator: float, by: float = 1.0) -> float:
    print("divides by", by)
    return numerator / by


def wait_for(name: str) -> str:
    Path(f"{name}-began").touch()
    while not Path(name).exists():
        time.sleep(0.05)
    return name


def fails_once() -> str:
    first = not Path("tried").exists()
    Path("tried").touch()
    if first:
        raise OSError("the first time")
    return "the second time"


def nested(value: int) -> int:
    with Executor(max_workers=1) as inner:
        return int(inner.submit(pow, value, 2).result())


def test_a_call_returns_its_result_and_has_a_log(executor: Executor) -> None:
    future = executor.submit(divide, 1.0, by=4.0)
    assert future.result(SECONDS) == 0.25
    assert future.log() == "divides by 4.0\n"
    assert Executor.attach(future.id).result(SECONDS) == 0.25


def test_a_run_of_calls_is_not_the_latest_for_commands(executor: Executor, user: User) -> None:
    with Client() as client:
        own = client.run(Job(name="own", run="exec sleep 3600"))
    user.sees_state("own", "running")
    waits = executor.submit(wait_for, "go")
    wait.until(Path("go-began").exists, SECONDS, "the call began")
    assert user.json("status")["id"] == own.id
    assert list(user.json("stop")) == [own.id]
    user.touch("go")
    assert waits.result(SECONDS) == "go"


def test_what_a_call_raises_has_its_traceback_as_cause(executor: Executor) -> None:
    future = executor.submit(divide, 1.0, by=0.0)
    with pytest.raises(ZeroDivisionError) as raised:
        future.result(SECONDS)
    assert isinstance(raised.value.__cause__, RemoteTraceback)
    assert "in divide" in str(raised.value.__cause__)
    with pytest.raises(ZeroDivisionError):
        Executor.attach(future.id).result(SECONDS)


@pytest.mark.slow
def test_a_hundred_calls_are_taken_in_at_once_and_few_are_handed_in(
    executor: Executor, user: User
) -> None:
    blocked = [executor.submit(wait_for, "go") for _ in range(2)]
    wait.until(Path("go-began").exists, SECONDS, "the call began")
    many = [executor.submit(divide, number) for number in range(100)]
    assert not any(future.running() for future in many)
    executor.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in many)
    user.touch("go")
    assert [future.result(SECONDS) for future in blocked] == ["go", "go"]
    with pytest.raises(concurrent.futures.CancelledError):
        many[0].id  # noqa: B018
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(divide, 1.0)


@pytest.mark.slow
def test_calls_that_wait_together_are_handed_in_as_one_run(user: User) -> None:
    with Executor(max_workers=4) as executor:
        with executor._handing_in:
            calls = [executor.submit(divide, number) for number in (1.0, 2.0, 3.0)]
        assert [call.result(SECONDS) for call in calls] == [1.0, 2.0, 3.0]
    assert len({call.id.partition("/")[0] for call in calls}) <= 2
    assert len({call.id for call in calls}) == 3


def test_map_keeps_the_order(executor: Executor) -> None:
    assert list(executor.map(pow, [2, 3], [10, 10], timeout=SECONDS)) == [1024, 59049]


def test_a_call_that_ends_before_the_hub_s_answer_is_read_has_its_result(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = HubConnection.receive

    def late(hub: HubConnection, timeout: float | None = None) -> dict[str, Any] | None:
        if timeout == TAKE_IN_SECONDS:  # the answer: read with all that is said of the run
            wait.until(lambda: b'"reported"' in hub._socket.recv(1 << 16, socket.MSG_PEEK), SECONDS)
        return receive(hub, timeout)

    monkeypatch.setattr(HubConnection, "receive", late)
    assert executor.submit(divide, 1.0, by=4.0).result(SECONDS) == 0.25


@pytest.mark.slow
def test_a_message_that_makes_no_sense_fails_its_calls_alone(
    executor: Executor, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    future = executor.submit(wait_for, "go")
    wait.until(Path("go-began").exists, SECONDS, "the call began")
    with monkeypatch.context() as patched:
        patched.setattr(HubConnection, "receive", lambda *_: {"type": "end", "jobs": [{}]})
        with pytest.raises(KeyError):
            future.result(SECONDS)
    user.touch("go")
    assert executor.submit(divide, 1.0).result(SECONDS) == 1.0


@pytest.mark.slow
def test_a_callback_of_a_call_that_is_cancelled_may_submit_another(executor: Executor) -> None:
    blocked = [executor.submit(wait_for, "go") for _ in range(2)]
    wait.until(Path("go-began").exists, SECONDS, "the call began")
    others = list[CallFuture[float]]()
    waiting = executor.submit(divide, 1.0)
    waiting.add_done_callback(lambda _: others.append(executor.submit(divide, 2.0)))
    executor.stop(kill=True)
    assert [future.exception(SECONDS) is not None for future in blocked] == [True, True]
    assert waiting.cancelled()
    assert others[0].result(SECONDS) == 2.0


def test_a_stop_reaches_a_call_that_is_just_handed_in(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, goes_on = threading.Event(), threading.Event()

    def slow(*facts: Any) -> Watch:
        watch = hand_in(*facts)
        answered.set()
        assert goes_on.wait(SECONDS)
        return watch

    monkeypatch.setattr("headgate.client.calls.hand_in", slow)
    future = executor.submit(wait_for, "go")
    assert answered.wait(SECONDS)
    stopping = threading.Thread(target=executor.stop)
    stopping.start()
    goes_on.set()
    stopping.join(SECONDS)
    with pytest.raises(CallLostError, match="ended without a result, stopped"):
        future.result(SECONDS)


def test_what_cannot_be_pickled_is_refused_or_told(executor: Executor) -> None:
    lock = threading.Lock()
    with pytest.raises(UsageError, match="divide or an argument of it cannot be pickled"):
        executor.submit(divide, lock)
    future = executor.submit(threading.Lock)
    with pytest.raises(CallLostError, match="its result, lock, cannot be pickled"):
        future.result(SECONDS)


@pytest.mark.slow
def test_a_call_is_made_again_and_may_call_others_itself() -> None:
    with Executor(retries=1, memory="256MiB") as executor:
        again, deep = executor.submit(fails_once), executor.submit(nested, 5)
        assert (again.result(SECONDS), deep.result(SECONDS)) == ("the second time", 25)


@pytest.mark.slow
def test_a_call_that_takes_too_long_ends_without_a_result(user: User) -> None:
    with Executor(timeout=1.0) as executor:
        future = executor.submit(wait_for, "never")
        with pytest.raises(CallLostError, match="ended without a result, failed: over its timeout"):
            future.result(SECONDS)


@pytest.mark.slow
def test_a_hub_that_dies_is_an_error_and_the_next_call_has_another(
    executor: Executor, user: User
) -> None:
    future = executor.submit(wait_for, "go")
    wait.until(Path("go-began").exists, SECONDS, "the call began")
    hub = connect()
    assert hub is not None
    with hub:
        os.kill(hub.ask("hello")["pid"], signal.SIGKILL)
    with pytest.raises(HubError, match="the hub died"):
        future.result(SECONDS)
    assert executor.submit(divide, 1.0).result(SECONDS) == 1.0


def test_a_ctrl_c_stops_the_calls() -> None:
    future: CallFuture[str]
    with pytest.raises(KeyboardInterrupt), Executor(max_workers=1) as executor:
        future, waiting = executor.submit(wait_for, "go"), executor.submit(wait_for, "go")
        wait.until(Path("go-began").exists, SECONDS, "the call began")
        raise KeyboardInterrupt
    assert waiting.cancelled()
    with pytest.raises(CallLostError, match="ended without a result, stopped"):
        future.result(SECONDS)


@pytest.mark.slow
def test_an_unknown_call_is_an_error() -> None:
    with Client() as client:
        run = client.run(Job(name="plain", run="true")).id
    with pytest.raises(NotFoundError, match="no job 'gone'"):
        Executor.attach(f"{run}/gone")
    with pytest.raises(UsageError, match="is no call of an Executor"):
        Executor.attach(f"{run}/plain")


def test_calls_go_on_when_their_caller_is_gone(user: User) -> None:
    script = user.write(
        "caller.py",
        """
        import headgate

        class Point:
            def __init__(self, x): self.x = x

        def later():
            import pathlib, time
            while not pathlib.Path("go").exists(): time.sleep(0.05)
            return Point(7).x

        call = headgate.Executor(max_workers=1).submit(later)
        print(call.id)
        """,
    )
    words = [sys.executable, str(script)]
    id = subprocess.run(
        words, cwd=user.folder, env=user.variables, check=True, capture_output=True, text=True
    ).stdout.strip()
    call = Executor.attach(id)
    assert not call.done()
    user.touch("go")
    assert call.result(SECONDS) == 7


def test_a_limit_that_makes_no_sense_is_refused(user: User) -> None:
    with pytest.raises(UsageError, match=r"Limits\.cores"):
        Executor(cores=-1)
    with pytest.raises(UsageError, match="max_workers=0"):
        Executor(max_workers=0)


def test_without_cloudpickle_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install 'cloudpickle"):
        Executor()


def test_calls_are_removed_with_their_runs(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    with Executor() as executor:
        call = executor.submit(divide, 1.0)
        call.result(SECONDS)
    run = runs.find(call.id.partition("/")[0])
    monkeypatch.setattr(module, "_MAKING_SECONDS", -1.0)
    module._sweep()
    assert list((user.home / "calls").glob("*/*.pkl"))
    Run(run).wait(SECONDS)
    retention.remove(run)
    module._sweep()
    assert not list((user.home / "calls").iterdir())
