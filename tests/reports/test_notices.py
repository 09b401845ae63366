"""Messages in words."""

from __future__ import annotations

import pytest

from headgate.model.reasons import Reason, ReasonKind
from headgate.model.recipients import BestJob, Notice, Occasion
from headgate.reports.notices import message, payload

JOB = Notice(occasion=Occasion.END, run="r", host="h", job="a", state="done", seconds=90.0)


@pytest.mark.parametrize(
    ("notice", "title", "text"),
    [
        (JOB, "job a is done", "after 1 min 30 s\non h: headgate explain r"),
        (
            Notice(
                occasion=Occasion.HANG,
                job="a",
                state="running",
                reason=Reason(
                    ReasonKind.NO_STEP, {"seconds": 60.0, "is_idle": False, "where": "x"}
                ),
                step=3,
            ),
            "job a makes no step",
            "no step for 1 min",
        ),
        (
            Notice(occasion=Occasion.VERDICT, job="a", verdict=("waits for input", "is healthy")),
            "job a: waits for input",
            "before: is healthy",
        ),
        (
            Notice(
                occasion=Occasion.RUN,
                run="r",
                jobs={"done": 8, "failed": 2},
                best=BestJob(job="b", metric="acc", value=0.9, arguments=("--lr", "1")),
                left_out=3,
            ),
            "run r has ended: 8 done, 2 failed",
            "best: b, acc 0.9 (--lr 1)\n3 messages about jobs were left out",
        ),
    ],
)
def test_a_message_says_what_happened(notice: Notice, title: str, text: str) -> None:
    sent = message(notice)
    assert sent.title == title
    assert sent.text.startswith(text)
    assert payload(notice)["occasion"] == notice.occasion
