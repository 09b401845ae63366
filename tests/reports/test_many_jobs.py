"""Runs of very many jobs: what they cost grows with the jobs, and what is said stays right."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.diagnosis.made_up import MadeUp, recording

from headgate import __version__
from headgate.cli.dry_run import planned, starts
from headgate.cli.explain import command as explain
from headgate.cli.status import command
from headgate.diagnosis.account import Account
from headgate.diagnosis.accounts import accounts
from headgate.diagnosis.attribution import OTHERS, REST
from headgate.hub.submission import Submission
from headgate.model.cluster import Cluster
from headgate.model.jobs import Job
from headgate.recorded.recording import Recording, read
from headgate.recorded.runs import STORE
from headgate.reports import html, run_verdicts
from headgate.reports.explained import MORE
from headgate.sampling import machine

SLOWED = MadeUp(ran=0.5, waited=0.5, end=20)


def calls(act: Callable[[], object]) -> int:
    """How many functions are called: a number that no busy machine changes."""
    act()  # what is made once
    profile = cProfile.Profile()
    profile.runcall(act)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def many(folder: Path, count: int) -> Recording:
    """A run of so many jobs, of which about thirty run at a time."""
    folder.mkdir(parents=True)
    jobs = {
        f"j{i}": MadeUp(ran=0.1, waited=0.1, start=i // 4, end=i // 4 + 8) for i in range(count)
    }
    return recording(folder / STORE, jobs)


def account(run: Recording, job: str) -> Account:
    return next(each for each in accounts(run.jobs, run.nodes, run.seconds) if each.job == job)


@pytest.mark.long
def test_what_is_read_and_told_of_twice_as_many_jobs_costs_twice_as_much(home: Path) -> None:
    runs = {
        count: many(home / "runs" / f"202601{count // 10:02}-000000-aaaa", count)
        for count in (50, 100)
    }
    for make in (
        lambda run: read(run.folder / STORE),
        lambda run: accounts(run.jobs, run.nodes, run.seconds),
        html.page,
        lambda run: CliRunner().invoke(command, [run.folder.name], catch_exceptions=False),
        lambda run: CliRunner().invoke(
            command, [run.folder.name, "--json"], catch_exceptions=False
        ),
    ):
        once, twice = (calls(lambda run=run, make=make: make(run)) for run in runs.values())  # type: ignore[misc]
        assert twice < 2.4 * once
    sizes = {count: len(html.page(run)) for count, run in runs.items()}
    assert sizes[100] < 1.2 * sizes[50] < 2_000_000


def test_what_a_dry_run_of_twice_as_many_jobs_costs_is_twice_as_much(home: Path) -> None:
    node = machine.detect(home / "node.json", {})

    def starting(count: int, after: bool) -> Callable[[], object]:
        jobs = tuple(
            Job(name=f"j{i}", run="true", after=f"j{i - 1}" if after and i else None)
            for i in range(count)
        )
        submission = Submission(jobs, {}, "/", ())
        cluster = Cluster((node,))
        begins = planned(submission, cluster, node, home)
        return lambda: starts(
            submission, "headgate", cluster, {name: begin.plan for name, begin in begins.items()}
        )

    for after in (False, True):
        assert calls(starting(200, after)) < 2.4 * calls(starting(100, after))


def test_of_two_among_many_the_same_is_told_as_of_two_alone(tmp_path: Path) -> None:
    later = {f"l{i}": MadeUp(ran=0.2, start=21 + i, end=24 + i) for i in range(40)}
    for name in ("two", "many"):
        (tmp_path / name).mkdir()
    alone = account(recording(tmp_path / "two" / STORE, {"a": SLOWED, "b": SLOWED}, cores=1.0), "a")
    among = account(
        recording(tmp_path / "many" / STORE, {"a": SLOWED, "b": SLOWED, **later}, cores=1.0), "a"
    )
    assert [loss.to for loss in among.losses] == [loss.to for loss in alone.losses] == ["b"]
    assert among.parts["neighbours"].seconds == pytest.approx(
        alone.parts["neighbours"].seconds, rel=0.02
    )
    assert among.parts["compute"].seconds == pytest.approx(alone.parts["compute"].seconds, rel=0.02)


def test_of_many_at_once_some_are_named_and_the_rest_is_not_taken_for_programs_outside(
    tmp_path: Path,
) -> None:
    crowd = {f"j{i}": MadeUp(ran=0.05, waited=0.95, end=20) for i in range(40)}
    told = account(recording(tmp_path / STORE, crowd, cores=2.0), "j0")
    lost = {loss.to: loss.lost.seconds for loss in told.losses}
    assert OTHERS not in lost
    # of 39, 12 are looked at one by one
    assert lost[REST] == pytest.approx(27 / 39 * sum(lost.values()), rel=0.05)
    assert sum(lost.values()) == pytest.approx(0.95 * 20, rel=0.05)
    assert REST not in told.culprits


def test_of_very_many_jobs_a_page_and_status_show_those_that_failed_and_say_how_many_are_left_out(
    home: Path,
) -> None:
    folder = home / "runs" / "20260101-000000-aaaa"
    folder.mkdir(parents=True)
    jobs = {f"j{i}": MadeUp(ran=0.1, start=i // 4, end=i // 4 + 8) for i in range(150)}
    jobs["j149"] = MadeUp(ran=0.01, start=37, end=38, failed="exit code 3")
    run = recording(folder / STORE, jobs)
    page = html.page(run)
    assert "50 jobs are shown" in page and "100 more are in" in page
    assert "j149" in page
    assert len(page) < 1_000_000
    shown = CliRunner().invoke(command, catch_exceptions=False).stdout
    assert "... and 50 more of 150 jobs (149 done, 1 failed); --json has all" in shown
    assert "j149" in shown


def test_of_very_many_jobs_those_that_lost_most_are_explained_in_full_and_the_others_together(
    home: Path,
) -> None:
    folder = home / "runs" / "20260101-000000-aaaa"
    folder.mkdir(parents=True)
    jobs = {f"h{i}": MadeUp(ran=1.0, start=8 * i, end=8 * i + 8) for i in range(30)}
    jobs |= {name: replace(SLOWED, start=250, end=270) for name in ("a", "b")}
    jobs["f"] = MadeUp(ran=0.01, start=37, end=38, failed="exit code 3")
    recording(folder / STORE, jobs)

    def explains(*words: str) -> list[str]:
        shown = CliRunner().invoke(explain, [folder.name, *words], catch_exceptions=False)
        return shown.stdout.splitlines()

    def accounts_of(lines: list[str]) -> list[str]:
        """The first lines of those that have one."""
        ends = [i for i, line in enumerate(lines) if line.startswith("  Where its time went")]
        return [next(line for line in lines[end::-1] if line[:1].strip()) for end in ends]

    lines = explains()
    first, *others = accounts_of(lines)
    assert first.startswith("f failed")
    assert {line.split(" ")[0] for line in others} == {"a", "b"}
    assert "31 jobs waited to start for 8 s to 4 min 10 s." in lines
    assert MORE in lines
    assert len(accounts_of(explains("--full"))) == 33
    assert len(accounts_of(explains("h7"))) == 1


def test_of_very_many_jobs_that_go_on_a_few_are_looked_at_and_told_as_among_all(home: Path) -> None:
    run = many(home / "runs" / "20260101-000000-aaaa", 120)
    few = read(run.folder / STORE, few=24)
    assert few.whole is not None and (len(few.whole), few.unread) == (24, 96)
    # and those beside them
    assert few.whole < {job.name for job in few.jobs} < {job.name for job in run.jobs}
    among = {each.job: each for each in accounts(run.jobs, run.nodes, run.seconds)}
    for each in accounts(few.jobs, few.nodes, few.seconds, only=few.whole):
        assert each.parts == among[each.job].parts
        assert [(loss.to, loss.lost) for loss in each.losses] == [
            (loss.to, loss.lost) for loss in among[each.job].losses
        ]
    one = read(run.folder / STORE, about="j60")
    [alone] = accounts(one.jobs, one.nodes, one.seconds, only=one.whole)
    assert alone.job == "j60"
    seconds = {name: part.seconds for name, part in among["j60"].parts.items()}
    assert {name: part.seconds for name, part in alone.parts.items()} == pytest.approx(seconds)
    shown = CliRunner().invoke(command, catch_exceptions=False).stdout
    assert "96 more jobs of this run: `headgate explain` tells of all" in shown


@pytest.mark.slow
def test_what_is_kept_of_a_run_that_has_ended_is_what_is_told_of_it(home: Path) -> None:
    run = many(home / "runs" / "20260101-000000-aaaa", 30)
    told = [
        CliRunner().invoke(command, asked, catch_exceptions=False).stdout
        for asked in ([], ["--json"])
    ]
    html.write_at_end(run.folder / STORE, run.folder / "report.html")
    kept = run.folder / run_verdicts.FILE
    assert kept.is_file()
    again = [
        CliRunner().invoke(command, asked, catch_exceptions=False).stdout
        for asked in ([], ["--json"])
    ]
    assert again == told
    kept.write_text(kept.read_text().replace("waited to start", "was kept"))
    assert "was kept" in CliRunner().invoke(command, catch_exceptions=False).stdout
    for damaged in ("", "[]", "{}", kept.read_text().replace(__version__, "0.0")):
        kept.write_text(damaged)
        assert CliRunner().invoke(command, catch_exceptions=False).stdout == told[0]
