"""Server 0 hands on what the lowest worker gives to all, where workers do not step together."""

from __future__ import annotations

from typing import Any

from headgate.torch.ps.calls import Clerk, Question
from headgate.torch.ps.views import View


class Broadcasts(Clerk):
    """Values by number: kept until all workers that count have them."""

    operations = frozenset({"broadcast.give", "broadcast.take"})

    def __init__(self) -> None:
        self._values: dict[int, Any] = {}
        self._taken: dict[int, set[int]] = {}
        self._waiting: dict[int, list[Question]] = {}
        self._active: frozenset[int] = frozenset()

    def asked(self, operation: str, question: Question) -> None:
        number = question.content["number"]
        if operation == "broadcast.give":
            self._values.setdefault(number, question.content["value"])
            question.answer()
            for waiting in self._waiting.pop(number, []):
                self._hand(number, waiting)
            self._taken.setdefault(number, set()).add(question.worker)
            self._drop()
        elif number in self._values:
            self._hand(number, question)
            self._drop()
        else:
            self._waiting.setdefault(number, []).append(question)

    def entered(self, view: View) -> None:
        self._active = view.active
        self._drop()

    def _hand(self, number: int, question: Question) -> None:
        question.answer(value=self._values[number])
        self._taken.setdefault(number, set()).add(question.worker)

    def _drop(self) -> None:
        for number in [n for n in self._values if self._active <= self._taken.get(n, set())]:
            del self._values[number], self._taken[number]
