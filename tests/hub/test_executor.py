"""The controller's actions, where one of them cannot be done."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.engines.base import LOCAL
from headgate.hub.parts.executor import ActionExecutor
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.hub.submission import Submission
from headgate.model.actions import Action, MarkIdle, MarkJob, SetShare, StartTask, StopTask
from headgate.model.cluster import Node
from headgate.model.endings import Exit
from headgate.model.identifiers import JobId, TaskId
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.shares import Share
from headgate.recorded import runs
from headgate.recorded.reader import RunReader

PLAN = Plan(strategy="single", workers=1, batch_per_worker=None, worker_nodes=("here",))


def test_an_action_that_fails_costs_no_other_one_and_is_told_in_its_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headgate.hub.parts.executor._AGAIN_SECONDS", 0.01)
    done: list[tuple[str, Any]] = []
    finished = asyncio.Event()

    class Failing:
        """An engine whose every call fails, but for every second stop."""

        def set_share(self, task: str, share: Share) -> None:
            raise OSError(28, "No space left on device")

        def stop(self, task: str, grace: float) -> None:
            done.append(("stop", task))
            if len([each for each in done if each[0] == "stop"]) % 2:
                raise OSError(5, "Input/output error")
            finished.set()

        def start(self, *_: object) -> None:
            raise OSError(23, "Too many open files in system")

        def send(self, *_: object) -> None: ...

        def uncontrolled(self) -> tuple[str, ...]:
            return ()

    async def acts() -> LiveRun:
        submission = Submission((Job(name="a", run="true"),), {}, str(Path.cwd()), ("headgate",))
        run = LiveRun(submission, (Node("here", 2, 2**30),), "none", time.monotonic(), print)
        live_runs = LiveRuns(lambda: "none", lambda _: None)
        live_runs.runs[run.id] = run
        job, task = JobId(f"{run.id}/a"), TaskId(f"{run.id}/a/worker-0")
        engines = SimpleNamespace(of=lambda _: Failing(), spec_of=lambda _: LOCAL)
        listener = SimpleNamespace(ended=lambda task, exit: done.append(("ended", exit)))
        nodes = SimpleNamespace(get=lambda *_: Node("here", 2, 2**30))
        make, choosing = cast(Any, ActionExecutor), SimpleNamespace()
        finish = lambda run: done.append(("finish", run.id))  # noqa: E731
        executor: ActionExecutor = make(
            run.folder.parents[1], live_runs, engines, nodes, listener, choosing, finish
        )
        alone, asked = Reason(ReasonKind.NO_POLICY), Reason(ReasonKind.USER_ASKED)
        start = StartTask(task, job, submission.jobs[0], PLAN, "here", 1, Share(), 1, 1.0, alone)
        share = SetShare(task, Share(cpu_weight=2.0), 1, 1.0, Reason(ReasonKind.LIFTED))
        stop = StopTask(task, 10.0, asked)
        actions: list[Action] = [
            start,
            share,
            MarkIdle(task, True),
            stop,
            MarkJob(job, "stopped", asked),
        ]
        for action in actions:
            executor.take(action)
        await asyncio.wait_for(finished.wait(), 10)
        run.close()
        return run

    run = asyncio.run(acts())
    kinds = [what for what, _ in done]
    assert kinds.count("stop") == 2  # again, until it is done
    assert "finish" in kinds
    [exit] = [what for kind, what in done if kind == "ended"]
    assert isinstance(exit, Exit)
    assert exit.reason is not None
    assert "could not be started" in exit.reason
    with RunReader(run.folder / runs.STORE) as reader:
        told = [row["text"] for row in reader.rows("events", "kind = 'warning'")]
        [row] = reader.rows("jobs")
    assert row["state"] == "stopped"
    assert [text.split()[0] for text in told] == ["StartTask", "SetShare", "StopTask"]
    assert "No space left on device" in told[1]
