"""Reports of tasks about what their steps cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headgate.hub.state.runs import LiveRuns
from headgate.model.cluster import Node
from headgate.model.identifiers import TaskId
from headgate.model.profiles import Profile
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.records import parse, read, text_of
from headgate.profiling import store as profiles
from headgate.scripts.program import program

_OBSERVED = (
    *("flops_per_sample", "batch", "dense_bytes"),
    *("compiled", "autocast", "channels_last"),
)
"""Fields of a profile that an observed script tells."""


class ProfileReports:
    """Keeps what tasks report of the cost of their steps.

    Args:
        live_runs: The runs.
        folder: Folder of the stored profiles.
        hardware: Gives the machine of a task; None: it is lost.
    """

    def __init__(
        self, live_runs: LiveRuns, folder: Path, hardware: Callable[[TaskId, str], Node | None]
    ) -> None:
        self._live_runs = live_runs
        self._folder = folder
        self._hardware = hardware

    def take(self, task: TaskId, message: Mapping[str, Any]) -> None:
        """A task reported a profile, or what a step of an unchanged script costs."""
        if message["type"] == "costs":
            self._observed_costs(task, message["costs"])
            return
        run, live, attempt, name = self._live_runs.attempt_of(task)
        profile, node = (
            parse(Profile, message["profile"]),
            self._hardware(task, attempt.tasks[name].node),
        )
        profile = replace(
            profile,
            arguments=program_run.args if (program_run := program(live.spec)) is not None else (),
        )
        if node is not None:
            convolution = node.core_convolution_gflops
            profile = replace(
                profile, core_gflops=node.core_gflops, core_convolution_gflops=convolution
            )
        known = read(Profile, live.profile) if live.profile is not None else None
        if known is None or attempt.plan.workers > 1 or not profiles.is_better(known, profile):
            live.profile = text_of(profiles.merged(known, profile))
        run.record_job(live.spec.name)
        if attempt.plan.workers > 1:
            return  # one of several workers sees only its part of the batch
        try:
            profiles.save(self._folder, live.profile_key, profile)
        except OSError as error:
            reason = Reason.of(ReasonKind.PROFILE_NOT_STORED, error=error.strerror)
            self._live_runs.event(run, "warning", reason, live.spec.name)

    def _observed_costs(self, task: TaskId, costs: Mapping[str, Any]) -> None:
        """A task reported what a step of an unchanged script costs. It explains its time; a plan
        needs a profile.
        """
        run, live, attempt, name = self._live_runs.attempt_of(task)
        node = self._hardware(task, attempt.tasks[name].node)
        profile = parse(
            Profile,
            {
                "framework": "torch",
                "framework_version": "",
                "source": "run",
                **{name: costs.get(name) for name in _OBSERVED},
                "core_gflops": node.core_gflops if node is not None else None,
                "observed": True,
            },
        )
        live.observed_costs = text_of(profile)
        run.record_job(live.spec.name)
