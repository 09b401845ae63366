"""Jobs of several tasks on the nodes of a lab."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hub.team import Team
from tests.hub.test_launched import MEETS
from tests.hub.test_roles import CLIENT, SERVER, SERVING
from tests.hub.user import SECONDS, User
from tests.reports.browsing import chromium
from tests.web.conftest import Pages
from tests.web.watching import LEARNS, Page, shows_one_elsewhere

from headgate import Executor, lab
from headgate.recorded.reader import RunReader
from headgate.recorded.recording import read
from headgate.testing import wait

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None,
    reason="a lab needs root, and the programs ip and tc",
)

NODE = "  - {{name: {0}, cores: 0.4, memory: 256MiB, nic: 200Mbit}}\n"
PS = ("--cluster", "team", "--strategy", "ps", "--workers", "2", "--servers", "1")


@pytest.fixture
def team(user: User) -> Iterator[Team]:
    found = Team(user)
    up(found, "abc")
    yield found
    user.types("lab", "down", "team")


def up(team: Team, nodes: str) -> None:
    """Bring up a lab with these nodes; those it had besides go."""
    team.user.write(
        "lab.yaml", "lab: true\nname: team\nnodes:\n" + "".join(map(NODE.format, nodes))
    )
    team.user.types("lab", "up", "lab.yaml")


def test_tasks_are_on_their_nodes_and_what_these_use_is_recorded(team: Team) -> None:
    team.starts(*PS, "--nodes", "a,c", wait_for=("server-0", "worker-0", "worker-1"))
    everybody = dict.fromkeys(("server-0", "worker-0", "worker-1"), (1, True))
    view = team.sees("worker-0", everybody)
    assert {name: (member["node"], member["address"]) for name, member in view.items()} == {
        "server-0": ("a", "10.77.0.1"),
        "worker-0": ("a", "10.77.0.1"),
        "worker-1": ("c", "10.77.0.3"),
    }

    def measured() -> set[str]:
        with RunReader(team.folder / "run.sqlite") as reader:
            return {
                row["target"]
                for row in reader.rows("usage", "net_in IS NOT NULL AND target LIKE 'node:%'")
            }

    wait.until(lambda: {"node:a", "node:c"} <= measured(), what="the use of both nodes is recorded")
    team.user.touch("go")
    team.ends("done")


@pytest.mark.long
def test_the_page_has_a_lab_s_nodes_links_logs_and_buttons(team: Team, tmp_path: Path) -> None:
    user = team.user
    served = Pages(user, "--port", "0")
    with chromium(tmp_path / "profile") as browser:
        page = Page(browser, served.act)
        page.shows("#nodes", "lab team")  # idle
        user.write("a.py", LEARNS.replace("{NAME}", "a"))
        user.touch("a-1")
        user.detaches("a.py", "--cluster", "team", "--nodes", "b")
        shows_one_elsewhere(
            page, user, "lab team", "of 0.4 cores", "of 256 MiB", "/s of 23.8 MiB/s"
        )
    assert served.ends() == 0


def test_a_call_runs_on_a_node_of_a_lab(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(team.user.folder)
    with Executor(1, cluster="team") as executor:
        call = executor.submit(socket.gethostname)
        assert call.result(SECONDS) in {"a", "b", "c"}


def test_a_run_that_was_told_its_nodes_keeps_to_them_when_it_is_resumed(team: Team) -> None:
    words = ("--strategy", "allreduce", "--workers", "1", "--cluster", "team", "--nodes", "b")
    team.starts(*words, wait_for=("worker-0",))
    team.user.types("stop", "team")
    team.ends("stopped")
    [job] = read(team.folder / "run.sqlite").jobs
    assert job.placement_options == ("--cluster", "team", "--nodes", "b")
    team.user.touch("go")
    team.run = team.user.json("resume", team.run, "--detach")["run"]
    team.ends("done")
    with RunReader(team.folder / "run.sqlite") as reader:
        assert {row["node"] for row in reader.rows("tasks")} == {"b"}
        assert reader.meta()["only"] == "b"


def test_a_server_whose_node_is_taken_away_goes_on_elsewhere_and_a_worker_is_done_without(
    team: Team,
) -> None:
    team.starts(*PS, wait_for=("server-0", "worker-0", "worker-1"))
    up(team, "ab")
    view = team.sees(
        "worker-0", {"server-0": (2, True), "worker-0": (1, True), "worker-1": (1, True)}
    )
    assert view["server-0"]["node"] in ("a", "b")
    team.sees_event("fault", "node c is gone")
    where = view["worker-1"]["node"]
    up(team, "ab".replace(where, ""))
    team.sees_event(
        "fault", f"worker-1 was lost: its node {where} is gone; the others go on without it"
    )
    team.user.touch("go")
    team.ends("done")


def test_of_a_node_without_a_link_is_told_as_long_as_it_lasts(team: Team) -> None:
    team.starts(*PS, wait_for=("server-0", "worker-0", "worker-1"))
    team.user.types("lab", "set", "c", "nic=down")
    team.sees_event("fault", "node c is cut off: its NIC has no link")
    team.user.types("lab", "set", "c", "nic=up")
    team.sees_event("note", "node c is no longer cut off, after ")
    assert len(team.events("fault")) == 1
    team.user.touch("go")
    team.ends("done")


def test_that_a_node_is_gone_is_noticed_before_a_task_ends_of_it(team: Team) -> None:
    team.user.write(
        "rest.py", "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
    )
    team.run = team.user.detaches("rest.py", "--name", "team", "--cluster", "team")
    team.user.sees_state("team", "running")
    with RunReader(team.folder / "run.sqlite") as reader:
        [task] = reader.rows("tasks")
    left = "abc".replace(task["node"], "")
    up(team, task["node"] + left[0])
    team.sees_event("fault", f"node {left[1]} is gone")
    team.user.touch("go")
    team.ends("done")


def test_a_cluster_that_cannot_be_reached_is_refused(team: Team) -> None:
    team.user.write(
        "machines.yaml", "nodes:\n  - {name: far, address: 192.0.2.7, cores: 4, memory: 8GiB}\n"
    )
    refused = team.user.types("run", "worker.py", "--cluster", "machines.yaml", code=2).message
    assert "describes other machines (far), which engine `local` cannot reach" in refused
    refused = team.user.types(
        "run", "worker.py", "--cluster", "team", "--nodes", "a,z", code=2
    ).message
    assert refused == "cluster team has no node 'z'; expected some of a, b, c"
    assert "name the lab" in team.user.types("run", "worker.py", "--nodes", "a", code=2).message
    dry = team.user.json("run", "worker.py", *PS, "--dry-run")
    assert (dry[0]["task"], dry[0]["node"]) == ("worker/server-0", "c")
    assert dry[0]["argv"][1:] == ["-m", "headgate.torch.ps"]
    made = [line for entry in dry for line in entry["box"] if line.startswith("mkdir")]
    assert len(made) == len(set(made))


def test_workers_of_another_launcher_meet_across_nodes_and_start_again_on_those_that_are_left(
    team: Team,
) -> None:
    user = team.user
    user.write(
        "meets.py",
        MEETS
        + """
    peers = meet()
    where = [os.environ[name] for name in ("LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR")]
    Path(f"met-{restarts}-{rank}").write_text(" ".join(where))
    while not os.path.exists("go"):
        time.sleep(0.02)
    """,
    )
    user.write(
        "jobs.yaml",
        "jobs: [{script: meets.py, launch: torchrun, plan: {strategy: allreduce, workers: 3}}]",
    )
    run = user.detaches("jobs.yaml", "--cluster", "team", "--nodes", "b,c,a")
    at = {node.name: node.address for node in lab.nodes("team").nodes}

    def met(restarts: int) -> list[str]:
        return [user.sees(f"met-{restarts}-{rank}") for rank in range(3)]

    assert met(0) == [f"0 {rank} {at['b']}" for rank in range(3)]
    up(team, "ab")
    assert met(1) == [f"{place} {at['b']}" for place in ("0 0", "1 0", "0 1")]
    up(team, "a")  # the node of rank 0, where all meet, is gone
    assert met(2) == [f"{rank} 0 127.0.0.1" for rank in range(3)]
    user.touch("go")
    user.sees_state("meets", "done", run=run)


def test_roles_find_each_other_across_nodes_and_start_again_where_one_is_taken_away(
    team: Team,
) -> None:
    user = team.user
    user.write("server.py", SERVER)
    user.write(
        "client.py",
        CLIENT.replace(
            "import os",
            (
                "import pathlib, time\n    while not pathlib.Path('go').exists(): "
                "time.sleep(0.05)\n    import os"
            ),
            1,
        ),
    )
    user.write("jobs.yaml", SERVING.replace("cores: 1", "cores: 0.4").replace("500MB", "100MB"))
    run = user.detaches("jobs.yaml", "--cluster", "team")

    def places(attempt: int) -> dict[str, str]:
        found = user.sees_job(
            "serving", lambda job: job["attempt"] == attempt and len(job["tasks"]) == 3
        )
        return {task["task"]: task["node"] for task in found["tasks"]}

    assert places(1) == {"server-0": "a", "client-0": "b", "client-1": "c"}
    up(team, "ab")
    assert set(places(2).values()) == {"a", "b"}
    user.touch("go")
    assert user.sees_state("serving", "done", run=run)
    assert {user.log(f"serving/client-{i}") for i in (0, 1)} == {
        "hello client 0\n",
        "hello client 1\n",
    }
