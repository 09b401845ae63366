"""What browsers are sent of live runs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from headgate.web.board import MOST_EVENTS, MOST_LOSSES, Board, Subscription

TASK = {"task": "worker-0", "node": "n", "state": "running", "threads": 1, "gpus": []}
TASK |= dict.fromkeys(("entitled_cores", "cpu_cores", "memory_bytes", "net_in", "net_out"), 1.0)
TASK |= {"gpu_busy": None}


def job(name: str = "a", **fields: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "name": name,
        "state": "running",
        "reason": "started",
        "why": {},
        "attempt": 1,
        "gpus": [],
        "started": 0.0,
        "ended": None,
        "saves": False,
        "strategy": "single",
        "priority": 1.0,
        "urgent": False,
        "most_cores": None,
        "step": 1,
        "steps": None,
        "epoch": None,
        "epochs": None,
        "loss": 1.0,
        "nan": False,
        "losses": [1.0],
        "metrics": {},
        "entitled_cores": 1.0,
        "cpu_cores": 1.0,
        "memory_bytes": 1.0,
        "gpu_busy": None,
        "gpu_memory_bytes": None,
        "threads": 1,
        "tasks": [TASK],
    }
    return plain | fields


def snapshot(*jobs: dict[str, Any], run: str = "r", t: float = 1.0) -> dict[str, Any]:
    return {"type": "snapshot", "run": run, "t": t, "policy": "equal", "jobs": list(jobs)}


def event(number: int, run: str = "r") -> dict[str, Any]:
    return {
        "type": "event",
        "run": run,
        "t": 1.0,
        "kind": "note",
        "text": f"{number}",
        "job": "a",
        "task": None,
        "why": {},
    }


def sent(subscription: Subscription) -> list[tuple[str, Any]]:
    """Kind and value of each message that waits for a browser."""
    messages = []
    while not subscription.messages.empty():
        message = subscription.messages.get_nowait()
        assert message is not None
        kind, data = message.decode().rstrip("\n").split("\n")
        messages.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return messages


def test_a_browser_is_sent_all_once_and_then_what_changed() -> None:
    board = Board()
    board.take(snapshot(job("a"), job("b")))
    browser = board.subscribe(None)
    [(kind, everything)] = sent(browser)
    assert kind == "all"
    assert set(everything["runs"]["r"]["jobs"]) == {"a", "b"}
    board.take(snapshot(job("a", step=2), job("b")))
    board.publish()
    [(kind, change)] = sent(browser)
    assert (kind, change["runs"]["r"]["jobs"]) == ("change", {"a": {"step": 2}})
    board.publish()
    assert sent(browser) == []


def test_tasks_are_sent_to_pages_of_their_run_alone() -> None:
    board = Board()
    board.take(snapshot(job("a")))
    board.take(snapshot(job("a"), run="s"))
    every, one = board.subscribe(None), board.subscribe("r")
    assert "tasks" not in sent(every)[0][1]["runs"]["r"]["jobs"]["a"]
    [(_, everything)] = sent(one)
    assert set(everything["runs"]) == {"r"}
    assert everything["runs"]["r"]["jobs"]["a"]["tasks"][0]["task"] == "worker-0"
    board.take(snapshot(job("a", step=2), run="s"))
    board.publish()
    assert sent(one)[0][1]["runs"] == {}
    assert sent(every)[0][1]["runs"]["s"]["jobs"] == {"a": {"step": 2}}


def test_what_was_looked_up_stays_when_the_hub_tells_more() -> None:
    board = Board()
    board.take(snapshot(job("a")))
    board.add_to_job("r", "a", verdict={"kind": "healthy"})
    board.take(snapshot(job("a", step=2)))
    assert board.state("r")["a"]["verdict"] == {"kind": "healthy"}
    assert board.state("r")["a"]["step"] == 2


def test_a_run_that_ended_or_whose_hub_died_is_taken_away() -> None:
    for ending in ("reported", "gone"):
        board = Board()
        board.take(snapshot(job("a")))
        browser = board.subscribe(None)
        sent(browser)
        board.take({**snapshot(job("a", state="killed")), "type": "end"})
        board.take({"type": ending, "run": "r"})
        board.publish()
        (_, end), (_, gone) = sent(browser)
        assert end["runs"]["r"]["jobs"] == {"a": {"state": "killed"}}
        assert gone["gone"] == ["r"]
        assert board.runs == ()


def test_a_browser_that_takes_in_nothing_holds_little_and_is_sent_all_anew() -> None:
    board = Board()
    board.take(snapshot(job("a")))
    slow = board.subscribe(None)
    for step in range(500):
        board.take(snapshot(job("a", step=step)))
        board.publish()
    held = sent(slow)
    assert len(held) < 100
    board.take(snapshot(job("a", step=999)))
    board.publish()
    [(kind, everything)] = sent(slow)
    assert (kind, everything["runs"]["r"]["jobs"]["a"]["step"]) == ("all", 999)


def test_events_and_losses_are_bounded() -> None:
    board = Board()
    board.take(snapshot(job("a", losses=[float(i) for i in range(10_000)])))
    for number in range(3 * MOST_EVENTS):
        board.take(event(number))
    [(_, everything)] = sent(board.subscribe(None))
    assert len(everything["events"]) == MOST_EVENTS
    assert everything["events"][-1]["text"] == f"{3 * MOST_EVENTS - 1}"
    losses = everything["runs"]["r"]["jobs"]["a"]["losses"]
    assert (len(losses), losses[-1]) == (MOST_LOSSES, 9999.0)


def test_what_happened_before_is_told_once() -> None:
    board = Board()
    board.take(snapshot(job("a")))
    board.take(event(2))
    [(_, everything)] = sent(browser := board.subscribe(None))
    [known] = everything["events"]
    board.add_past([{**known, "text": "1"}, known])
    board.publish()
    assert [told["text"] for told in sent(browser)[0][1]["events"]] == ["1"]
    [(_, everything)] = sent(board.subscribe(None))
    assert [told["text"] for told in everything["events"]] == ["1", "2"]


def test_a_hub_that_cannot_be_followed_is_told_until_it_can() -> None:
    board = Board()
    browser = board.subscribe(None)
    sent(browser)
    board.take({"type": "silent", "run": "", "text": "a hub of Headgate 9 is running"})
    board.publish()
    assert sent(browser)[0][1]["trouble"] == "a hub of Headgate 9 is running"
    board.take(snapshot(job("a")))
    board.publish()
    assert sent(browser)[0][1]["trouble"] == ""


def test_everybody_is_let_go_also_whose_place_is_full() -> None:
    board = Board()
    full, empty = board.subscribe(None), board.subscribe(None)
    while not full.messages.full():
        full.put(b"x")
    board.close()

    async def ends(browser: Subscription) -> bool:
        while await browser.messages.get() is not None:
            pass
        return True

    assert asyncio.run(ends(full))
    assert asyncio.run(ends(empty))


def test_runs_are_attached_once_their_hub_says_so_and_until_they_are_gone() -> None:
    board = Board()
    board.take({"type": "attached", "run": "r"})
    assert list(board.attached_runs) == []  # nothing is known of it yet
    board.take(snapshot(job(), run="r"))
    board.take(snapshot(job(), run="s"))
    assert (list(board.runs), list(board.attached_runs)) == (["r", "s"], ["r"])
    board.take({"type": "gone", "run": "r"})
    board.take(snapshot(job(), run="r"))
    assert list(board.attached_runs) == []
