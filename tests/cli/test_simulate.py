from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.hub.user import User
from tests.planning.jobs import profile

from headgate import simulation
from headgate.cli.simulate import command
from headgate.model.errors import InvalidFileError, NotFoundError, StorageError, UsageError
from headgate.model.records import text_of
from headgate.reports import simulated as reports

TRACE = "job_id,submission_time,num_gpu,duration\na,0,1,10\nb,2,1,4\nc,4,1,2\n"
CLUSTER = "nodes: [{name: a, cores: 8, memory: 32GiB, gpus: [{name: T4, memory: 16GB}]}]\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def simulated(*words: str) -> Result:
    words = ("trace.csv", "--cluster", "cluster.yaml", "--restart", "0", *words)
    return CliRunner().invoke(command, words, catch_exceptions=False)


def test_policies_are_compared_in_a_table(files: Path) -> None:
    lines = simulated("--policy", "fifo", "--policy", "srpt").stdout.splitlines()
    assert re.match(
        r"policy +mean +median +p95 +p99 +makespan +max ρ +used +restarts +as live", lines[0]
    )
    # Completion 10, 12, 12 s and, least remaining first, 16, 4, 4 s.
    assert re.match(r"fifo +11.3 s +12 s +12 s +12 s +16 s .* 100 % +0 +yes *$", lines[1])
    assert re.match(
        r"srpt +8 s +4 s +14.8 s +15.8 s +16 s .* 100 % +1 +no: only simulated$", lines[2]
    )


def test_an_order_that_no_live_hub_has_is_told_apart(files: Path) -> None:
    policies = ("--policy", "fifo", "--policy", "srpt")
    done = simulated(*policies, "--output", "page.html")
    assert re.fullmatch(
        r"srpt: this order is only simulated: live, no job is stopped for another .*\n", done.stderr
    )
    assert (files / "page.html").read_text().count("no: only simulated") == 1
    told = json.loads(simulated(*policies, "--json").stdout)["policies"]
    assert [(each["as_live"], len(each["warnings"])) for each in told] == [(True, 0), (False, 1)]
    shared = json.loads(simulated(*policies, "--share-gpus", "--json").stdout)["policies"]
    assert [(each["as_live"], each["warnings"]) for each in shared] == [(True, []), (True, [])]


def test_json_has_the_figures_of_each_policy_and_is_the_same_each_time(files: Path) -> None:
    words = ("--policy", "las", "--policy", "headgate", "--error", "0.5", "--seed", "7", "--json")
    first, again = (json.loads(simulated(*words).stdout) for _ in range(2))
    for told in (first, again):
        for policy in told["policies"]:
            assert policy.pop("wall_seconds") > 0
    assert first == again
    assert (first["trace"], first["jobs"], first["capacity"], first["seed"]) == ("trace", 3, 1.0, 7)
    assert [(each["policy"], each["done"], each["makespan"]) for each in first["policies"]] == [
        ("las", 3, 16.0),
        ("headgate", 3, 16.0),
    ]


def test_the_page_has_the_figures_and_the_distribution(files: Path) -> None:
    assert simulated(
        "--policy", "fifo", "--policy", "srpt", "--output", "page.html"
    ).stdout.endswith(f"{files / 'page.html'}\n")
    page = (files / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.count('data-key="mean"') == 2
    assert {"completion", "present", "used"} <= set(re.findall(r'data-plot="([\w-]+)"', page))
    data = json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]  # type: ignore[index]
    )
    fifo, srpt = data["plots"][0]["lines"]
    # Half way, just before 8 s, none is done under fifo, and two of three least remaining first; in
    # the end all are.
    assert (fifo["mean"][298], srpt["mean"][298]) == (0, 0.666667)
    assert (fifo["mean"][-1], srpt["mean"][-1]) == (1, 1)


def test_load_makes_jobs_come_slower(files: Path) -> None:
    told = json.loads(simulated("--load", "0.5", "--json").stdout)
    # 16 s of work come within 32 s, the last of 2 s
    assert told["policies"][0]["makespan"] == pytest.approx(34.0)
    assert told["policies"][0]["utilisation"] == pytest.approx(16 / 34)


def test_a_profile_says_how_much_slower_other_gpus_are(files: Path) -> None:
    (files / "cnn.json").write_text(text_of(profile()))
    unlike = "nodes: [{name: a, cores: 8, memory: 32GiB, gpus: [{name: V100, memory: 16GB}]}, "
    unlike += "{name: b, cores: 8, memory: 32GiB, gpus: [{name: K80, memory: 16GB}]}]\n"
    (files / "cluster.yaml").write_text(unlike)
    told = [
        json.loads(simulated("--json", *more).stdout)["policies"][0]
        for more in ((), ("--profile", "cnn.json"))
    ]
    assert told[0]["makespan"] == 10.0
    # b and c take longer on the K80 than beside a on a second V100
    assert told[1]["makespan"] > 12.0
    (files / "trace.csv").write_text(
        "job_id,submission_time,num_gpu,duration,profile\na,0,1,10,lost.json\n"
    )
    with pytest.raises(NotFoundError, match=r"lost\.json is no profile that can be read"):
        simulated()


def test_mistakes_are_said(files: Path) -> None:
    (files / "trace.csv").write_text(TRACE + "a,5,1,3\n" * 3)
    with pytest.raises(InvalidFileError, match="line 5: job_id: found 'a', as on line 2"):
        simulated()
    (files / "trace.csv").write_text(TRACE + "a,5,1,3\n")
    note = (
        "1 of 4 lines make no sense and are left out: line 5: job_id: found 'a', as on line "
        "2; give each job its own"
    )
    assert simulated().stderr == f"trace: {note}\n"
    assert json.loads(simulated("--json", "--output", "page.html").stdout)["notes"] == [note]
    assert "1 of 4 lines make no sense" in (files / "page.html").read_text()
    with pytest.raises(UsageError, match="--restart: found 'often'; expected a time"):
        simulated("--restart", "often")
    (files / "trace.csv").write_text(TRACE)
    with pytest.raises(UsageError, match="no policy 'best'"):
        simulated("--policy", "best", "--share-gpus")


@pytest.mark.parametrize(
    ("option", "number"),
    [
        *(
            (option, number)
            for option in ("--load", "--exponent", "--error", "--startup")
            for number in ("nan", "inf")
        ),
        ("--error", "500"),
        ("--load", "1e-310"),
        ("--startup", "1e308"),
    ],
)
def test_a_number_that_means_nothing_is_refused(option: str, number: str, files: Path) -> None:
    done = simulated(option, number)
    assert done.exit_code == 2
    assert f"Invalid value for '{option}'" in done.stderr


def test_it_is_told_how_far_a_simulation_is_and_it_can_be_interrupted(user: User) -> None:
    rows = (f"j{number},{number},1,100" for number in range(400))
    user.write("trace.csv", "\n".join(["job_id,submission_time,num_gpu,duration", *rows]))
    user.write("cluster.yaml", CLUSTER)
    words = ("--cluster", "cluster.yaml", "--share-gpus", "--policy", "headgate", "--report", "1s")
    terminal = user.opens("simulate", "trace.csv", *words)
    terminal.shows(r"headgate: \d+ of 400 jobs ended, .* after the first")
    terminal.press(b"\x03")
    assert terminal.ends() != 0
    assert "Traceback" not in terminal.text


def test_times_that_no_clock_could_count_are_refused(files: Path) -> None:
    for option, time in (("--report", "1e-300"), ("--restart", "1e308")):
        with pytest.raises(
            UsageError,
            match=f"{option}: found '{time}'; expected 0, or from 1ms to 1e\\+09 seconds",
        ):
            simulated(option, time)


def test_mistakes_are_said_before_the_first_simulation(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "simulate", lambda *_: pytest.fail("a simulation has begun"))
    with pytest.raises(UsageError, match="no policy 'typo'"):
        simulated("--policy", "fifo", "--policy", "typo")
    with pytest.raises(UsageError, match="found options in 'headgate:rho=2'"):
        simulated("--policy", "fifo", "--policy", "headgate:rho=2")
    missing = files / "missing" / "page.html"
    with pytest.raises(
        StorageError, match=f"cannot write {missing}: No such file or directory; name another file"
    ):
        simulated("--output", str(missing))


def test_a_simulation_that_fails_leaves_no_file_and_changes_none(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise UsageError("too large")

    (files / "page.html").write_text("the last one")
    before = sorted(files.iterdir())
    monkeypatch.setattr(simulation, "simulate", fails)
    for name in ("page.html", "other.html"):
        with pytest.raises(UsageError, match="too large"):
            simulated("--output", name)
    assert sorted(files.iterdir()) == before
    assert (files / "page.html").read_text() == "the last one"


@pytest.mark.parametrize("as_json", [False, True])
def test_figures_are_printed_though_the_page_cannot_be_written(
    as_json: bool, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise StorageError("cannot write page.html: No space left on device")

    monkeypatch.setattr(reports, "write", fails)
    words = [
        "trace.csv",
        "--cluster",
        "cluster.yaml",
        "--output",
        "page.html",
        *(["--json"] if as_json else []),
    ]
    done = CliRunner().invoke(command, words)
    assert isinstance(done.exception, StorageError)
    if as_json:
        told = json.loads(done.stdout)
        assert (told["page"], told["policies"][0]["done"]) == (None, 3)
    else:
        assert done.stdout.splitlines()[1].startswith("fifo ")
