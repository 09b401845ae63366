"""What tasks say, as it comes to the controller and to the store."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.hub.parts import listener as listener_module
from headgate.hub.parts.listener import MOST_COMPLAINTS, HubListener
from headgate.hub.parts.throttle import AT_ONCE
from headgate.hub.state.attempt import Attempt
from headgate.hub.state.job import MOST_METRICS, LiveJob
from headgate.hub.state.peers import AttemptSyncPoints
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.hub.submission import Submission
from headgate.model.cluster import Node
from headgate.model.endings import Exit
from headgate.model.events import CheckpointDone, Event, TaskExited, TaskJoined
from headgate.model.identifiers import JobId, TaskId, TaskName
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.progress import Progress
from headgate.model.progress_rule import ProgressRule
from headgate.model.reason_text import in_words
from headgate.model.reasons import Reason
from headgate.output.patterns import ProgressReader
from headgate.recorded import runs
from headgate.recorded.reader import RunReader

LINES = 1000
LOSS = ProgressRule()


def heard(
    say: Callable[[HubListener, TaskId], None],
    joins: bool = False,
    warnings: list[str] | None = None,
    rule: ProgressRule = LOSS,
    notes: list[str] | None = None,
) -> tuple[list[Event], list[int]]:
    """What the controller is told of a task of which this is said, and the steps that are in the
    store.

    Args:
        say: Says it.
        joins: Another worker waits for the state of this one.
        warnings: Gets what the run is warned of.
        rule: How its progress is read.
        notes: Gets what the run notes.
    """
    events: list[Event] = []

    async def listens() -> LiveRun:
        submission = Submission((Job(name="a", run="true"),), {}, str(Path.cwd()), ("headgate",))
        run = LiveRun(submission, (Node("here", 2, 2**30),), "none", time.monotonic(), print)
        live, task = run.jobs["a"], TaskId(f"{run.id}/a/worker-0")
        plan = Plan(
            strategy="ps" if joins else "single",
            workers=1,
            servers=int(joins),
            batch_per_worker=None,
        )
        attempt = Attempt(JobId(f"{run.id}/a"), 1, plan, True, lambda *_: None)
        live.begin(attempt, 0)
        for name in ["worker-0", "worker-1"][: 1 + joins]:
            attempt.start(
                TaskName(name), "here", "", ProgressReader(rule), joins=name != "worker-0"
            )
            if joins:
                attempt.connect(TaskName(name))

        def event(_: object, kind: str, reason: Reason, *__: object, **___: object) -> None:
            if (kept := {"warning": warnings, "note": notes}.get(kind)) is not None:
                kept.append(in_words(reason))

        def failed(what: str, error: BaseException, id: str = "") -> None:
            raise AssertionError(f"{what}: {error!r}")

        def attempt_of(task: TaskId) -> tuple[LiveRun, LiveJob, Attempt, TaskName]:
            return run, live, attempt, task.name

        hears = {"attempt_of": attempt_of, "event": event, "failed": failed}
        live_runs = cast(LiveRuns, SimpleNamespace(**hears))
        listener = HubListener(
            live_runs, run.folder, events.append, lambda _: None, lambda *_: None, lambda: None
        )
        say(listener, task)
        listener.exited(task, Exit(code=0))
        await asyncio.sleep(0)
        run.close()
        return run

    run = asyncio.run(listens())
    with RunReader(run.folder / runs.STORE) as reader:
        return events, [row["step"] for row in reader.rows("progress")]


def checkpoints(task: str) -> Path:
    """The folder of a job's checkpoints."""
    run, job, _ = task.split("/")
    return runs.home() / "runs" / run / "jobs" / job / "checkpoints"


@pytest.mark.parametrize(
    "name", ["../../../../../x.pt", "/etc/passwd", "link/passwd", "x/../../y.pt", "", "\0"]
)
def test_a_checkpoint_elsewhere_than_in_its_job_s_folder_is_none(name: str) -> None:
    def say(listener: HubListener, task: TaskId) -> None:
        (checkpoints(task) / "link").symlink_to("/etc")
        for each in (name, "step-1.pt"):
            path = os.path.join(checkpoints(task), each)
            listener.message(
                task, {"type": "checkpoint", "path": path, "step": 1, "epoch": 0, "why": "epoch"}
            )

    events, _ = heard(say)
    saved = [event.checkpoint.path for event in events if isinstance(event, CheckpointDone)]
    assert [Path(path).name for path in saved] == ["step-1.pt"]


def test_of_losses_that_are_printed_in_a_flood_none_is_lost_and_few_are_told() -> None:
    lines = [f"step {step} loss {step}.0" for step in range(1, LINES + 1)]
    events, steps = heard(lambda listener, task: listener.output(TaskId(task), lines))
    told = [event for event in events if isinstance(event, Progress)]
    assert AT_ONCE / 2 < len(told) < 2 * AT_ONCE
    assert sum(progress.count for progress in told) == LINES
    total = sum((progress.loss or 0.0) * progress.count for progress in told)
    assert total == pytest.approx(LINES * (LINES + 1) / 2)
    assert [progress.step for progress in told] == steps
    assert steps[-1] == LINES
    assert isinstance(events[-1], TaskExited)


def test_what_was_printed_comes_before_what_the_script_then_reports_itself() -> None:
    lines = [f"step {step} loss {step}.0" for step in range(1, LINES + 1)]

    def say(listener: HubListener, task: TaskId) -> None:
        listener.output(task, lines)
        listener.message(task, {"type": "progress", "step": LINES + 1, "loss": 1.0})
        listener.output(task, [f"step {LINES + 2} loss 1.0"])

    _, steps = heard(say)
    assert steps[-2:] == [LINES, LINES + 1]


def test_a_script_whose_loss_is_not_found_ends_with_a_hint() -> None:
    notes: list[str] = []
    heard(
        lambda listener, task: listener.output(TaskId(task), ["iteration 10: objective -35.1"]),
        notes=notes,
    )
    assert len(notes) == 1
    assert (
        "`progress:` says how to read it; nearest came: iteration 10: objective -35.1" in notes[0]
    )
    heard(
        lambda listener, task: listener.output(TaskId(task), ["iteration 10: loss 35.1"]),
        notes=notes,
    )
    heard(
        lambda listener, task: listener.message(TaskId(task), {"type": "progress", "step": 1}),
        notes=notes,
    )
    assert len(notes) == 1


def test_a_missing_metric_is_warned_of_while_the_job_runs_and_not_again_at_its_end() -> None:
    warnings: list[str] = []
    notes: list[str] = []
    lines = [f"epoch {epoch} loss {9 - epoch}.0 acc 0.{epoch}" for epoch in range(9)]

    def say(listener: HubListener, task: TaskId) -> None:
        for line in lines:
            listener.output(task, [line])

    heard(say, warnings=warnings, notes=notes, rule=ProgressRule("accuracy", goal=0.9))
    assert warnings[0].startswith("found no accuracy in its first 3 reports")
    assert "`progress: {metric: acc}` follows that instead" in warnings[0]
    assert (len(warnings), notes) == (1, [])


def test_a_failed_checkpoint_is_not_the_state_that_a_joining_task_waits_for() -> None:
    def say(listener: HubListener, task: TaskId) -> None:
        listener.message(TaskId(f"{task[:-1]}1"), {"type": "joining"})
        listener.message(task, {"type": "checkpoint_failed", "error": "full", "why": "request"})
        message = {
            "type": "checkpoint",
            "path": str(checkpoints(task) / "step-1.pt"),
            "step": 1,
            "epoch": 0,
            "position": 1,
            "bytes": 1,
        }
        listener.message(task, {**message, "seconds": 0.1, "why": "join"})

    events, _ = heard(say, joins=True)
    assert [event.task.rsplit("/")[-1] for event in events if isinstance(event, TaskJoined)] == [
        "worker-1"
    ]


def each(message: dict[str, Any], key: str, *values: Any) -> list[dict[str, Any]]:
    """A message with each of these values."""
    return [{**message, key: value} for value in values]


def of(kind: str, **content: Any) -> dict[str, Any]:
    return {"type": kind, **content}


ODD: list[dict[str, Any]] = [
    {},
    *each(of("spans", step=1), "spans", ["x"], [1], [None], "abc", 5, {"a": 1}, [{"name": "x"}]),
    *each(
        of("spans", step=1),
        "spans",
        [{"name": "x", "seconds": math.inf}],
        [{"name": "x", "seconds": 1}] * 5000,
    ),
    of("spans", step=1e400, spans=[]),
    of("spans", step=1, spans=[], transfers=[{"peer": "a", "push": [1, 2]}]),
    *each(of("progress", loss=1.0), "count", math.inf, -math.inf, math.nan, 10**400, "x", []),
    *each(of("progress"), "step", math.inf, 2**54, -(10**30), 1e16, 1.5, "many", {}, True),
    *each(of("progress", epoch=1), "epochs", math.inf, 10**19, []),
    *each(of("progress"), "loss", 10**400, "low", [1]),
    of("progress", step=1, within=math.inf),
    *each(of("progress", step=1), "metrics", [1], "ab", {"a": "x"}, {"a": 10**400}, {"a": []}),
    *each(of("checkpoint", step=1, epoch=0), "path", [], None, 5, "\ud800", "a" * 10_000),
    of("checkpoint", path="x", step=None, epoch=0),
    *each(of("gpus"), "gpus", "x", 5, [math.inf], [[1]], None),
    *each(of("stopping", monitor="x"), "patience", math.inf, [], "x"),
    of("stopping", patience=1, min_delta=math.nan),
    *each(of("listening"), "endpoints", 3, None),
    *each(of("profile"), "profile", 3, [], {"framework": []}, None),
    *each(of("fault", text="x"), "steps", math.inf, "x", []),
    *map(of, ("fault", "note", "checkpoint_failed")),
    of("unreadable", line="b'{'"),
]


def test_a_message_that_makes_no_sense_costs_nothing_but_itself_and_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener_module, "MOST_COMPLAINTS", len(ODD) + 1)
    told: list[str] = []

    def say(listener: HubListener, task: TaskId) -> None:
        for number, message in enumerate(ODD):
            listener.message(task, message)
            listener.message(task, {"type": "progress", "step": number, "loss": 1.0})

    events, steps = heard(say, warnings=told)
    assert steps == list(range(len(ODD)))
    assert len(told) == len(ODD), "\n".join(told)
    assert all("left out" in text and len(text) < 500 for text in told)
    assert isinstance(events[-1], TaskExited)


def test_a_position_of_an_earlier_version_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[dict[str, int]] = []
    monkeypatch.setattr(
        AttemptSyncPoints, "pass_position", lambda self, name, position: passed.append(position)
    )

    def say(listener: HubListener, task: TaskId) -> None:
        listener.message(task, {"type": "elsewhere", "standing": {"step": 1}})
        listener.message(task, {"type": "position", "standing": {"step": 2}})

    heard(say)
    assert passed == [{"step": 1}, {"step": 2}]


def test_of_a_task_that_says_nothing_but_nonsense_people_are_warned_twenty_times() -> None:
    warnings: list[str] = []

    def say(listener: HubListener, task: TaskId) -> None:
        for _ in range(300):
            listener.message(task, {"type": "note"})

    heard(say, warnings=warnings)
    assert len(warnings) == MOST_COMPLAINTS
    assert warnings[-1].endswith("further such warnings are left out")


@pytest.mark.parametrize(
    "line", ["epoch 1e400 loss 2.0", "epoch 999e300 loss 2.0", "epoch 12345678901234567890 loss 1"]
)
def test_a_line_with_an_odd_number_costs_nothing_but_itself(line: str) -> None:
    _, steps = heard(
        lambda listener, task: listener.output(
            TaskId(task), ["step 1 loss 3.0", line, "step 2 loss 1.0"]
        )
    )
    assert steps[-1] == 2


def test_numbers_at_the_edge_of_what_there_is_are_merged_and_told() -> None:
    def say(listener: HubListener, task: TaskId) -> None:
        for loss in (1e308, 1.7e308, -1.7e308, math.inf, math.nan, 5e-324, "nan", "-inf"):
            listener.message(
                task,
                {
                    "type": "progress",
                    "step": 2**53,
                    "loss": loss,
                    "count": 2**53,
                    "metrics": {"a": loss},
                },
            )

    events, steps = heard(say)
    assert steps == [2**53] * 8
    assert len([event for event in events if isinstance(event, Progress)]) == 8


def test_metrics_beyond_so_many_names_are_left_out_with_one_warning() -> None:
    warnings: list[str] = []

    def say(listener: HubListener, task: TaskId) -> None:
        for part in range(20):
            names = {f"metric-{part}-{i}": 1.0 for i in range(1000)}
            listener.message(
                task, {"type": "progress", "step": part, "metrics": {"loss2": 1.0, **names}}
            )

    events, steps = heard(say, warnings=warnings)
    names = {name for event in events if isinstance(event, Progress) for name in event.metrics}
    assert len(names) == MOST_METRICS
    assert "loss2" in names
    assert steps == list(range(20))
    assert [("500 metrics" in warning) for warning in warnings] == [True]


def test_a_slow_pattern_of_the_job_s_own_is_given_up_and_told_and_the_job_goes_on() -> None:
    warnings: list[str] = []
    begun = time.thread_time()

    def say(listener: HubListener, task: TaskId) -> None:
        listener.output(task, ["a" * 4000, *["a" * 4000] * 20])
        listener.message(task, {"type": "progress", "step": 7, "loss": 1.0})

    _, steps = heard(
        say, warnings=warnings, rule=ProgressRule(pattern=r".*a.*a.*a.*a.*a(?P<loss>\d)")
    )
    assert time.thread_time() - begun < 5
    assert steps == [7]
    [told] = warnings
    assert "took more than 0.1 s for one line of output; it is no longer searched for" in told


def test_a_file_that_two_workers_write_is_warned_of() -> None:
    warnings: list[str] = []

    def say(listener: HubListener, task: str) -> None:
        other = task.replace("worker-0", "worker-1")
        for worker in (task, other, task):
            for name in ("best.pt", f"{worker[-8:]}.log"):
                listener.message(
                    TaskId(worker), {"type": "writes", "path": f"/w/{name}", "folder": "1:2"}
                )
        listener.message(TaskId(other), {"type": "writes", "path": "/w/best.pt"})

    heard(say, joins=True, warnings=warnings)
    assert "worker-0 and worker-1 both write /w/best.pt" in warnings[0]
    assert ["makes no sense" in text for text in warnings] == [False, True]


def test_of_checkpoints_that_find_no_room_the_first_is_warned_of_and_the_end_is_noted() -> None:
    warned: list[str] = []
    noted: list[str] = []

    def say(listener: HubListener, task: TaskId) -> None:
        for epoch in range(5):
            full = f"[Errno 28] No space left on device: '.step-{epoch}.partial'"
            listener.message(task, {"type": "checkpoint_failed", "error": full, "why": "epoch"})
        saved = {
            "path": str(checkpoints(task) / "step-6.pt"),
            "step": 6,
            "epoch": 6,
            "position": None,
            "why": "epoch",
        }
        listener.message(task, {"type": "checkpoint", "bytes": 1, "seconds": 0.1, **saved})
        listener.message(task, {"type": "checkpoint_failed", "error": "full again", "why": "epoch"})

    heard(say, warnings=warned, notes=noted)
    assert [text.partition(":")[0] for text in warned] == ["no checkpoint was saved"] * 2
    assert noted == ["checkpoints are saved again, after 5 that could not be"]
