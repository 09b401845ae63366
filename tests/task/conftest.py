"""What tests of a task's own side share."""

from __future__ import annotations

import pytest

from headgate.task.overheads import OverheadClock


@pytest.fixture(autouse=True)
def own_overheads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test spends on collecting garbage is not told among its reports, once another one has
    had that timed.
    """
    monkeypatch.setattr("headgate.task.progress.overheads", OverheadClock())
