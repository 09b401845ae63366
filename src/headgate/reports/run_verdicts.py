"""What held the jobs of a run back, as `headgate status` tells it; kept with a run that has ended.

It is made of all that was recorded, which takes seconds of very many jobs, and does not change any
more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate import __version__
from headgate.recorded import runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.diagnosis.accounts import Account
    from headgate.recorded.recording import Recording

FILE = "verdicts.json"
_FEW = 24
"""Jobs of a run that goes on which are looked at: what each of very many lost takes a hundredth of
a second.
"""
RECENT_SECONDS = 3600.0
"""It is told of so much of the run, so that a long one is told of as fast as a short one."""


@dataclass(frozen=True, slots=True)
class RunVerdicts:
    """What held the jobs of a run back.

    Args:
        lines: What is said of that, and whether it is of a job that failed.
        verdicts: Those of its jobs, by name; the fields of `Verdict`.
        recent: Whether it is of the last hour alone.
    """

    lines: tuple[tuple[str, bool], ...]
    verdicts: Mapping[str, Mapping[str, Any]]
    recent: bool

    @classmethod
    def of(cls, run: Recording, accounts: Sequence[Account]) -> RunVerdicts:
        from headgate.reports.explained import as_lines, verdict_as_json
        from headgate.reports.words import counted

        verdicts = {
            account.job: verdict_as_json(account) for account in accounts if account.elapsed > 0.0
        }
        lines = as_lines(accounts)
        if run.unread:
            more = (
                f"{counted(run.unread, 'job')} more of this run: `headgate explain` tells of "
                "all, and takes longer."
            )
            lines.append((more, False))
        return cls(tuple(lines), verdicts, run.since > 0.0)


def read(folder: Path) -> RunVerdicts:
    """That of a run in a folder: as it was kept, or else as its store tells now.

    Raises:
        StorageError: The store cannot be read.
    """
    return _kept(folder) or _made(folder)


def keep(run: Recording, accounts: Sequence[Account]) -> None:
    """Keep that of a run that has ended, given the accounts of its jobs over all of its time.

    Raises:
        OSError: It cannot be written.
    """
    verdicts = RunVerdicts.of(run, accounts) if run.seconds <= RECENT_SECONDS else _made(run.folder)
    kept = {
        "headgate": __version__,
        **{name: getattr(verdicts, name) for name in RunVerdicts.__slots__},
    }
    fresh = run.folder / f".{FILE}"
    fresh.write_text(json.dumps(kept))
    fresh.replace(run.folder / FILE)


def _kept(folder: Path) -> RunVerdicts | None:
    """What was kept by this version, once the run had ended; None: nothing that can be read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads((folder / FILE).read_bytes())
        if kept.pop("headgate") == __version__:
            return RunVerdicts(
                tuple((str(text), bool(failed)) for text, failed in kept.pop("lines")), **kept
            )
    return None


def _made(folder: Path) -> RunVerdicts:
    from headgate.recorded.recording import read as recorded
    from headgate.reports.explained import explained

    run = recorded(folder / runs.STORE, RECENT_SECONDS, few=_FEW)
    return RunVerdicts.of(run, explained(run))
