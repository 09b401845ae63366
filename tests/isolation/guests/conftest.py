"""How long a guest may take, and which tests of guests are long: those of what the isolation
`process` does for them, for a container in one what the guest does, and what a job in one shows as
well.
"""

from __future__ import annotations

import re

import pytest
from tests.isolation.guests.test_guest_jobs import EMULATED_SECONDS

from headgate.testing.isolation import Running

_OF_THE_BOX = (
    *("02", "03", "05", "06", "08", "10", "12", "13"),
    *("14", "15", "17", "18", "20", "23", "24", "25"),
)
"""Clauses of the contract."""


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Running, "patience_seconds", EMULATED_SECONDS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if re.search(r"::TestContainersInGuests::test_(?!01|16)", item.nodeid):
            item.add_marker(pytest.mark.long)
        if re.search(rf"::TestGuests::test_({'|'.join(_OF_THE_BOX)})_", item.nodeid):
            item.add_marker(pytest.mark.long)
