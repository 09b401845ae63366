"""What the tasks of one attempt are told of each other, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from headgate.hub.state.attempt import APART_SECONDS, Attempt
from headgate.model.endings import Exit
from headgate.model.identifiers import JobId, TaskName
from headgate.model.plans import Plan
from headgate.model.progress import Progress
from headgate.model.progress_rule import ProgressRule
from headgate.output.patterns import ProgressReader


class Told:
    """An attempt of `r/a`, and what it sent to whom."""

    def __init__(self, workers: int = 3, connected: bool = True) -> None:
        self.sent: list[tuple[str, Mapping[str, Any]]] = []
        plan = Plan(strategy="ps", workers=workers, servers=1, batch_per_worker=None)
        self.attempt = Attempt(
            JobId("r/a"), 1, plan, True, lambda task, message: self.sent.append((task, message))
        )
        for name in ("server-0", *(f"worker-{i}" for i in range(workers))):
            self.start(TaskName(name), connected=connected)

    def start(self, name: TaskName, joins: bool = False, connected: bool = True) -> None:
        self.attempt.start(name, "here", "127.0.0.1", ProgressReader(ProgressRule()), joins)
        if connected:
            self.attempt.connect(name)

    def orders(self) -> list[tuple[str, object]]:
        """What was sent since the last call besides views and greetings: to whom, and `hold`,
        `release` or the path of a state.
        """
        found = [
            (
                task.removeprefix("r/a/"),
                "hold" if message.get("hold") else message.get("path", message["type"]),
            )
            for task, message in self.sent
            if message["type"] not in ("peers", "welcome")
        ]
        self.sent.clear()
        return found

    def active(self) -> list[str]:
        """Who counts, by the last view that anybody got."""
        return [member["task"] for member in self.view()["members"] if member["active"]]

    def view(self) -> Mapping[str, Any]:
        """The last view that anybody got."""
        return next(message for _, message in reversed(self.sent) if message["type"] == "peers")


@pytest.fixture
def told() -> Told:
    return Told()


def rejoin(told: Told, name: TaskName) -> None:
    told.attempt.remove(name, well=False)
    told.start(name, joins=True)


def test_a_view_tells_how_many_workers_there_are_to_be(told: Told) -> None:
    told.attempt.remove(TaskName("worker-2"), well=False)
    assert told.view()["workers"] == 3
    told.attempt.plan = replace(told.attempt.plan, workers=5)
    told.start(TaskName("worker-2"), joins=True)
    assert told.view()["workers"] == 5


def test_a_greeting_precedes_the_first_view_and_every_change_goes_to_all_members() -> None:
    told = Told(workers=2)
    kinds = [message["type"] for task, message in told.sent if task == "r/a/worker-0"]
    assert kinds == ["welcome", "peers", "peers"]  # itself, then worker 1
    told.sent.clear()
    told.attempt.listen(TaskName("worker-1"), ["tcp://127.0.0.1:5"])
    assert [task for task, _ in told.sent] and {task for task, _ in told.sent} == {
        "r/a/server-0",
        "r/a/worker-0",
        "r/a/worker-1",
    }
    views = [message["view"] for _, message in told.sent]
    assert len(set(views)) == 1


def test_whoever_greets_last_leaves_nobody_with_an_older_view() -> None:
    told = Told(workers=2, connected=False)
    told.attempt.connect(TaskName("server-0"), "torch")
    told.attempt.listen(TaskName("server-0"), ["tcp://127.0.0.1:5"])
    for name in ("worker-0", "worker-1"):
        told.attempt.connect(TaskName(name), "torch")
    latest = {task: message["view"] for task, message in told.sent if message["type"] == "peers"}
    assert len(latest) == 3
    assert len(set(latest.values())) == 1


def test_the_lowest_worker_saves_its_state_for_one_that_joins(told: Told) -> None:
    rejoin(told, TaskName("worker-1"))
    assert told.orders() == []  # it has not made its objects yet
    told.attempt.join(TaskName("worker-1"))
    assert told.orders() == [("worker-0", "hold")]
    assert told.attempt.saved(TaskName("worker-0"), "/c/step-5.pt") == ["worker-1"]
    assert told.active() == ["server-0", "worker-0", "worker-1", "worker-2"]
    assert told.orders() == [("worker-1", "/c/step-5.pt"), ("worker-0", "release")]


def test_one_order_is_under_way_at_a_time_and_all_who_wait_by_its_end_are_served(
    told: Told,
) -> None:
    for name in ("worker-1", "worker-2"):
        rejoin(told, TaskName(name))
        told.attempt.join(TaskName(name))
    assert told.orders() == [("worker-0", "hold")]
    assert told.attempt.saved(TaskName("worker-0"), "/c/step-5.pt") == ["worker-1", "worker-2"]
    assert told.active() == ["server-0", "worker-0", "worker-1", "worker-2"]
    assert told.orders() == [
        ("worker-1", "/c/step-5.pt"),
        ("worker-2", "/c/step-5.pt"),
        ("worker-0", "release"),
    ]


def test_a_state_that_nobody_waits_for_holds_nobody(told: Told) -> None:
    rejoin(told, TaskName("worker-1"))
    told.attempt.join(TaskName("worker-1"))
    told.orders()
    assert told.attempt.saved(TaskName("worker-2"), "/c/step-4.pt") == []
    assert told.orders() == [("worker-2", "release")]
    told.attempt.remove(TaskName("worker-1"), well=False)
    assert told.attempt.saved(TaskName("worker-0"), "/c/step-5.pt") == []
    assert told.orders() == [("worker-0", "release")]


def test_another_saves_when_the_one_that_was_to_is_lost(told: Told) -> None:
    rejoin(told, TaskName("worker-2"))
    told.attempt.join(TaskName("worker-2"))
    told.orders()
    told.attempt.remove(TaskName("worker-0"), well=False)
    assert told.orders() == [("worker-1", "hold")]
    assert told.attempt.saved(TaskName("worker-1"), "/c/step-5.pt") == ["worker-2"]


def test_one_that_was_lost_while_it_waited_joins_once_it_waits_again(told: Told) -> None:
    rejoin(told, TaskName("worker-1"))
    told.attempt.join(TaskName("worker-1"))
    rejoin(told, TaskName("worker-1"))
    told.orders()
    # it has not made its objects yet
    assert told.attempt.saved(TaskName("worker-0"), "/c/step-5.pt") == []
    assert told.orders() == [("worker-0", "release")]
    told.attempt.join(TaskName("worker-1"))
    assert told.orders() == [("worker-0", "hold")]
    assert told.attempt.saved(TaskName("worker-0"), "/c/step-6.pt") == ["worker-1"]


def test_a_state_that_could_not_be_saved_is_asked_for_at_the_next_occasion(told: Told) -> None:
    rejoin(told, TaskName("worker-1"))
    told.attempt.join(TaskName("worker-1"))
    told.orders()
    told.attempt.failed(TaskName("worker-0"))
    # it may hold, where the file could not be brought here
    assert told.orders() == [("worker-0", "release")]
    told.attempt.join(TaskName("worker-1"))
    assert told.orders() == [("worker-0", "hold")]


def test_one_that_leaves_is_marked_and_speaks_for_the_others_only_if_it_is_alone(
    told: Told,
) -> None:
    told.attempt.mark_leaving(TaskName("worker-0"))
    assert told.attempt.lowest == "worker-1"
    members = {member["task"]: member["leaving"] for member in told.sent[-1][1]["members"]}
    assert members == {"server-0": False, "worker-0": True, "worker-1": False, "worker-2": False}


def test_a_job_of_one_task_is_told_of_nobody() -> None:
    sent: list[Mapping[str, Any]] = []
    plan = Plan(strategy="single", workers=1, batch_per_worker=None)
    attempt = Attempt(JobId("r/a"), 1, plan, True, lambda _, message: sent.append(message))
    attempt.start(
        TaskName("worker-0"), "here", "127.0.0.1", ProgressReader(ProgressRule()), joins=False
    )
    attempt.connect(TaskName("worker-0"))
    assert [message["type"] for message in sent] == ["welcome"]
    assert "secrets" not in sent[0]


def test_workers_that_progress_for_long_without_connecting_are_reported_once() -> None:
    told = Told(connected=False)
    told.attempt.connect(TaskName("server-0"))  # which is ours
    assert [
        told.attempt.are_apart(5.0 + t) for t in (0.0, APART_SECONDS - 1, APART_SECONDS, 100.0)
    ] == [*(False, False, True, False)]


def test_workers_that_have_connected_or_are_one_are_not_apart_however_they_end() -> None:
    late, alone = Told(connected=False), Told(workers=1, connected=False)
    assert not late.attempt.are_apart(0.0)
    late.attempt.connect(TaskName("worker-1"))
    assert not any(told.attempt.are_apart(100.0, ended=True) for told in (late, alone))


def test_a_worker_that_ended_well_and_never_connected_shows_that_all_are_apart() -> None:
    assert Told(connected=False).attempt.are_apart(0.0, ended=True)


def standing(**more: Any) -> dict[str, Any]:
    return {"rounds": 4, "phase": 0, "epoch": None, "step": 4, "settings": [], **more}


def together() -> Told:
    told = Told(2)
    told.attempt.plan = Plan(strategy="allreduce", workers=2, batch_per_worker=None)
    return told


def test_workers_meet_once_all_that_count_have_come(told: Told) -> None:
    told.start(TaskName("worker-2"), joins=True)
    told.attempt.sync_points.wait(TaskName("worker-1"), {"standing": standing(), "value": 1.5})
    assert [message for _, message in told.sent if message["type"] == "met"] == []
    told.attempt.sync_points.wait(TaskName("worker-0"), {"standing": standing(), "value": 2.5})
    met = [(task, message) for task, message in told.sent if message["type"] == "met"]
    assert [task for task, _ in met] == ["r/a/worker-1", "r/a/worker-0"]
    assert [(each["index"], each["value"]) for each in met[0][1]["given"]] == [(0, 2.5), (1, 1.5)]


def test_a_meeting_does_not_wait_for_a_worker_that_is_lost(told: Told) -> None:
    for name in ("worker-0", "worker-1"):
        told.attempt.sync_points.wait(TaskName(name), {"standing": standing(), "value": None})
    told.sent.clear()
    told.attempt.remove(TaskName("worker-2"), well=False)
    assert [task for task, message in told.sent if message["type"] == "met"] == [
        "r/a/worker-0",
        "r/a/worker-1",
    ]


def test_where_a_worker_waits_is_told_to_the_others_while_it_does(told: Told) -> None:
    waits = standing(waits=True)
    told.attempt.sync_points.pass_position(TaskName("worker-0"), waits)  # all had come
    assert [message for _, message in told.sent if message["type"] == "position"] == []
    told.attempt.sync_points.wait(TaskName("worker-0"), {"standing": standing(), "value": None})
    told.attempt.sync_points.pass_position(TaskName("worker-0"), waits)
    found = {task: message["index"] for task, message in told.sent if message["type"] == "position"}
    assert found == {"r/a/worker-1": 0, "r/a/worker-2": 0}


@pytest.mark.parametrize(
    ("ends", "code", "words"),
    [
        (
            [standing(), standing(rounds=5, step=5)],
            0,
            "worker-0 after step 4, worker-1 after step 5",
        ),
        ([standing(), standing(settings=[{"lr": 0.2}])], 0, "took a step: worker-0 0, worker-1 1"),
        (
            [standing(what="at its end")],
            75,
            "worker-0 was at its end, after step 4, and worker-1 in the middle",
        ),
        ([standing(), standing()], 0, ""),
        ([], 75, ""),
        ([standing()], 1, ""),
    ],
)
def test_workers_that_end_at_different_places_have_failed(
    ends: list[dict[str, Any]], code: int, words: str
) -> None:
    told = together()
    for number, end in enumerate(ends):
        told.attempt.sync_points.pass_position(TaskName(f"worker-{number}"), {**end, "ended": True})
    exit = told.attempt.explain_exit(TaskName("worker-1"), Exit(code))
    assert exit.code == (1 if words else code)
    assert words in (exit.reason or "")
    assert bool(exit.reason) == bool(words)


@pytest.mark.parametrize(
    ("reason", "begun", "hints"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'm.tmp' -> 'm.pt'", False, True),
        ("FileExistsError: [Errno 17] File exists: 'out'", False, True),
        (
            "NotFoundError: ckpt-1_temp/part-00000-of-00001.index; No such file or directory",
            False,
            True,
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'", False, False),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'best.pt'", True, True),
        ("ValueError: no", True, False),
    ],
)
def test_a_worker_that_fails_by_a_file_is_told_that_others_write_too(
    reason: str, begun: bool, hints: bool
) -> None:
    told = together()
    told.attempt.tasks[TaskName("worker-0")].reports_itself = begun
    assert (
        "hg.is_main()"
        in (told.attempt.explain_exit(TaskName("worker-0"), Exit(1, reason=reason)).reason or "")
    ) == hints


def test_a_file_that_two_workers_write_is_told_once_and_not_of_one_that_took_the_place_of_another(
    told: Told,
) -> None:
    wrote = told.attempt.wrote
    assert (
        wrote(TaskName("worker-0"), "/w/best.pt", "1:2")
        is wrote(TaskName("worker-0"), "/w/best.pt", "1:2")
        is None
    )
    assert (
        wrote(TaskName("worker-1"), "/w/other.pt", "1:2")
        is wrote(TaskName("worker-1"), "/elsewhere/best.pt", "1:3")
        is None
    )
    assert wrote(TaskName("worker-2"), "/w/../w/best.pt", "1:2") == "worker-0"
    assert (
        wrote(TaskName("worker-1"), "/w/best.pt", "1:2")
        is wrote(TaskName("worker-0"), "/w/best.pt", "1:2")
        is None
    )
    told.attempt.remove(TaskName("worker-1"), well=False)
    assert wrote(TaskName("worker-0"), "/w/other.pt", "1:2") is None


def test_of_another_launcher_s_workers_the_first_reports_or_the_first_that_prints() -> None:
    plan = Plan(strategy="allreduce", workers=3, batch_per_worker=None)
    attempt = Attempt(
        JobId("r/a"), 1, plan, True, lambda task, message: None, ports=(20_001, 20_002, 20_003)
    )
    for name in ("worker-0", "worker-1", "worker-2"):
        attempt.start(
            TaskName(name), "here", "127.0.0.1", ProgressReader(ProgressRule()), joins=False
        )

    def told(rank: int, step: int, loss: float) -> Progress | None:
        return attempt.progressed(
            Progress(JobId("r/a").task(TaskName.of("worker", rank)), step=step, loss=loss)
        )

    assert [told(2, step, 2.0) is None for step in range(3)] == [True, True, False]
    assert told(1, 0, 4.0) is None
    spoken = told(0, 1, 3.0)
    assert spoken is not None
    assert spoken.step == 1
    assert spoken.loss == pytest.approx((3.0 + 4.0 + 3 * 2.0) / 5)
    assert told(2, 4, 2.0) is None
    assert not attempt.are_apart(0.0, ended=True)


def test_a_port_that_was_taken_is_told_of_the_contract_s_and_of_no_other() -> None:
    plan = Plan(strategy="allreduce", workers=2, batch_per_worker=None)
    attempt = Attempt(
        JobId("r/a"), 1, plan, True, lambda task, message: None, ports=(20_001, 20_002)
    )
    for name in ("worker-0", "worker-1"):
        attempt.start(
            TaskName(name), "here", "127.0.0.1", ProgressReader(ProgressRule()), joins=False
        )
    named, other = (
        Exit(code=1, reason=f"OSError: port {port}: Address already in use")
        for port in (20_001, 80)
    )
    assert attempt.explain_exit(TaskName("worker-0"), other).port_taken
    attempt.progressed(Progress(JobId("r/a").task(TaskName("worker-0")), step=1, loss=1.0))
    assert not attempt.explain_exit(TaskName("worker-0"), other).port_taken
    assert attempt.explain_exit(TaskName("worker-0"), named).port_taken
    assert not attempt.explain_exit(
        TaskName("worker-0"), Exit(code=1, reason="ValueError: 20001")
    ).port_taken
