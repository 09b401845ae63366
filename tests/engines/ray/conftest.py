from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.engines.ray.cluster import head


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """A Ray with two cores on this machine."""
    pytest.importorskip("ray", reason="engine `ray` needs Ray: pip install 'headgate[ray]'")
    with head() as address:
        yield address
