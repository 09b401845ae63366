"""Jobs of other users that slowed a job are named, with the same bands as own ones."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.diagnosis.made_up import MadeUp, recording

from headgate.diagnosis.attribution import LostTime, Resource, TimeEstimate
from headgate.diagnosis.neighbours import neighbours
from headgate.diagnosis.verdicts import verdict
from headgate.recorded.recording import Recording, read
from headgate.recorded.store import Recorder
from headgate.recorded.tables import NEIGHBOUR
from headgate.reports.explained import culprit, explained, findings_as_json
from headgate.reports.findings import why
from headgate.sampling.outside_programs import PROGRAMS, OutsideProgram

VAE = OutsideProgram("ada", "vae", 77, 0, 50.0, is_mine=False, may_renice=False, job="vae")


def beside(folder: Path, job: str, cores: float) -> Recording:
    """A run of `cnn` on two cores, while a job of Ada's and a program outside use them too."""
    store = folder / "run.db"
    recording(store, {"cnn": MadeUp(ran=1.0, waited=0.6, ready=1.0)}, outside=1.0)
    recorder = Recorder(store)
    for t in range(1, 41):
        target = f"{NEIGHBOUR}ada:{job}@nimbus"
        recorder.add("usage", t=float(t), target=target, cpu_cores=cores)
    recorder.add("meta", key=PROGRAMS, value=json.dumps([asdict(VAE)]))
    recorder.close()
    return read(store)


def test_a_job_of_another_user_is_the_neighbour_that_slowed_the_own_one(tmp_path: Path) -> None:
    run = beside(tmp_path, "vae", 1.0)
    [account] = explained(run)
    [first, *_] = findings_as_json(account)
    assert first["why"].startswith("ada's vae slowed cnn by ")
    assert "through the cores they share" in first["why"]
    assert "Ask ada, whose vae it is" in first["next"]
    assert (first["culprit"], first["order"]) == ("ada:vae", ())
    assert first["low"] < first["seconds"] < first["high"]
    assert [task for task in run.tasks if "ada" in task] == []


@pytest.mark.parametrize(("cores", "culprit"), [(0.8, "ada:"), (0.2, "others")])
def test_it_is_charged_with_the_cores_that_it_had(
    tmp_path: Path, cores: float, culprit: str
) -> None:
    [account] = explained(beside(tmp_path, "", cores))
    assert verdict(account).culprit == culprit
    lost = {loss.to: loss.lost.seconds for loss in account.losses if loss.resource == "cores"}
    assert lost["ada:"] / sum(lost.values()) == pytest.approx(cores, abs=0.05)
    assert "a job of ada" in findings_as_json(account)[0]["why"] or culprit == "others"


DD = OutsideProgram(
    "ben", "dd", 78, 0, 0.1, is_mine=False, may_renice=False, disk_read=9e9, gpu_seconds=0.1
)
BUSY = OutsideProgram("eve", "make", 79, 0, 99.0, is_mine=False, may_renice=False)
GAN = OutsideProgram("ben", "gan.py", 80, 0, 1.0, is_mine=False, may_renice=False, gpu_seconds=20.0)


@pytest.mark.parametrize(
    ("resource", "programs", "subject", "clause"),
    [
        ("disk", [BUSY, DD], "Programs outside Headgate (dd of user ben) slowed cnn", ""),
        ("gpu", [BUSY, DD, GAN], "Programs outside Headgate (gan.py of user ben) slowed", ""),
        ("disk", [BUSY], "Programs outside Headgate slowed cnn by", "no arbiter told."),
        ("gpu", [BUSY], "Programs outside Headgate slowed", "names none of their processes."),
        ("network", [BUSY], "Programs outside Headgate slowed", "bytes for no program."),
    ],
)
def test_programs_outside_are_named_by_what_they_used_of_the_resource_or_it_is_said_why_not(
    tmp_path: Path, resource: Resource, programs: list[OutsideProgram], subject: str, clause: str
) -> None:
    [account] = explained(recording(tmp_path / "run.db", {"cnn": MadeUp(ran=1.0, end=20)}))
    lost = LostTime("others", resource, TimeEstimate(5.0, 4.0, 6.0), "counted")
    around = replace(account.around, programs=tuple(programs))
    [finding] = neighbours(replace(account, losses=(lost,), around=around))
    sentence = why(finding, account)
    named = programs[-1].command in sentence
    assert (culprit(lost, replace(account, around=around)) == "programs outside Headgate") != named
    assert sentence.startswith(subject)
    assert sentence.endswith(clause)


def test_the_worst_mover_is_named_though_nothing_tells_what_it_cost(tmp_path: Path) -> None:
    run = recording(
        tmp_path / "run.db",
        {"cnn": MadeUp(ran=0.25, readings={"psi_io": 0.75, "disk_read": 20e6})},
        readings={"disk_read": 900e6},
        neighbours={"ada:vae": {"disk_read": 800e6}},
    )
    [account] = explained(run)
    assert "Others, most of all ada's vae, moved more bytes" in why(verdict(account), account)
