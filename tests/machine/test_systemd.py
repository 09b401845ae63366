"""Whether a machine is being shut down, by what systemd tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.machine import systemd


@pytest.mark.parametrize(
    ("first", "answers", "stops"),
    [
        pytest.param("systemd", "echo running", False, id="it runs"),
        pytest.param("systemd", "echo stopping", True, id="it stops"),
        pytest.param("systemd-shutdow", "exit 1", True, id="its last program answers nobody"),
        pytest.param("init", "echo offline; exit 1", False, id="another began this machine"),
    ],
)
def test_a_machine_stops_if_systemd_says_so(
    first: str, answers: str, stops: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "comm").write_text(f"{first}\n")
    (tmp_path / "systemctl").write_text(f"#!/bin/sh\n{answers}\n")
    (tmp_path / "systemctl").chmod(0o700)
    monkeypatch.setattr(systemd, "_FIRST_PROCESS", tmp_path / "comm")
    monkeypatch.setattr(systemd, "_LOOK_SECONDS", 60.0)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert systemd.is_stopping() is stops


def test_who_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "systemctl").write_text("#!/bin/sh\nexec sleep 300\n")
    (tmp_path / "systemctl").chmod(0o700)
    monkeypatch.setattr(systemd, "_LOOK_SECONDS", 0.1)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert not systemd.is_stopping()


def test_a_machine_without_systemd_is_not_seen_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert not systemd.is_stopping()
