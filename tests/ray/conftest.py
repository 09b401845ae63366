"""One Ray cluster for all tests of this folder: a lab of three nodes, below one `HEADGATE_HOME`, a
raylet on each.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import end_hub
from tests.hub.user import speed
from tests.ray.hill import LAB, Hill, Somebody

from headgate import lab

__all__ = ["speed"]


@pytest.fixture(scope="package")
def hill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hill]:
    """The cluster, with its head on node a, until the last test has killed it."""
    pytest.importorskip("ray", reason="engine `ray` needs Ray: pip install 'ray>=2.30'")
    if os.geteuid() != 0 or shutil.which("tc") is None:
        pytest.skip("a lab needs root, and the programs ip and tc")
    folder = tmp_path_factory.mktemp("ray")
    (folder / "home").mkdir(mode=0o700)
    (folder / "hill.yaml").write_text(LAB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADGATE_HOME", str(folder / "home"))
        lab.up(str(folder / "hill.yaml"))
        found = Hill(folder)
        try:
            found.starts("a", "b", "c")
            yield found
        finally:
            found.ends()
            patch.setenv("HEADGATE_HOME", str(folder / "home"))
            lab.down("hill")


@pytest.fixture(autouse=True)
def home(hill: Hill, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`HEADGATE_HOME` of every test here; the hub of one is gone when it ends."""
    monkeypatch.setenv("HEADGATE_HOME", str(hill.home))
    yield hill.home
    if (hill.home / "hub").exists():
        end_hub()


@pytest.fixture
def user(tmp_path: Path, hill: Hill, speed: Path) -> Iterator[Somebody]:
    """Somebody at a terminal of node a."""
    somebody = Somebody(tmp_path / "work", hill, speed)
    yield somebody
    somebody.leaves()
