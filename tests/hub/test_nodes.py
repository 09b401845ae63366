"""Which nodes there are for whom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.engines.base import LOCAL, EngineSpec
from headgate.hub.parts.nodes import Nodes
from headgate.hub.state.runs import LiveRuns
from headgate.model.cluster import Node
from headgate.model.events import Event, NodeJoined, NodeLeft
from headgate.model.reason_text import in_words

ENGINE = EngineSpec("elsewhere")
HERE, THERE = (Node("here", cores=cores, memory_bytes=2**30) for cores in (4.0, 2.0))
FAR = Node("far", cores=2.0, memory_bytes=2**30)
"""This machine, the same as the engine has it, and another node of that."""


class Known:
    """The nodes of a hub with a run on an engine, and one on this machine alone, and what the
    controller was told.
    """

    def __init__(self) -> None:
        self.told: list[Event] = []
        runs = {
            name: SimpleNamespace(
                id=name, submission=SimpleNamespace(engine=engine, only=()), meet=lambda node: None
            )
            for name, engine in (("on-it", ENGINE), ("local", LOCAL))
        }
        live_runs = cast(LiveRuns, SimpleNamespace(runs=runs, event=lambda *_: None))
        self.nodes = Nodes(HERE, live_runs, self.told.append)
        self.nodes.add(ENGINE, cast(Any, SimpleNamespace(nodes=(THERE, FAR))))
        self.told.clear()


@pytest.mark.parametrize("for_good", [False, True])
def test_this_machine_is_gone_for_those_alone_whose_engine_has_lost_it(for_good: bool) -> None:
    known = Known()
    known.nodes.went(ENGINE, "here", "its agent died", for_good)
    assert known.told == [NodeLeft("here", ("on-it",), for_good)]
    assert known.nodes.get(ENGINE, "here") is None
    assert known.nodes.get(LOCAL, "here") is HERE
    known.told.clear()
    known.nodes.came(ENGINE, THERE)
    assert known.told == [NodeJoined(HERE, ("on-it",))]
    assert known.nodes.get(ENGINE, "here") is THERE


def test_that_a_node_does_not_come_back_may_be_told_after_it_went() -> None:
    known = Known()
    for for_good in (False, False, True):
        known.nodes.went(ENGINE, "far", "its agent died", for_good)
    assert known.told == [NodeLeft("far"), NodeLeft("far", ("on-it",), for_good=True)]


def test_every_run_on_a_lab_is_told_that_a_node_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    submission = SimpleNamespace(engine=LOCAL, nodes=(FAR,), cluster="lab")
    runs = {name: SimpleNamespace(id=name, submission=submission) for name in ("first", "second")}
    told: list[object] = []
    event = lambda run, kind, reason: told.append((run.id, kind, in_words(reason)))  # noqa: E731
    nodes = Nodes(HERE, cast(LiveRuns, SimpleNamespace(runs=runs, event=event)), told.append)
    nodes.join(cast(Any, submission))
    told.clear()
    monkeypatch.setattr("headgate.hub.parts.nodes.nodes_there", lambda _: frozenset())
    for _ in range(2):
        nodes.look()
    gone = [(name, "fault", "node far is gone") for name in runs]
    assert told == [*gone, NodeLeft("far", for_good=True)]
