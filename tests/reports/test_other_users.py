"""Jobs of other users that slowed a job are named, with the same bands as own ones."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.diagnosis.made_up import MadeUp, recording

from headgate.diagnosis.verdicts import verdict
from headgate.recorded.recording import NEIGHBOUR, Recording, read
from headgate.recorded.store import Recorder
from headgate.reports.explained import explained, findings_as_json
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
