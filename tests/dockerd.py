"""A Docker Engine for tests: the one that runs on this machine, or one that is started for them and
leaves nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.harness import dockerd
from tests.harness.dockerd import Dockerd

from headgate.isolation.container.daemon import Daemon, default_url
from headgate.model.errors import IsolationError


@contextmanager
def own_dockerd(*options: str) -> Iterator[Dockerd]:
    """A Docker Engine that a test may stop."""
    if os.geteuid() != 0:
        pytest.skip("a Docker daemon of its own needs root")
    if shutil.which("dockerd") is None:
        pytest.skip("Docker Engine is not installed (apt-get install docker.io)")
    with dockerd.own_dockerd(*options) as found:
        yield found


@contextmanager
def linked_daemon(socket: Path) -> Iterator[str]:
    """As `any_daemon`, which others find at this path meanwhile."""
    with any_daemon() as url:
        socket.symlink_to(url.removeprefix("unix://"))
        try:
            yield f"unix://{socket}"
        finally:
            socket.unlink()


@pytest.fixture(scope="session")
def daemon() -> Iterator[str]:
    """Where a Docker Engine listens."""
    with any_daemon() as url:
        yield url


@contextmanager
def any_daemon() -> Iterator[str]:
    """Where a Docker Engine listens: one that runs here already, or one of its own."""
    pytest.importorskip("docker")
    try:
        Daemon(default_url())
    except IsolationError:
        with own_dockerd() as found:
            yield found.url
    else:
        yield default_url()
