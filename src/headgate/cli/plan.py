"""`headgate plan`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import yaml

from headgate.cli import job_options, plan_view, profile_jobs
from headgate.cli.options import (
    CommandLine,
    OfJobs,
    Whole,
    example,
    of_engines,
    stated_plan,
)
from headgate.cli.placement import PlacementOptions
from headgate.cli.plan_view import RankedPlans
from headgate.model.cluster import Cluster, Node
from headgate.model.errors import UsageError
from headgate.model.job_choices import Allowed
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.profiles import Profile
from headgate.planning.candidates import candidates
from headgate.planning.choosing import in_words
from headgate.planning.cost import CostModel
from headgate.planning.jointly import ProfiledJob, jointly
from headgate.planning.search import SearchResult, search
from headgate.planning.whatif import changed
from headgate.recorded import runs
from headgate.sampling import machine


@click.command(cls=OfJobs)
@click.argument("scripts", nargs=-1, metavar="[FILE... [-- ARGS] | COMMAND]")
@click.option(
    "--profile",
    "key",
    metavar="KEY|FILE",
    help="Plan from this stored profile, or from a file. You need no script then.",
)
@click.option(
    "--cluster",
    metavar="FILE|LAB",
    help="Plan for the nodes of this file, cluster.yaml. They may exist only on paper.",
)
@click.option("--engine", metavar="NAME", help="Plan for the nodes of this engine's cluster.")
@of_engines("address")
@job_options.of_jobs(*job_options.LAUNCHED)
@click.option(
    "--allow",
    multiple=True,
    type=click.Choice(["async", "weak"]),
    help="Allow plans that change the mathematics: async, or weak, a larger batch in all.",
)
@job_options.of_jobs(
    "limits.cores",
    "limits.memory_bytes",
    cores="Most cores for the whole job: 8.",
    memory="Most memory of a task: 2GiB.",
)
@click.option(
    "--top",
    type=Whole(min=1),
    metavar="N",
    default=10,
    show_default=True,
    help="How many candidates to show.",
)
@click.option(
    "--explain",
    type=Whole(min=1),
    metavar="N",
    help="Say where the seconds of a step go in candidate N: --explain 1.",
)
@click.option(
    "--what-if",
    "changes",
    multiple=True,
    metavar="CHANGE",
    help="Ask what a change would bring: nic=10Gbit, cores=8, a.nic=10Gbit, '+2 node of kind a'.",
)
@stated_plan
@click.option(
    "--history",
    "with_history",
    is_flag=True,
    help="Correct the cost model by past runs of the same model.",
)
@click.option(
    "--probe",
    "probes",
    type=Whole(min=1),
    metavar="K",
    help="First measure the K best plans in short runs: --probe 3.",
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write the chosen plan to this file, for `headgate run --plan FILE`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_context
@example("headgate plan train.py")
def command(
    ctx: click.Context,
    /,
    scripts: tuple[str, ...],
    key: str | None,
    cluster: str | None,
    engine: str | None,
    address: str | None,
    allow: tuple[Allowed, ...],
    top: int,
    explain: int | None,
    changes: tuple[str, ...],
    with_history: bool,
    probes: int | None,
    save: str | None,
    as_json: bool,
    **stated: Any,
) -> None:
    """Say how many tasks a job should have, how large, in which role, on which node, and why.

    For several jobs it also says which job gets which nodes. The scripts' profiles have to be
    stored: `headgate profile` measures them. Without --cluster or --engine the plan is for this
    machine. With --strategy, --workers or --plan it says what that plan would do, beside the best
    one.

    \b
    Example: headgate plan train.py --cluster lab.yaml
             headgate plan train.py --cluster lab.yaml --explain 1
             headgate plan train.py --cluster lab.yaml --what-if "+2 node of kind a"
             headgate plan train.py --cluster lab.yaml --history --probe 3 --save plan.yaml
             headgate plan train.py --cluster lab.yaml --strategy ps --workers 2 --servers 1
             headgate plan a.py b.py --cluster lab.yaml
             headgate plan ddp.py --cluster lab.yaml --launch torchrun --batch per-worker
             headgate plan --profile profile.json --cluster lab.yaml --top 3
    """
    this_node = machine.detect(runs.home() / "node.json")
    asked: CommandLine = ctx.meta["asked"]
    jobs = profile_jobs.jobs(scripts, asked, key, this_node, job_options.stated(ctx))
    options = PlacementOptions(engine=engine, address=address, **stated)
    jobs = [
        (options.applied(replace(job, allow=job.allow | frozenset(allow))), profile)
        for job, profile in jobs
    ]
    on = options.place().engine
    known_nodes = profile_jobs.nodes(cluster, on, this_node)
    nodes = known_nodes
    for change in changes:
        nodes = changed(nodes, change)
    measures = "--probe" if probes else None
    if with_history:
        measures = "--history"
    if changes and measures:
        raise UsageError(
            f"found {measures} with --what-if: nothing was measured of nodes that are not; give "
            "one of them"
        )
    if len(jobs) > 1:
        for option, given in (("--explain", explain), ("--save", save), (measures, measures)):
            if given is not None:
                raise UsageError(f"found {option} with {len(jobs)} jobs; expected one")
        _plan_together(jobs, nodes, this_node, changes, as_json)
        return
    [(job, profile)] = jobs
    before = None
    if measures:
        answer = _measured(
            job,
            known_nodes,
            profile,
            this_node,
            top,
            with_history,
            partial(profile_jobs.place, cluster, on),
            probes or 0,
        )
    else:
        answer = _answer(job, nodes, profile, this_node, top)
        before = _answer(job, known_nodes, profile, this_node, top) if changes else None
        if job.plan is not None and not changes:
            before = _answer(replace(job, plan=None), known_nodes, profile, this_node, top)
            changes = (f"this plan in place of the best ({in_words(before.found.best.plan)})",)
    if explain is not None and explain > len(answer.shown):
        raise UsageError(
            f"found --explain {explain}; expected 1 to {len(answer.shown)}, or more candidates "
            "with --top"
        )
    if save is not None:
        best = answer.found.best.plan
        _save(best if job.contract is None else replace(best, batch_per_worker=None), Path(save))
    if as_json:
        click.echo(json.dumps(plan_view.as_data(answer, before, changes, explain), indent=2))
    else:
        plan_view.show(answer, before, changes, explain)
        if save is not None:
            where = {
                "--cluster": cluster,
                "--engine": engine,
                "--address": address,
                "--launch": job_options.stated(ctx).get("launch"),
            }
            words = [
                word
                for option, value in where.items()
                if value is not None
                for word in (option, value)
            ]
            command = shlex.join(
                ["headgate", "run", "--plan", save, *words, *scripts, *asked.words]
            )
            click.echo(f"\nsaved: {command}{'' if scripts or asked.words else ' SCRIPT'}")


def _answer(job: Job, cluster: Cluster, profile: Profile, this_node: Node, top: int) -> RankedPlans:
    costs = CostModel(job, cluster, profile, measured_on=this_node)
    if job.plan is None:
        return RankedPlans(job, costs, search(costs, runners_up=top - 1))
    [stated] = candidates(cluster, job)
    best = costs.predict(stated)
    return RankedPlans(job, costs, SearchResult(best, (), best.throughput, True, 1))


def _measured(
    job: Job,
    cluster: Cluster,
    profile: Profile,
    this_node: Node,
    top: int,
    with_history: bool,
    where: Callable[[], Mapping[str, Any]],
    probes: int,
) -> RankedPlans:
    """The answer, corrected by past runs and probes.

    Raises:
        UsageError: The job states its plan, or probes are requested on nodes that do not exist.
    """
    from headgate.planning.correcting import (
        Corrected,  # its numerics take a quarter of a second to import
    )
    from headgate.profiling import history

    if job.plan is not None:
        raise UsageError(
            f"job {job.name!r} states its plan: there is nothing to choose; leave out "
            "--history, --probe"
        )
    past = (
        history.past(profile, cluster, [path / runs.STORE for path in runs.listing()])
        if with_history
        else []
    )
    corrected = Corrected(
        job,
        cluster,
        profile,
        [(measurement.plan, measurement.throughput) for measurement in past],
        measured_on=this_node,
    )
    if probes:
        from headgate.cli.probing import probe

        if job.script is None:
            raise UsageError("found --probe without a script: there is nothing to run")
        probe(corrected, job, cluster, profile, where(), probes)
    if not corrected.measured and not corrected.planner.failed:
        click.echo("no run of this model on these nodes is stored: nothing was corrected", err=True)
        return _answer(job, cluster, profile, this_node, top)
    try:
        best, *others = corrected.ranked(top)
    except ValueError as error:
        raise UsageError(f"job {job.name!r}: {error}") from None
    costs = CostModel(job, cluster, profile, measured_on=this_node)
    bound = max(prediction.throughput for prediction in (best, *others))
    return RankedPlans(
        job,
        costs,
        SearchResult(best, tuple(others), bound, False, 0),
        corrected.measured,
        corrected.planner.failed,
    )


def _plan_together(
    asked: Sequence[tuple[Job, Profile]],
    cluster: Cluster,
    this_node: Node,
    changes: Sequence[str],
    as_json: bool,
) -> None:
    """Plan jobs that run side by side.

    Raises:
        UsageError: A job states its plan, or can run nowhere.
    """
    for job, _ in asked:
        if job.plan is not None:
            raise UsageError(
                f"job {job.name!r} states its plan; leave it out, or plan the others without it"
            )
    division = jointly(
        [ProfiledJob(job, profile) for job, profile in asked], cluster, measured_on=this_node
    )
    answers = [
        RankedPlans(
            job,
            CostModel(job, cluster, profile, measured_on=this_node),
            SearchResult(prediction, (), prediction.throughput, False, 0),
        )
        for (job, profile), prediction in zip(asked, division.predictions)
    ]
    if as_json:
        click.echo(json.dumps(plan_view.together_as_data(answers, division, changes), indent=2))
    else:
        plan_view.show_together(answers, division)


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
