"""Server 0 hands on what the lowest worker gives to all, where workers do not step together."""

from __future__ import annotations

from typing import Any

from headgate.torch.ps.calls import Clerk, Question
from headgate.torch.ps.views import View


class Broadcasts(Clerk):
    """Values, numbered from 0 in an order that is the same for all: kept until all workers that count have them.

    Whoever gives one is answered then, so that it gives it again to a server that was started again before; the others
    tell such a server how many they have had.
    """

    operations = frozenset({"broadcast.give", "broadcast.take", "broadcast.had"})

    def __init__(self) -> None:
        self._values: dict[int, Any] = {}
        self._givers: dict[int, list[Question]] = {}
        self._waiting: dict[int, list[Question]] = {}
        self._had: dict[int, int] = {}
        self._active: frozenset[int] = frozenset()

    def asked(self, operation: str, question: Question) -> None:
        if operation == "broadcast.had":
            self._had[question.worker] = question.content["count"]
            question.answer()
        elif operation == "broadcast.give":
            number = question.content["number"]
            self._values.setdefault(number, question.content["value"])
            self._givers.setdefault(number, []).append(question)
            self._had[question.worker] = number + 1
            for waiting in self._waiting.pop(number, []):
                self._hand(number, waiting)
        elif (number := question.content["number"]) in self._values:
            self._hand(number, question)
        else:
            self._waiting.setdefault(number, []).append(question)
        self._drop()

    def entered(self, view: View) -> None:
        self._active = view.active
        self._drop()

    def _hand(self, number: int, question: Question) -> None:
        question.answer(value=self._values[number])
        self._had[question.worker] = number + 1

    def _drop(self) -> None:
        everybody = min((self._had.get(worker, 0) for worker in self._active), default=0)
        for number in [number for number in self._values if number < everybody]:
            del self._values[number]
            for giver in self._givers.pop(number):
                giver.answer()
