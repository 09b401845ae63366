"""Key figures of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from headgate.model.reasons import Reason
from headgate.recorded.jobs import RecordedJob, running
from headgate.recorded.usage import rate


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """Key figures of a job; None: unknown. Times are seconds since the run began.

    Args:
        waited_seconds: From its submission to its first start.
        run_seconds: Seconds in which it ran, over all attempts.
        loss_first: First reported loss, a mean over the losses of that report.
        loss_final: Last reported loss.
        loss_best: Lowest reported loss.
        losses_not_numbers: Reports with a NaN or infinite loss.
        steps: Highest step reported.
        samples_per_second: Mean over the stretches between two reports.
        cpu_seconds: CPU time; for earlier attempts since their first reading, within a second of
            the start.
        cpu_mean_cores: Mean cores in use.
        cpu_max_cores: Most cores in use, as a mean over one sampling interval or a gap.
        fullest_core_max: Highest use of a single core, 0 to 1.
        memory_peak_bytes: Peak resident memory, from the kernel or from samples, whichever is
            greater.
        granted_cores: Mean entitled cores while it ran.
        threads: Fewest and most compute threads of one of its tasks; None: Headgate set none.
        used_of_granted: Mean cores in use over `granted_cores`; above 1 if others left some.
        gpus: Numbers of the GPUs on which it held memory.
        gpu_mean: Mean busy fraction of these, 0 to 1.
        gpu_memory_peak_bytes: Peak memory on these.
        input_fraction: Fraction of a step spent waiting for input, 0 to 1, over `sampled_steps`
            steps; None: not measured.
        exposed_fraction: Fraction of a step spent only waiting for communication, 0 to 1; None: one
            task, or not measured.
        bytes_per_step: Bytes sent and received by all workers in a step; None: unknown.
        tasks: Number of tasks.
        faults: Faults that it survived.
        fault_seconds: Their known cost in seconds.
    """

    name: str
    state: str
    reason: Reason | None
    exit_code: int | None
    submitted: float
    started: float | None
    ended: float | None
    waited_seconds: float
    run_seconds: float
    attempts: int
    checkpoints: int
    loss_first: float | None
    loss_final: float | None
    loss_best: float | None
    losses_not_numbers: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    steps: int | None
    epochs: int | None
    samples_per_second: float | None
    steps_per_second: float | None
    cpu_seconds: float | None
    cpu_mean_cores: float | None
    cpu_max_cores: float | None
    fullest_core_max: float | None
    memory_peak_bytes: float | None
    granted_cores: float | None
    threads: tuple[int, int] | None
    used_of_granted: float | None
    disk_read_bytes: float | None
    disk_written_bytes: float | None
    gpus: tuple[int, ...]
    gpu_mean: float | None
    gpu_memory_peak_bytes: float | None
    cpu_pressure: float | None
    input_fraction: float | None
    input_low: float | None
    input_high: float | None
    sampled_steps: int
    step_seconds: float | None
    exposed_fraction: float | None
    bytes_per_step: float | None
    tasks: int
    faults: int
    fault_seconds: float


def figures(job: RecordedJob) -> JobFigures:
    """The key figures of a job."""
    ran = running(job.phases)
    progress, division = job.progress, job.division
    losses = progress.loss[np.isfinite(progress.loss)]
    steps = progress.step[np.isfinite(progress.step)]
    epochs = progress.epoch[np.isfinite(progress.epoch)]
    cpu, entitled = job.signal("cpu_cores"), job.entitled
    disk_read, disk_write = job.signal("disk_read"), job.signal("disk_write")
    first = ran[0][0] if ran else job.started
    waited_until = (
        first if first is not None else max((p.end for p in job.phases), default=job.submitted)
    )
    granted = entitled.mean
    peaks = [
        peak
        for peak in (job.signal("memory_bytes").maximum, job.memory_peak_bytes)
        if peak is not None
    ]
    return JobFigures(
        name=job.name,
        state=job.state,
        reason=job.reason,
        exit_code=job.exit_code,
        submitted=job.submitted,
        started=job.started,
        ended=job.ended,
        waited_seconds=max(waited_until - job.submitted, 0.0),
        run_seconds=sum(end - start for start, end in ran),
        attempts=job.attempts,
        checkpoints=sum(checkpoint.why != "resumed" for checkpoint in job.checkpoints),
        loss_first=float(losses[0]) if len(losses) else None,
        loss_final=float(losses[-1]) if len(losses) else None,
        loss_best=float(losses.min()) if len(losses) else None,
        losses_not_numbers=int(progress.not_number.sum()),
        metrics={name: float(values[-1]) for name, (_, values) in progress.metrics.items()},
        steps=int(steps.max()) if len(steps) else None,
        epochs=int(epochs.max()) if len(epochs) else None,
        samples_per_second=rate(progress.t, progress.samples),
        steps_per_second=rate(progress.t, progress.step),
        cpu_seconds=job.cpu_seconds,
        cpu_mean_cores=cpu.mean,
        cpu_max_cores=cpu.maximum,
        fullest_core_max=job.signal("cpu_fullest_core").maximum,
        memory_peak_bytes=max(peaks, default=None),
        granted_cores=granted,
        threads=_threads(job),
        used_of_granted=cpu.mean / granted if cpu.mean is not None and granted else None,
        disk_read_bytes=disk_read.integral if len(disk_read) else None,
        disk_written_bytes=disk_write.integral if len(disk_write) else None,
        gpus=tuple(sorted({gpu for task in job.tasks for gpu in task.gpus})),
        gpu_mean=job.signal("gpu_busy").mean,
        gpu_memory_peak_bytes=job.signal("gpu_memory_bytes").maximum,
        cpu_pressure=job.signal("psi_cpu").mean,
        input_fraction=division.input_fraction if division else None,
        input_low=division.input_low if division else None,
        input_high=division.input_high if division else None,
        sampled_steps=division.steps if division else 0,
        step_seconds=division.step_seconds if division else None,
        exposed_fraction=job.exposed_fraction,
        bytes_per_step=_exchanged(job),
        tasks=len(job.tasks),
        faults=len(job.faults),
        fault_seconds=sum(fault.seconds or 0.0 for fault in job.faults),
    )


def _threads(job: RecordedJob) -> tuple[int, int] | None:
    counts = [
        round(count)
        for task in job.tasks
        for count in (task.threads.minimum, task.threads.maximum)
        if count
    ]
    return (min(counts), max(counts)) if counts else None


def _exchanged(job: RecordedJob) -> float | None:
    divisions = [
        task.division for task in job.tasks if task.is_worker and task.division is not None
    ]
    counted = [
        way
        for division in divisions
        for way in (division.sent, division.received)
        if way is not None
    ]
    return sum(counted) if counted and job.distributed else None
