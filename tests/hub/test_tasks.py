"""Jobs of several tasks on a real hub: what the tasks are told, how they join, leave, are lost and
end.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.hub.team import Team
from tests.hub.user import SECONDS, User
from tests.profiling.test_profile_store import PROFILE

from headgate.model.jobs import Job
from headgate.profiling import store
from headgate.recorded.reader import RunReader
from headgate.sampling import machine
from headgate.testing import wait

PS = ("--strategy", "ps", "--workers", "2", "--servers", "1")
EVERYBODY = ("server-0", "worker-0", "worker-1")
AT_WORK = (1, True)


@pytest.fixture
def team(user: User) -> Team:
    return Team(user)


def test_tasks_know_each_other_and_the_servers_end_last(team: Team) -> None:
    team.starts(*PS, wait_for=EVERYBODY)
    view = team.sees("worker-1", dict.fromkeys(EVERYBODY, AT_WORK))
    assert list(view) == list(EVERYBODY)
    # nobody beyond this machine has to reach it
    assert view["server-0"]["endpoints"] == ["tcp://127.0.0.1:2"]
    server, worker = team.welcome("server-0"), team.welcome("worker-1")
    assert (server["role"], worker["role"], worker["index"], worker["joins"]) == (
        "server",
        "worker",
        1,
        False,
    )
    assert "server_secret" in server["secrets"] and "server_secret" not in worker["secrets"]
    assert worker["plan"]["workers"] == 2
    expected = [("worker-0", "running"), ("worker-1", "running"), ("server-0", "running")]

    def shown() -> bool:
        [job] = team.user.json("status")["jobs"]
        return [(task["task"], task["state"]) for task in job["tasks"]] == expected

    wait.until(shown, SECONDS, "status shows the tasks")
    assert "worker-1  running" in team.user.types("status").stdout
    team.user.touch("go")
    done = team.ends("done")
    # The course of the job is that of its first worker, its loss the mean of both.
    assert done["loss"] == 1.5
    ended = team.ended()
    assert ended["server-0"] >= max(ended["worker-0"], ended["worker-1"])
    assert "ends stop" in team.lines("server-0")


def test_a_lost_worker_joins_the_others_who_go_on(team: Team) -> None:
    team.starts(*PS, "--no-encrypt", wait_for=EVERYBODY)
    assert team.welcome("worker-0")["secrets"]["encrypt"] is False
    team.kills("worker-1")
    team.sees("worker-0", {"server-0": AT_WORK, "worker-0": AT_WORK})
    team.sees("worker-0", {"server-0": AT_WORK, "worker-0": AT_WORK, "worker-1": (2, True)})
    _, step = team.begun("worker-1", 2)
    assert step > 0
    assert len([line for line in team.lines("worker-0") if line.startswith("begins")]) == 1
    assert (
        team.sees_event("note", "worker-1 has joined at step")
        == f"worker-1 has joined at step {step}"
    )
    assert team.events("fault")[0].startswith(
        "worker-1 was lost: killed by SIGKILL; the others go on"
    )
    team.user.touch("go")
    team.ends("done")


def test_a_lost_server_is_started_again(team: Team) -> None:
    team.starts(*PS, wait_for=EVERYBODY)
    team.kills("server-0")
    team.sees("worker-0", {"server-0": (2, True), "worker-0": AT_WORK, "worker-1": AT_WORK})
    team.user.touch("go")
    team.ends("done")
    assert team.events("fault") == ["server-0 was lost: killed by SIGKILL; it is started again"]


def test_a_lost_worker_of_allreduce_takes_all_back_to_their_checkpoint(team: Team) -> None:
    team.starts("--strategy", "allreduce", "--workers", "2", wait_for=("worker-0", "worker-1"))
    assert team.user.json("checkpoint", "team") == {team.run: ["team"]}
    saved = wait.until(
        lambda: list((team.folder / "jobs" / "team" / "checkpoints").glob("step-*.pt")), 30
    )
    [step] = {int(path.stem.removeprefix("step-")) for path in saved or ()}  # by one worker only
    team.user.sees_job("team", lambda job: (job["step"] or 0) > step + 2)
    team.kills("worker-1")
    assert team.begun("worker-0", 2)[1] == team.begun("worker-1", 2)[1] == step
    text = team.sees_event("fault", "again, as before")
    assert text.startswith("at step")
    team.user.touch("go")
    assert team.ends("done")["attempt"] == 2


def test_workers_join_and_leave_a_job_that_goes_on(team: Team) -> None:
    team.starts(*PS, wait_for=EVERYBODY)
    assert team.user.json("resize", "team", "--workers", "4") == {
        "run": team.run,
        "job": "team",
        "jobs": ["team"],
        "workers": 4,
    }
    team.sees("worker-0", dict.fromkeys((*EVERYBODY, "worker-2", "worker-3"), AT_WORK))
    assert team.begun("worker-2")[1] > 0 and team.begun("worker-3")[1] > 0
    team.user.types("resize", "team", "--workers", "1")
    team.sees("worker-0", {"server-0": AT_WORK, "worker-0": AT_WORK})
    for task in ("worker-1", "worker-2", "worker-3"):
        assert [line for line in team.lines(task) if line.startswith("ends")]
    assert [line for line in team.lines("worker-0") if line.startswith("ends")] == []
    assert "only a running one" not in team.user.types("resize", "team", "--workers", "1").stderr
    team.user.touch("go")
    team.ends("done")
    assert team.events("fault") == []


def test_a_worker_that_fails_fails_the_job(team: Team) -> None:
    team.starts(*PS, wait_for=EVERYBODY)
    team.user.touch("fails")
    assert team.ends("failed")["reason"].startswith("worker-1: exit code 3")
    assert "ends stop" in team.lines("server-0")


def test_a_stopped_job_goes_on_under_another_plan(team: Team) -> None:
    team.starts(*PS, wait_for=EVERYBODY)
    team.user.sees_job("team", lambda job: (job["step"] or 0) > 3)
    team.user.types("stop", "team")
    team.ends("stopped")
    last = max(
        int(line.split()[1])
        for task in EVERYBODY[1:]
        for line in team.lines(task)
        if line.startswith("ends ")
    )
    first = team.run
    team.run = team.user.json(
        "resume", first, "--strategy", "allreduce", "--workers", "3", "--detach"
    )["run"]
    team.sees("worker-0", dict.fromkeys(("worker-0", "worker-1", "worker-2"), AT_WORK))
    assert 0 < team.begun("worker-2")[1] <= last
    team.user.touch("go")
    team.ends("done")
    assert "no task 'worker-7'" in team.user.types("logs", "team/worker-7", code=5).message
    assert team.user.types("logs", f"{first}/team/server-0").stdout.endswith("ends stop\n")
    assert team.user.log("team").splitlines() == team.lines("worker-0")
    shown = team.user.types("logs", "team", "--all").stdout
    assert [line for line in shown.splitlines() if line.startswith("==>")] == [
        "==> worker-0 <==",
        "==> worker-1 <==",
        "==> worker-2 <==",
    ]


def test_of_workers_that_share_nothing_people_are_warned_once_and_told_at_the_end(
    user: User,
) -> None:
    user.write(
        "plain.py",
        """
        import os, time
        print("step 1 loss 1.0", flush=True)
        while os.environ["HEADGATE_TASK"].endswith("1") and not os.path.exists("go"):
            time.sleep(0.05)
        """,
    )
    run = user.detaches("plain.py", "--strategy", "allreduce", "--workers", "2")
    share = "the 2 workers of job plain share nothing: plain.py does not use headgate.torch"
    user.sees_job("plain", lambda job: job["reason"].startswith(share), what="is said to run twice")
    user.touch("go")
    assert user.sees_state("plain", "done")["reason"].startswith("finished, 2 times over")
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        warnings = [row["text"] for row in reader.rows("events", "kind = 'warning'")]
    assert len([text for text in warnings if text.startswith(share)]) == 1


@pytest.mark.parametrize(
    ("batch", "said"), [(2, "a step has 2 samples, as its profile says, for 3 workers"), (3, "")]
)
def test_of_workers_that_get_no_samples_people_are_warned_before_the_start(
    user: User, batch: int, said: str
) -> None:
    script = user.write("few.py", "print('step 1 loss 1.0')\n")
    job = Job(name="few", script=str(script), workdir=str(user.folder))
    known = store.key(job, machine.detect(user.home / "node.json"))
    store.save(user.home / "profiles", known, replace(PROFILE, batch=batch))
    run = user.detaches("few.py", "--strategy", "allreduce", "--workers", "3")
    user.sees_state("few", "done")
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        told = [(row["kind"], row["text"]) for row in reader.rows("events")]
    warned = [
        i
        for i, (kind, text) in enumerate(told)
        if kind == "warning" and "of them gets nothing" in text
    ]
    assert len(warned) == bool(said)
    if warned:
        assert said in told[warned[0]][1]
        assert warned[0] < [kind for kind, _ in told].index("running")


LISTENS = """
    import os, torch
    import headgate.torch as hg

    model = hg.prepare(torch.nn.Linear(2, 1))
    descriptors = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    own = {os.readlink(each) for each in descriptors if os.path.islink(each)}
    for table in ("tcp", "tcp6"):
        for line in open(f"/proc/net/{table}").readlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in own:
                print("listens at", table, local.partition(":")[0])
"""


def test_workers_of_one_machine_listen_on_its_loopback_alone(user: User) -> None:
    user.write("train.py", LISTENS)
    user.types("run", "train.py", "--strategy", "allreduce", "--workers", "2")
    at = [line for line in user.log("train").splitlines() if "listens at" in line]
    assert {line.rpartition("listens at ")[2] for line in at} == {"tcp 0100007F"}
