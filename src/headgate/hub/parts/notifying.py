"""Messages about runs and jobs, which `notify:` asks for.

A process of its own delivers those of a run: no recipient delays the hub or a job.
"""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import mode

from headgate.hub.parts import Component
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.model.actions import Action, MarkJob
from headgate.model.events import Event, TaskStarted
from headgate.model.job_states import ENDED, FAULTS
from headgate.model.progress import Progress
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.recipients import BestJob, Notice, Occasion, Recipient
from headgate.model.records import plain
from headgate.recorded import runs
from headgate.scripts import variables

MOST_MESSAGES = 100
"""Most messages about the jobs of a run. The message at its end tells how many were left out."""
_LAST_SECONDS = 30.0
"""Most seconds that the end of a run waits for its last faults. The process gives 5 s."""
_PROGRAM = "headgate.exports.notifying"


@dataclass(slots=True)
class _Messages:
    """The messages about a run."""

    run: LiveRun
    recipients: tuple[Recipient, ...]
    lines: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    verdicts: dict[str, list[int]] = field(init=False)
    """Numbers of the recipients of each job's verdicts."""
    delivering: asyncio.Task[None] | None = None
    best: dict[str, float] = field(init=False)
    told: set[str] = field(init=False)
    output_ended: asyncio.Event = field(default_factory=asyncio.Event)
    left_out: int = 0
    sent: int = 0

    def __post_init__(self) -> None:
        verdicts = {name: self.wanting(Occasion.VERDICT, name) for name in self.run.jobs}
        self.verdicts = {name: to for name, to in verdicts.items() if to}
        self.told = set(self.run.ended_before)
        self.best = dict(self.run.values_before)

    def wanting(self, occasion: Occasion, job: str | None) -> list[int]:
        """Numbers of the recipients that are told of this."""
        own = self.run.jobs[job].spec.notify if job is not None else ()
        is_end = occasion in (Occasion.END, Occasion.FAILURE, Occasion.GOAL)
        return [
            number
            for number, to in enumerate(self.recipients)
            if to.wants(occasion)
            and (to.of_run or occasion is Occasion.RUN or to in own)
            # the end of a run of one job is told once
            and not (is_end and len(self.run.jobs) == 1 and to.wants(Occasion.RUN))
        ]


class Notifying(Component):
    """Tells recipients what happens to runs and jobs, and runs of recipients that fail."""

    def __init__(self, live_runs: LiveRuns) -> None:
        self._live_runs = live_runs
        self._of_runs: dict[str, _Messages | None] = {}
        live_runs.listeners.append(self._noted)

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, Progress) and event.covers != "part":
            self._progressed(event)
        elif isinstance(event, TaskStarted):
            messages = self._messages(event.task.run)
            if messages is not None and messages.verdicts:
                self._begin(messages)
        for action in actions:
            if isinstance(action, MarkJob) and action.state in ENDED:
                messages = self._messages(action.job.run)
                if messages is not None:
                    self._job_ended(messages, action.job.name)

    def forget(self, run: str) -> None:
        """Tell of the end of a run."""
        messages = self._of_runs.get(run)
        if messages is None:
            return
        for name, job in messages.run.jobs.items():
            if job.state in ENDED:
                self._job_ended(messages, name)
        self._run_ended(messages)

    async def ended(self, run: str) -> None:
        """Wait a moment for what comes of the last message, while the run can still record it."""
        messages = self._of_runs.pop(run, None)
        if messages is None or messages.delivering is None:
            return
        messages.lines.put_nowait(None)
        with suppress(TimeoutError):
            await asyncio.wait_for(messages.output_ended.wait(), _LAST_SECONDS)

    def _messages(self, id: str) -> _Messages | None:
        """The messages about a run; None: nobody wants any."""
        if id not in self._of_runs and id in self._live_runs.runs:
            run = self._live_runs.runs[id]
            every = [*run.submission.notify]
            for job in run.jobs.values():
                every += job.spec.notify
            recipients = tuple(dict.fromkeys(every))
            # trials and cells of studies are nobody's runs
            is_own = run.submission.mode == "run" and not run.submission.label
            self._of_runs[id] = _Messages(run, recipients) if recipients and is_own else None
        return self._of_runs.get(id)

    # --- what is told -----------------------------------------------------------------------------

    def _progressed(self, progress: Progress) -> None:
        messages = self._messages(progress.task.run)
        if messages is None:
            return
        name = progress.task.job.name
        rule = messages.run.jobs[name].spec.progress
        loss = progress.loss if progress.mean is None else progress.mean
        value = rule.value(loss, progress.metrics)
        if value is None or math.isnan(value):
            return
        if rule.metric != "loss":  # of the loss, noisy from step to step, the latest value counts
            choose = max if rule.rising else min
            value = choose(messages.best.get(name, value), value)
        messages.best[name] = value

    def _noted(self, run: LiveRun, kind: str, reason: Reason, job: str | None) -> None:
        """Hear of a note or warning of a run."""
        if reason.kind is ReasonKind.NO_STEP and kind == "warning" and job is not None:
            messages = self._messages(run.id)
            if messages is not None:
                notice = self._of_job(messages, job, Occasion.HANG)
                self._send(messages, replace(notice, reason=reason))

    def _job_ended(self, messages: _Messages, name: str) -> None:
        if name in messages.told:
            return
        messages.told.add(name)
        job = messages.run.jobs[name]
        occasion = Occasion.FAILURE if job.state in FAULTS else Occasion.END
        if job.reason.kind is ReasonKind.GOAL_REACHED:
            occasion = Occasion.GOAL
        self._send(messages, self._of_job(messages, name, occasion))

    def _run_ended(self, messages: _Messages) -> None:
        run = messages.run
        if len(run.jobs) == 1:
            notice = self._of_job(messages, next(iter(run.jobs)), Occasion.RUN)
        else:
            notice = Notice(
                occasion=Occasion.RUN,
                run=run.id,
                host=runs.host(),
                at=time.time(),
                seconds=run.clock(),
                best=_best(run, messages.best),
            )
        counts = Counter[str](job.state for job in run.jobs.values())
        self._send(messages, replace(notice, jobs=counts, left_out=messages.left_out))

    def _of_job(self, messages: _Messages, name: str, occasion: Occasion) -> Notice:
        run, job = messages.run, messages.run.jobs[name]
        rule = job.spec.progress
        value = rule.raw_value(job.loss, job.metrics)
        since = job.started if job.started is not None else run.clock()
        return Notice(
            occasion=occasion,
            run=run.id,
            host=runs.host(),
            at=time.time(),
            job=name,
            state=job.state,
            reason=job.reason,
            seconds=(job.ended or run.clock()) - since,
            step=job.step,
            metric=rule.metric if value is not None else None,
            value=value,
        )

    # --- the process ------------------------------------------------------------------------------

    def _send(self, messages: _Messages, notice: Notice) -> None:
        to = messages.wanting(notice.occasion, notice.job)
        if not to:
            return
        if notice.occasion is not Occasion.RUN and messages.sent >= MOST_MESSAGES:
            messages.left_out += 1
            return
        messages.sent += 1
        self._begin(messages)
        line = {"to": to, "notice": plain(notice)}
        messages.lines.put_nowait(json.dumps(line).encode() + b"\n")

    def _begin(self, messages: _Messages) -> None:
        if messages.delivering is None:
            messages.delivering = asyncio.get_running_loop().create_task(self._deliver(messages))

    async def _deliver(self, messages: _Messages) -> None:
        run = messages.run
        try:
            # not asyncio's, which would kill it as the hub ends: it delivers what it has
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", _PROGRAM, str(run.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=run.submission.cwd,
                env=variables.of_companion(run.submission.environment),
                start_new_session=True,
            )
        except OSError as error:
            self._warn(run, "notify", error.strerror or str(error))
            messages.output_ended.set()
            return
        loop, faults = asyncio.get_running_loop(), asyncio.StreamReader()
        stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(faults), process.stdout)
        writing = loop.create_task(_write(stdin, messages))
        while line := await faults.readline():
            fault = json.loads(line)
            recipient = messages.recipients[fault["recipient"]]
            self._warn(run, recipient.name, fault["error"])
        writing.cancel()
        messages.output_ended.set()
        threading.Thread(target=process.wait, daemon=True).start()  # nothing waits for it

    def _warn(self, run: LiveRun, recipient: str, error: str) -> None:
        facts = {"recipient": recipient, "error": error}
        self._live_runs.event(run, "warning", Reason(ReasonKind.NOTICE_MISSED, facts))


async def _write(stdin: asyncio.WriteTransport, messages: _Messages) -> None:
    recipients = [plain(recipient) for recipient in messages.recipients]
    first = {"recipients": recipients, "verdicts": messages.verdicts}
    stdin.write(json.dumps(first).encode() + b"\n")
    while (line := await messages.lines.get()) is not None:
        stdin.write(line)
    stdin.close()


def _best(run: LiveRun, values: dict[str, float]) -> BestJob | None:
    """The job with the best value of the metric that most jobs have."""
    rules = {name: run.jobs[name].spec.progress for name in values}
    if not rules:
        return None
    metric = mode(rule.metric for rule in rules.values())
    comparable = {name: value for name, value in values.items() if rules[name].metric == metric}
    choose = max if rules[next(iter(comparable))].rising else min
    name = choose(comparable, key=comparable.__getitem__)
    return BestJob(job=name, metric=metric, value=values[name], arguments=run.jobs[name].spec.args)
