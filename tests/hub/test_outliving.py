"""Jobs outlive their hub, and the next one takes them up."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.hub.learning import LEARNS, STEPS
from tests.hub.user import SECONDS, User

from headgate.hub.connection import HubConnection
from headgate.isolation import launcher
from headgate.model.errors import HubError
from headgate.recorded.reader import RunReader
from headgate.testing import wait

COUNTS = """
    import os, sys, time
    for number in range(100000):
        print("step", number, "loss", 1 / (number + 1), flush=True)
        time.sleep(0.02)
        if os.path.exists("go"):
            break
    print("last", number)
    sys.exit(7)
"""
SAVES = """
    import os, time
    if not os.path.exists("saved"):
        open("saved", "w").write("here")
        time.sleep(1000)
"""
BEGINS = """
    import os, time
    with open("begun", "a") as file:
        print("begun", file=file)
    while not os.path.exists("go"):
        time.sleep(0.02)
"""
DIES = """
    import os, signal
    from headgate.isolation.spawning import Spawned
    from headgate.testing import wait

    release = Spawned.release

    def dies(child, program):
        try:
            os.mkdir("{died}")
        except FileExistsError:
            return release(child, program)
        if "{moment}" == "after":
            release(child, program)
            wait.until(lambda: os.path.exists("{begun}"))
        print("here", file=open("{died}/here", "w"), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    Spawned.release = dies
"""
STARTS = """
    import glob, os, sqlite3
    [store] = glob.glob(os.environ["HEADGATE_HOME"] + "/runs/*/run.sqlite")
    print(*(name for name, in sqlite3.connect(store).execute("SELECT id FROM tasks")))
"""
JOBS = """
    jobs:
      - {name: counts, script: counts.py, priority: 2}
      - {name: learns, script: learns.py}
      - {name: later, run: "echo later >> later.txt", after: learns}
"""


@pytest.fixture(autouse=True)
def outlives(user: User) -> None:
    user.variables["HEADGATE_ON_HUB_DEATH"] = "go-on"
    user.write("counts.py", COUNTS)
    user.write("learns.py", LEARNS)
    user.write("jobs.yaml", JOBS)


def next_hub(user: User, before: int) -> int:
    """The hub that answers after one that died. Of several that start, only one stays."""
    hub_pid = wait.until(lambda: _answers(user, before), SECONDS, "the next hub answers")
    assert hub_pid is not None
    return hub_pid


def _answers(user: User, before: int) -> int | None:
    with suppress(OSError, HubError), socket.socket(socket.AF_UNIX) as connected:
        connected.connect(str(user.home / "hub" / "hub.sock"))
        pid = HubConnection(connected).pid
        return pid if pid != before else None
    return None


def hub_of(user: User) -> int:
    hub = user.traces.hub()
    assert hub is not None
    return hub


def kill_hub_and_guard(user: User) -> None:
    hub = hub_of(user)
    os.kill(hub, signal.SIGSTOP)  # it starts no other guard
    user.kills(next(iter(user.traces.processes("headgate.hub.watchdog"))))
    user.kills(hub)


def test_the_next_hub_takes_up_the_same_processes(user: User) -> None:
    watching = user.starts("run", "jobs.yaml")
    for job in ("counts", "learns"):
        user.sees_job(job, lambda entry: (entry["step"] or 0) > 10)
    [run] = [folder.name for folder in (user.home / "runs").iterdir()]
    pids = {job: user.stands(job)["tasks"][0]["pid"] for job in ("counts", "learns")}  # type: ignore[index]
    hub = hub_of(user)
    user.kills(hub)
    second = next_hub(user, hub)
    # a second death, soon after the first
    user.kills(second)
    next_hub(user, second)
    for job in ("counts", "learns"):
        user.sees_state(job, "running")
        before = user.stands(job)
        assert before is not None
        assert before["tasks"][0]["pid"] == pids[job]
        came = before["step"] or 0
        user.sees_job(job, lambda entry, came=came: (entry["step"] or 0) > came + 5)  # type: ignore[misc]
    user.types("set", "counts", "priority=5")
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        notes = [row for row in reader.rows("events") if "no hub was there" in (row["text"] or "")]
        assert notes
        assert [row["entitled_cores"] for row in reader.rows("shares", "task = 'counts/worker-0'")]
    user.touch("go")
    counts = user.sees_state("counts", "failed")
    assert counts["exit_code"] == 7
    assert counts["attempt"] == 1
    printed = [line.split()[1] for line in user.log("counts").splitlines()]
    assert printed[:-1] == [str(number) for number in range(len(printed) - 1)]
    learned = user.sees_state("learns", "done")
    assert (learned["step"], learned["attempt"]) == (STEPS, 1)
    user.sees_state("later", "done")
    assert user.sees("later.txt").split() == ["later"]
    watched, complaints = watching.communicate(timeout=SECONDS)
    assert watching.returncode == 1, complaints
    assert "later" in watched


def test_a_command_takes_up_what_hub_and_guard_left(user: User) -> None:
    user.detaches("counts.py")
    user.sees_job("counts", lambda entry: (entry["step"] or 0) > 10)
    kill_hub_and_guard(user)
    user.touch("go")  # it ends without a hub
    # its keeper notes the end after that, and leaves then
    wait.until(lambda: not user.traces.processes(), SECONDS, "script and keeper end")
    known = time.time()
    assert user.jobs()["counts"]["state"] in ("running", "failed")
    ended = user.sees_state("counts", "failed")
    assert ended["exit_code"] == 7
    # it is dated when it ended, and not when a hub came
    with RunReader(next((user.home / "runs").iterdir()) / "run.sqlite") as reader:
        began = float(reader.meta()["began"])
        [task] = reader.rows("tasks")
    assert task["ended"] == ended["ended"] < known - began + 0.01


@contextmanager
def shutting_down(user: User) -> Iterator[None]:
    """Its systemd says that the machine is being shut down, from the first job on."""
    before, stub = user.variables["PATH"], user.write("systemctl", "#!/bin/sh\necho stopping\n")
    stub.chmod(0o700)
    user.variables["PATH"] = f"{user.folder}:{before}"
    yield
    stub.unlink()
    user.variables["PATH"] = before


def is_gone(user: User) -> bool:
    """Whether there is no hub, and nobody who would start one."""
    return user.traces.hub() is None and user.traces.guard() is None


def test_a_hub_that_ends_with_the_machine_stops_no_job(user: User) -> None:
    with shutting_down(user):
        user.detaches("counts.py")
        # the rows of its steps and of its tasks are not read at the same moment
        user.sees_job("counts", lambda entry: (entry["step"] or 0) > 5)
        entry = user.sees_job("counts", lambda entry: entry["tasks"][0]["pid"] is not None)
        os.kill(hub_of(user), signal.SIGTERM)
        wait.until(lambda: is_gone(user), SECONDS, "hub and guard are gone")
    user.types("ps")
    user.touch("go")
    ended = user.sees_state("counts", "failed")
    assert (ended["exit_code"], ended["tasks"][0]["pid"]) == (7, entry["tasks"][0]["pid"])


def test_what_the_machine_ends_before_the_hub_goes_on_after_its_start(user: User) -> None:
    user.write("saves.py", SAVES)
    user.write("jobs.yaml", JOBS.replace("learns.py", "saves.py, resumes: true"))
    with shutting_down(user):
        run = user.detaches("jobs.yaml")
        user.sees("saved")
        user.sees_job("counts", lambda entry: (entry["step"] or 0) > 10)
        for pid in user.traces.tasks():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        wait.until(lambda: is_gone(user), SECONDS, "hub and guard are gone")
    as_of_another_boot(user.home, run)
    user.touch("go")
    user.types("ps")
    assert "lost when this machine stopped" in user.sees_state("counts", "failed")["reason"]
    assert user.sees_state("learns", "done")["attempt"] == 2


def test_after_a_reboot_what_waited_runs_and_what_ran_is_told(user: User) -> None:
    user.write("saves.py", SAVES)
    jobs = JOBS.replace("learns.py", "saves.py, resumes: true")
    user.write("starts.py", STARTS)
    user.write("jobs.yaml", jobs.replace("echo later >>", "python starts.py >"))
    run = user.detaches("jobs.yaml")
    user.sees("saved")
    user.sees_job("counts", lambda entry: (entry["step"] or 0) > 10)
    kill_hub_and_guard(user)
    for pid in (*user.traces.tasks(), *user.traces.processes(launcher.__file__)):
        user.kills(pid)
    as_of_another_boot(user.home, run)
    user.touch("go")
    user.types("ps")
    counts = user.sees_state("counts", "failed")
    assert "lost when this machine stopped" in counts["reason"]
    assert f"headgate resume {run} --from-scratch" in counts["reason"]
    assert user.sees_state("learns", "done")["attempt"] == 2
    user.sees_state("later", "done")
    assert "later/worker-0" in user.sees("later.txt")  # a start is in the store before it begins


def test_a_job_whose_end_nobody_saw_is_not_run_again(user: User) -> None:
    user.detaches("counts.py")
    counts = user.sees_job("counts", lambda entry: (entry["step"] or 0) > 5)
    pid = counts["tasks"][0]["pid"]
    keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    kill_hub_and_guard(user)
    os.kill(keeper, signal.SIGKILL)
    user.touch("go")
    wait.until(lambda: not Path(f"/proc/{pid}").exists(), SECONDS, "the script has ended")
    user.types("ps")
    counts = user.sees_state("counts", "failed")
    assert "lost with its hub; run it again" in counts["reason"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_hub_that_dies_as_a_job_begins_begins_it_once(moment: str, user: User) -> None:
    user.warm = False  # the hub imports what kills it
    begun = user.folder / "begun"
    dies = DIES.format(died=user.folder / "died", begun=begun, moment=moment)
    user.write("sitecustomize.py", dies)
    user.variables["PYTHONPATH"] = str(user.folder)
    user.write("once.py", BEGINS)
    user.detaches("once.py")
    user.sees("died/here")
    user.types("ps")
    user.sees("begun")
    user.touch("go")
    once = user.sees_state("once", "done")
    assert (user.sees("begun"), once["attempt"]) == ("begun\n", 1)


def as_of_another_boot(home: Path, run: str) -> None:
    """Make a run, and the records of its boxes, those of an earlier boot that ended suddenly."""
    for file in (home / "hub" / "boxes").glob("*.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "boot": "another"}))
    with sqlite3.connect(home / "runs" / run / "run.sqlite") as store:
        store.execute("UPDATE meta SET value = 'another 5.0' WHERE key = 'clock'")
        # the power was cut: what came after the starts is lost
        store.execute("UPDATE tasks SET pid = NULL")
        store.execute("UPDATE jobs SET state = 'waiting', started = NULL")
    store.close()


def test_who_wants_it_has_jobs_end_with_their_hub(user: User) -> None:
    user.variables["HEADGATE_ON_HUB_DEATH"] = "stop"
    user.detaches("counts.py")
    user.sees_job("counts", lambda entry: (entry["step"] or 0) > 5)
    user.kills(user.traces.hub())
    wait.until(lambda: not user.traces.tasks(), SECONDS, "the script was ended")
    counts = user.jobs()["counts"]
    assert (counts["state"], counts["reason"][:20]) == ("interrupted", "the hub died; run it")
    user.variables["HEADGATE_ON_HUB_DEATH"] = "maybe"
    refused = user.types("run", "counts.py", code=2)
    assert "HEADGATE_ON_HUB_DEATH='maybe'; expected go-on or stop" in refused.stderr


def test_each_end_is_told_once_whatever_hubs_die(user: User) -> None:
    user.write(
        "told.yaml",
        """
        jobs:
          - {name: first, run: 'echo step 1 loss 1e-9; exit 1'}
          - {name: counts, script: counts.py}
        """,
    )
    user.detaches("told.yaml", "--notify", 'cat > last; echo "$HEADGATE_EVENT" >> ends')
    user.sees_state("first", "failed")
    user.sees_job("counts", lambda entry: (entry["step"] or 0) > 10)
    assert user.sees("ends").split() == ["failure"]
    before = hub_of(user)
    user.kills(before)
    next_hub(user, before)
    user.touch("go")
    ends = user.folder / "ends"
    wait.until(lambda: "run" in ends.read_text(), SECONDS, "the end of the run is told")
    assert ends.read_text().split() == ["failure", "failure", "run"]
    assert json.loads(user.sees("last"))["best"]["job"] == "first"


def test_a_job_of_several_commands_ends_and_begins_again(user: User) -> None:
    user.write("up.sh", "echo up >> $1; until [ -e go ]; do sleep 0.1; done")
    user.write(
        "roles.yaml",
        """
        jobs:
          - name: resumes
            resumes: true
            roles: [{name: one, run: sh up.sh ones}, {name: two, run: sh up.sh others}]
          - name: loses
            roles: [{name: one, run: sh up.sh lost}, {name: two, run: sh up.sh others}]
        """,
    )
    user.detaches("roles.yaml")
    user.sees("ones")
    user.sees_state("loses", "running")
    before = hub_of(user)
    user.kills(before)
    next_hub(user, before)
    lost = user.sees_state("loses", "failed")
    assert "lost with its hub; run it again" in lost["reason"]
    ones = user.folder / "ones"
    wait.until(lambda: ones.read_text() == "up\nup\n", SECONDS, "it is started again")
    user.touch("go")
    assert user.sees_state("resumes", "done")["attempt"] == 2
    assert user.sees("lost") == "up\n"
