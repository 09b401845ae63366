"""What the lowest worker gives reaches all, also when the server is started again in between:
without any process.
"""

from __future__ import annotations

from typing import Any, cast

from headgate.torch.ps.asynchronous.coordinator import Broadcasts
from headgate.torch.ps.transport.requests import Request
from headgate.torch.ps.transport.views import Member, View

VIEW = View(0, 3, {index: Member(index, "here", 1, True, "", False) for index in range(3)})


class Asked:
    """A request, and what was answered."""

    def __init__(self, worker: int, **content: Any) -> None:
        self.worker = worker
        self.content = content
        self.answers: list[dict[str, Any]] = []

    def answer(self, **content: Any) -> None:
        self.answers.append(content)


def ask(handler: Broadcasts, operation: str, worker: int, **content: Any) -> Asked:
    request = Asked(worker, **content)
    handler.handle(f"broadcast.{operation}", cast(Request, request))
    return request


def handler() -> Broadcasts:
    made = Broadcasts()
    made.entered(VIEW)
    return made


def test_what_is_given_is_handed_to_who_asked_before_and_to_who_asks_after() -> None:
    server = handler()
    early = ask(server, "take", 1, number=0)
    assert early.answers == []
    given = ask(server, "give", 0, number=0, value="model")
    assert early.answers == [{"value": "model"}]
    assert given.answers == []  # worker 2 has not got it
    assert ask(server, "take", 2, number=0).answers == [{"value": "model"}]
    assert given.answers == [{}]


def test_a_server_that_was_started_again_is_given_again_what_somebody_has_not_got() -> None:
    """As `Caller` does: first greetings, then what the former life did not answer."""
    server = handler()
    ask(server, "had", 0, count=1)
    ask(server, "had", 1, count=1)
    late = ask(server, "take", 2, number=0)
    given = ask(server, "give", 0, number=0, value="model")
    assert late.answers == [{"value": "model"}]
    assert given.answers == [{}]


def test_who_gives_waits_for_nobody_that_is_gone() -> None:
    server = handler()
    given = ask(server, "give", 0, number=0, value="model")
    ask(server, "take", 1, number=0)
    server.entered(View(1, 3, {index: VIEW.workers[index] for index in range(2)}))
    assert given.answers == [{}]
