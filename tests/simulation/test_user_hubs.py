"""Users of one simulated machine, by hand: who has what with the arbiter, and without."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.simulation.places import FREE, cores, ends, gpus

from headgate.cli import headgate
from headgate.model.errors import UsageError
from headgate.model.sharing import SharingRules, UserShare
from headgate.simulation import Trace, TraceJob, simulate
from headgate.simulation.traces import made
from headgate.simulation.user_figures import compare
from headgate.simulation.user_hubs import Division, UserSharing


def on_cores(*jobs: tuple[str, float, float]) -> Trace:
    """Jobs by name: when they come, and seconds alone on both cores; the first letter is the
    user.
    """
    return made("t", [TraceJob(n, at, s, cores=2.0, user=n[0]) for n, at, s in jobs])


def ran(
    trace: Trace, division: Division, rules: SharingRules | None = None, *, on_gpus: int = 0
) -> dict[str, float]:
    """When each job ended, on two cores or so many GPUs."""
    machine = gpus(on_gpus) if on_gpus else cores(2.0)
    sharing = UserSharing(division, rules or SharingRules())
    return ends(simulate(trace, machine, "equal", FREE, sharing=sharing))


def test_a_user_with_three_jobs_has_no_more_than_one_with_one() -> None:
    trace = on_cores(("a0", 0.0, 6.0), ("a1", 0.0, 6.0), ("a2", 0.0, 6.0), ("b0", 0.0, 6.0))
    halves = ran(trace, Division.ARBITER)
    assert halves["b0"] == pytest.approx(12.0, rel=0.02)
    assert max(halves.values()) == pytest.approx(24.0, rel=0.02)
    assert ran(trace, Division.SLICES)["a2"] == pytest.approx(36.0, rel=0.02)


def test_shares_of_the_rules_count() -> None:
    trace = on_cores(("a0", 0.0, 6.0), ("b0", 0.0, 6.0))
    twice = SharingRules(parts=(UserShare(user="a", shares=2.0),))
    assert ran(trace, Division.ARBITER, twice)["a0"] == pytest.approx(9.0, rel=0.02)


def test_a_gpu_goes_from_user_to_user_whole() -> None:
    jobs = [TraceJob(f"{u}{i}", 0.0, 10.0, gpus=1, user=u) for u in "ab" for i in range(2)]
    ended = ran(made("t", jobs), Division.ARBITER, on_gpus=1)
    assert sorted(ended.values()) == pytest.approx([10.0, 20.0, 30.0, 40.0])
    assert ended["a0"] < ended["b0"] < ended["a1"]


def test_hubs_without_an_arbiter_see_each_others_memory_on_gpus() -> None:
    jobs = [TraceJob(u, 0.0, 10.0, gpus=2, user=u) for u in "ab"]
    ended = ran(made("t", jobs), Division.NONE, on_gpus=2)
    assert sorted(ended.values()) == pytest.approx([10.0, 20.0])


def test_a_job_larger_than_a_slice_takes_the_slice_and_as_much_longer() -> None:
    jobs = [TraceJob(u, 0.0, 10.0, gpus=2, user=u) for u in "ab"]
    assert ran(made("t", jobs), Division.SLICES, on_gpus=2) == pytest.approx({"a": 20.0, "b": 20.0})


def test_users_are_compared_with_what_a_slice_gives_them(tmp_path: Path) -> None:
    file, machine = tmp_path / "t.csv", tmp_path / "machine.yaml"
    file.write_text("user,at,seconds,cores\na,0,6,2\nb,0,6,2\nb,0,6,2\n")
    machine.write_text("nodes: [{name: lab1, cores: 2, memory: 8GiB}]\n")
    words = ["simulate", str(file), "--users", "--cluster", str(machine), "--policy", "equal"]
    data = json.loads(CliRunner().invoke(headgate, [*words, "--json"]).stdout)
    of = {entry["division"]: entry for entry in data["divisions"]}
    assert set(of) == set(Division)
    assert of["slices"]["worst"]["over_slices"] == 1.0
    assert of["arbiter"]["worst"]["over_slices"] <= 1.01
    assert of["arbiter"]["figures"]["makespan"] == pytest.approx(18.0, rel=0.02)
    assert "the arbiter" in CliRunner().invoke(headgate, words).stdout


def test_what_cannot_be_compared_is_refused() -> None:
    trace = on_cores(("a0", 0.0, 6.0), ("b0", 0.0, 6.0))
    alone = made("t", [replace(job, user="a") for job in trace.jobs])
    for jobs, nodes, text in ((alone, cores(2.0), "one user"), (trace, cores(2.0, 2.0), "2 nodes")):
        with pytest.raises(UsageError, match=text):
            compare(jobs, nodes, "equal", FREE, SharingRules())
