"""One lab for all tests of this folder: three nodes inside this machine, below one
`HEADGATE_HOME`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import end_hub
from tests.distributed.training import LAB, Training, save_digits
from tests.hub.user import User, speed, user

from headgate import lab

__all__ = ["speed", "user"]


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`HEADGATE_HOME`, with the lab and the data in it."""
    if os.geteuid() != 0:
        pytest.skip("a lab needs root")
    folder = tmp_path_factory.mktemp("distributed")
    save_digits(folder / "digits.npy")
    (folder / "home").mkdir(mode=0o700)
    (folder / "faults.yaml").write_text(LAB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADGATE_HOME", str(folder / "home"))
        lab.up(str(folder / "faults.yaml"))
    yield folder
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADGATE_HOME", str(folder / "home"))
        lab.down("faults")


@pytest.fixture(autouse=True)
def home(ground: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`HEADGATE_HOME` of every test here; the hub of one is gone when it ends."""
    folder = ground / "home"
    monkeypatch.setenv("HEADGATE_HOME", str(folder))
    yield folder
    if (folder / "hub").exists():
        end_hub()


@pytest.fixture
def training(user: User, ground: Path) -> Iterator[Training]:
    """A person who trains on the nodes of the lab."""
    yield Training(user, ground / "digits.npy", ground / "faults.yaml")
    lab.up(str(ground / "faults.yaml"))  # as it was
