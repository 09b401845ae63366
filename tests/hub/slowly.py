"""A hub that takes its time to take in a run."""

from __future__ import annotations

import os

import pytest
from tests.hub.user import User
from tests.installing import install

POLICY = """
    import os, time
    from headgate.policies import EqualPolicy
    class Slow(EqualPolicy):
        def __init__(self) -> None:
            super().__init__()
            with open(os.environ["SLOW"] + "/asked", "w") as file:
                file.write("asked")
            while not os.path.exists(os.environ["SLOW"] + "/answer"):
                time.sleep(0.02)
"""


@pytest.fixture
def slow(user: User, monkeypatch: pytest.MonkeyPatch) -> User:
    """Somebody whose run under policy `slow` is handed in as soon as there is a file `answer`; once
    it waits for that there is one called `asked`.
    """
    folder = user.folder / "plugins"
    folder.mkdir()
    install(folder, {"slow_policy": POLICY}, "[headgate.policies]\nslow = slow_policy:Slow\n")
    user.variables["PYTHONPATH"] += f"{os.pathsep}{folder}"
    user.variables["SLOW"] = str(user.folder)
    for name in ("PYTHONPATH", "SLOW"):
        monkeypatch.setenv(name, user.variables[name])
    return user
