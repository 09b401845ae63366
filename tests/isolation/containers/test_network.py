"""Whose network a container is in: that of its task's place, or of the process that starts it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headgate.isolation.container.network import place_of
from headgate.model.cluster import Place

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None,
    reason="a network namespace needs root, and the program ip",
)

ASKS = """
from headgate.isolation.container.network import place_of
print(place_of(None))
"""


@pytest.fixture
def namespace() -> Iterator[str]:
    name = f"headgate-test-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    yield name
    subprocess.run(["ip", "netns", "del", name], check=True)


def asked_in(namespace: str) -> str:
    command = ["ip", "netns", "exec", namespace, sys.executable, "-c", ASKS]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_process_in_a_network_of_its_own_has_its_tasks_there_too(namespace: str) -> None:
    own = Place("/run/netns/of-a-node", "node", "/etc/hosts", {})
    assert place_of(own) is own
    assert place_of(None) is None
    assert f"namespace='/run/netns/{namespace}', hostname='{socket.gethostname()}'" in asked_in(
        namespace
    )
