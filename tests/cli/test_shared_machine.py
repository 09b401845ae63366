"""What users of a shared machine see of it, and what its administrators do."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.arbiter.serving import ServedArbiter, served

from headgate.arbiter.events import MachineUsed, UserUsed
from headgate.cli import headgate
from headgate.model.errors import HeadgateError, UsageError
from headgate.model.sharing import SharingRules

VAE = {"id": "r/vae#1", "name": "vae", "gpus": 2, "left": [300.0, 200.0, 600.0]}


@pytest.fixture
def arbiter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedArbiter]:
    """Ada runs a job on both GPUs, and has a private one that waits; Grace waits for one."""
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path / "home"))
    rules = SharingRules(administrators=("wheel",), may_reserve=("lab",))
    with served(tmp_path, monkeypatch, rules) as arbiter:
        ada = arbiter.hub("ada")
        ada.state(VAE)
        ada.hears("ResourceGrant")
        grace = arbiter.hub("grace")
        grace.state({"id": "r/cnn#1", "name": "cnn", "gpus": 1})
        grace.hears("JobWaits")
        ada.state({"id": "r/s#1", "name": "secret", "private": True, "gpus": 1}, running=[VAE])
        ada.hears("JobWaits")
        yield arbiter


def types(*words: str) -> str:
    done = CliRunner().invoke(headgate, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


def seen() -> dict[str, Any]:
    machine: dict[str, Any] = json.loads(types("status", "--all", "--json"))["machine"]
    return machine


def test_all_users_see_what_runs_and_waits_and_who_is_before_them(arbiter: ServedArbiter) -> None:
    arbiter.user = "grace"
    text = types("status", "--all")
    assert "ada:vae" in text and "grace:cnn" in text and "a job of ada" in text
    assert "secret" not in text and "r/" not in text
    jobs = {job["name"]: job for job in seen()["jobs"]}
    assert jobs["vae"]["gpus"] == [0, 1] and jobs["vae"]["id"] is None
    assert (jobs["cnn"]["waits"], jobs["cnn"]["id"]) == ("no-room", "r/cnn")
    assert jobs["cnn"]["latest"] - jobs["cnn"]["at"] == pytest.approx(300.0)
    assert "in about" in text and "at the latest" in text
    assert {jobs["cnn"]["before"], jobs[None]["before"]} == {0, 1}
    arbiter.user = "ada"
    assert "ada:secret" in types("status", "--all")


def test_what_a_hub_calls_its_jobs_stays_within_its_line(arbiter: ServedArbiter) -> None:
    ada = arbiter.hubs[0]
    ada.state({"id": "r/x\n\x1b[2J#1", "name": "x\nroot:fake running \x1b[31m"}, running=[VAE])
    ada.hears("ResourceGrant")
    arbiter.user = "root"
    text = types("status", "--all") + types("arbiter", "hold", "ada:r/x\n\x1b[2J")
    assert "\x1b" not in text
    assert not any(shown.startswith("root:fake") for shown in text.splitlines())


def test_without_an_arbiter_all_shows_the_own_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path))
    monkeypatch.setenv("HEADGATE_ARBITER", str(tmp_path / "none"))
    with pytest.raises(HeadgateError, match="headgate run"):
        types("status", "--all")


def test_use_is_shown_by_user_and_month(arbiter: ServedArbiter) -> None:
    for seconds in (0.0, 7200.0):
        used = {"ada": UserUsed(3.0, frozenset({0}))}
        arbiter.later(seconds)
        arbiter.take(MachineUsed(1 << 30, 0, {}, users=used))
    [row] = json.loads(types("usage", "--json", "--days", "2"))
    assert row["user"] == "ada"
    assert row["core_hours"] == pytest.approx(6.0, rel=0.01)
    assert row["gpu_hours"] == pytest.approx(4.0, rel=0.01)
    assert row["idle_gpu_hours"] == pytest.approx(2.0, rel=0.01)
    assert "6.0" in types("usage", "--gpus", "--by", "month")
    assert "grace had nothing" in types("usage", "--user", "grace")


def test_reservations_are_for_those_who_may(arbiter: ServedArbiter) -> None:
    arbiter.user = "grace"
    words = ("reserve", "2", "gpus", "for", "3h", "from", "18:00")
    with pytest.raises(HeadgateError, match="only administrators and members of lab may reserve"):
        types(*words)
    arbiter.groups = frozenset({"lab"})
    booking = json.loads(types(*words, "--json"))
    assert (booking["gpus"], booking["end"] - booking["begin"]) == (2, 3 * 3600.0)
    assert time.localtime(booking["begin"])[3:5] == (18, 0)
    with pytest.raises(HeadgateError, match="does not fit"):
        types(*words)
    assert "2 GPUs for grace" in types("reserve", "--list")
    assert "2 GPUs for grace" in types("status", "--all")
    types("reserve", "--cancel", str(booking["id"]))
    assert "nothing is reserved" in types("reserve", "--list")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("2", "gpus"),
        ("for", "3h"),
        ("2", "gpus", "for"),
        ("2", "gpus", "for", "18:00"),
        ("2", "cores", "for", "3h"),
        ("2", "tpus", "for", "3h"),
        ("2", "gpus", "for", "3h", "from", "noon"),
        ("2", "gpus", "for", "3h", "from", "2020-01-01T10:00"),
        ("2", "gpus", "for", "3h", "--list"),
    ],
)
def test_what_is_no_reservation_is_refused_with_an_example(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="such as: headgate reserve 2 gpus for 3h from 18:00"):
        types("reserve", *words)


def test_administrators_hold_release_and_stop_jobs_of_others(arbiter: ServedArbiter) -> None:
    arbiter.user = "alan"
    with pytest.raises(HeadgateError, match="only root, and members of"):
        types("arbiter", "hold", "grace:cnn")
    arbiter.groups = frozenset({"wheel"})
    ada, grace = arbiter.hubs
    assert "grace:r/cnn does not start" in types("arbiter", "hold", "grace:cnn")
    told = grace.hears("Act")
    assert (told["kind"], told["by"], told["job"]) == ("hold", "alan", "r/cnn#1")
    assert {job["name"]: job["waits"] for job in seen()["jobs"]}["cnn"] == "held"
    types("arbiter", "first", "grace:r/cnn")
    assert grace.hears("Act")["kind"] == "first"
    [row] = json.loads(types("arbiter", "stop", "ada:vae", "--json"))
    assert row == {"user": "ada", "job": "r/vae", "act": "stop", "runs": True}
    assert "ada:r/vae runs and goes on" in types("arbiter", "hold", "ada:vae")
    types("arbiter", "release", "ada:vae")
    assert [ada.hears("Act")["kind"] for _ in range(3)] == ["stop", "hold", "release"]
    types("arbiter", "drain")
    assert ada.hears("Act")["kind"] == grace.hears("Act")["kind"] == "drain"
    text = types("status", "--all")
    assert "drained" in text and "alan holds grace:r/cnn" in text
    arbiter.user, arbiter.groups = "grace", frozenset[str]()
    kinds = [(act["kind"], act["user"]) for act in seen()["acts"]]
    assert kinds == [("hold", "grace"), ("first", "grace"), ("drain", "")]


def test_the_hub_of_a_job_is_asked_to_hold_it_for_another_user(arbiter: ServedArbiter) -> None:
    ada, grace = arbiter.hubs
    ada.state(running=[VAE])
    arbiter.user = "grace"
    grace.state()

    def asks(name: str) -> None:
        question = {"type": "AskHold", "user": "ada", "name": name, "number": 7, "seconds": 0.4}
        grace.socket.sendall(json.dumps(question).encode() + b"\n")

    asks("nothing")
    assert "ada runs no job of that name" in grace.hears("JobHeld")["why"]
    asks("vae")
    asked = ada.hears("HoldAsked")
    assert (asked["job"], asked["by"]) == ([["ada", "h"], "r/vae#1"], ["grace", "h"])
    answer = {"type": "JobHeld", "by": asked["by"], "number": 7, "begin": 1.0, "end": 1.4}
    forged = {**answer, "begin": 0.0}
    grace.socket.sendall(json.dumps(forged).encode() + b"\n")
    grace.state()
    asks("nothing")
    assert grace.hears("JobHeld")["why"]
    asks("vae")
    ada.hears("HoldAsked")
    ada.socket.sendall(json.dumps(answer).encode() + b"\n")
    held = grace.hears("JobHeld")
    assert (held["number"], held["begin"], held["end"]) == (7, 1.0, 1.4)


def test_a_limited_user_keeps_what_runs_and_gets_no_more(arbiter: ServedArbiter) -> None:
    arbiter.user = "root"
    ada = arbiter.hubs[0]
    assert "at most 3 cores, 1 job" in types("arbiter", "limit", "ada", "jobs=1", "cores=3")
    ada.state({"id": "r/s#1", "name": "secret"}, running=[VAE])
    waits = {job["name"]: job["waits"] for job in seen()["jobs"]}
    assert (waits["vae"], waits["secret"]) == (None, "own-limit")
    assert "ada, at most 3 cores, 1 job" in types("status", "--all")
    types("arbiter", "limit", "ada", "none")
    assert ada.hears("ResourceGrant")["demand"]["id"] == "r/s#1"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("hold", "vae"), "expected USER:JOB"),
        (("hold", "ada:gan"), "ada has no job 'gan' here"),
        (("limit", "ada", "tpus=1"), "one of cores, memory, gpus, jobs"),
        (("limit", "ada", "cores=many"), "a number of cores above 0"),
        (("limit", "ada", "memory=8"), "with its unit"),
    ],
)
def test_orders_that_make_no_sense_are_refused(
    arbiter: ServedArbiter, words: tuple[str, ...], why: str
) -> None:
    arbiter.user = "root"
    with pytest.raises(UsageError, match=why):
        types("arbiter", *words)
    assert seen()["acts"] == []
