"""Checkpoints that scripts saved by themselves, as a run recorded them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headgate.model.endings import Checkpoint
from headgate.recorded.rows import CheckpointRow
from headgate.recorded.store import RunReader
from headgate.task import script_saves


@dataclass(frozen=True, slots=True)
class ScriptCheckpoint:
    """A checkpoint that a script saved by itself.

    Args:
        t: When it was saved, in seconds of the run.
        checkpoint: The checkpoint.
        is_begun: Whether its script has begun to write it anew, and has not ended.
    """

    t: float
    checkpoint: Checkpoint
    is_begun: bool = False

    def damage(self) -> str | None:
        """Why it is not whole, as the end of a sentence; None: it is."""
        if self.is_begun:
            return "was being written anew"
        return script_saves.damage(Path(self.checkpoint.path))


def saved(reader: RunReader, job: str) -> list[ScriptCheckpoint]:
    """The checkpoints that the script of a job saved, newest first; of one step, largest first."""
    latest: dict[str, CheckpointRow] = {}
    for row in reader.records(CheckpointRow, "task GLOB ?", [f"{job}/*"]):
        if row.own:
            latest.pop(row.path, None)
            latest[row.path] = row
    rows = list(latest.values())
    ends = [_last_of_step(rows, row) for row in rows]
    newest = sorted(zip(ends, rows), key=lambda pair: (pair[0], pair[1].bytes or 0), reverse=True)
    return [
        ScriptCheckpoint(
            row.t, Checkpoint(row.path, row.step, row.epoch, row.position, own=True), row.is_begun
        )
        for _, row in newest
    ]


def _last_of_step(rows: Sequence[CheckpointRow], of: CheckpointRow) -> float:
    """When the last checkpoint of the same step was saved."""
    if not of.step:
        return of.t
    return max(row.t for row in rows if row.step == of.step)


def newest_whole(reader: RunReader, job: str) -> ScriptCheckpoint | None:
    """The newest whole checkpoint that the script of a job saved; None: there is none."""
    return next((own for own in saved(reader, job) if own.damage() is None), None)
