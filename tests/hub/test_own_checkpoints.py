"""Which of its script's checkpoints a job can resume from on a node."""

from __future__ import annotations

from pathlib import Path

from headgate.hub.state.job import LiveJob
from headgate.model.endings import Checkpoint
from headgate.model.jobs import Job


def own(path: Path, step: int, node: str = "") -> Checkpoint:
    return Checkpoint(str(path), step, 0, None, own=True, node=node)


def test_a_checkpoint_of_another_node_is_not_resumed_from(tmp_path: Path) -> None:
    live = LiveJob(Job(name="a", run="true"), 0, 0.0)
    far = own(tmp_path / "far.pt", 20, "b")
    live.keep_own(far, 100)
    assert live.resumable(far, "b") == far
    assert live.resumable(far, "c") is None


def test_the_largest_of_a_step_is_resumed_from_and_no_cut_one(tmp_path: Path) -> None:
    live = LiveJob(Job(name="a", run="true"), 0, 0.0)
    first, state, weights = (tmp_path / f"{name}.pt" for name in ("first", "state", "weights"))
    for path in (first, state, weights):
        path.write_bytes(b"whole")
    live.keep_own(own(first, 10), 100)
    live.keep_own(own(state, 20), 100)
    live.keep_own(own(weights, 20), 50)
    assert live.resumable(live.checkpoint, "a") == own(state, 20)
    state.unlink()
    weights.write_bytes(b"")
    assert live.resumable(live.checkpoint, "a") == own(first, 10)
