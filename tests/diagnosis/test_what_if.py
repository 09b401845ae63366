"""What more would buy, on runs of which every number is known."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.diagnosis.made_up import MadeUp, recording

from headgate.diagnosis.remedies import ResourceFacts
from headgate.diagnosis.steps_to_replay import NoFigure
from headgate.diagnosis.verdicts import verdict
from headgate.diagnosis.what_if import Speedups, what_more_buys
from headgate.recorded.recording import Recording, read
from headgate.recorded.store import Recorder
from headgate.reports.explained import explained


def bought(run: Recording) -> Speedups:
    """What more would buy the first job of a run."""
    return what_more_buys(run.jobs[0], run.nodes)


def made(tmp_path: Path, *, cores: float = 2.0, **job: Any) -> Speedups:
    return bought(recording(tmp_path / "run.sqlite", {"a": MadeUp(**job)}, cores=cores))


def speedups(more: Speedups, resource: Any) -> list[Any]:
    return [
        each and pytest.approx(each.speedup, abs=0.01) for each in more.figures[resource].values()
    ]


def test_more_loader_workers_help_until_the_steps_bind(tmp_path: Path) -> None:
    more = made(tmp_path, ran=0.5, spans={"input": 0.07, "compute": 0.03}, loader_workers=2)
    assert more.replay_error == pytest.approx(0.0, abs=0.01)
    assert speedups(more, "loader") == [1.25, 2.0, 1 / 0.3]
    assert speedups(more, "cores") == [1.0, 1.0, 1.0]
    assert set(more.figures) == {"cores", "disk", "loader"}


def test_a_training_process_that_reads_by_itself_can_be_given_one_reader_and_not_a_quarter(
    tmp_path: Path,
) -> None:
    more = made(tmp_path, ran=0.5, spans={"input": 0.07, "compute": 0.03}, loader_workers=0)
    assert speedups(more, "loader") == [None, 1 / 0.7, 1 / 0.3]


def test_a_loader_of_which_nothing_is_known_gets_no_figure_but_the_reason(tmp_path: Path) -> None:
    more = made(tmp_path, ran=0.5, spans={"input": 0.07, "compute": 0.03})
    assert "loader" not in more.figures
    assert more.lacks["loader"] == NoFigure.READERS_NOT_KNOWN


def test_a_loader_whose_workers_take_turns_gets_no_figure_but_the_reason(tmp_path: Path) -> None:
    more = made(tmp_path, ran=1.3, spans={"input": 0.07, "compute": 0.03}, loader_workers=4)
    assert "loader" not in more.figures
    assert more.lacks["loader"] is NoFigure.READERS_TAKE_TURNS
    assert more.loader_workers == 4


def test_a_replay_that_is_off_by_more_than_a_tenth_gives_no_figure_but_the_reason(
    tmp_path: Path,
) -> None:
    more = made(tmp_path, ran=0.5, spans={"input": 0.02, "compute": 0.03}, loader_workers=2)
    assert more.replay_error == pytest.approx(-0.5, abs=0.01)
    assert not more.figures and not more.together
    assert more.loader_workers == 2
    assert set(more.lacks.values()) == {NoFigure.REPLAY_OFF}
    assert more.replayed_steps == 30


def test_places_in_a_burst_of_batches_count_alike_though_one_was_sampled_more_often(
    tmp_path: Path,
) -> None:
    # Of five batches that come at once the first was waited for. After five steps in a row it is
    # always that one.
    spans = {"input": lambda t: 0.4 if t >= 5 else 0.0, "compute": 0.02}
    more = made(
        tmp_path,
        ran=0.5,
        end=200,
        spans=spans,
        steps=lambda t: 10.0 if t > 5 else 1.0,
        loader_workers=5,
    )
    assert more.replay_error == pytest.approx(0.0, abs=0.05)


def test_a_pause_to_evaluate_is_no_step(tmp_path: Path) -> None:
    spans = {"input": 0.07, "compute": 0.03}
    job = MadeUp(
        ran=0.5,
        spans=spans,
        loader_workers=2,
        steps=lambda t: 0.0 if 15 <= t < 25 else 10.0,
        end=60,
    )
    more = bought(recording(tmp_path / "run.sqlite", {"a": job}))
    assert more.replay_error == pytest.approx(0.0, abs=0.02)


def test_cores_and_loader_that_bind_together_are_told_as_a_pair(tmp_path: Path) -> None:
    # One reader decompresses and the training process computes, both all the time, on the two cores
    # there are.
    more = made(
        tmp_path, ran=2.0, ready=1.0, spans={"input": 0.04, "compute": 0.06}, loader_workers=1
    )
    assert speedups(more, "loader") == [1.0, 1.0, 1.0]
    assert more.together["cores", "loader"]["x2"].speedup > 1.5


def test_a_plain_script_that_a_neighbour_held_back_gains_what_it_lost(tmp_path: Path) -> None:
    jobs = {name: MadeUp(ran=0.5, waited=0.5) for name in ("a", "b")}
    more = bought(recording(tmp_path / "run.sqlite", jobs, cores=1.0))
    assert more.replay_error is None
    assert speedups(more, "cores") == [1.25, 2.0, 2.0]
    assert "loader" in more.lacks


CAPPED = {"ran": 0.95, "waited": 0.05, "throttled": 0.05, "cap": 1.0}


@pytest.mark.parametrize(
    "job", [{"ran": 1.0}, {"ran": 0.95, "waited": 0.05}, {"ran": 0.88, "waited": 0.1}, CAPPED]
)
def test_what_a_job_of_one_thread_that_hardly_waited_would_do_with_more_is_not_known(
    tmp_path: Path, job: dict[str, float]
) -> None:
    more = made(tmp_path, **job, threads={0: 1})
    assert more.lacks["cores"] is NoFigure.ONE_THREAD


def test_threads_that_follow_the_cores_are_told_by_amdahl_and_stated_ones_stay(
    tmp_path: Path,
) -> None:
    more = made(tmp_path, ran=1.5, threads={0: 2})
    assert speedups(more, "cores")[1:] == [1 / 0.75, 2.0]


def test_a_plain_script_blocked_on_a_disk_gains_by_a_faster_one(tmp_path: Path) -> None:
    more = made(tmp_path, ran=0.4, blocked=0.6)
    assert speedups(more, "disk") == [1 / (0.4 + 0.48), 1 / 0.7, 2.5]


def test_what_the_host_does_while_kernels_run_is_hidden_and_bounds_what_a_faster_gpu_buys(
    tmp_path: Path,
) -> None:
    """A step takes 0.1 s; a sampled one 0.12, because it waits for its kernels before the host goes
    on.
    """
    more = made(tmp_path, ran=0.3, gpu=0.9, spans={"input": 0.0, "compute": 0.12}, loader_workers=0)
    assert more.replay_error == pytest.approx(0.0, abs=0.01)
    assert speedups(more, "gpu") == [pytest.approx(0.1 / 0.082, abs=0.01), 0.1 / 0.055, 0.1 / 0.03]


def test_a_gpu_that_is_busy_gains_by_a_faster_one(tmp_path: Path) -> None:
    more = made(
        tmp_path, ran=0.2, gpu=0.8, spans={"input": 0.01, "compute": 0.09}, loader_workers=0
    )
    assert speedups(more, "gpu")[1] == 1 / 0.6


def test_what_a_step_waited_for_its_turn_on_a_gpu_is_no_part_of_it(tmp_path: Path) -> None:
    """Four steps a second, 0.25 s apart, of which each waited for 0.15."""
    spans = {"input": 0.01, "compute": 0.09}
    asides = {"turns": 36.0}
    more = made(
        tmp_path, ran=0.2, gpu=0.32, spans=spans, steps=4.0, end=60, asides=asides, loader_workers=0
    )
    assert more.replay_error == pytest.approx(0.0, abs=0.02)
    assert (twice := more.figures["gpu"]["x2"]) is not None
    assert twice.speedup == pytest.approx(1 / 0.6, rel=0.03)


@pytest.mark.parametrize("steps", [0.0, lambda t: 1.0 if t == 20 else 0.0])
def test_a_job_of_no_steps_or_one_gets_no_figure_but_the_reason(tmp_path: Path, steps: Any) -> None:
    more = made(tmp_path, ran=1.0, steps=steps)
    assert not more.figures
    assert set(more.lacks.values()) == {NoFigure.FEW_STEPS}


def test_a_job_whose_steps_take_an_hour_is_told_from_two_of_them(tmp_path: Path) -> None:
    job = MadeUp(
        ran=0.5,
        end=3 * 3600,
        steps=lambda t: 1.0 if t % 3600 == 0 else 0.0,
        blocked=0.5,
    )
    more = bought(recording(tmp_path / "run.sqlite", {"a": job}))
    assert speedups(more, "disk")[1] == 1 / 0.75


def test_a_band_holds_its_figure_and_widens_with_what_is_bought(tmp_path: Path) -> None:
    more = made(tmp_path, ran=0.5, spans={"input": 0.07, "compute": 0.03}, loader_workers=2)
    found = [each for each in more.figures["loader"].values() if each is not None]
    assert all(each.low < each.speedup < each.high for each in found)
    ratios = [each.high / each.low for each in found]
    assert ratios == sorted(ratios)


def test_a_run_of_an_earlier_version_is_told_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    recording(path, {"a": MadeUp(ran=0.5, spans={"input": 0.07, "compute": 0.03})})
    with sqlite3.connect(path) as db:
        for table, column in (("usage", "cpu_waiting"), ("usage", "psi_io"), ("spans", "workers")):
            db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    more = bought(read(path))
    assert more.lacks["cores"] is NoFigure.NO_CORE_WAITS
    assert "loader" in more.lacks
    assert speedups(more, "disk")[1] == 1.0  # it read nothing


def test_the_next_step_names_how_many_loader_workers_and_what_they_buy(tmp_path: Path) -> None:
    job = MadeUp(ran=0.5, spans={"input": 0.07, "compute": 0.03}, loader_workers=2)
    [account] = explained(recording(tmp_path / "run.sqlite", {"a": job}))
    remedy = verdict(account).remedy
    assert remedy.facts == ResourceFacts("loader", now=2)
    assert remedy.speedup == pytest.approx(2.0, abs=0.05)


def served(path: Path, rate: float | None, server_ran: float = 0.1) -> Recording:
    """A worker and a server on two nodes: a step of 0.1 s is 0.02 s of computing, and 1 MB each
    way.
    """
    recorder = Recorder(path)
    node = [{"name": name, "cores": 1.0, "nic_bytes_per_second": rate} for name in ("x", "y")]
    meta = {"id": "r", "began": "0", "ended": "20.0", "state": "done", "node": json.dumps(node)}
    for key, value in meta.items():
        recorder.add("meta", key=key, value=value)
    times = {"submitted": 0.0, "started": 0.0, "ended": 20.0}
    recorder.add(
        "jobs",
        name="a",
        position=0,
        spec={"name": "a", "run": ""},
        state="done",
        attempt=1,
        **times,
    )
    for task, place in (("a/worker-0", "x"), ("a/server-0", "y")):
        recorder.add("tasks", id=task, job="a", node=place, attempt=1, started=0.0, ended=20.0)
    for t in range(1, 21):
        recorder.add("usage", t=float(t), target="a/worker-0", cpu_cores=0.2, cpu_waiting=0.0)
        recorder.add("usage", t=float(t), target="a/server-0", cpu_cores=server_ran)
        recorder.add("progress", t=float(t), task="a/worker-0", step=10 * t, loss=1.0, count=1)
        own = {"t": float(t), "task": "a/worker-0", "step": 10 * t}
        for name, seconds in (("compute", 0.02), ("push", 0.04), ("pull", 0.04)):
            recorder.add("spans", **own, name=name, seconds=seconds)
        ways = {"push_begin": 0.02, "push_end": 0.06, "pull_begin": 0.06, "pull_end": 0.1}
        recorder.add("transfers", **own, peer="server-0", push_bytes=1e6, pull_bytes=1e6, **ways)
        recorder.add("spans", **own | {"task": "a/server-0"}, name="update", seconds=0.0)
    recorder.add("events", t=0.0, job="a", kind="running", text="started")
    recorder.add("events", t=20.0, job="a", kind="done", text="finished")
    recorder.close()
    return read(path)


def test_a_network_that_is_full_is_what_more_of_it_buys(tmp_path: Path) -> None:
    more = bought(served(tmp_path / "run.sqlite", 1.04e6 / 0.04))
    assert more.replay_error == pytest.approx(0.0, abs=0.01)
    assert speedups(more, "network")[:2] == [0.1 / (0.02 + 0.08 / 1.25), 0.1 / 0.06]
    assert speedups(more, "servers")[1] == 1.0  # the worker's own NIC is as full


def test_a_network_that_is_far_from_full_buys_little(tmp_path: Path) -> None:
    more = bought(served(tmp_path / "run.sqlite", 1e9))
    assert more.figures["network"]["unlimited"] is not None
    assert more.figures["network"]["unlimited"].speedup < 1.05


def test_a_server_whose_cores_are_full_gains_by_another_one_and_not_by_its_nic(
    tmp_path: Path,
) -> None:
    more = bought(served(tmp_path / "run.sqlite", 1.04e6 / 0.01, server_ran=0.78))
    assert speedups(more, "network")[:2] == [1.0, 1.0]
    assert speedups(more, "servers")[:2] == [0.1 / (0.022 + 0.078 / 1.25), 0.1 / (0.022 + 0.039)]


def test_nics_whose_rate_nobody_said_give_no_figure_but_the_reason(tmp_path: Path) -> None:
    more = bought(served(tmp_path / "run.sqlite", None))
    assert more.lacks["network"] is NoFigure.NO_NIC_RATE
