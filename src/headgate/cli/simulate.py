"""`headgate simulate`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import click

from headgate.cli.live_view import print_table
from headgate.cli.options import Finite
from headgate.cli.patience import telling
from headgate.model import units
from headgate.model.cluster import Cluster, Node
from headgate.model.errors import StorageError, UsageError
from headgate.model.profiles import Profile
from headgate.model.sharing import SharingRules
from headgate.simulation.outcomes import LARGEST_ERROR, LONGEST

if TYPE_CHECKING:
    from headgate.simulation import Assumptions, Trace

_FILE = click.Path(dir_okay=False, path_type=Path)
_LARGEST_LOAD = 1e6
_SHORTEST = 1e-3
"""Shortest time step, in seconds: a simulated clock cannot represent shorter ones after a long
time.
"""


def _seconds(_: click.Context, option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = units.seconds(text)
    except ValueError as error:
        raise UsageError(f"--{option.name}: found {text!r}; {error}") from None
    if value != 0.0 and not _SHORTEST <= value <= LONGEST:
        raise UsageError(
            f"--{option.name}: found {text!r}; expected 0, or from 1ms to {LONGEST:g} seconds"
        )
    return value


@click.command("simulate")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--policy",
    "names",
    metavar="NAME",
    multiple=True,
    help="Policy to simulate. Give it several times to compare. Default: fifo.",
)
@click.option(
    "--cluster",
    metavar="FILE",
    help="Cluster file with the nodes: cluster.yaml. Default: this machine.",
)
@click.option(
    "--load",
    type=Finite(1 / _LARGEST_LOAD, _LARGEST_LOAD),
    help="Scale arrivals so that the jobs ask for this part of the cluster: 0.9.",
)
@click.option(
    "--profile",
    "key",
    metavar="KEY|FILE",
    help="Profile of all jobs that name none. The cost model then says how fast they are.",
)
@click.option(
    "--speeds",
    type=_FILE,
    help="Measured throughput by cores: a CSV with model, cores, throughput.",
)
@click.option(
    "--exponent",
    type=Finite(0.0, 1.0, min_open=True),
    default=1.0,
    show_default=True,
    help="Jobs not in --speeds are as fast as cores to the power of this.",
)
@click.option(
    "--pairs",
    "--interference",
    "pairs",
    type=_FILE,
    help=(
        "Measured throughput of pairs of jobs on one device: JSON, such as the `pairs.json` "
        "that studies write."
    ),
)
@click.option(
    "--share-gpus", is_flag=True, help="Jobs share GPUs by the policy, instead of waiting for them."
)
@click.option(
    "--restart",
    callback=_seconds,
    default="30s",
    show_default=True,
    help="Time that a job loses when it is stopped and started again.",
)
@click.option(
    "--report",
    callback=_seconds,
    help="How often jobs that share report their use and loss: 5s. Default: 10 s. In a trace "
    "without losses: a tenth of the mean duration, if that is more.",
)
@click.option(
    "--error",
    type=Finite(0.0, LARGEST_ERROR),
    default=0.0,
    show_default=True,
    help="Error of predicted remaining time: standard deviation of log(predicted / true).",
)
@click.option(
    "--startup",
    type=Finite(0.0, LONGEST),
    default=0.0,
    show_default=True,
    help=(
        "Core-seconds of startup, such as imports, on one core. Until then nothing is "
        "predicted of the job."
    ),
)
@click.option(
    "--users",
    "by_user",
    is_flag=True,
    help="One machine, a hub for each user: compare the arbiter with equal slices, and with none.",
)
@click.option("--rules", type=_FILE, help="Rules of the arbiter for --users: arbiter.yaml.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of all random draws.")
@click.option("--output", type=_FILE, help="Write a page with plots to this file: page.html.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def command(
    trace: Path,
    names: tuple[str, ...],
    cluster: str | None,
    load: float | None,
    key: str | None,
    speeds: Path | None,
    exponent: float,
    pairs: Path | None,
    share_gpus: bool,
    restart: float,
    report: float | None,
    error: float,
    startup: float,
    by_user: bool,
    rules: Path | None,
    seed: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Run the jobs of a trace under policies, with a clock of its own.

    TRACE is a CSV with a line for each job, or the folder of a run. A job runs as fast as its share
    allows. Headgate leaves out lines that make no sense, and jobs that the cluster cannot hold, and
    tells how many.

    On cores and on shared GPUs the controller and the policies are those that run live. Jobs that
    ask for whole GPUs wait for them. There srpt, las and headgate preempt running jobs, which no
    live hub does. The column «as live» tells these results apart.

    \b
    Example: headgate simulate trace.csv --policy fifo --policy srpt --cluster cluster.yaml
             headgate simulate trace.csv --policy las --cluster cluster.yaml --output page.html
             headgate simulate trace.csv --profile profile.json --share-gpus --restart 10s
             headgate simulate trace.csv --exponent 0.8
             headgate simulate trace.csv --users --rules arbiter.yaml --cluster machine.yaml
    """
    from headgate import simulation
    from headgate.planning.interference import Interference, read_pairs
    from headgate.simulation.speeds import Speeds, read_speeds

    nodes = _cluster(cluster)
    jobs = simulation.fitting(simulation.read(trace), nodes)
    if load is not None:
        capacity = sum(len(node.gpus) if jobs.on_gpus else node.cores for node in nodes.nodes)
        if not capacity:
            raise UsageError(
                "found --load with jobs on GPUs, and a cluster that has none; name one that has"
            )
        jobs = jobs.at_load(load, float(capacity), startup)
    if key is not None:
        jobs = replace(
            jobs, jobs=tuple(replace(job, profile=job.profile or key) for job in jobs.jobs)
        )
    profiles, measured_on = _profiles(sorted({job.profile for job in jobs.jobs} - {""}))
    assumptions = simulation.Assumptions(
        profiles=profiles,
        measured_on=measured_on,
        speeds=Speeds(exponent, read_speeds(speeds) if speeds is not None else {}),
        interference=read_pairs(pairs) if pairs is not None else Interference(),
        restart_seconds=restart,
        prediction_error=error,
        startup_core_seconds=startup,
        report_seconds=report,
        share_gpus=share_gpus,
        seed=seed,
    )
    if by_user:
        _compare_users(jobs, nodes, names, assumptions, rules, output, as_json)
        return
    if rules is not None:
        raise UsageError("found --rules without --users; add --users")
    names = names or ("fifo",)
    _check(names, share_gpus or not all(job.gpus for job in jobs.jobs), output)
    outcomes = []
    for name in names:
        with _progress(name, len(jobs.jobs)) as watcher:
            outcomes.append(simulation.simulate(jobs, nodes, name, assumptions, watcher))
    results = [simulation.figures(outcome, assumptions.speeds) for outcome in outcomes]
    from headgate.reports import simulated

    page: Path | None = None
    failed: StorageError | None = None
    if output is not None:
        try:
            page = simulated.write(jobs, outcomes, results, output.absolute())
        except StorageError as error:
            failed = error  # told last: the figures are there
    if as_json:
        data = {
            "trace": jobs.name,
            "jobs": len(jobs.jobs),
            "capacity": outcomes[0].capacity,
            "seed": seed,
        }
        data |= {"notes": jobs.notes}
        policies = [
            asdict(result) | {"warnings": outcome.warnings}
            for result, outcome in zip(results, outcomes, strict=True)
        ]
        click.echo(
            json.dumps(
                {**data, "page": str(page) if page else None, "policies": policies}, indent=2
            )
        )
    else:
        print_table(simulated.table(results))
        for note in jobs.notes:
            click.echo(f"{jobs.name}: {note}", err=True)
        for outcome in outcomes:
            for warning in outcome.warnings:
                click.echo(f"{outcome.policy}: {warning}", err=True)
        if page is not None:
            click.echo(page)
    if failed is not None:
        raise failed


def _compare_users(
    trace: Trace,
    machine: Cluster,
    names: Sequence[str],
    assumptions: Assumptions,
    rules: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Print how the users of one machine fare with the arbiter, and without."""
    from headgate.config import arbiterfile
    from headgate.policies import DEFAULT
    from headgate.reports import simulated
    from headgate.simulation.user_figures import compare

    if output is not None:
        raise UsageError("found --output with --users, which draws no page; leave one out")
    if len(names) > 1:
        raise UsageError("found several policies with --users; name one, which all hubs follow")
    if rules is not None and not rules.exists():
        raise UsageError(f"found --rules {rules}, which does not exist")
    [policy] = names or (DEFAULT,)
    _check([policy], True, None)
    sharing = arbiterfile.read(rules) if rules is not None else SharingRules()
    with _progress(policy, len(trace.jobs)) as watcher:
        results = compare(trace, machine, policy, assumptions, sharing, watcher)
    if as_json:
        data = {"trace": trace.name, "jobs": len(trace.jobs), "seed": assumptions.seed}
        divisions = [asdict(result) | {"worst": asdict(result.worst)} for result in results]
        data |= {"notes": trace.notes, "policy": policy, "divisions": divisions}
        click.echo(json.dumps(data, indent=2))
        return
    print_table(simulated.table_of_users(results))
    for note in trace.notes:
        click.echo(f"{trace.name}: {note}", err=True)
    for result in results:
        for warning in result.warnings:
            click.echo(f"{result.division}: {warning}", err=True)


@contextmanager
def _progress(name: str, count: int) -> Iterator[Callable[[int, float], None]]:
    """A function that takes the progress of a simulation; a terminal shows it."""
    progress = 0, 0.0

    def watch(ended: int, now: float) -> None:
        nonlocal progress
        progress = ended, now

    def text() -> str:
        ended, now = progress
        after = units.say_seconds(now)
        return f"{name}: {ended:,} of {count:,} jobs ended, {after} after the first"

    with telling(text):
        yield watch


def _check(names: Sequence[str], shared: bool, output: Path | None) -> None:
    """Check that every policy exists and a page can be written, before a long simulation.

    Raises:
        UsageError: A policy does not exist.
        StorageError: The page cannot be written.
    """
    from headgate.simulation import named_policies

    for name in names:
        named_policies.choose(name, lambda job, now: 0.0, shared=shared)
    if output is not None and (output.is_file() or not output.exists()):
        try:
            # beside it, because the former page stays until the new one is complete
            TemporaryFile(dir=output.absolute().parent).close()
        except OSError as error:
            cure = "name another file with --output"
            raise StorageError(
                f"cannot write {output.absolute()}: {error.strerror}; {cure}"
            ) from error


def _profiles(names: Sequence[str]) -> tuple[dict[str, Profile], Node | None]:
    """Stored profiles by their names in a trace, and the node on which they were measured."""
    if not names:
        return {}, None
    from headgate.cli import profile_jobs
    from headgate.recorded import runs
    from headgate.sampling import machine

    this_node = machine.detect(runs.home() / "node.json")
    return {name: profile_jobs.stored(name) for name in names}, this_node


def _cluster(path: str | None) -> Cluster:
    if path is not None:
        from headgate.config import clusterfile

        return clusterfile.read(path).cluster
    from headgate.sampling import machine

    return Cluster((replace(machine.describe(), name="here"),))
