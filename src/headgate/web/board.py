"""What the page shows of live runs, and what has changed of it since it was sent last."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.model.identifiers import FIRST_WORKER
from headgate.model.job_states import ENDED

MOST_EVENTS = 200
"""Events of all live runs that a page which is opened is told."""
MOST_LOSSES = 40
"""Points of the small curve beside a loss."""
_MOST_UNSENT = 64
"""A browser that takes in no more messages than this is sent everything anew once it does."""
_LATER = frozenset({"verdict", "ends", "expected", "waits", "arguments"})
"""Fields of a job that the hub's messages do not have: they are looked up now and then."""

Key = str
"""Of a job: `RUN/JOB`."""


@dataclass(frozen=True, slots=True)
class RunDetails:
    """What figures for dashboards need of a run, and no page is sent.

    Args:
        submitted: When each job was submitted, in seconds of the run.
        accounts: Where the time of its jobs went, by name; see `RunVerdicts`.
        decisions: Number of decisions by kind.
        last: The last entry of the log that was counted.
    """

    submitted: Mapping[str, float] = field(default_factory=dict)
    accounts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    decisions: Mapping[str, int] = field(default_factory=dict)
    last: int = 0


@dataclass(slots=True)
class _Run:
    facts: dict[str, Any]
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    details: RunDetails = field(default=RunDetails(), compare=False)


class Subscription:
    """What one browser is still to be sent."""

    def __init__(self, run: str | None) -> None:
        self.run = run
        self.messages: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_UNSENT)
        self.is_behind = False

    def put(self, message: bytes) -> None:
        try:
            self.messages.put_nowait(message)
        except asyncio.QueueFull:
            self.is_behind = True


class Board:
    """The live runs, as a page shows them.

    A page is sent all of it once, then what changes. Pages of one run are sent the tasks of its
    jobs as well. It is used on one event loop.
    """

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._attached: set[str] = set()
        self._sent: dict[str, _Run] = {}
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self._unsent: list[dict[str, Any]] = []
        self._facts: dict[str, Any] = {}
        self._sent_facts: dict[str, Any] = {}
        self._subscriptions: set[Subscription] = set()
        self._began = time.monotonic()
        self.hubs: dict[str, int] = {}
        """Process ids of the hubs that are followed, by name."""
        self.ends = dict.fromkeys(sorted(ENDED), 0)
        """How many jobs have ended in each way since this board was made."""
        self.lost_runs = 0
        """How many runs have lost their hub since then."""

    @property
    def runs(self) -> tuple[str, ...]:
        """The ids of live runs."""
        return tuple(self._runs)

    @property
    def attached_runs(self) -> tuple[str, ...]:
        """Those of them whose stores have what happened before the first message of their hub."""
        return tuple(run for run in self._runs if run in self._attached)

    @property
    def facts(self) -> Mapping[str, Any]:
        """What is said of all, such as `nodes`."""
        return self._facts

    def state(self, run: str) -> Mapping[str, Mapping[str, Any]]:
        """The jobs of a live run by name; empty if it is not live."""
        known = self._runs.get(run)
        return known.jobs if known is not None else {}

    def run_facts(self, run: str) -> Mapping[str, Any]:
        """What is known of a live run as a whole, such as `policy` and `t`, its seconds so far."""
        return self._runs[run].facts

    # --- what comes in ----------------------------------------------------------------------------

    def take(self, message: Mapping[str, Any]) -> None:
        """Take in what a hub told; see `Follower`."""
        run = str(message["run"])
        match message["type"]:
            case "attached":
                self._attached.add(run)
            case "snapshot" | "end":
                self._facts["trouble"] = ""
                self._count_ends(run, message)
                known = self._runs.setdefault(run, _Run({"id": run}))
                known.facts |= {"policy": message["policy"], "t": round(message["t"], 1)}
                known.jobs = {
                    job["name"]: _later(known.jobs.get(job["name"])) | _shown(job)
                    for job in message["jobs"]
                }
            case "event":
                event = {name: message[name] for name in ("run", "t", "kind", "text", "job")}
                self._events.append(event)
                self._unsent.append(event)
            case "reported" | "gone" as kind:
                self.publish()  # how it ended is sent before it is gone
                self.lost_runs += kind == "gone" and run in self._runs
                self._runs.pop(run, None)
                self._attached.discard(run)
            case "hub":
                self.hubs.pop(message["hub"], None)
                if message["pid"] is not None:
                    self.hubs[message["hub"]] = message["pid"]
            case "silent":
                self._facts["trouble"] = message["text"]

    def _count_ends(self, run: str, message: Mapping[str, Any]) -> None:
        """Count the jobs that have ended since the last message; of a run that is new here, those
        of its jobs that ended since this board was made.
        """
        known = self._runs.get(run)
        began = time.monotonic() - message["t"]
        for job in message["jobs"]:
            before = known.jobs.get(job["name"]) if known is not None else None
            is_seen = began + (job["ended"] or 0.0) >= self._began
            if job["state"] in ENDED and (
                is_seen if before is None else before["state"] not in ENDED
            ):
                self.ends[job["state"]] += 1

    def details(self, run: str) -> RunDetails:
        """What is known of a live run beside what pages show."""
        return self._runs[run].details if run in self._runs else RunDetails()

    def set_details(self, run: str, details: RunDetails) -> None:
        """Replace what is known of a live run beside what pages show."""
        if run in self._runs:
            self._runs[run].details = details

    def add_to_run(self, run: str, **facts: Any) -> None:
        """Say more of a live run."""
        if run in self._runs:
            self._runs[run].facts |= facts

    def add_to_job(self, run: str, job: str, **facts: Any) -> None:
        """Say more of a live job."""
        if job in self.state(run):
            self._runs[run].jobs[job] |= facts

    def add_past(self, events: Iterable[dict[str, Any]]) -> None:
        """Say what had happened to live runs before any browser was told of them."""
        past = [event for event in events if event not in self._events]
        known = [*past, *self._events][-MOST_EVENTS:]
        self._events.clear()
        self._events.extend(known)
        self._unsent = [*past, *self._unsent]

    def add(self, **facts: Any) -> None:
        """Say more of all, such as of the nodes."""
        self._facts |= facts

    # --- what goes out ----------------------------------------------------------------------------

    def subscribe(self, run: str | None) -> Subscription:
        """A browser's place, with everything to begin with.

        Args:
            run: The run that its page is of; None: all.
        """
        self.publish()
        subscription = Subscription(run)
        subscription.put(self._all(run))
        self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)

    def publish(self) -> None:
        """Send each browser what has changed since the last time."""
        changes = {
            id: _changes(run, self._sent.get(id))
            for id, run in self._runs.items()
            if run != self._sent.get(id)
        }
        gone = [id for id in self._sent if id not in self._runs]
        facts = {
            name: value
            for name, value in self._facts.items()
            if self._sent_facts.get(name) != value
        }
        events, self._unsent = self._unsent, []
        if not (changes or gone or facts or events):
            return
        for id, run in self._runs.items():
            self._sent[id] = _Run(dict(run.facts), {n: dict(j) for n, j in run.jobs.items()})
        for id in gone:
            del self._sent[id]
        self._sent_facts = dict(self._facts)
        messages: dict[str | None, bytes] = {}
        for subscription in self._subscriptions:
            if subscription.is_behind and subscription.messages.empty():
                subscription.is_behind = False
                subscription.put(self._all(subscription.run))
                continue
            run_of = subscription.run
            if run_of not in messages:
                messages[run_of] = _message(
                    "change",
                    {
                        "runs": {
                            id: change if run_of == id else _without_tasks(change)
                            for id, change in changes.items()
                            if run_of in (None, id)
                        },
                        "gone": [id for id in gone if run_of in (None, id)],
                        "events": [event for event in events if run_of in (None, event["run"])],
                        **facts,
                    },
                )
            if not subscription.is_behind:
                subscription.put(messages[run_of])

    def close(self) -> None:
        """Send every browser the end."""
        for subscription in self._subscriptions:
            while True:
                try:
                    subscription.messages.put_nowait(None)
                except asyncio.QueueFull:
                    subscription.messages.get_nowait()
                else:
                    break

    def _all(self, run: str | None) -> bytes:
        shown = {
            id: {"facts": known.facts, "jobs": known.jobs}
            for id, known in self._sent.items()
            if run in (None, id)
        }
        if run is None:
            shown = {id: _without_tasks(known) for id, known in shown.items()}
        events = [event for event in self._events if run in (None, event["run"])]
        return _message("all", {"runs": shown, "events": events, **self._sent_facts})


def _message(kind: str, value: Mapping[str, Any]) -> bytes:
    """An event of server-sent events."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return f"event: {kind}\ndata: {text}\n\n".encode()


def _changes(run: _Run, sent: _Run | None) -> dict[str, Any]:
    """What is to be sent of a run: the fields that changed."""
    if sent is None:
        return {"facts": run.facts, "jobs": run.jobs}
    jobs = {
        name: {key: value for key, value in job.items() if before.get(key) != value}
        for name, job in run.jobs.items()
        if (before := sent.jobs.get(name, {})) != job
    }
    facts = {key: value for key, value in run.facts.items() if sent.facts.get(key) != value}
    return {"facts": facts, "jobs": jobs}


def _without_tasks(change: Mapping[str, Any]) -> dict[str, Any]:
    jobs = {
        name: {key: value for key, value in job.items() if key != "tasks"}
        for name, job in change["jobs"].items()
    }
    return {**change, "jobs": {name: job for name, job in jobs.items() if job}}


def _later(job: Mapping[str, Any] | None) -> dict[str, Any]:
    """What was looked up of a job."""
    return {name: value for name, value in (job or {}).items() if name in _LATER}


def _shown(job: Mapping[str, Any]) -> dict[str, Any]:
    """What a page shows of a job, rounded, so that what nobody could see is no change."""
    tasks = job["tasks"]
    running = [task for task in tasks if task["state"] != "ended"]
    return {
        **{name: job[name] for name in ("name", "state", "reason", "why", "attempt", "gpus")},
        **{name: job[name] for name in ("started", "ended", "step", "steps", "epoch", "epochs")},
        **{name: job[name] for name in ("saves", "strategy", "priority", "most_cores", "urgent")},
        "loss": _rounded(job["loss"]),
        "nan": job["nan"],
        "losses": [_rounded(loss) for loss in _thinned(job["losses"])],
        "metrics": {name: _rounded(value) for name, value in job["metrics"].items()},
        "share": _rounded(job["entitled_cores"], 3),
        "cpu": _rounded(job["cpu_cores"], 2),
        "memory": _rounded(job["memory_bytes"], 3),
        "gpu_busy": _rounded(job["gpu_busy"], 2),
        "gpu_memory": _rounded(job["gpu_memory_bytes"], 3),
        "threads": job["threads"],
        "nodes": sorted({task["node"] for task in running}),
        "workers": sum(
            task["task"] == FIRST_WORKER or "worker" in task["task"] for task in running
        ),
        "tasks": [_shown_task(task) for task in tasks],
    }


def _shown_task(task: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{name: task[name] for name in ("task", "node", "state", "threads", "gpus")},
        "share": _rounded(task["entitled_cores"], 3),
        "cpu": _rounded(task["cpu_cores"], 2),
        "memory": _rounded(task["memory_bytes"], 3),
        "net_in": _rounded(task["net_in"], 2),
        "net_out": _rounded(task["net_out"], 2),
        "gpu_busy": _rounded(task["gpu_busy"], 2),
    }


def _thinned(losses: list[float]) -> list[float]:
    """At most `MOST_LOSSES` of them, the last among these."""
    if len(losses) <= MOST_LOSSES:
        return losses
    step = len(losses) / MOST_LOSSES
    return [losses[min(int((i + 1) * step) - 1, len(losses) - 1)] for i in range(MOST_LOSSES)]


def _rounded(value: Any, digits: int = 5) -> Any:
    """A number with so many digits; None for what is none, or has no JSON."""
    if not isinstance(value, int | float):
        return None
    shortened = float(f"{value:.{digits}g}")
    return shortened if abs(shortened) < float("inf") else None
