"""`headgate explain`, on runs of which every number is known."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner
from tests.diagnosis.made_up import MadeUp, recording

from headgate.cli.explain import command
from headgate.diagnosis.attribution import NONE, exact
from headgate.diagnosis.findings import MissingKind
from headgate.diagnosis.own_steps import PARTS, Part
from headgate.diagnosis.remedies import RemedyKind, RunFacts
from headgate.diagnosis.verdicts import verdict
from headgate.diagnosis.what_if import Speedup
from headgate.model.errors import NotFoundError
from headgate.recorded.recording import read
from headgate.reports import explained, html, sections
from headgate.reports.findings import why
from headgate.reports.remedies import next_step
from headgate.sampling.outside_programs import PROGRAMS, OutsideProgram


@pytest.fixture
def run(home: Path) -> Path:
    """A finished run of two jobs that shared a core."""
    folder = home / "runs" / "20260314-0900-ab12"
    for name in ("a", "b"):
        (folder / "jobs" / name).mkdir(parents=True)
    recording(
        folder / "run.sqlite", {name: MadeUp(ran=0.5, waited=0.5) for name in ("a", "b")}, cores=1.0
    )
    return folder


def told(*arguments: str) -> str:
    return CliRunner().invoke(command, [*arguments], catch_exceptions=False).stdout


def as_json(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told("--json", *arguments))
    return found


@pytest.mark.usefixtures("run")
def test_what_held_it_back_comes_first_with_its_error_and_then_what_to_do() -> None:
    lines = told().splitlines()
    first = (
        "b slowed a by 50 % through the cores they share: that cost 20 s. 90 % band: 11.8 s "
        "to 28.2 s. (neighbour-cores)"
    )
    assert lines[0] == first
    assert lines[1].strip().startswith("Next: Run b after a: in a job file, give it `after: a`.")


@pytest.mark.usefixtures("run")
def test_json_has_what_programs_rely_on() -> None:
    found = as_json()
    assert found["run"] == "20260314-0900-ab12"
    job = found["jobs"][0]
    assert set(job) >= {"job", "elapsed", "verdict", "account", "lost", "more", "replay_error"}
    assert set(job["verdict"]) == {
        "kind",
        "resource",
        "facts",
        "notes",
        "remedy",
        "name",
        "why",
        "next",
        "low",
        "high",
        "seconds",
        "culprit",
        "order",
    }
    assert list(job["account"]) == list(PARTS)
    assert all(set(part) == {"seconds", "low", "high"} for part in job["account"].values())
    assert sum(part["seconds"] for part in job["account"].values()) == pytest.approx(job["elapsed"])
    assert [set(loss) for loss in job["lost"]] == [
        {"to", "resource", "seconds", "low", "high", "evidence"}
    ]


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("arguments", [("b",), ("20260314", "b"), ("20260314-0900-ab12", "b")])
def test_one_job_is_explained_by_its_name_with_or_without_the_run(
    arguments: tuple[str, ...],
) -> None:
    assert [job["job"] for job in as_json(*arguments)["jobs"]] == ["b"]


@pytest.mark.usefixtures("run")
def test_a_job_or_run_that_is_not_there_is_one_message() -> None:
    with pytest.raises(NotFoundError, match="has no job 'c'; it has a, b"):
        told("20260314", "c")
    with pytest.raises(NotFoundError, match="no run and no job 'nothing'"):
        told("nothing")


def test_accounts_of_a_job_that_was_tried_again_and_of_one_of_several_tasks_add_up(
    store: Path, distributed: Path
) -> None:
    for path in (store, distributed):
        accounts = explained.explained(read(path))
        assert accounts
        for account in accounts:
            assert sum(part.seconds for part in account.parts.values()) == pytest.approx(
                account.elapsed
            )


def test_the_page_shows_every_part_that_an_account_can_have(store: Path) -> None:
    run = read(store)
    found = [
        replace(each, parts=dict.fromkeys(PARTS, exact(1.0))) for each in explained.explained(run)
    ]
    page = sections.accounts(run.jobs, found)
    assert page is not None and all(f'data-key="{part}"' in page for part in PARTS)
    assert get_args(Part) == tuple(PARTS)


def test_a_run_of_an_earlier_version_is_told_what_it_lacks(store: Path) -> None:
    import sqlite3

    with sqlite3.connect(store) as db:
        for column in ("cpu_waiting", "cpu_ready", "cpu_throttled", "cpu_stolen"):
            db.execute(f"ALTER TABLE usage DROP COLUMN {column}")
        db.execute("PRAGMA user_version = 2")
    account = explained.explained(read(store))[0]
    assert MissingKind.CORE_WAITS in {missing.kind for missing in account.missing_readings}


def test_what_more_would_buy_is_told_in_the_terminal_in_json_and_on_the_page(home: Path) -> None:
    folder = home / "runs" / "20260314-0900-ab12"
    for name in ("a", "plain"):
        (folder / "jobs" / name).mkdir(parents=True)
    job = MadeUp(ran=0.5, spans={"input": 0.07, "compute": 0.03}, loader_workers=2)
    recording(folder / "run.sqlite", {"a": job, "plain": MadeUp(ran=1.0)}, cores=4.0)
    text = told("a")
    assert re.search(r"What more would buy +× 1.25 +× 2 +No limit", text)
    assert re.search(r"loader +1.25 \(1.0\d to 1.4\d\) +2.00 \(1.\d\d to 2.\d\d\) +3.33", text)
    assert "No figure for more of loader: its steps tell no spans" in told("plain")
    [found, plain] = as_json()["jobs"]
    assert set(found["more"]) >= {"cores", "disk", "loader"}
    assert set(found["more"]["loader"]) == {"x1.25", "x2", "unlimited"}
    assert set(found["more"]["loader"]["x2"]) == {"speedup", "low", "high"}
    assert found["replay_error"] == pytest.approx(0.0, abs=0.01)
    assert plain["replay_error"] is None and set(plain["more_lacks"]) == {"loader"}
    page = html.page(read(folder / "run.sqlite"))
    assert 'data-job="a" data-resource="loader"' in page


@pytest.mark.parametrize(
    ("speedup", "said"),
    [
        (Speedup(1.9, 1.5, 2.3), "1.90 (1.50 to 2.30)"),
        (Speedup(100.0, 28.0, 100.0), "over 10"),
        (None, "–"),
    ],
)
def test_a_speedup_beyond_all_that_a_replay_can_tell_has_no_digits(
    speedup: Speedup | None, said: str
) -> None:
    assert explained.say_speedup(speedup) == said


def test_of_headlines_that_advise_the_same_the_first_says_it_and_a_job_that_did_not_begin_has_none(
    tmp_path: Path,
) -> None:
    third = MadeUp(ran=0.5, waited=1.0)
    run = recording(tmp_path / "run.sqlite", dict.fromkeys("abc", third), cores=1.5)
    found = explained.explained(run)
    never = replace(
        found[0],
        record=replace(found[0].record, name="d"),
        parts={**found[0].parts, **dict.fromkeys(found[0].parts, NONE)},
    )
    lines, advice = explained.headlines(
        [*found, replace(never, losses=(), asked_to_wait=never.elapsed)]
    )
    assert sorted(line.job for line in lines) == ["a", "b", "c"] and {
        line.advice for line in lines
    } == {""}
    [once] = advice
    assert sorted(once.jobs) == ["a", "b", "c"]
    assert {next_step(verdict(account), account) for account in found} == {once.text}
    assert verdict(found[0]).remedy.kind is RemedyKind.RUN_IN_TURN
    texts = [text for text, _ in explained.as_lines(found)]
    assert len(texts) == 4 and texts[-1] == f"For a, b and c: {once.text}"


def test_more_than_two_jobs_that_waited_for_the_same_have_one_line(tmp_path: Path) -> None:
    late = {name: MadeUp(ran=1.0, start=start) for name, start in zip("bcd", (25, 26, 30))}
    run = recording(tmp_path / "run.sqlite", {"a": MadeUp(ran=1.0), **late})
    first, advice, *_ = [text for text, _ in explained.as_lines(explained.explained(run))]
    assert first == "3 jobs waited to start for 25 s to 30 s. (waiting)"
    assert advice == "For b, c and d: `priority: 2` of the job lets it go first."


def test_a_job_that_failed_comes_first_and_in_red_whatever_slowed_others(tmp_path: Path) -> None:
    """Also one that ended so soon that nothing else is told of it."""
    jobs = {
        "slowed": MadeUp(ran=0.5, waited=0.5),
        "died": MadeUp(
            ran=0.5,
            waited=0.4,
            end=3,
            failed="exit code 1, after the line: FileNotFoundError: data",
        ),
    }
    run = recording(tmp_path / "run.sqlite", jobs, cores=1.0)
    found = explained.explained(run)
    (text, failed), *others = explained.as_lines(found)
    assert failed and text.startswith(why(verdict(found[1]), found[1]))
    assert not any(failed for _, failed in others)
    lines, _ = explained.headlines(found)
    assert [line.job for line in lines] == ["died", "slowed"]
    assert (lines[0].part, lines[0].to) == (None, "")
    page = html.page(run)
    assert page.index('class="verdict" data-job="died"') < page.index(
        'class="verdict" data-job="slowed"'
    )


def test_a_loss_to_a_neighbour_says_how_much_of_the_job_and_to_whom(tmp_path: Path) -> None:
    run = recording(
        tmp_path / "run.sqlite", {"a": MadeUp(ran=0.5, waited=0.5), "b": MadeUp(ran=1.5)}
    )
    line = next(
        line for line in explained.headlines(explained.explained(run))[0] if line.job == "a"
    )
    assert (line.to, line.finding.kind) == ("b", "neighbour-cores")
    assert line.part == pytest.approx(line.finding.cost.seconds / 40.0)
    assert line.finding.cost.low <= line.finding.cost.seconds <= line.finding.cost.high


def test_another_run_at_the_same_time_is_not_taken_for_a_program_outside_headgate(
    home: Path,
) -> None:
    for name, job in (("20260314-0900-ab12", "a"), ("20260314-0900-cd34", "b")):
        (home / "runs" / name / "jobs" / job).mkdir(parents=True)
        recording(
            home / "runs" / name / "run.sqlite",
            {job: MadeUp(ran=0.5, waited=0.5)},
            cores=1.0,
            outside=0.5,
        )
    store = home / "runs" / "20260314-0900-ab12" / "run.sqlite"
    [finding] = map(verdict, explained.explained(read(store)))
    assert (finding.culprit, finding.facts.runs) == ("others", ("20260314-0900-cd34",))
    assert finding.remedy.facts == RunFacts("20260314-0900-cd34")
    account = explained.explained(read(store))[0]
    [loss, *_] = account.losses
    assert explained.culprit(loss, account) == "other runs, programs outside"
    shutil.rmtree(home / "runs" / "20260314-0900-cd34")
    [finding] = map(verdict, explained.explained(read(store)))
    assert (finding.culprit, finding.facts.runs) == ("others", ())
    assert finding.remedy.kind is RemedyKind.END_OTHER_PROGRAMS


def test_the_hub_of_another_home_is_not_taken_for_the_run_beside(home: Path) -> None:
    for name, job in (("20260314-0900-ab12", "a"), ("20260314-0900-cd34", "b")):
        (home / "runs" / name / "jobs" / job).mkdir(parents=True)
        store = home / "runs" / name / "run.sqlite"
        recording(store, {job: MadeUp(ran=0.5, waited=0.5)}, cores=1.0, outside=0.5)
    hub = OutsideProgram("anna", "hub", 5, 0, 50.0, is_mine=True, may_renice=True, is_hub=True)
    with closing(sqlite3.connect(store)) as rows, rows:
        rows.execute("INSERT INTO meta VALUES (?, ?)", [PROGRAMS, json.dumps([asdict(hub)])])
    [account] = explained.explained(read(store))
    assert next_step(verdict(account), account) == (
        "Run 20260314-0900-ab12 went on beside it: start one after the other. Process 5 is the hub "
        "of another HEADGATE_HOME: submit its jobs to this one, or run this when they have ended."
    )


def test_a_job_of_which_nothing_tells_what_its_neighbour_cost_says_so_in_the_summary_and_the_report(
    tmp_path: Path,
) -> None:
    jobs = {"a": MadeUp(ran=1.0, threads={0: 1}), "b": MadeUp(ran=1.0, threads={0: 2})}
    run = recording(tmp_path / "run.sqlite", jobs)
    found = explained.explained(run)
    sentence, advice = why(verdict(found[0]), found[0]), next_step(verdict(found[0]), found[0])
    assert verdict(found[0]).remedy.kind is RemedyKind.RUN_ALONE
    texts = [text for text, _ in explained.as_lines(found)]
    assert any(text.startswith(f"{sentence} Next: {advice}") for text in texts)
    assert not any(text.startswith("not-known") for text in texts)
    assert sentence in html.page(run)


@pytest.mark.parametrize("outside", [0.0, 1.0])
def test_every_section_of_a_page_with_losses_can_be_drawn(tmp_path: Path, outside: float) -> None:
    jobs = {"a": MadeUp(ran=0.5, waited=0.5), "b": MadeUp(ran=0.5, waited=0.5)}
    page = html.page(recording(tmp_path / "run.sqlite", jobs, cores=1.0, outside=outside))
    assert "could not be drawn" not in page
