"""What held the jobs of a run back, for `headgate status`; stored with ended runs.

It needs the whole record, which takes seconds for very many jobs. After the end it no longer
changes.
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

    from headgate.diagnosis.account import Account
    from headgate.recorded.recording import Recording

FILE = "verdicts.json"
_FEW = 24
"""Most jobs of a live run that are examined: each of very many takes a hundredth of a second."""
RECENT_SECONDS = 3600.0
"""Causes cover only the last part of a live run of this length, so that `status` stays fast on long
runs.
"""


@dataclass(frozen=True, slots=True)
class RunVerdicts:
    """What held the jobs of a run back.

    Args:
        lines: Sentences about that, each with whether its job failed.
        verdicts: Verdicts of its jobs, by name, as fields of `Verdict`.
        accounts: Where the time of its jobs went, by name, as `account_as_json` gives it.
        recent: Whether they cover only the last hour.
    """

    lines: tuple[tuple[str, bool], ...]
    verdicts: Mapping[str, Mapping[str, Any]]
    accounts: Mapping[str, Mapping[str, Any]]
    recent: bool

    @classmethod
    def of(cls, run: Recording, accounts: Sequence[Account]) -> RunVerdicts:
        from headgate.model.units import counted
        from headgate.reports.explained import account_as_json, as_lines, verdict_as_json

        begun = [account for account in accounts if account.elapsed > 0.0]
        verdicts = {account.job: verdict_as_json(account) for account in begun}
        times = {account.job: account_as_json(account) for account in begun}
        lines = as_lines(accounts)
        if run.unread:
            more = (
                f"{counted(run.unread, 'more job')} of this run: `headgate explain` tells of "
                "all, and takes longer."
            )
            lines.append((more, False))
        return cls(tuple(lines), verdicts, times, run.since > 0.0)


def read(folder: Path) -> RunVerdicts:
    """Read the verdicts of a run: the stored ones, or else from its store as of now.

    Raises:
        StorageError: The store cannot be read.
    """
    return _kept(folder) or _made(folder)


def keep(run: Recording, accounts: Sequence[Account]) -> None:
    """Store the verdicts of an ended run.

    Args:
        run: The run.
        accounts: Accounts of its jobs over their whole time.

    Raises:
        OSError: The file cannot be written.
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
    """The verdicts stored by this version after the run's end; None: none that can be read."""
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
