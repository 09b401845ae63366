"""`headgate arbiter`: its file, its unit, and who may run it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headgate.arbiter import service
from headgate.cli import arbiter, headgate


def typed(*words: str) -> Result:
    return CliRunner().invoke(headgate, ["arbiter", *words])


def test_a_file_is_checked_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "arbiter.yaml"
    file.write_text("half_life: 1h\nadministrators: [nobodies]\n")
    facts = json.loads(typed("check", str(file), "--json").output)
    assert facts["unknown"] == [["group", "nobodies"]]
    assert "no group 'nobodies'" in typed("check", str(file)).output
    file.write_text("half_life: long\npatience: -1\n")
    refused = typed("check", str(file))
    assert refused.exit_code != 0
    assert "half_life" in str(refused.exception)
    assert "patience" in str(refused.exception)


def test_users_memory_that_the_kernel_does_not_protect_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for protects in (True, False, None):
        monkeypatch.setattr(arbiter, "passes_protection_on", lambda _, answer=protects: answer)
        checked = typed("check", str(tmp_path / "none"))
        assert ("memory_recursiveprot" in checked.output) is (protects is False)
        facts = json.loads(typed("check", str(tmp_path / "none"), "--json").output)
        assert facts["protects_memory"] is protects


def test_others_than_root_may_not_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "sudo headgate arbiter" in str(typed().exception)


def test_its_unit_is_written_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit, notes = tmp_path / "headgate-arbiter.service", tmp_path / "asked"
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$@" >> {notes}\n')
    systemctl.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(service, "UNIT", unit)
    monkeypatch.setattr(service, "BOOTED", tmp_path / "none")
    assert "does not run systemd" in str(typed("install").exception)
    monkeypatch.setattr(service, "BOOTED", tmp_path)
    assert "ExecReload" in typed("install", "--print").output
    assert not unit.exists()
    assert typed("install").exit_code == 0
    assert f"restart {unit.name}" in notes.read_text()
    assert "is removed" in typed("remove").output
    assert not unit.exists()
