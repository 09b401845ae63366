"""From a start that the controller asks for to exactly what an engine is given.

A run and its dry run make it here, so that the one starts what the other shows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from headgate.engines.base import LOCAL
from headgate.engines.launch import inject, launch
from headgate.hub.messages import turns_in
from headgate.hub.submission import Submission
from headgate.isolation.base import Launch
from headgate.machine import gpu_visibility
from headgate.model.cluster import Node
from headgate.model.events import StartTask
from headgate.model.plans import Plan
from headgate.model.roles import Addresses
from headgate.scripts import contracts
from headgate.scripts.contracts import LaunchedGroup
from headgate.scripts.facts import ScriptFacts
from headgate.task.membership import LOOPBACK

Meeting = LaunchedGroup | Addresses
"""How the tasks of an attempt find each other, where not by a library of Headgate's."""


@dataclass(frozen=True, slots=True)
class Starts:
    """Makes the starts of a submission.

    Args:
        submission: What was handed in.
        home: Headgate's folder.
    """

    submission: Submission
    home: Path

    @property
    def is_here(self) -> bool:
        """Whether its tasks run on this machine as it is."""
        return self.submission.engine == LOCAL and not self.submission.nodes

    def ports(self, start: StartTask, used: Collection[int] = ()) -> tuple[int, ...]:
        """Ports for the tasks of an attempt; none where a library of Headgate's joins them.

        Args:
            start: Its first start.
            used: Ports of other attempts.
        """
        if start.spec.contract is None and not start.spec.roles:
            return ()
        return contracts.free_ports(start.plan.tasks, used, is_here=self.is_here)

    def addresses(self, plan: Plan, node_of: Callable[[str], Node | None]) -> Callable[[str], str]:
        """Gives where tasks on a node listen for the others of their job, by its name: the loopback
        where none of them will be on another node; empty where the node is gone.
        """
        stays = plan.strategy != "ps" or self.is_here
        alone = stays and len({*plan.worker_nodes, *plan.server_nodes}) == 1

        def address(name: str) -> str:
            node = node_of(name)
            if node is None:
                return ""
            return LOOPBACK if alone else node.address

        return address

    def meeting(
        self,
        start: StartTask,
        facts: ScriptFacts,
        ports: tuple[int, ...],
        address: Callable[[str], str],
        key: str = "",
    ) -> Meeting | None:
        """How the tasks of an attempt find each other; None: by a library of Headgate's.

        Args:
            start: A start of it.
            facts: Of its job's script.
            ports: Those from `ports`.
            address: That from `addresses`.
            key: Secret of the attempt.
        """
        if start.spec.roles:
            return Addresses.of(start.spec.roles, start.plan, ports, address)
        if start.spec.contract is None:
            return None
        return LaunchedGroup.of(start, facts, ports, address, key)

    def launch(
        self,
        start: StartTask,
        node: Node,
        checkpoints: Path,
        meeting: Meeting | None,
        facts: ScriptFacts,
        *,
        has_namesake: bool,
        is_profiled: bool,
        stdin: int | None = None,
    ) -> Launch:
        """What the engine is given.

        Args:
            start: What the controller asks for.
            node: Where.
            checkpoints: The folder of the job's checkpoints.
            meeting: That from `meeting`.
            facts: Of the job's script.
            has_namesake: Its environment has another package called `headgate`.
            is_profiled: There is a profile of its job.
            stdin: Descriptor of its standard input; None: it has none.

        Raises:
            UsageError: Its interpreter is not there.
            StorageError: The library for tasks cannot be put in its place.
        """
        environment = self.submission.environment
        observe = not has_namesake and self._is_observed(start, facts, is_profiled)
        if (role := start.spec.role_of(start.task.name)) is not None:
            facts = facts.roles[role.name]
        is_local = self.submission.engine == LOCAL
        return launch(
            start.task,
            start.spec,
            facts,
            environment=environment,
            threads=start.threads,
            injected=inject(self.home / "inject"),
            checkpoints=checkpoints,
            resume=start.resume,
            gpus=start.gpus,
            gpu_names=gpu_visibility.names({**environment, **start.spec.env}, node.gpus),
            mode=self.submission.mode,
            place=node.place,
            turns=turns_in(self.home) if is_local else None,
            attributes=self.submission.attributes if is_local else None,
            group=meeting if isinstance(meeting, LaunchedGroup) else None,
            addresses=meeting if isinstance(meeting, Addresses) else None,
            observe=observe,
            importable=not has_namesake,
            stdin=stdin,
            daemon=environment.get("DOCKER_HOST", "") if is_local else "",
        )

    def _is_observed(self, start: StartTask, facts: ScriptFacts, is_profiled: bool) -> bool:
        """Whether the steps of a task are seen from outside: of a single worker, for a profile of
        its own, or in a run where its job has none yet and Headgate may choose its plan.
        """
        job = start.spec
        if start.plan.workers > 1 or self.submission.engine != LOCAL or facts.file is None:
            return False
        if self.submission.mode != "run":
            return self.submission.mode == "profile" and not facts.source.libraries
        may_grow = job.contract is not None and job.batch is not None and job.plan is None
        return may_grow and not is_profiled
