from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.dockerd import linked_daemon
from tests.engines.ray.cluster import head


@pytest.fixture(scope="session")
def docker_socket() -> Iterator[Path]:
    """Where the agents on that Ray look for a Docker Engine; there is none yet."""
    # sockets' paths must be short
    with tempfile.TemporaryDirectory(prefix="hg-", dir="/tmp") as folder:
        yield Path(folder, "docker.sock")


@pytest.fixture(scope="session")
def ray_address(docker_socket: Path) -> Iterator[str]:
    """A Ray with two cores on this machine."""
    pytest.importorskip("ray", reason="engine `ray` needs Ray: pip install 'ray>=2.30'")
    with head(docker=f"unix://{docker_socket}") as address:
        yield address


@pytest.fixture
def docker(docker_socket: Path) -> Iterator[str]:
    """A Docker Engine that they find there."""
    with linked_daemon(docker_socket) as url:
        yield url
