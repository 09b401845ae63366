"""Causes within a job: what held it back other than neighbours, limits and faults.

Each comes from what was recorded of the job's steps, and only if that shows it; docs/explain.md has
the rules. All workers of a synchronous plan are as slow as the slowest. So a straggler shows in the
time of each worker's own part of a step, without its waiting for others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from headgate.diagnosis.attribution import TimeEstimate, within
from headgate.diagnosis.findings import (
    CoresFacts,
    Finding,
    FindingKind,
    LoaderFacts,
    PartFacts,
    ReadersFacts,
    Remedy,
    RemedyKind,
    RoleFacts,
    ServerFacts,
    SlowNicFacts,
    StacksFacts,
    StepFacts,
    TablesFacts,
    ThreadSetting,
)
from headgate.diagnosis.own_time import OwnTime, mean_of
from headgate.diagnosis.straggling import leaving_out, straggling
from headgate.output.metric_names import describe
from headgate.recorded.jobs import CoresSetting, RecordedJob, RecordedNode, RecordedTask
from headgate.sampling.columns import Column

_LEAST_STEPS = 3
"""Sampled steps of a worker, for its own part of a step to be known."""
_FULL_NIC, _FULL_CORES = 0.7, 0.85
"""Median use from which on a server's NIC or cores are full: steps come in bursts."""
_BUSIER = 1.3
"""The workers wait for a server if its node is this many times as busy as theirs."""
_NARROW = 0.5
"""A NIC is a slow one if its rate is at most this part of the next one's, and if it makes up this
part of the exchange at least.
"""
_TABLES, _TOUCHED = 0.5, 0.25
"""Tables are most of what is exchanged, and a step touches few of their rows."""
_BUSY_WORKER, _ALL_CORES = 0.6, 0.85
"""From this part of the time on, a loader's worker computes; from this part of the cores in use on,
none is free.
"""
_SHORT_STEP, _USEFUL, _OF_PEAK, _MEMORY_RATE = 5e-3, 0.2, 0.3, 5e9
"""A small step is shorter than so many seconds, and arithmetic takes at most this part of it.
Arithmetic runs at this part of a core's peak. Weights move at so many bytes a second, gradient and
update included.
"""
_SPINNING_CORES = 1.5
"""Cores in use from which on the threads of small steps spin."""
_BETWEEN = 0.15
"""Part of a step outside all of its named spans from which on it is worth a look: each step has a
little of that.
"""
_COLLECTED = 0.3
"""Part of that in which Python collected garbage, from which on it is the cause: the rest makes
what is collected.
"""
_GAP_TIMES, _GAP_SECONDS = 3.0, 0.2
"""A pause before a report of an evaluation is the evaluation if it is so many times the usual one,
and so many seconds.
"""
_TRAINS = 0.03
"""Part of the time that the training process is ready at the least; one below it starts others and
waits.
"""


def reduced_threads(count: int, stated: str) -> Remedy:
    """The advice to have so many threads.

    Args:
        stated: What `OMP_NUM_THREADS` says in the job's own `env`; empty: nothing.
    """
    return Remedy(
        kind=RemedyKind.REDUCE_THREADS,
        settings={"env.OMP_NUM_THREADS": count},
        facts=ThreadSetting(stated),
    )


def decode_once(setting: CoresSetting | None) -> Remedy:
    """The advice where a loader's workers have no core left."""
    return Remedy(
        kind=RemedyKind.DECODE_ONCE,
        settings={setting.field: None} if setting is not None else {},
        facts=CoresFacts(setting),
    )


def own_causes(
    job: RecordedJob, nodes: Mapping[str, RecordedNode], time: OwnTime
) -> tuple[Finding, ...]:
    """All causes within a job, whatever each cost."""
    return (
        *straggling(job, nodes, time),
        *_narrow(job, nodes, time),
        *_exchanging(job, nodes, time),
        *_loading(job, nodes, time),
        *_small_steps(job, nodes, time),
        *_between_steps(job, time),
        *_pausing(job, time),
    )


# --- what is exchanged ----------------------------------------------------------------------------


def _narrow(
    job: RecordedJob, nodes: Mapping[str, RecordedNode], time: OwnTime
) -> Iterator[Finding]:
    """A node whose NIC is slower than the others' and busy: all exchange at its rate."""
    rates = {
        name: nodes[name].nic_bytes_per_second or math.inf for name in job.nodes if name in nodes
    }
    if len(rates) < 2 or not job.synchronous or job.spec.roles:
        return
    slow, following = sorted(rates, key=lambda name: rates[name])[:2]
    others = [task for task in job.tasks if task.is_worker and task.node != slow]
    serves = any(task.is_server and task.node == slow for task in job.tasks)
    if math.isinf(rates[slow]) or rates[slow] > _NARROW * rates[following] or serves or not others:
        return
    moved = [
        sum(mean_of(task, way, time) for task in job.tasks if task.node == slow)
        for way in ("tcp_in", "tcp_out")
    ]
    busy = min(max(moved) / rates[slow], 1.0)
    waited = min(busy * time.seconds, time.communication.seconds) * (
        1.0 - rates[slow] / rates[following]
    )
    if waited < _NARROW * time.communication.seconds:
        return  # most of the exchange has another reason
    yield Finding(
        kind=FindingKind.SLOW_NIC,
        # what a slow worker leaves time for may have cost nothing
        cost=within(waited, 0.4, time.seconds),
        facts=SlowNicFacts(
            slow, rates[slow], rates[following] if math.isfinite(rates[following]) else None
        ),
        remedy=leaving_out(job, others),
    )


def _exchanging(
    job: RecordedJob, nodes: Mapping[str, RecordedNode], time: OwnTime
) -> Iterator[Finding]:
    profile = job.cost
    dense, tables = profile.dense_bytes or 0, profile.dense_table_bytes or 0
    touched = profile.dense_table_touched
    if (
        job.distributed
        and tables > _TABLES * dense > 0.0
        and touched is not None
        and touched < _TOUCHED
    ):
        unused = tables * (1.0 - touched) / (dense + (profile.sparse_bytes or 0))
        cost = time.communication.seconds * unused
        yield Finding(
            kind=FindingKind.DENSE_PULLS,
            cost=within(cost, 0.2, time.seconds),
            resource="network",
            facts=TablesFacts(touched),
            remedy=Remedy(kind=RemedyKind.EXCHANGE_ROWS),
        )
        return
    servers = [task for task in job.tasks if task.is_server]
    workers = [task for task in job.tasks if task.is_worker]
    full = max(servers, key=lambda task: max(_used(task, nodes, time)), default=None)
    if full is None or not workers:
        return
    nic, cores = _used(full, nodes, time)
    usual = [
        max(uses) for uses in zip(*(_used(task, nodes, time) for task in workers), strict=True)
    ]
    nic_full = nic >= _FULL_NIC and nic > _BUSIER * usual[0]
    if not nic_full and not (cores >= _FULL_CORES and cores > _BUSIER * usual[1]):
        return
    more = Remedy(kind=RemedyKind.ADD_SERVER, settings={"plan.servers": len(servers) + 1})
    if job.spec.roles:
        more = Remedy(kind=RemedyKind.ADD_SERVER, facts=RoleFacts(full.name.role))
    yield Finding(
        kind=FindingKind.SERVERS,
        cost=time.communication._replace(low=time.communication.low / (len(servers) + 1)),
        resource="servers",
        facts=ServerFacts(full.name, nic if nic_full else None, None if nic_full else cores),
        remedy=more,
    )


def _used(
    task: RecordedTask, nodes: Mapping[str, RecordedNode], time: OwnTime
) -> tuple[float, float]:
    """Parts of its node's NIC, in the fuller direction and by itself, and of the node's cores that
    were in use; 0 where not known.
    """
    node = nodes.get(task.node)
    if node is None:
        return 0.0, 0.0
    # What others send through the NIC is no reason for another server.
    own = len(task.signal("tcp_in")) > 0
    ways: tuple[Column, Column] = ("tcp_in", "tcp_out") if own else ("net_in", "net_out")
    bytes_a_second = max(_usual(task if own else node, way, time) for way in ways)
    nic = bytes_a_second / node.nic_bytes_per_second if node.nic_bytes_per_second else 0.0
    return nic, _usual(node, "cpu_cores", time) / node.cores if node.cores else 0.0


def _usual(target: RecordedTask | RecordedNode, column: Column, time: OwnTime) -> float:
    """The median of its readings, so that a slow end does not count."""
    values = target.signal(column).during(time.stretches).value
    return float(np.median(values)) if len(values) else 0.0


# --- input ----------------------------------------------------------------------------------------


def waited_for_others(job: RecordedJob, stretches: Sequence[tuple[float, float]]) -> float:
    """Seconds in which the training process was not ready to run and processes that it started
    were. In a job without sampled steps, that is its waiting for the loader's workers.

    The busiest thread is known, and what all processes that were started wanted. If each of these
    wanted as much as the busiest thread, so many of them were ready independently of each other.
    """
    if (
        job.division is not None
        or len(job.tasks) != 1
        or job.signal("gpu_busy").mean
        or not _trains(job, stretches)
    ):
        return 0.0
    main, busiest = (job.signal(column).during(stretches) for column in ("main_ready", "cpu_ready"))
    part = busiest.mean
    if not part:
        return 0.0
    any_of_it = 1.0 - float(max(1.0 - part, 0.0) ** max(helped_by(job, stretches) / part, 1.0))
    return max(any_of_it * busiest.integral / part - main.integral, 0.0)


def helped_by(job: RecordedJob, stretches: Sequence[tuple[float, float]]) -> float:
    """Cores that the processes which a training process started ran on or waited for: of a loader's
    workers. 0 if their parent only starts them and waits, as a launcher does.
    """
    if not _trains(job, stretches):
        return 0.0
    return max(
        (task.signal("helper_cores").during(stretches).mean or 0.0 for task in job.tasks),
        default=0.0,
    )


def _trains(job: RecordedJob, stretches: Sequence[tuple[float, float]]) -> bool:
    """Whether the process that started others trains."""
    return (job.signal("main_ready").during(stretches).mean or 0.0) >= _TRAINS


def _loading(
    job: RecordedJob, nodes: Mapping[str, RecordedNode], time: OwnTime
) -> Iterator[Finding]:
    """A loader whose workers are busy. With idle cores, more workers help; without, the work has to
    become less.
    """
    if len(job.tasks) != 1 or time.input.seconds <= 0.0:
        return
    if time.readers == 0:
        yield _loader(time, LoaderFacts())
        return
    task = job.tasks[0]
    node = nodes.get(task.node)
    of_node = (node.cores if node else None) or math.inf
    allowed = job.allowed_cores(task, of_node)
    cores, limited = min(of_node, allowed), math.isfinite(allowed)
    # Between two epochs there are no workers: medians leave that out. Threads that wait for a core
    # want it as well, but bursts of them wait while cores are idle most of the time.
    ours, waiting = _usual(task, "cpu_cores", time), _usual(task, "cpu_waiting", time)
    if (
        not math.isfinite(cores)
        or mean_of(task, "cpu_ready", time) < _BUSY_WORKER
        or ours + waiting < _BUSY_WORKER * min(time.readers or 1, cores)
    ):
        return  # its workers wait for a disk, for each other, or for something that is not read
    used = min(
        max(ours, _usual(node, "cpu_cores", time) if node is not None and not limited else 0.0),
        cores,
    )
    if used >= _ALL_CORES * cores:
        yield Finding(
            kind=FindingKind.DECODING,
            cost=time.input,
            resource="cores",
            facts=LoaderFacts(used, cores),
            remedy=decode_once(job.cores_setting(task, of_node)),
        )
        return
    yield _loader(time, LoaderFacts(used, cores))


def _loader(time: OwnTime, facts: LoaderFacts) -> Finding:
    return Finding(
        kind=FindingKind.LOADER,
        cost=time.input,
        resource="loader",
        facts=facts,
        remedy=Remedy(kind=RemedyKind.ADD_LOADER_WORKERS, facts=ReadersFacts(time.readers)),
    )


# --- steps ----------------------------------------------------------------------------------------


def _small_steps(
    job: RecordedJob, nodes: Mapping[str, RecordedNode], time: OwnTime
) -> Iterator[Finding]:
    profile, division = job.cost, job.division
    flops, batch, peak = profile.flops_per_sample, profile.batch, profile.core_gflops
    if (
        division is None
        or job.distributed
        or not (flops and batch and peak)
        or job.signal("gpu_busy").mean
    ):
        return
    waits, batches = division.seconds.get("input", 0.0), _batches(job, batch)
    step = (
        max(division.step_seconds * (1.0 - time.lost.get(job.tasks[0].id, 0.0)) - waits, 1e-9)
        / batches
    )
    useful = flops * batch / (peak * 1e9 * _OF_PEAK) + (profile.dense_bytes or 0) / _MEMORY_RATE
    if step > _SHORT_STEP or useful > _USEFUL * step:
        return
    seconds = time.compute.seconds * (1.0 - useful / step)
    cost = TimeEstimate(seconds, seconds / 2.0, seconds)
    cores = mean_of(job.tasks[0], "cpu_cores", time)
    if cores >= _SPINNING_CORES:
        yield Finding(
            kind=FindingKind.OWN_THREADS,
            cost=cost,
            facts=StepFacts(batches, step, useful, cores),
            remedy=reduced_threads(1, job.told_threads),
        )
        return
    node = nodes.get(job.tasks[0].node)
    allowed = job.allowed_cores(job.tasks[0], (node.cores if node else None) or math.inf)
    yield Finding(
        kind=FindingKind.SMALL_STEPS,
        cost=cost,
        facts=StepFacts(batches, step, useful),
        remedy=Remedy(
            kind=RemedyKind.ENLARGE_STEPS, settings={"limits.cores": 1} if allowed > 1.0 else {}
        ),
    )


def _batches(job: RecordedJob, samples: float) -> int:
    """Batches of so many samples that it goes through in a step: several if it accumulates
    gradients.
    """
    progress = job.progress
    known = np.isfinite(progress.samples) & np.isfinite(progress.step)
    steps, seen = (
        float(np.ptp(values[known])) if known.any() else 0.0
        for values in (progress.step, progress.samples)
    )
    return max(round(seen / steps / samples), 1) if steps > 0.0 else 1


def _between_steps(job: RecordedJob, time: OwnTime) -> Iterator[Finding]:
    """What a script does between optimizer and model. On a GPU it may wait there for what the model
    computes.
    """
    division = job.division
    if division is None or job.signal("gpu_busy").mean or division.fraction("other") < _BETWEEN:
        return
    if not division.fraction("compute") and not (
        division.fraction("forward") and division.fraction("backward")
    ):
        return  # its model is computed elsewhere than in a module's forward
    # What it timed itself, such as saving, lies between the steps as well, and has a name.
    timed = sum(job.asides.values())
    whole = time.seconds + timed - job.asides.get("garbage-collection", 0.0)
    if time.garbage.seconds > _COLLECTED * division.fraction("other") * whole:
        return  # most of it is the collector of garbage, which has a name
    cost = within(max(division.fraction("other") * whole - timed, 0.0), 0.2, time.seconds)
    yield Finding(
        kind=FindingKind.BETWEEN_STEPS,
        cost=cost,
        facts=PartFacts(division.fraction("other")),
        remedy=Remedy(kind=RemedyKind.SEE_STACKS, facts=StacksFacts(every_thread=False)),
    )


def _pausing(job: RecordedJob, time: OwnTime) -> Iterator[Finding]:
    """What lies between the steps."""
    yield Finding(
        kind=FindingKind.EVALUATION,
        cost=time.evaluation,
        remedy=Remedy(kind=RemedyKind.EVALUATE_LESS),
    )
    yield Finding(
        kind=FindingKind.GARBAGE_COLLECTION,
        cost=time.garbage,
        remedy=Remedy(kind=RemedyKind.FREEZE_GARBAGE),
    )


def evaluated(job: RecordedJob) -> float:
    """Seconds that it evaluated: by its own process, or by the pauses of its steps before reports
    of evaluations.
    """
    return max(
        job.asides.get("evaluation", 0.0), sum(end - begin for begin, end in evaluations(job))
    )


def evaluations(job: RecordedJob) -> list[tuple[float, float]]:
    """When it evaluated, by the pauses of its steps before reports of evaluations; in order,
    seconds of the run.
    """
    progress = job.progress
    reports = [
        times
        for name, (times, _) in progress.metrics.items()
        if describe(name).part not in (None, "train")
    ]
    known = np.isfinite(progress.step)
    if not reports or np.count_nonzero(known) < _LEAST_STEPS:
        return []
    t, steps = progress.t[known], np.maximum.accumulate(progress.step[known])
    reported = np.unique(np.concatenate(reports))
    if reported[-1] > t[-1]:  # it ends with an evaluation
        t, steps = np.append(t, reported[-1]), np.append(steps, steps[-1])
    gaps, made = np.diff(t), np.diff(steps)
    # Several steps may be told in one report: of an epoch that is shorter than its evaluation, all.
    first, last = np.searchsorted(reported, t[:-1] + 1e-6), np.searchsorted(reported, t[1:] + 1e-6)
    without = (first == last) & (made > 0)
    if without.any():
        usual = float(np.median(gaps[without] / made[without]))
    elif job.division is not None:
        usual = job.division.step_seconds
    else:
        return []
    at = np.flatnonzero(last > first)
    ends = reported[last[at] - 1]
    # steps that came first, if they are told with it
    before = np.where(ends >= t[at + 1] - 1e-6, made[at], 0.0)
    begins = t[at] + before * usual
    counts = ends - begins > max(_GAP_TIMES * usual, _GAP_SECONDS)
    return list(zip(begins[counts].tolist(), ends[counts].tolist(), strict=True))
