"""Job files with mistakes, as somebody who types `headgate run` is told;
tests/config/test_jobfile.py has each alone.
"""

from __future__ import annotations

import re

from tests.hub.user import User


def test_every_mistake_is_told_at_once_and_nothing_is_started(user: User) -> None:
    user.write("a.py", "")
    user.write(
        "jobs.yaml",
        """\
        jobs:
          - {name: first, script: a.py, wokdir: .}
          - name: second
            script: missing.py
            limits:
              cores: -1
              memory: -2GiB
          - {name: first, script: a.py}
          - {name: hen, script: a.py, after: egg}
          - {name: egg, script: a.py, after: hen}
        """,
    )
    for words in (("jobs.yaml",), ("jobs.yaml", "--dry-run"), ("jobs.yaml", "--json")):
        told = user.types("run", *words, code=2)
        assert told.stdout == ""
        first, *lines = told.message.splitlines()
        assert re.fullmatch(r"jobs\.yaml: \d problems", first)
        for line, found in (
            (2, "unknown key 'wokdir'; did you mean 'workdir'"),
            (4, "'missing.py', which is not a file"),
            (6, "found -1; "),
            (7, "found '-2GiB'; "),
            (8, "found 'first', as on line 2"),
            (9, "found a cycle: hen after egg after hen"),
        ):
            assert any(
                text.startswith(f"  line {line}: jobs[") and found in text for text in lines
            ), lines
    assert user.json("ps") == []
    assert user.traces.hub() is None


def test_what_is_no_yaml_is_told_with_its_line(user: User) -> None:
    user.write("jobs.yaml", "jobs:\n\t- a")
    assert user.types("run", "jobs.yaml", code=2).message.splitlines()[1].startswith("  line 2: ")
    user.write("jobs.yaml", "")
    assert "jobs" in user.types("run", "jobs.yaml", code=2).message
    (user.folder / "jobs.yaml").write_bytes(b"\xff\xfe\x00")
    assert user.types("run", "jobs.yaml", code=2).message
