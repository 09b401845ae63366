"""The isolation `process` keeps the contract: with the cgroups that this machine has, and without
any.
"""

from __future__ import annotations

import os

import pytest

from headgate.isolation.base import Isolation
from headgate.isolation.process import ProcessIsolation
from headgate.testing.isolation import IsolationContract

GROUP = f"test-{os.getpid()}"


def folders_left() -> list[str]:
    # A walk, unlike a glob, does not mind that folders of others vanish meanwhile.
    walk = os.walk("/sys/fs/cgroup")
    return [
        f"{at}/{name}"
        for at, names, _ in walk
        for name in names
        if name.startswith(f"headgate-{GROUP}")
    ]


class TestWithCgroups(IsolationContract):
    elsewhere = ("headgate.isolation.process", f"ProcessIsolation({GROUP!r})")

    @pytest.fixture
    def isolation(self) -> Isolation:
        isolation = ProcessIsolation(GROUP)
        expected = os.environ.get("HEADGATE_TEST_MODE", isolation.mode)
        assert isolation.mode == expected, isolation.uncontrolled()
        if isolation.mode == "none" or any(
            "controller" in limit.reason for limit in isolation.uncontrolled()
        ):
            pytest.skip(f"cgroups cannot be written here: {isolation.uncontrolled()[0]}")
        return isolation

    def traces(self) -> list[str]:
        return folders_left()


class TestWithoutCgroups(IsolationContract):
    caps_fractions = False
    limits_tasks = False
    elsewhere = ("headgate.isolation.process", f"ProcessIsolation({GROUP!r}, mode='none')")

    @pytest.fixture
    def isolation(self) -> Isolation:
        return ProcessIsolation(GROUP, mode="none")

    def traces(self) -> list[str]:
        return folders_left()
