"""Checkpoints that scripts saved by themselves, as a run recorded them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from headgate.model.endings import Checkpoint
from headgate.recorded.reader import RunReader
from headgate.recorded.rows import SCRIPT, CheckpointRow
from headgate.task import script_saves

_APART = 1.0
"""Fewest seconds between two checkpoints whose steps are unknown."""


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
        """Why it is not there and whole, as the end of a sentence; None: it is."""
        if self.is_begun:
            return "was being written anew"
        if self.checkpoint.node:
            return f"lies on node {self.checkpoint.node}, whose files this machine does not see"
        return script_saves.damage(self.checkpoint.path)


def saved(reader: RunReader, job: str) -> list[ScriptCheckpoint]:
    """The checkpoints that the script of a job saved, newest first; of one step, largest first."""
    latest: dict[str, CheckpointRow] = {}
    for row in reader.records(CheckpointRow, "task GLOB ?", [f"{job}/*"]):
        if row.own:
            latest.pop(row.path, None)
            latest[row.path] = row
    rows = list(latest.values())
    ends: dict[int, float] = {}  # when the last checkpoint of a step was saved
    for row in rows:
        ends[row.step] = max(row.t, ends.get(row.step, 0.0))
    newest = sorted(
        rows,
        key=lambda row: (ends[row.step] if row.step else row.t, row.bytes or 0),
        reverse=True,
    )
    return [
        ScriptCheckpoint(
            row.t,
            Checkpoint(row.path, row.step, row.epoch, row.position, own=True, node=row.node or ""),
            row.is_begun,
        )
        for row in newest
    ]


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often a script saves.

    Args:
        every: Median seconds from one checkpoint to the next; None: it has saved fewer than two.
        seconds: Median time that one takes; None: unknown.
    """

    every: float | None
    seconds: float | None


def rhythm(reader: RunReader, job: str) -> Rhythm:
    """How often the script of a job saves. Files of one step are one checkpoint."""
    ends: list[float] = []
    costs: list[float] = []
    former: CheckpointRow | None = None
    whole = "task GLOB ? AND own AND why = ?"
    for row in reader.records(CheckpointRow, whole, [f"{job}/*", SCRIPT]):
        if former is None or not _is_same(former, row):
            ends.append(row.t)
            costs.append(0.0)
        ends[-1] = row.t
        costs[-1] += row.seconds or 0.0
        former = row
    gaps = [later - before for before, later in pairwise(ends)]
    return Rhythm(median(gaps) if gaps else None, median(costs) if any(costs) else None)


def _is_same(former: CheckpointRow, row: CheckpointRow) -> bool:
    return row.step == former.step if row.step else row.t - former.t < _APART


def newest_whole(reader: RunReader, job: str) -> ScriptCheckpoint | None:
    """The newest whole checkpoint that the script of a job saved; None: there is none."""
    return next((own for own in saved(reader, job) if own.damage() is None), None)
