"""The nodes of a hub: its machine, and while a run uses them those of that run's cluster."""

from __future__ import annotations

from collections.abc import Callable

from headgate import events
from headgate.cluster import Cluster, Node
from headgate.errors import UsageError
from headgate.events import Event
from headgate.hub import clusters
from headgate.hub.ledger import Ledger
from headgate.hub.run import Submission


class Nodes:
    """Tells the controller which nodes there are.

    Args:
        machine: This machine.
        ledger: The runs that use nodes.
        step: Tells the controller.
    """

    def __init__(self, machine: Node, ledger: Ledger, step: Callable[[Event], None]) -> None:
        self._machine = machine
        self._nodes = {machine.name: machine}
        self._ledger = ledger
        self._step = step

    def get(self, name: str) -> Node | None:
        """The node of that name; None once it is gone."""
        return self._nodes.get(name)

    def tell(self) -> None:
        """Tell a controller that knows of none."""
        for node in self._nodes.values():
            self._step(events.NodeJoined(node))

    def cluster(self, submission: Submission) -> Cluster:
        """What the jobs of a submission may run on.

        Raises:
            UsageError: A node of it is not there, or has the name of one that another run uses.
        """
        there = clusters.there(submission.cluster)
        for node in submission.nodes:
            if node.place is None:
                raise UsageError(f"node {node.name!r} of {submission.cluster} is another machine; expected a lab's")
            if node.name not in there:
                raise UsageError(f"node {node.name!r} is not there; start its lab with: headgate lab up")
            other = self._nodes.get(node.name)
            if other is not None and (other.place is None or other.place.namespace != node.place.namespace):
                raise UsageError(f"a running job uses another node named {node.name!r}; wait for it, or rename one")
        return Cluster(submission.nodes or (self._machine,))

    def join(self, submission: Submission) -> None:
        """A run begins that uses these nodes."""
        for node in submission.nodes:
            if self._nodes.get(node.name) != node:
                self._nodes[node.name] = node
                self._step(events.NodeJoined(node))

    def release(self) -> None:
        """A run has ended: let go of what no other one uses."""
        used = {node.name for run in self._ledger.runs.values() for node in run.submission.nodes}
        for name in [name for name in self._nodes if name not in used and name != self._machine.name]:
            self._leave(name)

    def look(self) -> None:
        """Find out which nodes are gone, or are being taken away."""
        for run in list(self._ledger.runs.values()):
            if not run.submission.nodes:
                continue
            there = clusters.there(run.submission.cluster)
            for node in run.submission.nodes:
                if node.name not in there and node.name in self._nodes:
                    self._ledger.event(run, "fault", f"node {node.name} is gone")
                    self._leave(node.name)

    def _leave(self, name: str) -> None:
        del self._nodes[name]
        self._step(events.NodeLeft(name))
