"""`headgate run --dry-run`: exactly what a run would start."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from headgate import isolation, policies
from headgate.config import settings
from headgate.controller.at_once import CoresInUse, one_per_core, per_core
from headgate.controller.core import Controller
from headgate.engines.base import LOCAL
from headgate.engines.launch import stated_threads
from headgate.engines.namesakes import Known, kept_out_by
from headgate.hub.starts import Meeting, Starts
from headgate.hub.submission import Submission
from headgate.machine import gpu_visibility
from headgate.model import events
from headgate.model.actions import PlanJob, StartTask
from headgate.model.cluster import Cluster, Node
from headgate.model.endings import Exit
from headgate.model.errors import UsageError
from headgate.model.identifiers import JobId, TaskId, TaskOfRun
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.reason_text import in_words
from headgate.model.units import counted
from headgate.planning.choosing import JobToPlan, choose
from headgate.planning.interference import stored_pairs
from headgate.planning.memory import GpuNeed, gpu_need
from headgate.policies import NoPolicy
from headgate.profiling import store
from headgate.profiling.calibration import calibrated
from headgate.profiling.lengths import EarlierRuns
from headgate.recorded import runs
from headgate.reports.words import listed
from headgate.sampling import machine
from headgate.scripts import inspection
from headgate.scripts.facts import ScriptFacts, facts_of
from headgate.verification.prior_verdict import bars, is_off, standing
from headgate.verification.verdict import Verification
from headgate.verification.wording import kept_alone, sentence


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """The start of a job.

    Args:
        plan: Its plan.
        verdict: Whether several workers are known to train what one does; None: not applicable.
        kept_alone: Whether it begins with one worker for lack of that knowledge, although Headgate
            would give it several.
        is_profiled: Whether it has a profile.
        facts: Facts about its script.
    """

    plan: Plan
    verdict: Verification | None = None
    kept_alone: bool = False
    is_profiled: bool = False
    facts: ScriptFacts = field(default_factory=ScriptFacts)


def planned(
    submission: Submission, cluster: Cluster, this_node: Node, home: Path
) -> dict[str, PlannedStart]:
    """The start of each job, by name, if no other job ran.

    Raises:
        UsageError: A job can run nowhere.
    """
    facts = {job.name: facts_of(job) for job in submission.jobs}
    for job in submission.jobs:
        inspection.check(job, facts[job.name], {**submission.environment, **job.env})
    asked = []
    for job in submission.jobs:
        other = inspection.other_cluster(job, {**submission.environment, **job.env})
        asked.append(
            JobToPlan(
                job,
                store.load(home / "profiles", store.key(job, this_node)),
                other,
                facts[job.name],
            )
        )
    if submission.cluster:
        cluster = calibrated(submission.cluster, cluster, this_node, home)
    begins = {}
    choices = choose(asked, cluster, measured_on=this_node, interference=stored_pairs(home))
    for to_plan, choice in zip(asked, choices):
        if isinstance(choice, UsageError):
            raise choice
        job, is_profiled = to_plan.job, to_plan.profile is not None
        verdict = _verdict(job, facts[job.name], choice.plan, submission, this_node, home)
        begins[job.name] = PlannedStart(
            choice.plan, verdict, facts=facts[job.name], is_profiled=is_profiled
        )
        if verdict is not None and bars(verdict) and job.plan is None:
            [alone] = choose([replace(to_plan, profile=None)], cluster)
            if not isinstance(alone, UsageError):
                begins[job.name] = replace(begins[job.name], plan=alone.plan, kept_alone=True)
    return begins


def _verdict(
    job: Job, facts: ScriptFacts, plan: Plan, submission: Submission, this_node: Node, home: Path
) -> Verification | None:
    """Whether the workers of a plan are known to train what one does. None: there is one worker,
    they share nothing, or it is not to be verified.
    """
    shares_nothing = job.contract is None and facts.shares_nothing  # which is told
    if plan.workers < 2 or shares_nothing or is_off(job, submission.environment):
        return None
    path = {**submission.environment, **job.env}.get("PATH")
    return standing(home, job, facts, store.key(job, this_node), plan, path)


def starts(
    submission: Submission, policy: str, cluster: Cluster, plans: Mapping[str, Plan]
) -> list[StartTask]:
    """The starts that the controller would order for these plans.

    It assumes that no job fails, and that a job ends only when another waits for it.
    """
    controller = Controller(policies.make(policy))
    # Without timeouts, the controller only asks to be woken for starts.
    jobs = [replace(job, timeout=None) for job in submission.jobs]
    names = tuple(node.name for node in cluster.nodes)
    pending: deque[events.Event] = deque(events.NodeJoined(node) for node in cluster.nodes)
    started: set[JobId] = set()
    for job in jobs:
        all_gpus = [gpu for node in cluster.nodes for gpu in node.gpus]
        seen = gpu_visibility.indices({**submission.environment, **job.env}, all_gpus)
        id, resume = JobId.of("run", job.name), submission.resume.get(job.name)
        pending.append(events.JobSubmitted(id, job, resume, nodes=names, gpus=seen))
    starts_found: list[StartTask] = []
    specs = {JobId.of("run", job.name): job for job in jobs}
    running: deque[TaskId] = deque()
    serving: deque[TaskId] = deque()  # these end last, as they do
    now = 0.0
    # later only the policy asks to be woken
    latest = most = max((job.at for job in jobs), default=0.0)
    while pending:
        actions, wake_at = controller.step(now, pending.popleft())
        for action in actions:
            if isinstance(action, PlanJob):
                pending.append(
                    events.JobPlanned(action.job, action.revision, plans[action.spec.name])
                )
            elif isinstance(action, StartTask):
                starts_found.append(action)
                started.add(action.job)
                ends = specs[action.task.job].ends_with(action.task.name)
                (running if ends else serving).append(action.task)
                if action.spec.roles:  # those that come after it have their turn
                    pending += [events.TaskStarted(action.task, 0), events.TaskReady(action.task)]
        if pending or len(started) == len(jobs):
            continue
        if wake_at is not None and (wake_at <= latest or not (running or serving)):
            now = max(now, wake_at)
            pending.append(events.Wake())
        elif running or serving:
            latest = now + most
            ending = (running or serving).popleft()
            pending.append(events.TaskExited(ending, Exit(code=0)))
    return starts_found


def show(submission: Submission, policy: str | None, as_json: bool) -> None:
    """Print the launches of a submission.

    Raises:
        UsageError: Its engine would have to be started for that.
    """
    if submission.engine != LOCAL:
        raise UsageError(
            f"--dry-run shows what engine local would start; found engine {submission.engine}"
        )
    home = runs.home()
    node = machine.detect(home / "node.json", {})
    allowed = gpu_visibility.within(node, submission.environment)
    begins = planned(submission, Cluster(submission.nodes or (allowed,)), allowed, home)
    entries = _entries(submission, policy or policies.DEFAULT, node, begins, once=as_json)
    if as_json:
        click.echo(json.dumps(entries, indent=2))
        return
    for name, text in (*submission.notes.items(), *submission.warnings.items()):
        click.echo(f"{name}: {text}")
    for job in submission.jobs:
        if (
            job.plan is not None
            and job.plan.workers > 1
            and job.contract is None
            and begins[job.name].facts.shares_nothing
        ):
            apart = inspection.workers_apart(job, begins[job.name].facts, job.plan.workers)
            click.echo(f"{job.name}: {in_words(apart)}")
        begin = begins[job.name]
        if begin.verdict is not None:
            verdict_text = (
                f"one worker, {kept_alone(begin.verdict)}"
                if begin.kept_alone
                else sentence(begin.verdict)
            )
            click.echo(f"{job.name}: {verdict_text}")
    for line in _waits(submission, policy or policies.DEFAULT, allowed, home):
        click.echo(line)
    details = [_details(entry) for entry in entries]
    alike = (
        [line for line in details[0] if all(line in of for of in details)]
        if len(details) > 1
        else []
    )
    for entry, lines in zip(entries, details, strict=True):
        click.echo(_start(entry))
        for line in (values for general, values in lines.items() if general not in alike):
            click.echo(f"  {line}")
    if alike:
        click.echo("each of them, with its own names for JOB and TASK:")
    for line in alike:
        click.echo(f"  {line}")


def _waits(submission: Submission, policy: str, node: Node, home: Path) -> Iterator[str]:
    """How many jobs run at once, and which runs first of those whose memory is not known."""
    jobs = submission.jobs
    keys = {job.name: store.key(job, node) for job in jobs}
    scripts = {job.name: store.script_name(keys[job.name], job.script) for job in jobs}
    in_use = CoresInUse(per_core(policy))
    cores = sum(other.cores for other in submission.nodes or (node,))
    in_use.have(cores)
    usual = settings.at_once(submission.environment)
    stated = next((job.at_once for job in reversed(jobs) if job.at_once is not None), usual)
    own = {job.name: job.trial for job in jobs if job.trial is not None and job.trial.at_once}
    most = stated
    if most is None:
        alike = Counter(scripts[job.name] for job in jobs if job.name not in own)
        of_script = len(jobs) if policy == NoPolicy.name else one_per_core(cores)
        most = min(in_use.most, sum(min(count, of_script) for count in alike.values()))
    sweeps = {trial.sweep: trial.at_once for trial in own.values()}
    for name, slots in sweeps.items():
        if slots == "auto":
            yield f"as many jobs of sweep {name} at once as make the most steps a second together"
        elif slots is not None:
            yield f"at most {counted(slots, 'job')} of sweep {name} at once"
    count = len(jobs) if stated is not None else len(jobs) - len(own)
    if most == "auto":
        yield "as many jobs at once as make the most steps a second together"
    elif count > most:
        more = "" if stated is not None else ", and more while cores are idle"
        yield f"at most {counted(most, 'job')} of {count} at once{more}"
    if urgent := [job.name for job in jobs if job.urgent]:
        go = "goes" if len(urgent) == 1 else "go"
        yield f"{listed(urgent)} {go} first: running jobs in the way are paused meanwhile"
    rules = {job.trial.sweep: job.trial.stop_early for job in jobs if job.trial is not None}
    for sweep, stated_rule in rules.items():
        if stated_rule is not None:
            yield f"jobs of sweep {sweep} that fall behind end early, by rule {stated_rule.rule}"
    unknown: dict[str, list[str]] = {}
    for job in jobs if policy != NoPolicy.name else ():
        key = keys[job.name]
        script, profile = store.script_of(key), store.load(home / "profiles", key)
        known = EarlierRuns.read(home / "lengths", script, key).memory_bytes() or (
            profile.memory_peak_bytes if profile is not None else None
        )
        if job.limits.memory_bytes is None and known is None:
            unknown.setdefault(scripts[job.name], []).append(job.name)
    for first, *others in unknown.values():
        if others:
            text = f"{counted(len(others), 'other job')} of its script may start"
            yield f"{first} first: once its memory is seen, {text}"


def _start(entry: Mapping[str, Any]) -> str:
    """When and where a task would start, and its size."""
    first = entry["after"]
    delay = f"{entry['at']:g} s "
    when = f"{delay}in"
    if first is not None:
        names = [first] if isinstance(first, str) else first
        when = (
            f"{delay if entry['at'] else ''}after {listed(names)} "
            f"{'have' if names[1:] else 'has'} finished"
        )
    size = f"{counted(entry['threads'], 'thread')}, {entry['entitled_cores']:.2f} cores"
    if entry["after_roles"]:
        when += (
            f", once {' and '.join(entry['after_roles'])} "
            f"{'is' if len(entry['after_roles']) == 1 else 'are'} ready"
        )
    return f"{entry['task']}: {when}, on {entry['node']}, {size}"


def _details(entry: Mapping[str, Any]) -> dict[str, str]:
    """The environment of a task, and the preparations for it. `JOB` and `TASK` replace its names,
    so that tasks with the same details can share them.
    """
    lines = [f"{key}={shlex.quote(value)}" for key, value in entry["env"].items()] + entry["box"]
    if entry["gpu_memory"] is not None:
        lines.append(f"GPU memory: {entry['gpu_memory']}")
    of_run = TaskOfRun(entry["task"])
    job, task = re.escape(of_run.job), re.escape(of_run.name)
    names = re.compile(rf"(?<=[/:-]){job}([/:-]){task}(?![\w-])|(?<=/jobs/){job}(?=/)")
    return {
        names.sub(lambda row: f"JOB{row[1]}TASK" if row[1] else "JOB", line): line for line in lines
    }


def _entries(
    submission: Submission,
    policy: str,
    node: Node,
    begins: Mapping[str, PlannedStart],
    *,
    once: bool,
) -> list[dict[str, Any]]:
    """The starts, in order, as plain values.

    Args:
        once: Leave out folders that were made for an earlier task.
    """
    home = runs.home()
    boxes: dict[str, isolation.Isolation] = {}
    namesakes = Known()
    entries: list[dict[str, Any]] = []
    cluster = Cluster(submission.nodes or (node,))
    made: set[str] = set()
    allowed = gpu_visibility.within(node, submission.environment)
    maker = Starts(submission, home)
    meetings: dict[JobId, Meeting | None] = {}

    for start in starts(
        submission, policy, cluster, {name: begin.plan for name, begin in begins.items()}
    ):
        begin = begins[start.spec.name]
        if start.job not in meetings:
            meetings[start.job] = maker.meeting(
                start,
                begin.facts,
                maker.ports(start),
                maker.addresses(start.plan, cluster.node),
            )
        prepared = maker.launch(
            start,
            cluster.node(start.node),
            Path("RUN") / "jobs" / start.spec.name / "checkpoints",
            meetings[start.job],
            begin.facts,
            has_namesake=bool(
                kept_out_by(start.spec, begin.facts, submission.environment, namesakes)
            ),
            is_profiled=begin.is_profiled,
        )
        if (kind := prepared.isolation or isolation.DEFAULT) not in boxes:
            boxes[kind] = isolation.make(kind, "dry-run")
        box = [
            line
            for line in boxes[kind].describe(prepared, start.share)
            if not once or line not in made
        ]
        made.update(line for line in box if line.startswith("mkdir "))
        added = {
            key: value
            for key, value in sorted(prepared.env.items())
            if os.environ.get(key) != value
        }
        on_gpu = start.gpus != () and bool(cluster.node(start.node).gpus)
        entries.append(
            {
                "job": start.spec.name,
                "task": start.task.of_run,
                "at": start.spec.at,
                "after": start.spec.after,
                "urgent": start.spec.urgent,
                "after_roles": list(role.after)
                if (role := start.spec.role_of(start.task.name)) is not None
                else [],
                "node": start.node,
                "argv": prepared.argv,
                "cwd": prepared.cwd,
                "env": added,
                "threads": stated_threads(start.spec, start.task.name) or start.threads,
                "entitled_cores": start.entitled_cores,
                "box": box,
                "verified": asdict(verdict) if (verdict := begin.verdict) is not None else None,
                "gpu_memory": _gpu_need(start.spec, allowed, home).in_words() if on_gpu else None,
            }
        )
    return entries


def _gpu_need(job: Job, this_node: Node, home: Path) -> GpuNeed:
    """The expected GPU memory of a job."""
    key = store.key(job, this_node)
    earlier = EarlierRuns.read(home / "lengths", store.script_of(key), key)
    return gpu_need(job.limits, store.load(home / "profiles", key), earlier.gpu_memory_bytes())
