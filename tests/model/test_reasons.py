"""Reasons, and the page that lists them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headgate.model.reason_text import in_words
from headgate.model.reasons import Reason, ReasonKind, Refusal, RefusalKind
from headgate.model.refusal_text import refusal_in_words

PAGE = Path(__file__).parents[2] / "docs" / "reasons.md"
ROW = re.compile(r"^\| `([a-z-]+)` \| `+ ?(\{.*?\}) ?`+ \| `(?:` )?(.*?)(?: `)?` \|$", re.MULTILINE)
ROWS = [(kind, facts, text) for kind, facts, text in ROW.findall(PAGE.read_text())]


def test_the_page_has_each_kind_once() -> None:
    assert sorted(kind for kind, _, _ in ROWS) == sorted([*ReasonKind, *RefusalKind])


@pytest.mark.parametrize(("kind", "facts", "sentence"), ROWS, ids=[kind for kind, _, _ in ROWS])
def test_a_reason_reads_as_its_page_says(kind: str, facts: str, sentence: str) -> None:
    value = {"kind": kind, "facts": json.loads(facts)}
    outer = Reason.read({"kind": "no-plan", "facts": {"of": value}})
    reason = outer.facts["of"]
    words = refusal_in_words(reason) if isinstance(reason, Refusal) else in_words(reason)
    assert words == sentence
    assert outer.plain()["facts"]["of"] == value


def test_a_fact_that_is_not_known_is_left_out() -> None:
    reason = Reason.of(ReasonKind.STARTED, attempt=0, resumed_from=None, beside=())
    assert reason.facts == {"attempt": 0}


def test_a_kind_of_a_later_version_is_refused() -> None:
    with pytest.raises(ValueError, match="later"):
        Reason.read({"kind": "later", "facts": {}})


@pytest.mark.parametrize(
    ("rule", "value", "words"),
    [
        ("asha", 2.0, "it has loss 2 at step 40, and needs 1 to be kept, by the rule `asha`"),
        ("median", 2.0, "it has loss 2 at best by step 40, and needs 1 to be kept"),
        ("median", None, "its loss is no number"),
    ],
)
def test_a_job_that_ended_early_is_said_why(rule: str, value: float | None, words: str) -> None:
    facts = {"rule": rule, "metric": "loss", "best": 1.0, "step": 40.0, "compared": 8}
    assert words in in_words(Reason.of(ReasonKind.STOPPED_EARLY, value=value, **facts))
