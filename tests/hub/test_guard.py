"""What a hub and its guard leave when both die, and a guard that does not listen."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
from pathlib import Path

import pytest
from tests.hub.user import SECONDS

from headgate.hub.guard import Guarded, leftovers
from headgate.testing import wait


def test_a_box_that_cannot_be_removed_keeps_its_record_and_stops_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    (boxes / "r:a:worker-0.json").write_text(json.dumps({"isolation": "submarine", "task": "r/a/worker-0"}))
    (boxes / "r:b:worker-0.json").write_text('{"isolation": ')
    (boxes / "r:c:worker-0.json").write_text("[1]")
    leftovers(tmp_path)
    assert [path.name for path in boxes.iterdir()] == ["r:a:worker-0.json"]
    said = capfd.readouterr().err
    assert said.startswith("a box of r/a/worker-0 is left: no isolation 'submarine'; expected one of container")


def test_a_guard_that_was_stopped_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.hub.guard._TAKE_SECONDS", 0.05)
    lock = os.open(tmp_path / "hub.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    guarded = Guarded(tmp_path, lock)
    try:
        signal.pidfd_send_signal(guarded.pidfd, signal.SIGSTOP)
        for i in range(5000):
            guarded.remove(f"r/a/worker-{i}")
            if ended(guarded):
                break
        wait.until(lambda: ended(guarded), SECONDS, "it is killed")
        guarded.restart()
        assert not ended(guarded)
    finally:
        guarded.close()
        os.close(lock)


def ended(guarded: Guarded) -> bool:
    return bool(select.select([guarded.pidfd], [], [], 0)[0])
