"""What happens once a module has been imported."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate.task.sitecustomize import AfterImport


def test_a_module_that_was_only_looked_for_is_still_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "awaited_framework.py").write_text("made = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    imported: list[Any] = []
    finder = AfterImport({"awaited_framework": imported.append})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert importlib.util.find_spec("awaited_framework") is not None
    assert imported == []
    module = importlib.import_module("awaited_framework")
    assert imported == [module]
    del sys.modules["awaited_framework"]
    importlib.import_module("awaited_framework")
    assert imported == [module]
