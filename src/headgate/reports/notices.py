"""Messages about jobs and runs, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headgate.model.reason_text import in_words
from headgate.model.recipients import Notice, Occasion
from headgate.model.records import plain
from headgate.model.units import say_seconds, say_text

_STATES = {"done": "is done", "failed": "failed", "killed": "was killed", "stopped": "was stopped"}


@dataclass(frozen=True, slots=True)
class NoticeText:
    """A message in words: a line, and what there is to say beside it."""

    title: str
    text: str


def message(notice: Notice) -> NoticeText:
    """Say a notice."""
    lines = [line for line in _lines(notice) if line]
    return NoticeText(_title(notice), "\n".join(lines))


def payload(notice: Notice) -> dict[str, Any]:
    """A notice as JSON: its facts beside its words."""
    words = message(notice)
    facts: dict[str, Any] = plain(notice)
    return {"title": words.title, "text": words.text, **facts}


def _title(notice: Notice) -> str:
    job = f"job {notice.job}"
    match notice.occasion:
        case Occasion.TEST:
            return "a test by headgate config test"
        case Occasion.HANG:
            return f"{job} makes no step"
        case Occasion.VERDICT:
            return f"{job}: {notice.verdict[0]}"
        case Occasion.GOAL:
            return f"{job} reached its goal"
        case Occasion.RUN if notice.job is None:
            counts = ", ".join(f"{count} {state}" for state, count in notice.jobs.items())
            return f"run {notice.run} has ended: {counts}"
    return f"{job} {_STATES.get(notice.state or '', f'is {notice.state}')}"


def _lines(notice: Notice) -> Iterator[str]:
    if notice.verdict[1:]:
        yield f"before: {notice.verdict[1]}"
    if notice.reason is not None:
        yield say_text(in_words(notice.reason))
    progress = [f"step {notice.step}"] if notice.step is not None else []
    if notice.metric is not None and notice.value is not None:
        progress.append(f"{notice.metric} {notice.value:.6g}")
    if notice.seconds is not None:
        progress.append(f"after {say_seconds(notice.seconds)}")
    yield ", ".join(progress)
    if (best := notice.best) is not None:
        arguments = f" ({' '.join(best.arguments)})" if best.arguments else ""
        yield f"best: {best.job}, {best.metric} {best.value:.6g}{arguments}"
    if notice.left_out:
        yield f"{notice.left_out} messages about jobs were left out"
    if notice.run:
        yield f"on {notice.host}: headgate explain {notice.run}"
