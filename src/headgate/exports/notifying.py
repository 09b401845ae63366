"""Deliver the messages about a run: a process of its own, whose libraries and waits delay no hub.

Its standard input gives a line of JSON with the recipients, then one for each message. Its output
gets a line for each recipient that fails, and ends soon after the input. What is left is delivered
for a while, also after the death of the hub.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from headgate.exports.delivering import DeliveryError, deliver, new_id
from headgate.model.recipients import Notice, Occasion, Recipient
from headgate.model.records import parse

ANSWER_SECONDS = 5.0
"""Most seconds from the end of the input to the end of the output."""
_VERDICT_SECONDS = 15.0
"""Seconds between two looks at what holds jobs back."""
_MOST_ROWS = 2000
_AGAIN_SECONDS = (1.0, 30.0)
"""First and longest wait before another attempt."""
_TRY_SECONDS = 120.0
"""How long a recipient that fails is tried."""


class Delivery(threading.Thread):
    """Delivers the messages of one recipient, one after the other.

    Args:
        number: Its number among the recipients.
        recipient: The recipient.
        faults: Descriptor that a line of JSON is written to if the recipient misses a message.
    """

    def __init__(self, number: int, recipient: Recipient, faults: int) -> None:
        super().__init__(name=recipient.name, daemon=True)
        self.waiting: queue.SimpleQueue[Notice | None] = queue.SimpleQueue()
        self.answered = threading.Event()
        """Set while its last attempt has failed, and at its end."""
        self._number, self._recipient, self._faults = number, recipient, faults
        self._error: str | None = None
        self._until = 0.0
        self._is_told = False
        self._telling = threading.Lock()

    def run(self) -> None:
        while (notice := self.waiting.get()) is not None:
            self._deliver(notice)
        self._is_told = True
        self.answered.set()

    def tell(self) -> None:
        """Tell that the recipient misses a message, unless that is told or it misses none."""
        with self._telling:  # the output may end once this returns
            if self._is_told:
                return
            self._is_told = True
            fault = {"recipient": self._number, "error": self._error or "no answer yet"}
            with suppress(OSError):  # the hub is gone
                os.write(self._faults, json.dumps(fault).encode() + b"\n")

    def _deliver(self, notice: Notice) -> None:
        id = new_id()
        pause, longest = _AGAIN_SECONDS
        while not self._takes(notice, id):
            if time.monotonic() + pause > self._until:
                self.tell()
                return
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _takes(self, notice: Notice, id: str) -> bool:
        try:
            deliver(self._recipient, notice, id)
        except DeliveryError as error:
            text, is_final = str(error), error.is_final
        except Exception as error:  # noqa: BLE001  # libraries have classes of their own
            text, is_final = f"{error!r:.300}", True
        else:
            self._error = None
            self.answered.clear()
            return True
        if is_final:
            self._until = 0.0
        elif self._error is None:
            self._until = time.monotonic() + _TRY_SECONDS
        self._error = text
        self.answered.set()
        return False


class Verdicts(threading.Thread):
    """Looks at what holds jobs back, and tells when that changes.

    Args:
        run: The run's folder.
        deliveries: Of the recipients of each job's verdicts.
    """

    def __init__(self, run: Path, deliveries: Mapping[str, Sequence[Delivery]]) -> None:
        super().__init__(name="verdicts", daemon=True)
        self._run, self._deliveries = run, deliveries
        self._known: dict[str, tuple[str, str]] = {}
        self._seen: dict[str, str] = {}

    def run(self) -> None:
        os.nice(10)  # of this thread alone
        while True:
            time.sleep(_VERDICT_SECONDS)
            with suppress(Exception):  # the next look may succeed
                for notice in self.look():
                    for delivery in self._deliveries[str(notice.job)]:
                        delivery.waiting.put(notice)

    def look(self) -> Iterator[Notice]:
        """The changes since the last look. A verdict counts once two looks agree."""
        from headgate.recorded import runs
        from headgate.recorded.recording import read
        from headgate.reports.explained import explained, verdict_as_json

        for account in explained(read(self._run / runs.STORE, most=_MOST_ROWS)):
            verdict = verdict_as_json(account)
            kind, why = verdict["kind"], verdict["why"]
            former, is_settled = self._known.get(account.job), self._seen.get(account.job) == kind
            self._seen[account.job] = kind
            is_wanted = account.job in self._deliveries and account.record.ended is None
            if not is_wanted or not is_settled:
                continue
            self._known[account.job] = kind, why
            if former is not None and former[0] != kind:
                yield Notice(
                    occasion=Occasion.VERDICT,
                    run=self._run.name,
                    host=runs.host(),
                    at=time.time(),
                    job=account.job,
                    state="running",
                    verdict=(why, former[1]),
                )


def main(run: str) -> None:
    """Deliver the messages about a run.

    Args:
        run: Its folder.
    """
    faults = os.dup(1)
    os.dup2(2, 1)  # libraries print
    first = json.loads(sys.stdin.readline())
    deliveries = [
        Delivery(number, parse(Recipient, facts), faults)
        for number, facts in enumerate(first["recipients"])
    ]
    for delivery in deliveries:
        delivery.start()
    verdicts = {job: [deliveries[i] for i in to] for job, to in first["verdicts"].items()}
    if verdicts:
        Verdicts(Path(run), verdicts).start()
    for line in sys.stdin:
        entry = json.loads(line)
        for number in entry["to"]:
            deliveries[number].waiting.put(parse(Notice, entry["notice"]))
    for delivery in deliveries:
        delivery.waiting.put(None)
    now = time.monotonic()
    for delivery in deliveries:
        delivery.answered.wait(max(now + ANSWER_SECONDS - time.monotonic(), 0.0))
        delivery.tell()
    os.dup2(2, faults)
    for delivery in deliveries:
        delivery.join(max(now + _TRY_SECONDS - time.monotonic(), 0.0))
    os._exit(0)  # a library that does not come back is left


if __name__ == "__main__":
    main(*sys.argv[1:])
