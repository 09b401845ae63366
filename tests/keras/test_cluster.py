"""The tasks of a job as TensorFlow's cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, cast

import pytest

from headgate.hub.state.peers import Peers
from headgate.keras import cluster
from headgate.model.identifiers import TaskName
from headgate.model.plans import Plan
from headgate.task import Channel


class Telling:
    """As much of a channel as it takes to be told a view."""

    stopping = False

    def __init__(self, peers: Peers) -> None:
        self.peers: dict[str, Any] = peers.view()

    def wait_for(self, condition: Callable[[], bool], _: float) -> bool:
        return condition()


@pytest.mark.parametrize("framework", ["keras", "torch"])
def test_the_servers_have_to_be_tensorflow_s(framework: str) -> None:
    plan = Plan(strategy="ps", workers=1, servers=1, batch_per_worker=None, synchronous=False)
    peers = Peers(plan)
    for name, ports in (("server-0", (1,)), ("worker-0", (2, 3))):
        peers.start(TaskName(name), "here", "127.0.0.1")
        peers.meet(TaskName(name), framework if name == "server-0" else "keras")
        peers.listen(TaskName(name), [f"tcp://127.0.0.1:{port}" for port in ports])
    channel = cast(Channel, Telling(peers))
    if framework == "keras":
        assert cluster.wait_for_all(channel, asdict(plan)) == {
            "worker": ["127.0.0.1:2"],
            "ps": ["127.0.0.1:1"],
            "chief": ["127.0.0.1:3"],
        }
        return
    with pytest.raises(
        cluster.PlanError, match=r"started as those of headgate\.torch.* import headgate\.keras"
    ):
        cluster.wait_for_all(channel, asdict(plan))
