"""Recordings of which every number is known: jobs on one node, read once a second."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.profiles import Profile
from headgate.model.reason_text import in_words
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.records import parse, plain
from headgate.recorded.jobs import RecordedJob
from headgate.recorded.recording import Recording, read
from headgate.recorded.store import Recorder
from headgate.recorded.tables import NEIGHBOUR

Course = float | Callable[[int], float]
"""A quantity over the seconds of a run."""


@dataclass(frozen=True, kw_only=True)
class MadeUp:
    """A job of one task, and of a server where `server_node` names a node for it. The task reports
    `steps` a second from its first second on, in each that it `tells` of; as steps, or as another
    `counter`. Where there are `reports`, times with the step that it was at, it reports these
    instead.
    """

    ran: Course
    waited: Course = 0.0
    steps: Course = 10.0
    tells: Callable[[int], bool] = lambda t: True
    reports: Sequence[tuple[float, int]] = ()
    counter: str = "step"
    start: int = 0
    end: int = 40
    ready: Course | None = None
    throttled: Course = 0.0
    cap: float | None = None
    threads: Mapping[int, int] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    spans: Mapping[str, Course] = field(default_factory=dict)
    loader_workers: int | None = None
    blocked: Course = 0.0
    node: str = "nimbus"
    server_node: str = ""
    gpu: Course | None = None
    gpus: Sequence[int] | None = None
    asides: Mapping[str, float] = field(default_factory=dict)
    failed: str | Reason = ""
    state: str = "failed"
    at: float = 0.0
    readings: Mapping[str, Course | None] = field(default_factory=dict)


def typed(job: RecordedJob, known: Mapping[str, Any]) -> RecordedJob:
    """A recorded job of which something else is known. Of its `spec`, `plan` and `profile` what
    differs is enough.
    """
    changed = dict(known)
    workers = max(sum(task.is_worker for task in changed.get("tasks", job.tasks)), 1)
    if "spec" in changed:
        changed["spec"] = _spec(job, changed["spec"], workers)
    if changed.get("plan") is not None:
        changed["plan"] = parse(Plan, _plan(changed["plan"], workers))
    if changed.get("profile") is not None:
        changed["profile"] = parse(Profile, _profile(changed["profile"]))
    return replace(job, **changed)


def _spec(job: RecordedJob, given: Mapping[str, Any], workers: int) -> Job:
    before = plain(job.spec)
    if given.keys() & {"script", "run", "roles"}:
        before |= {"script": None, "run": None, "roles": ()}
    spec = {**before, **given}
    if spec["script"] is spec["run"] and not spec["roles"]:
        spec["run"] = ""
    spec["roles"] = [{"run": "", **plain(role)} for role in spec["roles"] or ()]
    if spec["plan"]:
        spec["plan"] = _plan(spec["plan"], workers)
    return parse(Job, spec)


def _plan(given: Mapping[str, Any], workers: int) -> dict[str, Any]:
    usual = {"strategy": "allreduce", "workers": workers, "batch_per_worker": None}
    has_servers = given.get("strategy") == "ps"
    return {**usual, **given, "servers": given.get("servers") or int(has_servers)}


def _profile(given: Mapping[str, Any]) -> dict[str, Any]:
    usual = {"framework": "torch", "framework_version": "2", "source": "run"}
    times = [{"device": "cpu", "steps": 20, **time} for time in given.get("step_times", ())]
    return {**usual, **given, "step_times": times}


def recording(
    path: Path,
    jobs: Mapping[str, MadeUp],
    *,
    cores: float = 2.0,
    outside: Course = 0.0,
    stolen: Course = 0.0,
    node: Mapping[str, Any] = {},
    readings: Mapping[str, Course] = {},
    neighbours: Mapping[str, Mapping[str, Course]] = {},
) -> Recording:
    """A run of these jobs on a node of so many cores, on which programs `outside` Headgate use some
    too; `node` is what else is known of it, `readings` what else was read, also of `neighbours`
    that are no jobs of the run.
    """
    recorder = Recorder(path)
    end = max(job.end for job in jobs.values())
    known = json.dumps([{"name": "nimbus", "cores": cores, **node}])
    for key, value in {
        "id": "r",
        "began": "0",
        "ended": str(float(end)),
        "state": "done",
        "node": known,
    }.items():
        recorder.add("meta", key=key, value=value)
    for position, (name, job) in enumerate(jobs.items()):
        _add(recorder, name, job, position)
    for t in range(1, end + 1):
        ours = sum(_at(job.ran, t) for job in jobs.values() if job.start < t <= job.end)
        read_more = {column: _at(course, t) for column, course in readings.items()}
        used = ours + _at(outside, t)
        recorder.add(
            "usage",
            t=float(t),
            target="node:nimbus",
            cpu_cores=used,
            cpu_stolen=_at(stolen, t),
            **read_more,
        )
        for name, used_by in neighbours.items():
            used_here = {column: _at(course, t) for column, course in used_by.items()}
            recorder.add("usage", t=float(t), target=f"{NEIGHBOUR}{name}@nimbus", **used_here)
    recorder.close()
    return read(path)


def _add(recorder: Recorder, name: str, job: MadeUp, position: int) -> None:
    task, start, end = f"{name}/worker-0", float(job.start), float(job.end)
    recorder.add(
        "jobs",
        name=name,
        position=position,
        spec={"name": name, "run": "", "limits": job.limits, "at": job.at},
        state=job.state if job.failed else "done",
        reason=in_words(_ended(job)),
        why=_ended(job).plain(),
        submitted=0.0,
        started=start,
        ended=end,
        attempt=1,
    )
    recorder.add(
        "tasks",
        id=task,
        job=name,
        node=job.node,
        attempt=1,
        started=start,
        ended=end,
        gpus=job.gpus,
    )
    if job.server_node:
        of_server = f"{name}/server-0"
        recorder.add(
            "tasks",
            id=of_server,
            job=name,
            node=job.server_node,
            attempt=1,
            started=start,
            ended=end,
        )
    for t, threads in (job.threads or dict.fromkeys([job.start])).items():
        recorder.add("shares", t=float(t), task=task, cpu_cap_cores=job.cap, threads=threads)
    done = 0.0
    more = {"psi_io": job.blocked, **job.readings}
    for t in range(job.start + 1, job.end + 1):
        ran, waited = _at(job.ran, t), _at(job.waited, t)
        ready = min(ran + waited, 1.0) if job.ready is None else _at(job.ready, t)
        usual = {
            "cpu_cores": ran,
            "cpu_waiting": waited,
            "cpu_ready": ready,
            "cpu_throttled": _at(job.throttled, t),
            "gpu_busy": None if job.gpu is None else _at(job.gpu, t),
        }
        others = {
            column: None if course is None else _at(course, t) for column, course in more.items()
        }
        recorder.add("usage", t=float(t), target=task, **(usual | others))
        done += _at(job.steps, t)
        if done > 0.0 and job.tells(t) and not job.reports:
            recorder.add(
                "progress", t=float(t), task=task, loss=1.0, count=1, **{job.counter: done}
            )
        for span, seconds in job.spans.items():
            workers = job.loader_workers if span == "input" else None
            recorder.add(
                "spans",
                t=float(t),
                task=task,
                step=int(done),
                name=span,
                seconds=_at(seconds, t),
                workers=workers,
            )
    for at, step in job.reports:
        recorder.add("progress", t=at, task=task, loss=1.0, count=1, step=float(step))
    for aside, seconds in job.asides.items():
        recorder.add("asides", t=end, task=task, name=aside, seconds=seconds)
    recorder.add("events", t=start, job=name, kind="running", text="started")
    recorder.add(
        "events",
        t=end,
        job=name,
        kind=job.state if job.failed else "done",
        text=in_words(_ended(job)),
        why=_ended(job).plain(),
    )


def _ended(job: MadeUp) -> Reason:
    """Why; of a job that failed without a `Reason`, how its task ended."""
    if isinstance(job.failed, Reason):
        return job.failed
    exit_text = Reason.of(ReasonKind.EXIT, text=job.failed)
    return exit_text if job.failed else Reason.of(ReasonKind.FINISHED)


def _at(course: Course, t: int) -> float:
    return course(t) if callable(course) else course
