"""The jobs with their profiles, and the nodes, that `headgate plan` plans for."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headgate import lab
from headgate.cli import job_options
from headgate.cli.hub_link import reached
from headgate.cli.options import CommandLine
from headgate.cli.running import read
from headgate.client import submitting
from headgate.config import clusterfile
from headgate.engines.base import LOCAL, EngineSpec
from headgate.hub.submission import reach
from headgate.model.cluster import Cluster, Node
from headgate.model.errors import NotFoundError, UsageError
from headgate.model.jobs import Job
from headgate.model.profiles import Profile
from headgate.profiling import calibration, store
from headgate.recorded import runs
from headgate.scripts.program import program, unprofiled


def jobs(
    scripts: Sequence[str],
    asked: CommandLine,
    key: str | None,
    this_node: Node,
    stated: Mapping[str, Any],
) -> list[tuple[Job, Profile]]:
    """The jobs of a command line, each with its profile.

    Raises:
        UsageError: The command line is invalid.
        NotFoundError: A profile is not stored.
    """
    if not scripts and asked == CommandLine() and key is not None:
        # The job is never started. This is a name for whatever the profile was measured on.
        named = Job(name="job", run="true", limits=job_options.limits(stated))
        return [(job_options.applied([named], stated)[0], stored(key))]
    jobs = read(scripts, asked, None, job_options.limits(stated))
    submitted_jobs = submitting.submission(job_options.applied(jobs, stated)).jobs
    if key is not None:
        if len(submitted_jobs) > 1:
            raise UsageError(
                f"found --profile with {len(submitted_jobs)} jobs; expected one, or the stored "
                "profile of each"
            )
        return [(submitted_jobs[0], stored(key))]
    return [(job, _profile_of(job, this_node)) for job in submitted_jobs]


def _profile_of(job: Job, this_node: Node) -> Profile:
    folder, key = runs.home() / "profiles", store.key(job, this_node)
    profile = store.load(folder, key)
    if profile is not None:
        return profile
    program_run = program(job)
    if program_run is None:
        raise NotFoundError(unprofiled(job))
    name = (
        os.path.relpath(job.script)
        if job.script is not None
        else program_run.named or f"-m {program_run.module}"
    )
    cure = f"measure it with: headgate profile {name}" + (
        f" -- {shlex.join(program_run.args)}" if program_run.args else ""
    )
    others = [
        f"--profile {other[:20]} was measured with {shlex.join(known.arguments) or 'no arguments'}"
        for other, known in store.others(folder, key).items()
    ]
    if others:
        cure = (
            f"of other arguments or variables: {'; '.join(others)}. Plan from one of "
            f"these, or {cure}"
        )
        raise NotFoundError(f"found no stored profile of {name} with these, but {cure}")
    raise NotFoundError(
        f"no stored profile of {name}, and without one nothing can be said of its plans; {cure}"
    )


def stored(key: str) -> Profile:
    """The profile whose key begins with `key`, or that of a file.

    Raises:
        NotFoundError: There is none, or several.
    """
    if key.endswith(".json") or os.sep in key:
        path = Path(key)
        profile = store.load(path.parent, path.stem)
        if profile is None:
            raise NotFoundError(
                f"{key} is no profile that can be read; expected what `headgate profile "
                "--json` prints"
            )
        return profile
    folder = runs.home() / "profiles"
    stored_names = (
        sorted(path.stem for path in folder.glob("*.json") if path.stem.startswith(key))
        if folder.is_dir()
        else []
    )
    if len(stored_names) != 1:
        description = (
            f"{len(stored_names)} profiles whose key begins with"
            if stored_names
            else "no stored profile"
        )
        known = sorted(path.stem[:20] for path in folder.glob("*.json")) if folder.is_dir() else []
        raise NotFoundError(
            f"found {description} {key!r}; stored are: {', '.join(known) or 'none'}"
        )
    profile = store.load(folder, stored_names[0])
    if profile is None:
        raise NotFoundError(
            f"the stored profile {stored_names[0]} cannot be read; measure it again with: "
            "headgate profile"
        )
    return profile


def nodes(name: str | None, engine: EngineSpec, this_node: Node) -> Cluster:
    """The nodes of a file, of a running lab, or of an engine; by default this machine.

    Raises:
        HeadgateError: They do not exist, or both a name and an engine are given.
    """
    if engine != LOCAL:
        if name is not None:
            raise UsageError(
                f"found --cluster with --engine {engine.name}, which has nodes of its own; give one"
            )
        with reached(engine) as opened:
            return calibration.known(opened.called(), opened.cluster(), runs.home())
    if name is None:
        return Cluster((this_node,))
    if Path(name).suffix not in (".yaml", ".yml"):
        return calibration.calibrated(name, lab.nodes(name), this_node, runs.home())
    file = clusterfile.read(name)
    if not file.lab:
        return file.cluster
    return calibration.calibrated(file.name, file.cluster, this_node, runs.home())


def place(name: str | None, engine: EngineSpec) -> dict[str, Any]:
    """Fields of a `Submission` that place jobs on these nodes.

    Raises:
        HeadgateError: The nodes do not exist.
    """
    if name is None:
        return {"engine": engine}
    reached_nodes, known = reach(name)
    return {"cluster": reached_nodes, "nodes": known}
