"""What the bridge's end of an agent passes on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray", reason="engine `ray` needs Ray: pip install 'headgate[ray]'")

from headgate.engines.ray.files import Files
from headgate.engines.ray.link import Link
from headgate.engines.ray.wire import Exited, Left, Report, Saved
from headgate.events import Exit


class Dying(Link):
    """Of an agent that dies while a file of four bytes is read from its node: just before it has answered, or just
    after."""

    answers = False

    def _ask(self, method: Any, *arguments: Any) -> Any:
        if arguments[0] == "sizes":
            return {"": 4}
        self.lose("it died")
        if not self.answers:
            raise OSError("it died")
        return b"data"


@pytest.mark.parametrize("answers", [False, True])
def test_nothing_is_told_of_tasks_once_their_node_is_said_to_be_gone(tmp_path: Path, answers: bool) -> None:
    told: list[Report] = []
    link = Dying("b", "id", SimpleNamespace(file=None), told.append, None, Files(), lambda _: None, 90.0)
    link.answers = answers
    saved = Saved("r/a/worker-0", {"type": "checkpoint", "path": "/there/step-1.pt"}, str(tmp_path / "step-1.pt"))
    for event in (saved, Exited("r/a/worker-0", Exit(code=0))):
        link._pass_on(event)
    assert told == [Left("b", "it died")]
