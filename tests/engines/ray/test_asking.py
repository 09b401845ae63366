"""What is asked of nodes: answered by what runs there, or with the reason in words."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import pytest
from tests.engines.ray.cluster import folders_left
from tests.engines.ray.running import PATIENCE_SECONDS, Running

from headgate.model.errors import HeadgateError
from headgate.profiling import links
from headgate.testing.wait import until


def test_a_function_is_called_on_the_node_and_what_hinders_it_is_told(
    ray_address: str, tmp_path: Path
) -> None:
    running = Running(ray_address, tmp_path)
    [node] = running.engine.cluster().nodes
    agent = running.engine.ask(node.name, os.getpid)
    assert "ray::HeadgateAgent" in Path(f"/proc/{agent}/cmdline").read_text()
    assert running.engine.called() == f"ray-{node.address}:{ray_address.split(':')[1]}"
    rate, trip = running.engine.ask(node.name, links.send, node.address, links.listen(node.address))
    assert rate > 1e6
    assert 0 < trip < 1
    with pytest.raises(HeadgateError, match=r"^Cannot assign requested address"):
        running.engine.ask(node.name, links.listen, "198.51.100.1")
    with pytest.raises(HeadgateError, match=r"^ValueError: "):
        running.engine.ask(node.name, int, "many")
    with pytest.raises(HeadgateError, match=r"^node far is gone$"):
        running.engine.ask("far", os.getpid)

    with socket.create_server(("127.0.0.1", 0)) as waits:

        def kill() -> None:
            taken, _ = waits.accept()
            with taken:
                os.kill(agent, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(HeadgateError, match=rf"^node {node.name} is gone: "):
            running.engine.ask(node.name, links.send, *waits.getsockname())
        killer.join()
    running.engine.close()
    with pytest.raises(HeadgateError, match="closing"):
        running.engine.ask(node.name, os.getpid)
    until(lambda: not folders_left(), PATIENCE_SECONDS, "nothing left behind")
