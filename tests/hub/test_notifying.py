"""What the hub tells recipients of messages, by a real process and a real command."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from tests.hub.user import SECONDS

from headgate.hub.parts.notifying import MOST_MESSAGES, Notifying
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.hub.submission import Submission
from headgate.model.actions import MarkJob
from headgate.model.cluster import Node
from headgate.model.identifiers import JobId, TaskId
from headgate.model.jobs import Job
from headgate.model.progress import Progress
from headgate.model.progress_rule import ProgressRule
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.recipients import Recipient
from headgate.testing import wait

HANG = Reason(ReasonKind.NO_STEP, {"seconds": 60.0, "is_idle": False, "where": "x"})
GOAL = Reason(ReasonKind.GOAL_REACHED, {"metric": "acc", "value": 0.9, "goal": 0.8})


def test_a_hang_a_goal_and_the_best_of_a_run_are_told_up_to_a_bound(tmp_path: Path) -> None:
    rule, to = ProgressRule(metric="acc", goal=0.8), Recipient(command="cat >> run", of_run=True)
    jobs = tuple(Job(name=name, run="true", progress=rule) for name in "ab")
    own = Job(name="c", run="true", notify=(Recipient(command="cat >> job", events=("goal",)),))

    async def live() -> None:
        given = Submission(
            (*jobs, own), dict(os.environ), str(tmp_path), ("headgate",), notify=(to,)
        )
        run = LiveRun(given, (Node("here", 2, 2**30),), "none", time.monotonic(), print)
        live_runs = LiveRuns(lambda: "none", lambda _: None)
        live_runs.runs[run.id] = run
        part = Notifying(live_runs)
        for name, values in (("a", (0.9, 0.5)), ("b", (0.7, 0.8))):
            task = TaskId(f"{run.id}/{name}/worker-0")
            for value in values:
                part.hear(Progress(task, 1, metrics={"acc": value}), ())
        live_runs.event(run, "warning", HANG, "a")
        for name in "ac":
            run.jobs[name].state, run.jobs[name].reason = "done", GOAL
            mark = MarkJob(JobId.of(run.id, name), "done", GOAL)
            part.hear(Progress(TaskId(f"{run.id}/{name}/worker-0"), 2), [mark])
        for _ in range(MOST_MESSAGES):
            live_runs.event(run, "warning", HANG, "b")
        part.forget(run.id)
        await part.ended(run.id)
        run.close()

    asyncio.run(live())

    def told(name: str, count: int) -> list[Any]:
        """All lines of a file; what delivers them may go on after the run."""
        file = tmp_path / name
        wait.until(lambda: file.read_text().count("\n") >= count, SECONDS, f"{name} is told")
        return [json.loads(line) for line in file.read_text().splitlines()]

    [goal] = told("job", 1)
    hang, *more, whole = told("run", MOST_MESSAGES)
    assert (hang["occasion"], hang["job"]) == ("hang", "a")
    assert (goal["occasion"], goal["job"]) == ("goal", "c")
    assert (whole["occasion"], whole["left_out"]) == ("run", 2)
    assert (whole["best"]["job"], whole["best"]["value"]) == ("a", 0.9)
    assert len(more) == MOST_MESSAGES - 2
