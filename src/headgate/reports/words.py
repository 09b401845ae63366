"""Figures for people, and a few sentences about what happened in a run."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.diagnosis.attribution import OTHERS
from headgate.diagnosis.job_figures import JobFigures
from headgate.model.profiles import Profile
from headgate.model.reason_text import in_words
from headgate.model.reasons import Reason
from headgate.model.units import counted, say_bytes, say_percent, say_seconds
from headgate.recorded.jobs import RecordedJob, RecordedNode
from headgate.recorded.recording import Recording

MISSING = "–"


def ways(profile: Profile) -> list[str]:
    """How a script computes, as far as known."""
    return [
        *(["compiled"] if profile.compiled else []),
        *([f"autocast to {profile.autocast}"] if profile.autocast else []),
        *(["channels last"] if profile.channels_last else []),
    ]


def say_ways(profile: Profile) -> str:
    """How a script computes, in parentheses after its name; empty: nothing special is known."""
    return f" ({', '.join(ways(profile))})" if ways(profile) else ""


def say_reason(reason: Reason | None) -> str:
    """The reason of a job's state; empty: unknown."""
    return in_words(reason) if reason is not None else ""


def say(value: float | None, unit: str = "") -> str:
    """A figure with three significant digits and its unit; a dash if None.

    Args:
        value: The figure.
        unit: `s`, `B`, `B/s`, `%` (of a fraction), or another one to append.
    """
    if value is None:
        return MISSING
    match unit:
        case "s":
            return say_seconds(value)
        case "B":
            return say_bytes(value)
        case "B/s":
            return f"{say_bytes(value)}/s"
        case "%":
            return say_percent(value, 0 if value >= 0.1 or value < 0.0005 else 1)
    digits = (
        f"{value:,.0f}"
        if abs(value) >= 1000 or (value == int(value) and abs(value) < 1e15)
        else f"{value:.3g}"
    )
    if unit == "cores" and digits == "1":
        unit = "core"
    return f"{digits} {unit}".strip()


def say_loss(value: float | None) -> str:
    """A loss with four significant digits."""
    return MISSING if value is None else f"{value:.4g}"


def say_step_time(seconds: float) -> str:
    """The time of a step, in milliseconds or microseconds below one second."""
    if seconds >= 1:
        return say_seconds(seconds)
    return (
        f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 or not seconds else f"{seconds * 1e6:.3g} µs"
    )


def say_moment(seconds: float | None) -> str:
    """A time of the run, to a tenth of a second: readings are no denser."""
    return MISSING if seconds is None else say_seconds(round(seconds, 1))


def said_neighbour(name: str) -> str:
    """A job: of this user by its name, of another one as that user's."""
    user, colon, job = name.partition(":")
    if not colon:
        return name
    return f"{user}'s {job}" if job else f"a job of {user}"


def culprit_named(to: str, meanwhile: Sequence[str] = ()) -> str:
    """A neighbour, in words."""
    if to != OTHERS:
        return said_neighbour(to)
    return "other runs, programs outside" if meanwhile else "programs outside Headgate"


def said_threads(threads: tuple[int, int]) -> str:
    """`1 thread`, `1 to 2 threads`: the fewest and the most."""
    fewest, most = threads
    return counted(most, "thread") if fewest == most else f"{fewest} to {counted(most, 'thread')}"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`; beyond five names, the number of further ones."""
    if len(names) > 5:
        names = [*names[:4], f"{len(names) - 4} more"]
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def planned(job: RecordedJob) -> str:
    """The plan of a job with several tasks, in words."""
    plan, nodes = job.plan, counted(len(job.nodes) or 1, "node")
    if plan is None:
        return f"{counted(job.workers or 1, 'worker')} on {nodes}."
    tasks = counted(plan.workers, "task" if plan.strategy == "roles" else "worker") + (
        f" and {counted(plan.servers, 'server')}" if plan.servers else ""
    )
    where = f"{tasks} on {nodes}"
    if job.apart:
        text = f"{where}, which share nothing: each trains the whole job"
    elif plan.strategy == "allreduce":
        text = (
            f"All-reduce: {where}; in every step the workers add up their gradients among "
            "themselves"
        )
    elif plan.strategy != "ps":
        text = where
    elif plan.synchronous:
        heard = plan.workers - plan.backup_workers
        whom = f"{heard} of the {plan.workers} workers" if plan.backup_workers else "all workers"
        text = f"Parameter servers, synchronous: {where}; a step waits for {whom}"
    elif plan.staleness is not None:
        text = (
            f"Parameter servers, bounded staleness: {where}; no worker is more than "
            f"{counted(plan.staleness, 'step')} ahead"
        )
    else:
        text = f"Parameter servers, asynchronous: {where}; no worker waits for another"
    batch = plan.batch_per_worker
    if isinstance(batch, tuple):
        text += f"; batches of {listed([f'{size:,}' for size in batch])} samples"
    elif batch is not None:
        text += f"; {counted(batch, 'sample')} of a step on each worker"
    return f"{text}."


def said_gpus(job: JobFigures) -> str:
    """A job's GPUs, their mean busy fraction, and its peak memory on them."""
    if not job.gpus:
        return MISSING
    use = [f"{say(job.gpu_mean, '%')} busy"] if job.gpu_mean is not None else []
    use += [say(job.gpu_memory_peak_bytes, "B")] if job.gpu_memory_peak_bytes is not None else []
    return ": ".join([", ".join(map(str, job.gpus)), *([", ".join(use)] if use else [])])


def what_happened(run: Recording, jobs: Sequence[JobFigures]) -> list[str]:
    """A few sentences computed from the data."""
    sentences = [_outcome(run, jobs), _fullest(run), _faults(run, jobs), _learned(jobs)]
    return [sentence for sentence in sentences if sentence]


def _outcome(run: Recording, jobs: Sequence[JobFigures]) -> str:
    if not jobs:
        return "No job was recorded."
    where = f" on {run.nodes[0].name}" if len(run.nodes) == 1 else ""
    cores = f" ({say(run.nodes[0].cores, 'cores')})" if where and run.nodes[0].cores else ""
    policy = f" under policy {run.description.policy}" if run.description.policy else ""
    ended = [job.state for job in jobs]
    counts = ", ".join(f"{ended.count(state)} {state}" for state in dict.fromkeys(ended))
    took = say_seconds(run.seconds)
    if run.state == "running":
        result = f"so far for {took}: {counts}"
    elif run.state == "interrupted":
        result = f"for {took}, then the run was interrupted: {counts}"
    elif set(ended) == {"done"}:
        last = say_seconds(
            max((job.ended for job in jobs if job.ended is not None), default=run.seconds)
        )
        result = (
            f"and finished after {last}"
            if len(jobs) == 1
            else f"and all finished, the last after {last}"
        )
    else:
        result = f"for {took}: {counts}"
    verb = "was run" if len(jobs) == 1 else "were run"
    return f"{counted(len(jobs), 'job')} {verb}{where}{cores}{policy} {result}."


def fullness(node: RecordedNode) -> dict[str, tuple[float, float]]:
    """Mean and highest use of each resource of known size, as a fraction."""
    sizes = {
        "CPU": (node.signal("cpu_cores"), node.cores),
        "memory": (node.signal("memory_bytes"), node.memory_bytes),
        "GPU": (node.signal("gpu_busy"), 1.0),
        "network in": (node.signal("net_in"), node.nic_bytes_per_second),
        "network out": (node.signal("net_out"), node.nic_bytes_per_second),
        "disk reads": (node.signal("disk_read"), node.disk_bytes_per_second),
        "disk writes": (node.signal("disk_write"), node.disk_bytes_per_second),
    }
    result = {}
    for name, (signal, size) in sizes.items():
        if size and signal.mean is not None and signal.maximum is not None:
            # A millisecond between two clocks may give 101 %.
            result[name] = (min(signal.mean / size, 1.0), min(signal.maximum / size, 1.0))
    return result


def _fullest(run: Recording) -> str:
    # A resource below 1 % was not short.
    fullest = [
        (use, name, node)
        for node in run.nodes
        for name, use in fullness(node).items()
        if use[1] >= 0.01
    ]
    if not fullest:
        return ""
    (mean, most), name, node = max(fullest, key=lambda item: item[0][0])
    where = f" of {node.name}" if len(run.nodes) > 1 else ""
    core = node.signal("cpu_fullest_core").maximum
    single = f", its fullest core {say(core, '%')}" if name == "CPU" and core is not None else ""
    others = [
        f"{say(use[1], '%')} of {other}"
        for use, other, at in fullest
        if at is node and other != name
    ]
    others_sentence = f" Of the others, at most {listed(others)}." if others else ""
    use = f"{say(mean, '%')} on average, {say(most, '%')} at most{single}"
    return f"The fullest resource{where} was {name}: {use}.{others_sentence}{_strangers(run)}"


def _strangers(run: Recording) -> str:
    """The fraction of CPU used by programs outside the run; empty below a tenth."""
    if len(run.nodes) != 1:
        return ""
    (node,) = run.nodes
    cpu = node.signal("cpu_cores")
    if not node.cores or not len(cpu):
        return ""
    jobs_seconds = sum(job.signal("cpu_cores").integral for job in run.jobs)
    others = (cpu.integral - jobs_seconds) / cpu.seconds
    if others < 0.1 * node.cores:
        return ""
    return f" Programs outside this run used {say(others, 'cores')} of {node.name} on average."


def _faults(run: Recording, jobs: Sequence[JobFigures]) -> str:
    clauses = [f"{job.name} took {job.attempts} attempts" for job in jobs if job.attempts > 1]
    clauses += [_survived(job) for job in jobs if job.faults]
    clauses += [
        f"{job.name} reported a loss that is not a number {counted(job.losses_not_numbers, 'time')}"
        for job in jobs
        if job.losses_not_numbers
    ]
    warnings = sum(event.kind == "warning" for event in run.events)
    parts = [f"{listed(clauses)}."] if clauses else []
    parts += [f"{counted(warnings, 'warning')} under Events."] if warnings else []
    return " ".join(parts)


def _survived(job: JobFigures) -> str:
    cost = f", which cost {say_seconds(job.fault_seconds)}" if job.fault_seconds else ""
    return f"{job.name} survived {counted(job.faults, 'fault')}{cost}"


def _learned(jobs: Sequence[JobFigures]) -> str:
    clauses = [
        f"{job.name} from {say_loss(job.loss_first)} to {say_loss(job.loss_final)}"
        for job in jobs
        if job.loss_first is not None and job.loss_final != job.loss_first
    ]
    losses = f"Loss, first to last: {listed(clauses)}." if clauses else ""
    last = [
        f"{job.name} {name} {say_loss(value)}"
        for job in jobs
        for name, value in job.metrics.items()
    ]
    return " ".join(filter(None, [losses, f"At the end: {listed(last)}." if last else ""]))
