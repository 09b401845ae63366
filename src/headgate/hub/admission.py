"""The event that tells the controller of a job, with all that is stored of such jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from headgate.engines.base import LOCAL
from headgate.hub.state.job import LiveJob
from headgate.hub.submission import Submission
from headgate.machine import gpu_visibility
from headgate.model.cluster import Cluster, Node
from headgate.model.events import GpuUse, JobSubmitted, TakenUp
from headgate.model.identifiers import JobId
from headgate.model.profiles import Profile
from headgate.planning.memory import GpuNeed, gpu_need
from headgate.profiling import at_once, gpu_neighbours, store
from headgate.profiling.lengths import EarlierRuns
from headgate.scripts import launchers
from headgate.scripts.gpu_use import gpu_use


class StoredKnowledge:
    """What earlier runs on this machine left about a job: its profile, and what it took.

    Args:
        home: Headgate's folder.
        live: The job, with its keys.
    """

    def __init__(self, home: Path, live: LiveJob) -> None:
        self._home = home
        self._live = live
        self.profile: Profile | None = store.load(home / "profiles", live.profile_key)
        self.earlier = EarlierRuns.read(home / "lengths", live.script_key, live.profile_key)

    @property
    def memory_bytes(self) -> int | None:
        """Most memory of a worker that was seen; None: not known."""
        profiled = self.profile.memory_peak_bytes if self.profile is not None else None
        return max(self.earlier.memory_bytes() or 0, profiled or 0) or None

    @property
    def gpu_need(self) -> GpuNeed:
        """Memory of a worker on each of its GPUs."""
        return gpu_need(self._live.spec.limits, self.profile, self.earlier.gpu_memory_bytes())

    def gpu_use(self, cluster: Cluster) -> GpuUse:
        """Whether its program computes on a GPU, by its command and its earlier runs."""
        if not any(node.gpus for node in cluster.nodes):
            return "no"
        use = gpu_use(self._live.spec, self._live.facts)
        return "no" if use == "maybe" and self.earlier.used_no_gpu() else use

    def submitted(
        self,
        job: JobId,
        submission: Submission,
        cluster: Cluster,
        machine: Node,
        usual: int | Literal["auto"] | None,
        taken_up: TakenUp | None,
    ) -> JobSubmitted:
        """The event that tells the controller of the job.

        Args:
            job: Its id.
            submission: How its run was submitted.
            cluster: The nodes that it may use.
            machine: This machine.
            usual: How many jobs of its user run at once where nothing else is said.
            taken_up: How it stood when its hub died; None: it is new.
        """
        live, spec = self._live, self._live.spec
        environment = {**submission.environment, **spec.env}
        if spec.at_once is None and usual == "auto":
            spec = replace(spec, at_once=usual)
        script = store.script_name(live.profile_key, spec.script)
        measures = "auto" in (spec.at_once, spec.trial.at_once if spec.trial is not None else None)
        return JobSubmitted(
            job,
            spec,
            resume=live.checkpoint,
            nodes=tuple(node.name for node in cluster.nodes),
            memory_bytes=self.memory_bytes,
            work=self.earlier.work(),
            gpus=gpu_visibility.indices(environment, machine.gpus)
            if submission.engine == LOCAL
            else None,
            divides=spec.contract is not None and launchers.divides_memory(spec, live.facts),
            gpu_memory_bytes=self.gpu_need.memory_bytes,
            uses_gpus=self.gpu_use(cluster),
            key=live.profile_key,
            beside=gpu_neighbours.recall(self._home, live.profile_key),
            script=script,
            best_at_once=at_once.recall(self._home, script) if measures else None,
            taken_up=taken_up,
        )
