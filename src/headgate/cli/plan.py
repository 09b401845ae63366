"""`headgate plan`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import click
import yaml

from headgate import clusterfile, lab, runs
from headgate.cli.planned import Answer, as_data, show
from headgate.cli.run import WithRest, read
from headgate.cluster import Cluster, Node
from headgate.errors import NotFoundError, UsageError
from headgate.hub import api
from headgate.jobs import Allowed, Job
from headgate.planning.candidates import candidates
from headgate.planning.cost import Costs
from headgate.planning.search import Found, search
from headgate.planning.whatif import changed
from headgate.plans import Plan
from headgate.profiles import Profile
from headgate.profiling import calibration, store
from headgate.telemetry import machine
from headgate.units import size


@click.command(cls=WithRest)
@click.argument("script", required=False, metavar="[FILE] [-- ARGS]")
@click.option("--profile", "key", metavar="KEY|FILE", help="Plan from this stored profile; needs no script.")
@click.option("--cluster", metavar="FILE|LAB", help="Plan for these nodes, which may exist only on paper.")
@click.option("--allow", multiple=True, type=click.Choice(["async", "weak"]), help="What may change the mathematics.")
@click.option("--cores", type=click.FloatRange(min=0, min_open=True), help="Most cores for the whole job.")
@click.option("--memory", help="Most memory of a task, such as 2GiB.")
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Candidates to show.")
@click.option("--explain", type=click.IntRange(min=1), metavar="N", help="Say where the seconds of candidate N go.")
@click.option("--what-if", "changes", multiple=True, metavar="CHANGE", help="nic=10Gbit, or '+2 node of kind a'.")
@click.option("--save", type=click.Path(dir_okay=False), metavar="FILE", help="Write the choice for `run --plan`.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    script: str | None,
    key: str | None,
    cluster: str | None,
    allow: tuple[Allowed, ...],
    cores: float | None,
    memory: str | None,
    top: int,
    explain: int | None,
    changes: tuple[str, ...],
    save: str | None,
    as_json: bool,
) -> None:
    """Say how many tasks a job should have, how large, in which role and on which node, and why.

    The script's profile has to be stored: `headgate profile` measures it. Without --cluster the plan is for this
    machine.

    \b
    Example: headgate plan train.py --cluster lab.yaml
             headgate plan train.py --cluster lab.yaml --explain 1
             headgate plan train.py --cluster lab.yaml --what-if nic=10Gbit --what-if "+2 node of kind a"
             headgate plan train.py --cluster lab.yaml --save plan.yaml
    """
    here = machine.detect(runs.home() / "node.json")
    job, profile = _job(script, ctx.meta.get("rest", ()), key, cores, memory, here)
    job = replace(job, allow=job.allow | frozenset(allow))
    nodes = _cluster(cluster, here)
    answer = _answer(job, nodes, profile, here, top)
    before = None
    if changes:
        for change in changes:
            nodes = changed(nodes, change)
        before, answer = answer, _answer(job, nodes, profile, here, top)
    if explain is not None and explain > len(answer.shown):
        raise UsageError(f"found --explain {explain}; expected 1 to {len(answer.shown)}, or more candidates with --top")
    if save is not None:
        _save(answer.found.best.plan, Path(save))
    if as_json:
        click.echo(json.dumps(as_data(answer, before, changes, explain), indent=2))
    else:
        show(answer, before, changes, explain)
        if save is not None:
            click.echo(f"\nsaved: headgate run {script or 'SCRIPT'} --plan {save}")


# --- what is planned


def _answer(job: Job, cluster: Cluster, profile: Profile, here: Node, top: int) -> Answer:
    costs = Costs(job, cluster, profile, measured_on=here)
    if job.plan is None:
        return Answer(job, costs, search(costs, runners_up=top - 1))
    [stated] = candidates(cluster, job)
    best = costs.predict(stated)
    return Answer(job, costs, Found(best, (), best.throughput, True, 1))


def _job(
    script: str | None,
    rest: tuple[str, ...],
    key: str | None,
    cores: float | None,
    memory: str | None,
    here: Node,
) -> tuple[Job, Profile]:
    """What is to be planned, and what it costs."""
    if script is None:
        if key is None:
            raise UsageError("found neither a script nor --profile; expected one of them")
        # It is never started: a name for what the profile was measured of.
        job = Job(name="job", run="true")
        return _limited(job, cores, memory), _stored(key)
    jobs = read((script,), rest, None, cores, memory)
    if len(jobs) > 1:
        raise UsageError(f"{script} has {len(jobs)} jobs; expected one, or a script")
    [job] = api.submission(jobs).jobs
    if key is not None:
        return job, _stored(key)
    profile = store.load(runs.home() / "profiles", store.key(job, here))
    if profile is None:
        words = " ".join(["headgate profile", script, *(("--", *rest) if rest else ())])
        raise NotFoundError(
            f"no stored profile of {script}, and without one nothing can be said of its plans; measure it with: {words}"
        )
    return job, profile


def _limited(job: Job, cores: float | None, memory: str | None) -> Job:
    try:
        return replace(job, limits=replace(job.limits, cores=cores, memory_bytes=size(memory) if memory else None))
    except ValueError as error:
        raise UsageError(f"found --memory {memory!r}; {error}") from None


def _stored(key: str) -> Profile:
    """The profile whose key begins so, or that of a file.

    Raises:
        NotFoundError: There is none, or several.
    """
    if key.endswith(".json") or os.sep in key:
        path = Path(key)
        profile = store.load(path.parent, path.stem)
        if profile is None:
            raise NotFoundError(f"{key} is no profile that can be read; expected what `headgate profile --json` prints")
        return profile
    folder = runs.home() / "profiles"
    found = sorted(path.stem for path in folder.glob("*.json") if path.stem.startswith(key)) if folder.is_dir() else []
    if len(found) != 1:
        what = f"{len(found)} profiles whose key begins with" if found else "no stored profile"
        known = sorted(path.stem[:8] for path in folder.glob("*.json")) if folder.is_dir() else []
        raise NotFoundError(f"found {what} {key!r}; stored are: {', '.join(known) or 'none'}")
    profile = store.load(folder, found[0])
    if profile is None:
        raise NotFoundError(f"the stored profile {found[0]} cannot be read; measure it again with: headgate profile")
    return profile


def _cluster(name: str | None, here: Node) -> Cluster:
    """The nodes of a file or of a lab that is up; this machine where nothing is said."""
    if name is None:
        return Cluster((here,))
    if Path(name).suffix not in (".yaml", ".yml"):
        return calibration.calibrated(name, lab.nodes(name), here, runs.home())
    file = clusterfile.read(name)
    if not file.lab:
        return file.cluster
    return calibration.calibrated(file.name, file.cluster, here, runs.home())


def _save(plan: Plan, path: Path) -> None:
    usual = asdict(Plan(strategy="single", workers=1, batch_per_worker=None))
    fields = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(plan).items()
        if name in ("strategy", "workers") or value != usual[name]
    }
    try:
        path.write_text(yaml.safe_dump(fields, sort_keys=False, default_flow_style=None))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
