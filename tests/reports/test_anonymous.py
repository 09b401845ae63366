"""What tells who and where is replaced, the same thing by the same word."""

from __future__ import annotations

from headgate.reports.anonymous import Anonymous


def test_the_same_thing_has_the_same_word() -> None:
    anonymous = Anonymous()
    anonymous.hide("user", "marie")
    text = anonymous.text("/home/marie/a.py and /home/marie/b.py, then /home/marie/a.py of marie")
    assert text == "path-1 and path-2, then path-1 of user-1"


def test_a_job_keeps_its_form_and_loses_what_its_user_typed() -> None:
    anonymous = Anonymous()
    anonymous.hide("host", "fermi")
    anonymous.hide("path", "work", "no")
    spec = {"args": ["5", ""], "env": {"TOKEN": "x"}, "priority": 2.0, "retries": 5}
    spec |= {"trial": {"sweep": "a", "parameters": {"data": "x"}}}
    value = {"type": "fermi", "run": "r5", "spec": spec, "held": {"fermi": 5}, "why": "5 left"}
    value |= {"reason": {"kind": "work-unknown"}, "node": {"kind": "work"}}
    hidden = {**spec, "args": ["argument-1", ""], "env": {"TOKEN": "value-1"}}
    hidden |= {"trial": {"sweep": "a", "parameters": {"data": "value-1"}}}
    for _ in range(2):  # what is hidden in a job is not looked for elsewhere
        shown = {"spec": hidden, "held": {"host-1": 5}, "node": {"kind": "path-1"}}
        assert anonymous.value(value) == {**value, **shown}
