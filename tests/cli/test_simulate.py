from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.planning.jobs import profile

from headgate.cli.simulate import command
from headgate.errors import InvalidFileError, NotFoundError, UsageError
from headgate.profiling import store

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
    assert re.match(r"policy +mean +median +p95 +p99 +makespan +max ρ +used +restarts", lines[0])
    # Completion 10, 12, 12 s and, least remaining first, 16, 4, 4 s.
    assert re.match(r"fifo +11.3 s +12 s +12 s +12 s +16 s .* 100 % +0$", lines[1])
    assert re.match(r"srpt +8 s +4 s +14.8 s +15.8 s +16 s .* 100 % +1$", lines[2])


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
    assert simulated("--policy", "fifo", "--policy", "srpt", "--output", "page.html").stdout.endswith(
        f"{files / 'page.html'}\n"
    )
    page = (files / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.count('data-key="mean"') == 2
    assert {"completion", "present", "used"} <= set(re.findall(r'data-plot="([\w-]+)"', page))
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    fifo, srpt = data["plots"][0]["lines"]
    # Half way, just before 8 s, none is done under fifo, and two of three least remaining first; in the end all are.
    assert (fifo["mean"][299], srpt["mean"][299]) == (0, 0.666667)
    assert (fifo["mean"][-1], srpt["mean"][-1]) == (1, 0.666667)  # the last one ends with the last bucket


def test_load_makes_jobs_come_slower(files: Path) -> None:
    told = json.loads(simulated("--load", "0.5", "--json").stdout)
    assert told["policies"][0]["makespan"] == pytest.approx(34.0)  # 16 s of work come within 32 s, the last of 2 s
    assert told["policies"][0]["utilisation"] == pytest.approx(16 / 34)


def test_a_profile_says_how_much_slower_other_gpus_are(files: Path) -> None:
    (files / "cnn.json").write_text(store.dump(profile()))
    unlike = "nodes: [{name: a, cores: 8, memory: 32GiB, gpus: [{name: V100, memory: 16GB}]}, "
    unlike += "{name: b, cores: 8, memory: 32GiB, gpus: [{name: K80, memory: 16GB}]}]\n"
    (files / "cluster.yaml").write_text(unlike)
    told = [json.loads(simulated("--json", *more).stdout)["policies"][0] for more in ((), ("--profile", "cnn.json"))]
    assert told[0]["makespan"] == 10.0
    assert told[1]["makespan"] > 12.0  # b and c take longer on the K80 than beside a on a second V100
    (files / "trace.csv").write_text("job_id,submission_time,num_gpu,duration,profile\na,0,1,10,lost.json\n")
    with pytest.raises(NotFoundError, match=r"lost\.json is no profile that can be read"):
        simulated()


def test_mistakes_are_said(files: Path) -> None:
    (files / "trace.csv").write_text(TRACE + "a,5,1,3\n")
    with pytest.raises(InvalidFileError, match="line 5: job_id: found 'a', as on line 2"):
        simulated()
    with pytest.raises(UsageError, match="--restart: found 'often'; expected a time"):
        simulated("--restart", "often")
    (files / "trace.csv").write_text(TRACE)
    with pytest.raises(UsageError, match="no policy 'best'"):
        simulated("--policy", "best", "--share-gpus")
