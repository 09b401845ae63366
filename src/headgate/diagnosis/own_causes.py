"""Causes within a job: what held it back besides neighbours, limits and faults.

Each cause needs evidence in the job's recorded steps; docs/explain.md has the rules. All workers of
a synchronous plan are as slow as the slowest. So a straggler shows in the time of each worker's own
part of a step, without its waiting for others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from headgate.diagnosis.attribution import TimeEstimate, within
from headgate.diagnosis.findings import (
    Finding,
    FindingKind,
    LoaderFacts,
    PartFacts,
    ServerFacts,
    SlowNicFacts,
    StepFacts,
    TablesFacts,
)
from headgate.diagnosis.own_time import OwnTime, mean_of
from headgate.diagnosis.remedies import (
    CoresFacts,
    ReadersFacts,
    Remedy,
    RemedyKind,
    RoleFacts,
    StacksFacts,
    ThreadSetting,
)
from headgate.diagnosis.straggling import leaving_out, straggling
from headgate.output.metric_names import describe
from headgate.recorded.jobs import CoresSetting, RecordedJob, RecordedNode, RecordedTask
from headgate.recorded.rows import SCRIPT
from headgate.sampling.columns import Column

_LEAST_STEPS = 3
"""Least sampled steps of a worker for its own part of a step to be known."""
_FULL_NIC, _FULL_CORES = 0.7, 0.85
"""Median use from which on a server's NIC or cores are full: steps come in bursts."""
_BUSIER = 1.3
"""The workers wait for a server if its node is this many times as busy as theirs."""
_NARROW = 0.5
"""A NIC is slow if its rate is at most this fraction of the next one's, and if it explains at least
this fraction of the exchange.
"""
_TABLES, _TOUCHED = 0.5, 0.25
"""Tables are at least the first fraction of the exchange, and a step touches at most the second
fraction of their rows.
"""
_BUSY_WORKER, _ALL_CORES = 0.6, 0.85
"""From the first fraction of time a loader's worker counts as computing; from the second fraction
of cores in use none is free.
"""
_SHORT_STEP, _USEFUL, _OF_PEAK, _MEMORY_RATE = 5e-3, 0.2, 0.3, 5e9
"""A small step is shorter than the first, in seconds, with at most the second as its fraction of
arithmetic. Arithmetic reaches the third fraction of a core's peak. Weights, with gradient and
update, move at the fourth in bytes a second.
"""
_SPINNING_CORES = 1.5
"""Cores in use from which on the threads of small steps spin."""
_BETWEEN = 0.15
"""Fraction of a step outside all named spans from which on it is notable; each step has a
little.
"""
_COLLECTED = 0.3
"""Fraction of that spent in garbage collection from which on this is the cause: other code makes
the garbage.
"""
_GAP_TIMES, _GAP_SECONDS = 3.0, 0.2
"""A pause before a report of an evaluation is the evaluation if it is this many times the usual
pause, and this many seconds.
"""
_TRAINS = 0.03
"""Least ready fraction of a training process; one below it only starts others and waits."""


def reduced_threads(count: int, stated: str) -> Remedy:
    """A remedy: use `count` threads. No setting where the job's own is as low already.

    Args:
        stated: `OMP_NUM_THREADS` in the job's own `env`; empty: not set.
    """
    has_few = stated.isdecimal() and int(stated) <= count
    return Remedy(
        kind=RemedyKind.REDUCE_THREADS,
        settings={} if has_few else {"env.OMP_NUM_THREADS": count},
        facts=ThreadSetting(stated, count),
    )


def decode_once(setting: CoresSetting | None) -> Remedy:
    """A remedy if no core is left for a loader's workers."""
    return Remedy(
        kind=RemedyKind.DECODE_ONCE,
        settings={setting.field: None} if setting is not None else {},
        facts=CoresFacts(setting),
    )


def own_causes(
    job: RecordedJob, nodes: Mapping[str, RecordedNode], time: OwnTime
) -> tuple[Finding, ...]:
    """All causes within a job, regardless of cost."""
    return (
        *straggling(job, nodes, time),
        *_narrow(job, nodes, time),
        *_exchanging(job, nodes, time),
        *_loading(job, nodes, time),
        *_small_steps(job, nodes, time),
        *_copying(job, time),
        *_between_steps(job, time),
        *_pausing(job, time),
    )


# --- exchange -------------------------------------------------------------------------------------


def _narrow(
    job: RecordedJob, nodes: Mapping[str, RecordedNode], time: OwnTime
) -> Iterator[Finding]:
    """A finding about a node whose NIC is busy and slower than the others': all exchange at its
    rate.
    """
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
        return  # most of the exchange has another cause
    yield Finding(
        kind=FindingKind.SLOW_NIC,
        # a slow worker leaves time in which it cost nothing
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
    """Used fractions of its node's NIC in the fuller direction (in all, and by the task) and of the
    node's cores; 0: unknown.
    """
    node = nodes.get(task.node)
    if node is None:
        return 0.0, 0.0
    # Traffic of others on the NIC is no reason for another server.
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
    """Seconds in which the training process was not ready to run but its child processes were.
    Without sampled steps, that is its waiting for the loader's workers.

    The busiest thread is known, and the total demand of the children. If each child demands as much
    as the busiest thread, that many are ready independently of each other.
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
    """Cores that the child processes of a training process ran on or waited for: a loader's
    workers. 0: the parent only starts them and waits, as a launcher does.
    """
    if not _trains(job, stretches):
        return 0.0
    return max(
        (task.signal("helper_cores").during(stretches).mean or 0.0 for task in job.tasks),
        default=0.0,
    )


def _trains(job: RecordedJob, stretches: Sequence[tuple[float, float]]) -> bool:
    """Whether the process with child processes trains itself."""
    return (job.signal("main_ready").during(stretches).mean or 0.0) >= _TRAINS


def _loading(
    job: RecordedJob, nodes: Mapping[str, RecordedNode], time: OwnTime
) -> Iterator[Finding]:
    """A finding about a loader with busy workers. With idle cores, more workers help; otherwise the
    work has to shrink.
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
    # Medians ignore the time between epochs, without workers. Threads that wait for a core count
    # too, but bursts of them wait while cores are mostly idle.
    cores_used, waiting = _usual(task, "cpu_cores", time), _usual(task, "cpu_waiting", time)
    if (
        not math.isfinite(cores)
        or mean_of(task, "cpu_ready", time) < _BUSY_WORKER
        or cores_used + waiting < _BUSY_WORKER * min(time.readers or 1, cores)
    ):
        return  # its workers wait for a disk, for each other, or for something without readings
    used = min(
        max(
            cores_used, _usual(node, "cpu_cores", time) if node is not None and not limited else 0.0
        ),
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
    """Number of batches in a step; several if it accumulates gradients."""
    progress = job.progress
    known = np.isfinite(progress.samples) & np.isfinite(progress.step)
    steps, seen = (
        float(np.ptp(values[known])) if known.any() else 0.0
        for values in (progress.step, progress.samples)
    )
    return max(round(seen / steps / samples), 1) if steps > 0.0 else 1


def _between_steps(job: RecordedJob, time: OwnTime) -> Iterator[Finding]:
    """A finding about script time between optimizer and model. On a GPU the script may wait there
    for the model's results.
    """
    division = job.division
    if division is None or job.signal("gpu_busy").mean or division.fraction("other") < _BETWEEN:
        return
    if not division.fraction("compute") and not (
        division.fraction("forward") and division.fraction("backward")
    ):
        return  # its model does not compute in a module's forward
    # Times measured by the script, such as saving, also lie between steps, and have a name.
    timed = sum(job.asides.values())
    timed += sum(float(row.seconds or 0.0) for row in job.checkpoints if row.why == SCRIPT)
    total_seconds = time.seconds + timed - job.asides.get("garbage-collection", 0.0)
    if time.garbage.seconds > _COLLECTED * division.fraction("other") * total_seconds:
        return  # most of it is garbage collection, which has a name
    cost = within(max(division.fraction("other") * total_seconds - timed, 0.0), 0.2, time.seconds)
    yield Finding(
        kind=FindingKind.BETWEEN_STEPS,
        cost=cost,
        facts=PartFacts(division.fraction("other")),
        remedy=Remedy(kind=RemedyKind.SEE_STACKS, facts=StacksFacts(every_thread=False)),
    )


def _copying(job: RecordedJob, time: OwnTime) -> Iterator[Finding]:
    """A finding about copies to a GPU, by the time that they take there."""
    part = job.division.fraction("copy") if job.division is not None else 0.0
    yield Finding(
        kind=FindingKind.COPIES,
        cost=within(part * time.seconds, 0.2, time.seconds),
        facts=PartFacts(part),
        remedy=Remedy(kind=RemedyKind.PIN_MEMORY),
    )


def _pausing(job: RecordedJob, time: OwnTime) -> Iterator[Finding]:
    """Findings about the time between steps."""
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
    """Seconds of evaluation: by its own process, or from pauses of its steps before reports of
    evaluations.
    """
    return max(
        job.asides.get("evaluation", 0.0), sum(end - begin for begin, end in evaluations(job))
    )


def evaluations(job: RecordedJob) -> list[tuple[float, float]]:
    """Evaluations in order, from pauses of its steps before their reports; in seconds of the
    run.
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
    # One report may cover several steps; if an epoch is shorter than its evaluation, all of them.
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
    # steps before the evaluation, if reported together with it
    before = np.where(ends >= t[at + 1] - 1e-6, made[at], 0.0)
    begins = t[at] + before * usual
    counts = ends - begins > max(_GAP_TIMES * usual, _GAP_SECONDS)
    return list(zip(begins[counts].tolist(), ends[counts].tolist(), strict=True))
