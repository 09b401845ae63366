"""`headgate service`: a unit of systemd for its user."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headgate.cli import headgate


def typed(*words: str) -> Result:
    return CliRunner().invoke(headgate, ["service", *words])


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a systemd that notes what it is asked, and fails at what a file names."""
    programs, notes = tmp_path / "bin", tmp_path / "asked"
    programs.mkdir()
    for name in ("systemctl", "loginctl"):
        text = f'#!/bin/sh\necho {name} "$@" >> {notes}\n[ "$2" != "$(cat {tmp_path}/no)" ]\n'
        (programs / name).write_text(text)
        (programs / name).chmod(0o700)
    (tmp_path / "no").write_text("nothing")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def test_the_unit_is_written_enabled_and_removed(systemd: Path, home: Path) -> None:
    unit = systemd / "config/systemd/user/headgate.service"
    printed = typed("install", "--print").output
    assert f'ExecStart="{sys.executable}" "-m" "headgate" "ps"' in printed
    assert f'Environment="HEADGATE_HOME={home}"' in printed
    assert not unit.exists()
    assert not (systemd / "asked").exists()
    assert typed("install").exit_code == 0
    assert unit.read_text() == printed
    assert (systemd / "asked").read_text().splitlines() == [
        "loginctl enable-linger",
        "systemctl --user daemon-reload",
        "systemctl --user enable headgate.service",
    ]
    assert "is removed" in typed("remove").output
    assert not unit.exists()
    assert "did not exist" in typed("remove").output


def test_without_systemd_nothing_is_left(systemd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (systemd / "no").write_text("enable")
    refused = typed("install")
    assert refused.exit_code != 0
    assert "`systemctl --user enable headgate.service` failed" in str(refused.exception)
    assert not (systemd / "config/systemd/user/headgate.service").exists()
    monkeypatch.setenv("PATH", str(systemd))
    assert "found no systemctl" in str(typed("install").exception)
