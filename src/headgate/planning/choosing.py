"""Choose a plan for a job whose user states none, and explain the choice."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headgate.isolation import IN_GUESTS
from headgate.model.cluster import Cluster, Node
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.model.plans import Plan, Prediction
from headgate.model.profiles import Profile
from headgate.model.units import counted, say_percent, say_samples
from headgate.planning.candidates import candidates, tells
from headgate.planning.interference import Interference
from headgate.planning.joining import alone
from headgate.scripts.facts import ScriptFacts
from headgate.scripts.launchers import has_launcher

_NAMED = 4  # most nodes listed by name


@dataclass(frozen=True, slots=True)
class JobToPlan:
    """A job to plan.

    Args:
        profile: Its stored profile; None: there is none.
        other_cluster: Variables that tell its tasks of another cluster
            (`engines.scripts.other_cluster`). With these it runs as one task.
    """

    job: Job
    profile: Profile | None
    other_cluster: str = ""
    facts: ScriptFacts = field(default_factory=ScriptFacts)


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan and the reason for it.

    Args:
        why: One line; empty: there was no choice.
    """

    plan: Plan
    why: str = ""


def has_choice(cluster: Cluster, job: Job) -> bool:
    """Whether a job has several possible plans: it states none, and there are several nodes or
    GPUs.

    On one node without several GPUs, workers would share the same cores and gain less than the
    prediction error. Guests have no choice: see `candidates`.
    """
    gpus = 0 if job.limits.gpus == 0 else max((len(node.gpus) for node in cluster.nodes), default=0)
    return (
        job.plan is None
        and not job.roles
        and job.isolation not in IN_GUESTS
        and (len(cluster.nodes) > 1 or gpus > 1)
    )


def starts_at_once(job: Job) -> bool:
    """Whether a job waits neither for a time nor for another job."""
    return job.after is None and job.at == 0


def choose(
    asked: Sequence[JobToPlan],
    cluster: Cluster,
    *,
    used: Mapping[str, Sequence[str]] | None = None,
    measured_on: Node | None = None,
    interference: Interference | None = None,
) -> list[Choice | UsageError]:
    """Choose plans for the jobs of a run, in their order.

    Each job gets the best plan by its profile on the free nodes. Jobs that start at once divide
    these nodes (`planning.jointly`). If a job fits on no free node, jobs share all nodes.

    In three cases a job runs as one task: without a profile, if it fits nowhere by its profile, or
    if its environment names another cluster. It then goes where the most cores are left and
    neighbours lose the least by `interference`.

    Args:
        asked: The jobs, with distinct names.
        cluster: The nodes.
        used: Names of other jobs on each occupied node, one for each of their tasks.
        measured_on: The node that profiles were measured on.
        interference: Slowdowns of jobs by each other, by name; None: unknown.

    Returns:
        The choice for each job, or why no plan of it can run.
    """
    choices: dict[int, Choice | UsageError] = {}
    planned: dict[int, _Informed] = {}
    jobs_by_node = {node: list(names) for node, names in (used or {}).items()}
    taken = Counter({node: len(names) for node, names in jobs_by_node.items()})
    pairs = interference or Interference()
    for i, asked_job in enumerate(asked):
        if (
            asked_job.profile is not None
            and tells(asked_job.profile)
            and _may_choose(asked_job, cluster)
        ):
            planned[i] = _Informed(asked_job.job, asked_job.profile)
            continue
        try:
            choice = choices[i] = _uninformed(
                asked_job, cluster, _crowds(asked_job.job, cluster, jobs_by_node, pairs)
            )
        except UsageError as error:
            choices[i] = error
        else:
            goes_to = (*choice.plan.worker_nodes, *choice.plan.server_nodes)
            for name in goes_to:
                jobs_by_node.setdefault(name, []).append(asked_job.job.name)
            if starts_at_once(asked_job.job):
                taken.update(goes_to)
    now = [i for i, planned_job in planned.items() if starts_at_once(planned_job.job)]
    for group in (now, *([i] for i in planned if i not in now)):
        if group:
            chosen = _together([planned[i] for i in group], cluster, taken, measured_on)
            choices |= dict(zip(group, chosen))
    return [choices[i] for i in range(len(asked))]


def _may_choose(asked: JobToPlan, cluster: Cluster) -> bool:
    return has_choice(cluster, asked.job) and not asked.other_cluster


class _Informed(NamedTuple):
    job: Job
    profile: Profile


def _crowds(
    job: Job, cluster: Cluster, jobs_by_node: Mapping[str, Sequence[str]], pairs: Interference
) -> dict[str, float]:
    """How many tasks the jobs on each node count as for a job."""
    return {
        node.name: pairs.crowd(node.kind, job.name, jobs_by_node.get(node.name, ()))
        for node in cluster.nodes
    }


def _uninformed(asked: JobToPlan, cluster: Cluster, beside: Mapping[str, float]) -> Choice:
    job = asked.job
    plan = candidates(cluster, job, beside=beside)[0]
    program_path = asked.facts.program if asked.facts.file is not None else None
    if (
        (program_path is None and asked.profile is None)
        or not has_choice(cluster, job)
        or job.limits.workers[1] == 1
    ):
        return Choice(plan)
    if has_launcher(job, asked.facts) and (job.contract is None or job.batch is None):
        return Choice(plan)  # its possible number of workers was announced at submission
    if asked.other_cluster:
        why = f"its environment names another cluster ({asked.other_cluster})"
        return Choice(
            plan,
            (
                f"{in_words(plan)}, because {why}; unset that, and with a profile it takes "
                "the best plan"
            ),
        )
    if program_path is None:
        return Choice(plan)
    missing = (
        "no profile of it is stored"
        if asked.profile is None
        else "its profile has no time of a step"
    )
    arguments = f" -- {shlex.join(program_path.args)}" if program_path.args else ""
    cure = f"headgate profile {program_path.named}{arguments}"
    return Choice(
        plan, f"{in_words(plan)}, because {missing}; with one it takes the best plan: {cure}"
    )


def _together(
    asked: Sequence[_Informed], cluster: Cluster, used: Mapping[str, int], measured_on: Node | None
) -> list[Choice | UsageError]:
    for taken in (used, {}) if used else ({},):
        try:
            if len(asked) > 1:
                return _divided(asked, cluster, taken, measured_on)
            return [_best(asked[0], cluster, taken, measured_on)]
        except UsageError as error:
            why = str(error)
    if len(asked) > 1:  # one job fits nowhere; the others still get their plans
        return [_together([asked_job], cluster, used, measured_on)[0] for asked_job in asked]
    try:
        plan = candidates(cluster, asked[0].job, beside=used)[0]
    except UsageError as error:
        return [error]
    return [Choice(plan, f"{in_words(plan)}, because of its profile: {why}")]


def _best(
    asked: _Informed, cluster: Cluster, used: Collection[str], measured_on: Node | None
) -> Choice:
    from headgate.planning.cost import CostModel  # imported late: their numerics take half a second
    from headgate.planning.search import search

    costs = CostModel(asked.job, cluster, asked.profile, measured_on=measured_on)
    best = search(costs, used=used, runners_up=1)
    why = (
        expected(best.best)
        + grown(asked.job, asked.profile, best.best.plan)
        + _caveats(asked.job, asked.profile)
    )
    if best.runners_up:
        second = best.runners_up[0]
        why += f"; next best: {in_words(second.plan)}, {say_samples(second.throughput)}"
    free = len(cluster.nodes) - len({node.name for node in cluster.nodes} & set(used))
    if used and free < len(cluster.nodes):
        why += f"; {free} of {len(cluster.nodes)} nodes were free"
    return Choice(best.best.plan, why)


def _divided(
    asked: Sequence[_Informed], cluster: Cluster, used: Collection[str], measured_on: Node | None
) -> list[Choice | UsageError]:
    from headgate.planning.jointly import ProfiledJob, jointly

    requests = [ProfiledJob(asked_job.job, asked_job.profile) for asked_job in asked]
    division = jointly(requests, cluster, used=used, measured_on=measured_on)
    beside = f"of what it would have alone, beside {len(asked) - 1} more"
    return [
        Choice(
            prediction.plan,
            f"{expected(prediction)}{grown(of.job, of.profile, prediction.plan)}; "
            f"{say_percent(part)} {beside}{_caveats(of.job, of.profile)}",
        )
        for of, prediction, part in zip(asked, division.predictions, division.normalised)
    ]


def _caveats(job: Job, profile: Profile) -> str:
    busy = (
        "; its profile was taken while others used the machine, measure it again"
        if profile.is_busy
        else ""
    )
    why = alone(job, profile) if profile.alone or profile.observed else ""
    return (f"; one task, because {why}" if why else "") + busy


# --- in words


def grown(job: Job, profile: Profile, plan: Plan) -> str:
    """How large the global batch becomes if it grows with the workers; empty: it does not."""
    if job.contract is None or job.batch != "per-worker" or plan.workers == 1:
        return ""
    if profile.batch is None:
        return f"; the global batch grows to that of {plan.workers} workers"
    return (
        f"; the global batch grows from {profile.batch:,} to "
        f"{profile.batch * plan.workers:,} samples"
    )


def expected(prediction: Prediction) -> str:
    """A plan and its predicted throughput, in words."""
    low, high = say_samples(prediction.low, unit=False), say_samples(prediction.high, unit=False)
    rate = f"{say_samples(prediction.throughput)} expected ({low} to {high})"
    return f"{in_words(prediction.plan)}: {rate}, bound by {prediction.bottleneck}"


def in_words(plan: Plan) -> str:
    """A plan in a few words: strategy, tasks and nodes."""
    workers = counted(plan.workers, "task" if plan.strategy == "roles" else "worker", "")
    servers = f" and {counted(plan.servers, 'server', '')}" if plan.servers else ""
    counter = Counter((*plan.worker_nodes, *plan.server_nodes))
    named = [name if count == 1 else f"{name} ({count})" for name, count in counter.items()]
    on = ", ".join(named) if len(named) <= _NAMED else f"{len(named)} nodes"
    return f"{plan.strategy}{'' if plan.synchronous else ' async'}, {workers}{servers}" + (
        f" on {on}" if on else ""
    )
