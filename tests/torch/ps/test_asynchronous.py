"""Workers that do not wait for each other: as right as those that do, never too far ahead, and nothing twice."""

from __future__ import annotations

import re
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from headgate.plans import Plan
from headgate.testing import wait
from headgate.testing.gang import Gang

SCRIPT = Path(__file__).with_name("digits.py")
SAMPLES = 1440


def plan(synchronous: bool = False, staleness: int | None = None) -> Plan:
    return Plan(
        strategy="ps", workers=2, servers=1, batch_per_worker=None, synchronous=synchronous, staleness=staleness
    )


def gang(folder: Path, made: Plan, **environment: str) -> Gang:
    return Gang(folder, made, [sys.executable, str(SCRIPT)], environment)


def accuracy(running: Gang) -> float:
    found = re.search(r"accuracy ([\d.]+)", running.output("worker-0"))
    assert found, running.output("worker-0")
    return float(found[1])


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


@pytest.fixture(scope="module")
def waiting_for_each_other(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The accuracy of workers that step together."""
    pytest.importorskip("sklearn")
    with gang(tmp_path_factory.mktemp("synchronous"), plan(synchronous=True)) as running:
        running.start()
        running.finish()
        return accuracy(running)


@pytest.mark.parametrize("staleness", [None, 2])
def test_they_are_as_right_and_use_every_sample_once_in_an_epoch(
    staleness: int | None, waiting_for_each_other: float, tmp_path: Path
) -> None:
    with gang(tmp_path, plan(staleness=staleness)) as running:
        running.start()
        running.finish()
        assert accuracy(running) > waiting_for_each_other - 0.01
        ahead = re.search(r"at most (\d+) steps ahead", notes(running, "worker-0"))
        if staleness is not None:
            assert ahead and int(ahead[1]) <= staleness
    assert [sorted(epoch) for epoch in used(tmp_path).values()] == [list(range(SAMPLES))] * 8
    assert all(set(epoch.values()) == {1} for epoch in used(tmp_path).values())


@pytest.mark.parametrize("staleness", [None, 1])
def test_what_a_killed_worker_had_is_done_by_another_and_nobody_waits_for_it(
    staleness: int | None, tmp_path: Path
) -> None:
    pytest.importorskip("sklearn")
    with gang(tmp_path, plan(staleness=staleness), EPOCHS="2", KILL="9") as running:
        running.start()
        assert running.left("worker-1") == -signal.SIGKILL
        running.finish()
        assert "worker-1 is gone: others train on batches" in notes(running, "server-0")
    assert {epoch: set(counts.values()) for epoch, counts in used(tmp_path).items()} == {0: {1}, 1: {1}}
    assert all(len(counts) == SAMPLES for counts in used(tmp_path).values())


def test_a_killed_server_goes_on_from_its_last_snapshot(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    with gang(tmp_path, plan(staleness=3), HEADGATE_SNAPSHOT_SECONDS="0.2", EPOCHS="20") as running:
        running.start()
        snapshot = running.checkpoints / "server-0.snapshot"
        wait.until(snapshot.exists, 60, "a snapshot")
        seen = len(running.of("worker-0", "progress"))
        running.wait_for("worker-0", "progress", seen + 1)
        running.kill("server-0")
        running.start("server-0")
        running.finish()
        assert re.search(r"goes on from what it had [\d.]+ s before", notes(running, "server-0", "fault"))
        assert accuracy(running) > 0.8
    assert not snapshot.exists()
    assert all(len(counts) == SAMPLES and set(counts.values()) == {1} for counts in used(tmp_path).values())
