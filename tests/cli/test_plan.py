"""`headgate plan`: from a stored profile and nodes, which may exist only on paper, to a plan."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.planning.jobs import GIB, profile

from headgate.cli import headgate
from headgate.client import submitting
from headgate.config import planfile
from headgate.model.cluster import Node
from headgate.model.errors import HeadgateError, InvalidFileError, NotFoundError, UsageError
from headgate.model.jobs import Job
from headgate.model.profiles import TimeFit
from headgate.profiling import store
from headgate.recorded import runs
from headgate.sampling import machine

HERE = Node("here", cores=4.0, memory_bytes=16 * GIB, core_gflops=50.0, nic_bytes_per_second=125e6)
CLUSTER = """
nodes:
  - {kind: a, count: 3, cores: 1, memory: 4GiB, nic: 10Gbit}
  - {kind: b, count: 2, cores: 0.5, memory: 4GiB, nic: 100Mbit}
"""


@pytest.fixture(autouse=True)
def place(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script whose profile is stored, and a cluster on paper."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "detect", lambda cache=None: HERE)
    home.mkdir(mode=0o700)
    (tmp_path / "train.py").write_text("import headgate.torch\n")
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    [job] = submitting.submission(
        [Job(name="train", script=str(tmp_path / "train.py"), workdir=str(tmp_path))]
    ).jobs
    store.save(runs.home() / "profiles", store.key(job, HERE), profile(dense_bytes=2_500_000))
    return tmp_path


def says(*words: str) -> str:
    done = CliRunner().invoke(headgate, ["plan", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def data(*words: str) -> Any:
    return json.loads(says("--json", *words))


def refuses(kind: type[HeadgateError], *words: str) -> str:
    with pytest.raises(kind) as raised:
        CliRunner().invoke(headgate, ["plan", *words], catch_exceptions=False)
    return str(raised.value)


def test_the_same_program_has_its_profile_however_it_is_started() -> None:
    for words in (("python", "train.py"), ("-m", "train"), ("python", "-u", "-m", "train")):
        assert data(*words)["choice"] == data("train.py")["choice"]


def test_a_profile_of_other_arguments_is_named(place: Path) -> None:
    said = refuses(NotFoundError, "train.py", "--", "--epochs", "2")
    key = said.split("--profile ")[1].split()[0]
    assert f"--profile {key} was measured with no arguments" in said
    assert said.endswith("measure it with: headgate profile train.py -- --epochs 2")
    assert data("train.py", "--profile", key)["choice"] == data("train.py")["choice"]


# --- the answers


def test_it_answers_how_many_how_large_in_which_role_and_on_which_node() -> None:
    text = says("train.py", "--cluster", "cluster.yaml")
    many, large, role, node, expected, *_ = text.splitlines()
    assert many == "how many     3 workers"
    assert large.startswith("how large    85 to 86 samples of a step for each worker; at most ")
    assert role == "which role   allreduce: workers add up gradients among themselves"
    assert node == "which node   workers on a-1, a-2, a-3"
    assert expected.startswith("expected     ")
    [choice] = [line for line in text.splitlines() if line.startswith("*  1")]
    assert choice.split()[2:6] == ["allreduce", "3", "85-86", "3"]
    assert "* the choice: the best there is by the model" in text


def test_the_same_for_programs() -> None:
    told = data("train.py", "--cluster", "cluster.yaml", "--top", "4")
    assert len(told["candidates"]) == 4
    assert told["choice"] == told["candidates"][0]
    assert told["choice"]["plan"]["worker_nodes"] == ["a-1", "a-2", "a-3"]
    assert told["choice"]["low"] < told["choice"]["throughput"] < told["choice"]["high"]
    assert told["bound"] >= told["choice"]["throughput"]
    assert set(told["memory_bytes"]) == {"worker-0", "worker-1", "worker-2"}


def test_without_a_cluster_it_plans_for_this_machine() -> None:
    assert set(data("train.py")["choice"]["plan"]["worker_nodes"]) == {"here"}


def test_what_a_node_is_called_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "detect", lambda cache=None: replace(HERE, kind="[/red]"))
    assert "1 [/red]" in says("train.py")


def test_the_seconds_of_a_candidate_are_explained() -> None:
    text = says("train.py", "--cluster", "cluster.yaml", "--explain", "1")
    [ring] = [line for line in text.splitlines() if "once around a ring" in line]
    assert ring.split()[2] == "network"
    assert "2(w-1)/w times 2.38 MiB at 10 Gbit/s" in ring
    terms = {
        term["name"]: term
        for term in data("train.py", "--cluster", "cluster.yaml", "--explain", "1")["explain"]
    }
    assert terms["ring"]["seconds"] == pytest.approx(2 * 2 / 3 * 1.08 * 2.5e6 / 1.25e9)
    assert "expected 1 to 10" in refuses(
        UsageError, "train.py", "--cluster", "cluster.yaml", "--explain", "11"
    )


def test_what_if_says_what_a_change_would_bring() -> None:
    more = data("train.py", "--cluster", "cluster.yaml", "--what-if", "+2 node of kind a")
    assert more["choice"]["plan"]["workers"] == 5
    assert more["choice"]["throughput"] > 1.3 * more["before"]["throughput"]
    slow = data("train.py", "--cluster", "cluster.yaml", "--what-if", "nic=1Mbit")
    assert slow["choice"]["plan"]["strategy"] == "single"
    text = says(
        "train.py",
        "--cluster",
        "cluster.yaml",
        "--what-if",
        "nic=1Mbit",
        "--what-if",
        "-1 node of kind b",
    )
    assert "with nic=1Mbit, -1 node of kind b: " in text
    faster = data("train.py", "--cluster", "cluster.yaml", "--what-if", "a.cores=2")
    assert faster["choice"]["throughput"] > faster["before"]["throughput"]


def test_what_if_the_gpus_of_nodes_were_joined_otherwise(place: Path) -> None:
    two = "gpus: [{name: A30, memory: 24GiB}, {name: A30, memory: 24GiB}]"
    (place / "cluster.yaml").write_text(
        f"nodes:\n  - {{kind: g, cores: 16, memory: 64GiB, count: 2, {two}, gpu_link: {{rate: "
        "12GB/s, how: host}}\n"
        f"  - {{name: plain, cores: 4, memory: 8GiB}}\n"
    )
    on_gpu = profile(dense_bytes=2_000_000_000, fits=(TimeFit("A30", 1, 0.05, 0.001, 0.02),))
    store.save(place, "of-gpus", on_gpu)

    def brings(*changes: str) -> float:
        words = [word for change in changes for word in ("--what-if", change)]
        told = data("--profile", str(place / "of-gpus.json"), "--cluster", "cluster.yaml", *words)
        return float(told["choice"]["throughput"])

    rates = [brings(f"gpu_link={rate}") for rate in ("12GB/s", "25GB/s", "600GB/s", "4.8Tbit")]
    assert rates[0] == pytest.approx(brings())
    assert rates == sorted(rates)
    assert rates[2] == pytest.approx(rates[3])
    assert rates[2] > 1.2 * rates[0]
    assert brings("gpu_link=nvlink") > brings("gpu_link=pcie") > brings("gpu_link=host")
    assert brings("g.gpu_link=NVLink") == pytest.approx(brings("gpu_link=nvlink"))
    for change, message in (
        ("gpu_link=fast", "expected nvlink, pcie, host, or a rate above 0"),
        ("gpu_link=0GB/s", "expected nvlink, pcie, host, or a rate above 0"),
        ("gpu_link=measured", "expected nvlink, pcie, host, or a rate above 0"),
        ("plain.gpu_link=nvlink", "expected nodes with two GPUs or more"),
        ("h.gpu_link=nvlink", "found kind 'h'; expected one of g, plain"),
    ):
        assert message in refuses(
            UsageError, "train.py", "--cluster", "cluster.yaml", f"--what-if={change}"
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("nic=fast", "expected a rate such as 200Mbit"),
        ("cores=0", "expected more than 0"),
        ("+1 node of kind c", "found kind 'c'; expected one of a, b"),
        ("-4 node of kind a", "cannot remove 4 nodes of kind a: there are 3"),
        ("more of it", "expected nic=10Gbit, cores=8"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(change: str, message: str) -> None:
    assert message in refuses(
        UsageError, "train.py", "--cluster", "cluster.yaml", f"--what-if={change}"
    )


def test_the_choice_is_saved_for_run(place: Path) -> None:
    text = says("train.py", "--cluster", "cluster.yaml", "--save", "plan.yaml")
    assert text.endswith("saved: headgate run --plan plan.yaml --cluster cluster.yaml train.py\n")
    plan = planfile.load(str(place / "plan.yaml"))
    assert (plan.strategy, plan.batch_per_worker, plan.worker_nodes) == (
        "allreduce",
        (86, 85, 85),
        ("a-1", "a-2", "a-3"),
    )


# --- what is planned


def test_a_profile_alone_is_enough(place: Path) -> None:
    [stored] = (runs.home() / "profiles").iterdir()
    by_key = data("--profile", stored.stem[:8], "--cluster", "cluster.yaml")
    by_file = data("--profile", str(stored), "--cluster", "cluster.yaml")
    assert (
        by_key["choice"]
        == by_file["choice"]
        == data("train.py", "--cluster", "cluster.yaml")["choice"]
    )
    assert stored.stem[:8] in refuses(NotFoundError, "--profile", "zz")
    (place / "broken.json").write_text("{")
    assert "is no profile that can be read" in refuses(NotFoundError, "--profile", "broken.json")


def test_without_a_profile_it_says_what_to_run(place: Path) -> None:
    (place / "new.py").write_text("print()\n")
    assert "measure it with: headgate profile new.py -- --width 8" in refuses(
        NotFoundError, "new.py", "--", "--width", "8"
    )
    assert "found nothing to run" in refuses(UsageError)


def test_limits_and_what_is_allowed_count(place: Path) -> None:
    limited = data("train.py", "--cluster", "cluster.yaml", "--cores", "2")["choice"]["plan"]
    assert limited["workers"] * limited["cores_per_worker"] <= 2
    wide = data("train.py", "--cluster", "cluster.yaml", "--allow", "async")
    assert not all(each["plan"]["synchronous"] for each in wide["candidates"])
    message = refuses(UsageError, "train.py", "--cluster", "cluster.yaml", "--memory", "100MiB")
    assert "no plan can run: a allows 100 MiB of memory, a worker needs" in message


def test_a_plan_that_the_job_states_is_the_only_one(place: Path) -> None:
    (place / "jobs.yaml").write_text(
        "jobs: [{script: train.py, plan: {strategy: ps, workers: 2, servers: 1}}]\n"
    )
    [stored] = (runs.home() / "profiles").iterdir()
    told = data("jobs.yaml", "--profile", str(stored), "--cluster", "cluster.yaml")
    assert len(told["candidates"]) == 1
    assert (told["choice"]["plan"]["workers"], told["choice"]["plan"]["servers"]) == (2, 1)
    text = says("jobs.yaml", "--profile", str(stored), "--cluster", "cluster.yaml")
    assert "* the plan that the job states: no other was looked for" in text


def test_a_plan_that_is_stated_is_held_against_the_best(place: Path) -> None:
    here = ("train.py", "--cluster", "cluster.yaml")
    best = data(*here)["choice"]
    stated = ("--strategy", "ps", "--workers", "2", "--servers", "2")
    told = data(*here, *stated)
    assert (told["choice"]["plan"]["workers"], told["choice"]["plan"]["servers"]) == (2, 2)
    assert told["before"] == best and told["choice"]["throughput"] < best["throughput"]
    now, was = (f"{round(each['throughput']):,}" for each in (told["choice"], best))
    text = says(*here, *stated)
    assert re.search(
        rf"with this plan in place of the best \(.+\): {was} becomes {now} samples/s \(-\d+ %\)",
        text,
    )
    (place / "plan.yaml").write_text("{strategy: ps, workers: 2, servers: 2}")
    assert data(*here, "--plan", "plan.yaml")["choice"] == told["choice"]
    assert "expected --strategy allreduce" in refuses(UsageError, *here, "--workers", "2")


def test_a_cluster_that_is_none_is_refused(place: Path) -> None:
    (place / "none.yaml").write_text("nodes: [{name: a, cores: 1}]\n")
    assert "memory: it is missing" in refuses(
        InvalidFileError, "train.py", "--cluster", "none.yaml"
    )


# --- several jobs


def test_jobs_that_run_side_by_side_divide_the_nodes(place: Path) -> None:
    (place / "other.py").write_text("import headgate.torch  # another\n")
    [job] = submitting.submission(
        [Job(name="other", script=str(place / "other.py"), workdir=str(place))]
    ).jobs
    store.save(runs.home() / "profiles", store.key(job, HERE), profile(dense_bytes=2_500_000))
    told = data("train.py", "other.py", "--cluster", "cluster.yaml")
    one, two = told["jobs"]
    assert (one["job"], two["job"]) == ("train", "other")
    assert {*one["choice"]["plan"]["worker_nodes"]}.isdisjoint(
        two["choice"]["plan"]["worker_nodes"]
    )
    assert told["total"] == pytest.approx(one["normalised"] + two["normalised"])
    text = says("train.py", "other.py", "--cluster", "cluster.yaml")
    assert text.count("how many     ") == 2
    assert f"together {told['total']:.2f} times what one of them would have alone" in text
    message = "found --save with 2 jobs; expected one"
    assert message in refuses(
        UsageError, "train.py", "other.py", "--cluster", "cluster.yaml", "--save", "plan.yaml"
    )
    (place / "jobs.yaml").write_text(
        "jobs: [{script: train.py, name: a, plan: {strategy: single}}, {script: train.py, "
        "name: b}]\n"
    )
    assert "job 'a' states its plan" in refuses(
        UsageError, "jobs.yaml", "--cluster", "cluster.yaml"
    )


# --- measurements


def test_without_a_past_the_model_has_the_word() -> None:
    done = CliRunner().invoke(
        headgate, ["plan", "train.py", "--cluster", "cluster.yaml", "--history"]
    )
    assert "nothing was corrected" in done.stderr
    assert done.stdout == says("train.py", "--cluster", "cluster.yaml")


def test_measuring_makes_no_sense_of_nodes_that_are_not_there_or_of_a_stated_plan(
    place: Path,
) -> None:
    message = refuses(
        UsageError, "train.py", "--cluster", "cluster.yaml", "--history", "--what-if", "nic=10Gbit"
    )
    assert "found --history with --what-if" in message
    assert "describes other machines" in refuses(
        UsageError, "train.py", "--cluster", "cluster.yaml", "--probe", "2"
    )
    [stored] = (runs.home() / "profiles").iterdir()
    told = refuses(UsageError, "--profile", stored.stem[:8], "--probe", "1")
    assert "found --probe without a script" in told
    (place / "jobs.yaml").write_text("jobs: [{script: train.py, plan: {strategy: single}}]\n")
    assert "states its plan" in refuses(UsageError, "jobs.yaml", "--probe", "1")
