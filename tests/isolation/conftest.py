from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.dockerd import any_daemon


@pytest.fixture(scope="session")
def daemon() -> Iterator[str]:
    """Where a Docker Engine listens."""
    with any_daemon() as url:
        yield url
