"""What a worker reads of the job's tasks."""

from __future__ import annotations

import pytest

from headgate.hub.state.peers import Peers
from headgate.model.identifiers import TaskName
from headgate.model.plans import Plan
from headgate.torch.ps.transport.views import Member, View


def test_how_many_contributions_are_enough_goes_by_how_many_workers_there_are_to_be() -> None:
    members = {index: Member(index, "here", 1, True, "", leaving=index > 2) for index in range(5)}
    assert View(3, 3, members).needed(0) is None
    assert View(3, 3, members).needed(1) == 4  # two leave
    assert View(4, 3, {index: members[index] for index in range(3)}).needed(1) == 2


def test_servers_of_another_library_are_not_waited_for() -> None:
    peers = Peers(Plan(strategy="ps", workers=1, servers=1, batch_per_worker=None))
    peers.start(TaskName("server-0"), "here", "127.0.0.1")
    assert set(View.read(peers.view()).servers) == {0}
    peers.meet(TaskName("server-0"), "torch")
    assert set(View.read(peers.view()).servers) == {0}
    peers.meet(TaskName("server-0"), "keras")
    with pytest.raises(
        RuntimeError,
        match=r"servers were started as those of headgate\.keras.*leave that import out",
    ):
        View.read(peers.view())
