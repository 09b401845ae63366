"""The nodes of a hub: its machine and, while a run uses them, those of labs and engines. Also
checks that runs' folders and nodes still exist.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

from headgate.engines.base import LOCAL, EngineSpec
from headgate.hub.parts import Component
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.hub.submission import Submission, nodes_there
from headgate.machine import namespaces
from headgate.machine.gpu_visibility import within
from headgate.model import events
from headgate.model.actions import Action
from headgate.model.cluster import Cluster, Node
from headgate.model.errors import UsageError
from headgate.model.events import Event
from headgate.model.reasons import Reason, ReasonKind
from headgate.recorded.runs import STORE

LOOK_SECONDS = 1.0


class Nodes(Component):
    """Tells the controller of nodes.

    The controller divides a node's cores among all that runs there. So a name stands for one node,
    whichever engine has it. An engine's node with the name of this machine is this machine.

    Args:
        machine: This machine.
        live_runs: The runs that use nodes.
        step: Sends an event to the controller.
    """

    def __init__(self, machine: Node, live_runs: LiveRuns, step: Callable[[Event], None]) -> None:
        self._machine = machine
        self._nodes: dict[EngineSpec, dict[str, Node]] = {LOCAL: {machine.name: machine}}
        self._live_runs = live_runs
        self._step = step

    def get(self, engine: EngineSpec, name: str) -> Node | None:
        """The node of that name; None: it is lost."""
        return self._nodes.get(engine, {}).get(name)

    def of(self, engine: EngineSpec) -> list[Node]:
        """The nodes of an engine."""
        return list(self._nodes.get(engine, {}).values())

    def hardware(self, engine: EngineSpec, name: str) -> Node | None:
        """The machine that a node is or belongs to; None: it is lost."""
        node = self.get(engine, name)
        return self._machine if node is not None and node.place is not None else node

    def tell(self) -> None:
        """Tell a new controller of all nodes."""
        self._step(events.NodeJoined(self._machine))
        for nodes in self._nodes.values():
            for node in nodes.values():
                if node.name != self._machine.name:
                    self._step(events.NodeJoined(node))

    # --- what a run may use -----------------------------------------------------------------------

    def cluster(self, submission: Submission) -> Cluster:
        """The nodes on which a submission's jobs may run.

        Raises:
            UsageError: A node does not exist, or has the name of a node that another run uses.
        """
        if submission.engine != LOCAL:
            return self._chosen(submission)
        nodes = nodes_there(submission.cluster)
        for node in submission.nodes:
            if node.place is None:
                raise UsageError(
                    f"node {node.name!r} of {submission.cluster} is another machine; "
                    "expected a lab's"
                )
            if node.name not in nodes:
                raise UsageError(
                    f"node {node.name!r} is not there; start its lab with: headgate lab up FILE"
                )
            other = self.get(LOCAL, node.name)
            if other is not None and (
                other.place is None or other.place.namespace != node.place.namespace
            ):
                raise UsageError(_taken(node.name))
            self._refuse_taken(LOCAL, node.name)
        return Cluster(submission.nodes or (within(self._machine, submission.environment),))

    def _chosen(self, submission: Submission) -> Cluster:
        known = self._nodes[submission.engine]
        for name in submission.only:
            if name not in known:
                raise UsageError(
                    f"engine {submission.engine} has no node {name!r}; expected some of "
                    f"{', '.join(known)}"
                )
        if not known:
            raise UsageError(f"engine {submission.engine} has no node; start one that has CPUs")
        return Cluster(tuple(known[name] for name in dict.fromkeys(submission.only or known)))

    def _refuse_taken(self, engine: EngineSpec, name: str) -> None:
        if any(name in nodes for other, nodes in self._nodes.items() if other != engine):
            raise UsageError(_taken(name))

    # --- nodes of labs ----------------------------------------------------------------------------

    def join(self, submission: Submission) -> None:
        """Add the lab nodes of a new run."""
        for node in submission.nodes:
            if self.get(LOCAL, node.name) != node:
                self._nodes[LOCAL][node.name] = node
                self._step(events.NodeJoined(node))

    def forget(self, run: str) -> None:
        """Remove lab nodes that no other run uses."""
        used = {node.name for run in self._live_runs.runs.values() for node in run.submission.nodes}
        for name in [
            name for name in self._nodes[LOCAL] if name not in used and name != self._machine.name
        ]:
            self._leave(LOCAL, name, for_good=True)

    def look(self) -> None:
        """Detect lab nodes that are gone or are being removed."""
        gone: dict[str, None] = {}
        for run in self._live_runs.runs.values():
            if not run.submission.nodes:
                continue
            nodes = nodes_there(run.submission.cluster)
            for node in run.submission.nodes:
                if node.name not in nodes and self.get(LOCAL, node.name) is not None:
                    reason = Reason.of(ReasonKind.NODE_LEFT, node=node.name)
                    self._live_runs.event(run, "fault", reason)
                    gone[node.name] = None
        for name in gone:  # after all their runs are told
            self._leave(LOCAL, name, for_good=True)

    # --- nodes of engines -------------------------------------------------------------------------

    def add(self, engine: EngineSpec, cluster: Cluster) -> None:
        """Add the nodes of an opened engine.

        Raises:
            UsageError: A node has the name of another node.
        """
        for node in cluster.nodes:
            if node.name != self._machine.name:
                self._refuse_taken(engine, node.name)
        self._nodes[engine] = {}
        for node in cluster.nodes:
            self.came(engine, node)

    def drop(self, engine: EngineSpec) -> None:
        """Remove the nodes of an engine that is no longer used."""
        for name in list(self._nodes.get(engine, ())):
            self._leave(engine, name, for_good=True)
        self._nodes.pop(engine, None)

    def came(self, engine: EngineSpec, node: Node) -> None:
        """A node of an open engine joined or changed. A node with a name already in use is
        ignored.
        """
        if (nodes := self._nodes.get(engine)) is None:
            return
        if node.name != self._machine.name:
            try:
                self._refuse_taken(engine, node.name)
            except UsageError as error:
                left_out = Reason.of(ReasonKind.NODE_LEFT_OUT, node=node.name, error=str(error))
                self._tell_runs(engine, "warning", left_out)
                return
        is_new = node.name not in nodes
        nodes[node.name] = node
        if is_new:
            joined = Reason.of(ReasonKind.NODE_JOINED, node=node.name, cores=node.cores)
            self._tell_runs(engine, "note", joined)
        may_use = [
            run
            for run in self._live_runs.runs.values()
            if run.submission.engine == engine
            and (not run.submission.only or node.name in run.submission.only)
        ]
        for run in may_use:
            run.meet(node)
        if node.name != self._machine.name:
            self._step(events.NodeJoined(node, tuple(run.id for run in may_use)))
        elif may_use:
            self._step(events.NodeJoined(self._machine, tuple(run.id for run in may_use)))

    def went(self, engine: EngineSpec, name: str, reason: str, for_good: bool) -> None:
        """A node of an open engine is lost, or a lost one will not come back (`for_good`)."""
        if self.get(engine, name) is not None:
            self._tell_runs(
                engine, "fault", Reason.of(ReasonKind.NODE_LEFT, node=name, text=reason)
            )
            self._leave(engine, name, for_good)
        elif for_good:
            self._miss(engine, name, for_good)

    # --- small things -----------------------------------------------------------------------------

    def _tell_runs(self, engine: EngineSpec, kind: str, reason: Reason) -> None:
        for run in self._live_runs.runs.values():
            if run.submission.engine == engine:
                self._live_runs.event(run, kind, reason)

    def _leave(self, engine: EngineSpec, name: str, for_good: bool) -> None:
        del self._nodes[engine][name]
        if name != self._machine.name:
            self._step(events.NodeLeft(name, for_good=for_good))
        else:  # the node goes on, with tasks of other engines
            self._miss(engine, name, for_good)

    def _miss(self, engine: EngineSpec, name: str, for_good: bool) -> None:
        """Report a node as lost for the runs on one engine only."""
        if runs := tuple(
            run.id for run in self._live_runs.runs.values() if run.submission.engine == engine
        ):
            self._step(events.NodeLeft(name, runs, for_good))


def _taken(name: str) -> str:
    return f"a running job uses another node named {name!r}; wait for it, or rename one"


class HealthChecks(Component):
    """Checks every second, while there are runs, that their folders and lab nodes exist.

    Args:
        live_runs: The runs.
        look_for_nodes: Finds out which nodes are gone.
    """

    def __init__(self, live_runs: LiveRuns, look_for_nodes: Callable[[], None]) -> None:
        self._live_runs = live_runs
        self._look_for_nodes = look_for_nodes
        # run and node, and since when on the run's clock
        self._cut_off: dict[tuple[str, str], float] = {}
        self._vanished: set[str] = set()  # runs whose missing folder was reported
        self._timer: asyncio.TimerHandle | None = None

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, events.JobSubmitted) and self._timer is None:
            self._look()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        for run in self._live_runs.runs.values():
            self._look_at_folder(run)
        runs = [run for run in self._live_runs.runs.values() if run.submission.nodes]
        self._cut_off = {
            key: since for key, since in self._cut_off.items() if key[0] in self._live_runs.runs
        }
        self._vanished &= self._live_runs.runs.keys()
        if not self._live_runs.runs:
            return
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        if not runs:
            return
        self._look_for_nodes()
        # each name is one node
        linked = {node.name: _linked(node) for run in runs for node in run.submission.nodes}
        for run in runs:
            for node in run.submission.nodes:
                self._compare(run, node.name, linked[node.name])

    def _look_at_folder(self, run: LiveRun) -> None:
        """Warn once of a run whose folder was deleted or moved: its checkpoints and records are
        lost.
        """
        if run.id not in self._vanished and not os.path.exists(run.folder / STORE):
            self._vanished.add(run.id)
            gone = Reason.of(ReasonKind.FOLDER_GONE, folder=str(run.folder))
            self._live_runs.event(run, "warning", gone)

    def _compare(self, run: LiveRun, node: str, linked: bool | None) -> None:
        key = run.id, node
        if linked is False and key not in self._cut_off:
            self._cut_off[key] = run.clock()
            self._tell(run, node, "fault", Reason.of(ReasonKind.NODE_CUT_OFF, node=node))
        elif linked and (since := self._cut_off.pop(key, None)) is not None:
            again = Reason.of(ReasonKind.NODE_LINKED, node=node, seconds=run.clock() - since)
            self._tell(run, node, "note", again)

    def _tell(self, run: LiveRun, node: str, kind: str, reason: Reason) -> None:
        """Warn jobs with a task on the node and another elsewhere, which may wait for it."""
        for name, live in run.jobs.items():
            tasks = list(live.current.tasks.values()) if live.current is not None else []
            nodes = {task.node for task in tasks if task.state != "ended"}
            if node in nodes and len(nodes) > 1:
                self._live_runs.event(run, kind, reason, name)


def _linked(node: Node) -> bool | None:
    """Whether a node's NIC has a link; None: unknown."""
    if node.place is None:
        return None
    try:
        return namespaces.linked(node.place.namespace)
    except OSError:
        return None
