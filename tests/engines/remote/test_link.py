"""What the other end of an agent passes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from headgate.engines.remote.files import Files
from headgate.engines.remote.link import AgentHandle, AgentLink, Lane
from headgate.engines.remote.wire import CheckpointMessage, Exited, NodeGone, Report, TaskMessage
from headgate.isolation.base import Launch
from headgate.model.endings import Exit
from headgate.model.identifiers import TaskId

NOBODY = cast(AgentHandle, None)
"""These links answer their calls by themselves."""


class Dying(AgentLink):
    """Of an agent that dies while a file of four bytes is read from its node: just before it has
    answered, or just after.
    """

    answers = False

    def _ask(self, lane: Lane, method: str, *arguments: Any) -> Any:
        if method == "sizes":
            return {"": 4}
        self.lose("it died")
        if not self.answers:
            raise OSError("it died")
        return b"data"


@pytest.mark.parametrize("answers", [False, True])
def test_nothing_is_told_of_tasks_once_their_node_is_said_to_be_gone(
    tmp_path: Path, answers: bool
) -> None:
    told: list[Report] = []
    link = Dying("b", "id", NOBODY, told.append, None, Files(), lambda _: None, 90.0)
    link.answers = answers
    link.saves[TaskId("r/a/worker-0")] = str(tmp_path)
    saved = CheckpointMessage(
        TaskId("r/a/worker-0"), {"type": "checkpoint", "path": "/there/step-1.pt"}, "step-1.pt"
    )
    for event in (saved, Exited(TaskId("r/a/worker-0"), Exit(code=0))):
        link._pass_on(event)
    assert told == [NodeGone("b", "it died")]


class Lying(AgentLink):
    """Of an agent that says of any path that these parts are there."""

    parts: tuple[str, ...] = ("",)

    def _ask(self, lane: Lane, method: str, *arguments: Any) -> Any:
        return dict.fromkeys(self.parts, 4) if method == "sizes" else b"data"


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("../../other/checkpoints/step-1.pt", ""),
        ("../step-1.pt", ""),
        ("/tmp/step-1.pt", ""),
        ("away/step-1.pt", ""),
        ("step-1", "../../step-2.pt"),
        ("step-1", "/tmp/step-1.pt"),
        ("step-1", "../../away/x"),
        ("step-1.pt", "well"),
    ],
)
def test_a_node_writes_nowhere_but_into_its_task_s_folder_of_checkpoints(
    tmp_path: Path, name: str, part: str
) -> None:
    folder = tmp_path / "run" / "jobs" / "a" / "checkpoints"
    for made in (folder, tmp_path / "run" / "jobs" / "other" / "checkpoints", tmp_path / "away"):
        made.mkdir(parents=True)
    (folder / "away").symlink_to(tmp_path / "away")
    before = sorted(tmp_path.rglob("*"))
    told: list[Report] = []
    here = Files()
    link = Lying("b", "id", NOBODY, told.append, None, here, lambda _: None, 90.0)
    link.parts = (part,)
    link.saves[TaskId("r/a/worker-0")] = str(folder)
    here.allow(
        Launch(
            TaskId("r/a/worker-0"),
            ("true",),
            {"HEADGATE_CHECKPOINTS": str(folder)},
            str(tmp_path),
            1,
        )
    )
    link._pass_on(
        CheckpointMessage(
            TaskId("r/a/worker-0"), {"type": "checkpoint", "path": f"/there/{name}"}, name
        )
    )
    [said] = told
    assert isinstance(said, TaskMessage)
    if part == "well":
        assert said.message == {"type": "checkpoint", "path": str(folder / name)}
        assert (folder / name / part).read_bytes() == b"data"
    else:
        assert said.message["type"] == "checkpoint_failed"
        assert sorted(tmp_path.rglob("*")) == before
        assert not Path("/tmp/step-1.pt").exists()
