"""Turn a start requested by the controller into the exact launch for an engine.

A run and its dry run share this code, so that the run starts what the dry run shows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from headgate import isolation
from headgate.engines.base import LOCAL
from headgate.engines.launch import inject, launch
from headgate.hub.messages import turns_in
from headgate.hub.submission import GO_ON, ON_HUB_DEATH, STOP, Submission
from headgate.isolation.base import Launch
from headgate.machine import gpu_visibility
from headgate.machine.arbiter_socket import is_shared
from headgate.model.actions import StartTask
from headgate.model.cluster import Node
from headgate.model.plans import Plan
from headgate.model.roles import Addresses
from headgate.scripts import contracts
from headgate.scripts.contracts import LaunchedGroup
from headgate.scripts.facts import ScriptFacts
from headgate.task.membership import LOOPBACK
from headgate.task.observing import PROFILE, STEPS

Meeting = LaunchedGroup | Addresses
"""How the tasks of an attempt find each other without a library of Headgate's."""


@dataclass(frozen=True, slots=True)
class Starts:
    """Makes the launches of a submission.

    Args:
        submission: The submission.
        home: Headgate's folder.
    """

    submission: Submission
    home: Path

    @property
    def is_here(self) -> bool:
        """Whether its tasks run directly on this machine."""
        return self.submission.engine == LOCAL and not self.submission.nodes

    def ports(self, start: StartTask, used: Collection[int] = ()) -> tuple[int, ...]:
        """Ports for the tasks of an attempt; none if a library of Headgate's connects them.

        Args:
            start: Its first start.
            used: Ports of other attempts.
        """
        if start.spec.contract is None and not start.spec.roles:
            return ()
        return contracts.free_ports(start.plan.tasks, used, is_here=self.is_here)

    def addresses(self, plan: Plan, node_of: Callable[[str], Node | None]) -> Callable[[str], str]:
        """A function from a node's name to the address at which tasks there listen for their job.
        It is the loopback if the whole job is on one node, and empty if the node is lost.
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
            start: A start of the attempt.
            ports: Its ports, from `ports`.
            address: Its addresses, from `addresses`.
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
        """The launch for the engine.

        Args:
            start: The start requested by the controller.
            node: Its node.
            checkpoints: The folder of the job's checkpoints.
            meeting: The result of `meeting`.
            facts: Facts of the job's script.
            has_namesake: Whether its environment has another package called `headgate`.
            is_profiled: Whether its job has a profile.
            stdin: Descriptor of its standard input; None: it has none.

        Raises:
            UsageError: Its interpreter does not exist.
            StorageError: The library for tasks cannot be installed.
        """
        environment = self.submission.environment
        observe = set() if has_namesake else self._observation(start, facts, is_profiled)
        if (role := start.spec.role_of(start.task.name)) is not None:
            facts = facts.roles[role.name]
        is_local = self.submission.engine == LOCAL
        prepared = launch(
            start.task,
            start.spec,
            facts,
            environment=environment,
            threads=start.threads,
            injected=inject(self.home / "inject"),
            checkpoints=checkpoints,
            resume=start.resume,
            gpus=start.gpus,
            gpu_names=gpu_visibility.names(
                {**environment, **start.spec.env}, node.gpus, by_uuid=is_local and is_shared()
            ),
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
        outlives = self.submission.outlives and (
            start.plan.tasks == 1 and start.spec.isolation in (None, isolation.DEFAULT)
        )
        choice = environment.get(ON_HUB_DEATH) if not outlives else GO_ON
        left = {name: value for name, value in prepared.env.items() if name != ON_HUB_DEATH}
        is_stated = outlives or choice == STOP
        return replace(
            prepared,
            env=left | ({ON_HUB_DEATH: str(choice)} if is_stated else {}),
            outlives=outlives,
            attempt=start.attempt,
        )

    def _observation(self, start: StartTask, facts: ScriptFacts, is_profiled: bool) -> set[str]:
        """How Headgate observes the task of a script that imports none of its libraries: its steps
        if it runs, and a profile of a single worker that runs for one, or whose job has none yet
        and leaves its plan to Headgate.
        """
        job, mode = start.spec, self.submission.mode
        alone = (
            start.plan.workers == 1 and self.submission.engine == LOCAL and facts.file is not None
        )
        if mode == "profile":
            return {PROFILE} if alone and not facts.source.libraries else set()
        if mode != "run" or facts.named_libraries:
            return set()
        may_grow = job.contract is not None and job.batch is not None and job.plan is None
        observes = job.observe and not job.roles and not start.task.name.is_server
        return ({PROFILE} if alone and may_grow and not is_profiled else set()) | (
            {STEPS} if observes else set()
        )
