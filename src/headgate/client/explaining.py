"""What held the jobs of a run back: the results of `explain`, `compare` and `report`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.client import notebook
from headgate.model.errors import NotFoundError
from headgate.recorded import runs
from headgate.recorded.reader import told_as_damage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headgate.diagnosis.account import Account
    from headgate.diagnosis.fairness import RunSharing
    from headgate.recorded.at_stake import AtStake
    from headgate.reports.compared import Comparison

MOST_READINGS = 3000
"""Most readings of each task. They show as much of a day as all readings would."""
_WIDTH = 100


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """What held jobs of a run back.

    Args:
        path: The run's folder.
        accounts: How each job spent its time.
        sharing: How jobs that ran at the same time shared the machines; None: no two did.
        at_stake: What a stop now would lose of each job whose script saves its own checkpoints.
    """

    path: Path
    accounts: tuple[Account, ...]
    sharing: RunSharing | None
    at_stake: Mapping[str, AtStake]

    def as_json(self) -> dict[str, Any]:
        """The output of `headgate explain --json`."""
        from headgate.reports import explained, sharing

        with told_as_damage(self.path / runs.STORE):
            return explained.as_json(self.path.name, list(self.accounts)) | {
                "sharing": sharing.as_json(self.sharing),
                "at_stake": {name: asdict(stake) for name, stake in self.at_stake.items()},
            }

    def __str__(self) -> str:
        """The output of `headgate explain`."""
        from rich.console import Console

        from headgate.reports import explained

        text = StringIO()
        with told_as_damage(self.path / runs.STORE):
            explained.tell(list(self.accounts), Console(file=text, width=_WIDTH))
        return text.getvalue()

    def __repr__(self) -> str:
        jobs = [account.job for account in self.accounts]
        return f"Explanation(run={self.path.name!r}, jobs={jobs})"

    def _repr_html_(self) -> str:
        from headgate.recorded.recording import read

        store = self.path / runs.STORE
        with told_as_damage(store):
            return notebook.explanation(read(store, most=MOST_READINGS), self.accounts)


def explain(folder: Path, job: str | None = None) -> Explanation:
    """Find what held the jobs of a run back; with `job`, only that job.

    Raises:
        NotFoundError: The run has no such job.
        StorageError: The run's store cannot be read.
    """
    from headgate.recorded import at_stake
    from headgate.recorded.recording import read
    from headgate.reports import explained, sharing

    store = folder / runs.STORE
    recording = read(store, most=MOST_READINGS)
    if job is not None and recording.job(job) is None:
        names = ", ".join(recorded.name for recorded in recording.jobs)
        raise NotFoundError(f"run {folder.name} has no job {job!r}; it has {names}")
    with told_as_damage(store):
        stakes = at_stake.of_run(folder)
        return Explanation(
            folder,
            tuple(explained.explained(recording, job)),
            sharing.shared(recording),
            {name: stake for name, stake in stakes.items() if job in (None, name)},
        )


@dataclass(frozen=True, slots=True, repr=False)
class RunComparison:
    """Two runs compared: what differs, and how the time of each job shifted."""

    comparison: Comparison

    def as_json(self) -> dict[str, Any]:
        """The output of `headgate compare --json`."""
        from headgate.reports import compared

        return compared.as_json(self.comparison)

    def __str__(self) -> str:
        """The output of `headgate compare`."""
        from rich.console import Console

        from headgate.reports import compared

        text = StringIO()
        compared.tell(self.comparison, Console(file=text, width=_WIDTH))
        return text.getvalue()

    def __repr__(self) -> str:
        return f"RunComparison(runs={self.comparison.runs})"

    def _repr_html_(self) -> str:
        return notebook.comparison(self.comparison)


def compare(first: Path, second: Path) -> RunComparison:
    """Compare the runs of two folders.

    Raises:
        StorageError: A run's store cannot be read.
    """
    from headgate.recorded.recording import read
    from headgate.reports import compared

    stores = [folder / runs.STORE for folder in (first, second)]
    recordings = [read(store) for store in stores]
    with told_as_damage(stores[0]):
        return RunComparison(compared.compare(*recordings))


@dataclass(frozen=True, slots=True)
class Report:
    """A run's report: one HTML page.

    Args:
        run: The run's folder.
        path: The page.
    """

    run: Path
    path: Path

    def figures(self) -> dict[str, Any]:
        """The figures that `headgate report --json` prints beside the page's path."""
        from headgate.diagnosis.job_figures import figures
        from headgate.recorded.recording import read
        from headgate.reports.explained import as_lines, explained, findings_as_json
        from headgate.reports.words import say_reason, what_happened

        recording = read(self.run / runs.STORE)
        jobs, accounts = [figures(job) for job in recording.jobs], explained(recording)
        findings = {account.job: findings_as_json(account) for account in accounts}
        return {
            "run": recording.id,
            "state": recording.state,
            "seconds": recording.seconds,
            "verdicts": [text for text, _ in as_lines(accounts)],
            "story": what_happened(recording, jobs),
            "warnings": [asdict(event) for event in recording.events if event.kind == "warning"],
            "jobs": [
                {
                    **asdict(job),
                    "reason": say_reason(job.reason),
                    "why": job.reason.plain() if job.reason is not None else None,
                    "findings": findings.get(job.name, []),
                }
                for job in jobs
            ],
        }

    def _repr_html_(self) -> str:
        title = f"Report of run {self.run.name}"
        return notebook.in_frame(title, self.path.read_text(encoding="utf-8"))


def report(folder: Path, to: Path | None = None) -> Report:
    """Write a run's report.

    Args:
        folder: The run's folder.
        to: The file to write; None: `report.html` in the run's folder.

    Raises:
        StorageError: The store cannot be read, or the page cannot be written.
    """
    from headgate.reports import html as page

    return Report(
        folder, page.write(folder / runs.STORE, (to or folder / "report.html").absolute())
    )
