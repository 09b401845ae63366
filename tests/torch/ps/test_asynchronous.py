"""Workers that do not wait for each other: as right as those that do, never too far ahead, and
nothing twice.
"""

from __future__ import annotations

import re
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from tests.harness.gang import Gang

from headgate.model.plans import Plan
from headgate.testing import wait
from headgate.torch.ps.asynchronous.lease_client import LeaseClient
from headgate.torch.ps.transport import snapshots
from headgate.torch.ps.transport.calls import Answer, Caller
from headgate.torch.sharding import Pass

SCRIPT = Path(__file__).with_name("digits.py")
SAMPLES = 1440


def plan(synchronous: bool = False, staleness: int | None = None) -> Plan:
    return Plan(
        strategy="ps",
        workers=2,
        servers=1,
        batch_per_worker=None,
        synchronous=synchronous,
        staleness=staleness,
    )


def gang(folder: Path, made: Plan, **environment: str) -> Gang:
    return Gang(folder, made, [sys.executable, str(SCRIPT)], environment)


def accuracy(running: Gang) -> float:
    match = re.search(r"accuracy ([\d.]+)", running.output("worker-0"))
    assert match, running.output("worker-0")
    return float(match[1])


def used(folder: Path) -> dict[int, Counter[int]]:
    """How often each sample was used, by epoch."""
    epochs: dict[int, Counter[int]] = {}
    for file in folder.glob("*.used"):
        for line in file.read_text().splitlines():
            epoch, *numbers = map(int, line.split())
            epochs.setdefault(epoch, Counter()).update(numbers)
    return epochs


def notes(running: Gang, name: str, kind: str = "note") -> str:
    return "\n".join(note["text"] for note in running.of(name, kind))


def requested(running: Gang) -> list[dict[str, Any]]:
    """The checkpoints that were asked for; a long epoch saves others by itself."""
    saved = running.of("worker-0", "checkpoint")
    return [message for message in saved if message["why"] == "request"]


def wait_for_training(running: Gang, seen: int = 0) -> None:
    """Wait until worker-0 has told of more than these steps, or is held at the last epoch."""
    held = running.folder / "held-worker-0"
    wait.until(
        lambda: len(running.of("worker-0", "progress")) > seen or held.exists(),
        120,
        "worker-0 to train",
    )


def check_spans(running: Gang) -> None:
    """Sampled steps say what they exchanged, and no more than they took; the server times some of
    them too.
    """
    values = 4 * 9_930  # bytes of the parameters
    steps = running.of("worker-0", "spans")
    assert steps
    for step in steps:
        spans = {span["name"]: span for span in step["spans"]}
        assert {"push", "pull"} <= spans.keys()
        assert sum(span["seconds"] for span in spans.values()) == pytest.approx(step["seconds"])
        assert spans["push"]["bytes_out"] > values and spans["pull"]["bytes_in"] > values
        (transfer,) = step["transfers"]
        assert transfer["peer"] == "server-0"
        (push_begin, push_end, pushed), (pull_begin, pull_end, pulled) = (
            transfer["push"],
            transfer["pull"],
        )
        assert (
            0 <= push_begin <= push_end and push_begin <= pull_begin <= pull_end <= step["seconds"]
        )
        assert pushed == spans["push"]["bytes_out"] and pulled == spans["pull"]["bytes_in"]
    (first, *_) = running.of("server-0", "spans")
    spans = {span["name"]: span for span in first["spans"]}
    assert list(spans) == ["receive", "update", "send", "idle"]
    assert spans["receive"]["bytes_in"] > values and spans["send"]["bytes_out"] > values
    assert spans["update"]["seconds"] > 0


@pytest.fixture(scope="module")
def waiting_for_each_other(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The accuracy of workers that step together."""
    pytest.importorskip("sklearn")
    with gang(tmp_path_factory.mktemp("synchronous"), plan(synchronous=True)) as running:
        running.start()
        running.finish()
        return accuracy(running)


@pytest.mark.long  # every sample once is also seen where a worker is killed
@pytest.mark.parametrize("staleness", [None, 2])
def test_they_are_as_right_and_use_every_sample_once_in_an_epoch(
    staleness: int | None, waiting_for_each_other: float, tmp_path: Path
) -> None:
    with gang(tmp_path, plan(staleness=staleness)) as running:
        running.start()
        running.finish()
        assert accuracy(running) > waiting_for_each_other - 0.01
        ahead = re.search(r"at most (\d+) steps ahead", notes(running, "worker-0"))
        assert ahead
        if staleness is not None:
            assert int(ahead[1]) <= staleness
        reported = [
            message["metrics"]["staleness"] for message in running.of("worker-0", "progress")
        ]
        assert reported == sorted(reported) and reported[-1] == int(ahead[1])
        check_spans(running)
    assert [sorted(epoch) for epoch in used(tmp_path).values()] == [list(range(SAMPLES))] * 8
    assert all(set(epoch.values()) == {1} for epoch in used(tmp_path).values())


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [None, pytest.param(1, marks=pytest.mark.long)])
def test_what_a_killed_worker_had_is_done_by_another_and_nobody_waits_for_it(
    staleness: int | None, tmp_path: Path
) -> None:
    pytest.importorskip("sklearn")
    with gang(tmp_path, plan(staleness=staleness), EPOCHS="2", KILL="9") as running:
        running.start()
        assert running.left("worker-1") == -signal.SIGKILL
        running.finish()
        assert "worker-1 is gone: others train on batches" in notes(running, "server-0")
    assert {epoch: set(counts.values()) for epoch, counts in used(tmp_path).items()} == {
        0: {1},
        1: {1},
    }
    assert all(len(counts) == SAMPLES for counts in used(tmp_path).values())


@pytest.mark.long  # what a killed worker had is done by another in a shorter one
@pytest.mark.timeout(300)
def test_what_a_lost_worker_read_ahead_is_done_by_one_that_had_ended_its_part(
    tmp_path: Path,
) -> None:
    pytest.importorskip("sklearn")
    with gang(tmp_path, plan(), EPOCHS="2", KILL="3", READERS="2", LAST="yes") as running:
        running.start()
        assert running.left("worker-1") == -signal.SIGKILL
        running.finish()
        assert "worker-1 is gone: others train on batches" in notes(running, "server-0")
        assert "left out" not in notes(running, "worker-0")
    assert {epoch: set(counts.values()) for epoch, counts in used(tmp_path).items()} == {
        0: {1},
        1: {1},
    }
    assert all(len(counts) == SAMPLES for counts in used(tmp_path).values())


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_killed_server_goes_on_from_its_last_whole_snapshot(
    damaged: bool, tmp_path: Path
) -> None:
    pytest.importorskip("sklearn")
    often = {"HEADGATE_SNAPSHOT_SECONDS": "0.2", "EPOCHS": "8", "HOLD": "yes"}
    with gang(tmp_path, plan(staleness=3), **often) as running:
        running.start()
        snapshot = running.checkpoints / "server-0.snapshot"
        former = snapshots.former_of(snapshot)
        wait.until(former.exists, 120, "a second snapshot")
        wait_for_training(running, len(running.of("worker-0", "progress")))
        running.kill("server-0")
        (tmp_path / "go").touch()
        if damaged:
            # it may have been killed before another came to the place of what is the former now
            content = bytearray((snapshot if snapshot.exists() else former).read_bytes())
            content[len(content) // 2] ^= 1
            snapshot.write_bytes(content)
        running.start("server-0")
        running.finish()
        assert re.search(
            r"goes on from what it had [\d.]+ s before", notes(running, "server-0", "fault")
        )
        assert (
            "server-0.snapshot cannot be read: it is damaged" in notes(running, "server-0")
        ) == damaged
        assert accuracy(running) > 0.8
    assert not snapshot.exists()
    assert all(
        len(counts) == SAMPLES and set(counts.values()) == {1} for counts in used(tmp_path).values()
    )


@pytest.mark.long
def test_a_server_that_had_saved_nothing_says_what_is_lost(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    never = {"HEADGATE_SNAPSHOT_SECONDS": "1000", "EPOCHS": "4", "HOLD": "yes"}
    with gang(tmp_path, plan(), **never) as running:
        running.start()
        wait_for_training(running, 1)
        running.kill("server-0")
        (tmp_path / "go").touch()
        running.start("server-0")
        running.finish()
        (fault,) = running.of("server-0", "fault")
        assert (
            "before it had saved anything: dense parameters go on from a worker's values"
            in fault["text"]
        )
    assert all(
        len(counts) == SAMPLES and set(counts.values()) == {1} for counts in used(tmp_path).values()
    )


def test_what_a_resume_will_train_on_again_is_told_when_it_is_saved_and_when_it_is_resumed(
    tmp_path: Path,
) -> None:
    pytest.importorskip("sklearn")
    with gang(tmp_path, plan(), EPOCHS="100000") as running:
        running.start()
        running.wait_for("worker-0", "progress")
        running.wait_for("worker-1", "progress", 2)
        running.send("worker-0", {"type": "checkpoint", "deadline": 60})
        (saved,) = wait.until(lambda: requested(running), 120, "the checkpoint")
        content = torch.load(saved["path"], weights_only=True)
        told = re.search(r"saved now which were done already: (\d+)", notes(running, "worker-0"))
        assert (int(told[1]) if told else 0) == content["ahead"]
    torch.save({**content, "ahead": 3}, saved["path"])
    (tmp_path / "again").mkdir()
    with gang(tmp_path / "again", plan(), EPOCHS="100000") as running:
        running.start(HEADGATE_RESUME=saved["path"])
        running.wait_for("worker-0", "progress")
        running.wait_for("worker-1", "progress")
        assert "done before it was saved: 3;" in notes(running, "worker-0")
        assert "done before it was saved" not in notes(running, "worker-1")


def test_a_batch_counts_as_held_before_the_script_has_it() -> None:
    caller = Caller(mock.Mock(servers=1, handlers={}, watchers=[]), mock.Mock(), mock.Mock())
    leased = LeaseClient(caller, lambda: None, lambda text: None, lambda: None)
    leases = []

    def call(
        server: int, operation: str, content: object, then: Callable[[object], None]
    ) -> Answer:
        answer = Answer(caller, server, 0, then)
        caller.settle(answer, {"number": 7, "refresh": False}, None)
        leases.extend(leased.progress())  # to a server that is started just then
        return answer

    with mock.patch.object(caller, "call", call):
        assert leased.ask((0, 3), 0) == 7
    assert leases == [(0, 3, [], [7])]


def test_batches_past_the_saved_position_are_counted() -> None:
    leased = LeaseClient(mock.Mock(), lambda: None, lambda text: None, lambda: None)
    this, other = Pass(0, 0, 0, 0, 0, 10, True), Pass(0, 1, 0, 0, 0, 10, True)
    leased.assign(this)
    (former,) = leased._passes.values()
    leased.assign(other)
    (later,) = leased._passes.values()
    leased.assign(this)
    leased.take_positions([(*former, 4, [6, 7]), (*later, 2, [3])])
    assert leased.ahead == 2 + 3
    assert leased.positions == {former: 4, later: 2}
