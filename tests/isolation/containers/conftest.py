from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.dockerd import any_daemon
from tests.hub.user import speed, user

__all__ = ["daemon", "speed", "user"]


@pytest.fixture(scope="session")
def daemon() -> Iterator[str]:
    """Where a Docker Engine listens."""
    with any_daemon() as url:
        yield url
