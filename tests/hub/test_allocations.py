"""Two terminals of one user: with other limits, on other CPUs, in other cgroups."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.hub.user import SECONDS, User

from headgate.isolation.process_attributes import Attributes
from headgate.machine import cgroup_layout
from headgate.recorded import runs
from headgate.testing import wait

TELLS = """
    import json, os, resource, sys, time
    kinds = {name: getattr(resource, "RLIMIT_" + name) for name in ("NOFILE", "CORE", "STACK")}
    limits = {name: resource.getrlimit(kind) for name, kind in kinds.items()}
    limits["MEMLOCK"] = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    open(f"made-{os.getpid()}", "w").close()
    mode = os.stat(f"made-{os.getpid()}").st_mode & 0o777
    cpus = sorted(os.sched_getaffinity(0))
    facts = {"mode": mode, "nice": os.nice(0), "limits": limits, "cpus": cpus}
    print(json.dumps(facts), flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.02)
"""
KIB = 1024
CAP_SYS_NICE, CAP_SYS_RESOURCE = 23, 24
two_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this machine has one CPU")


def may(capability: int) -> bool:
    """Whether this process has a capability, as a hub that it starts would."""
    [line] = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("CapEff:")
    ]
    return bool(int(line.split()[1], 16) >> capability & 1)


def types(user: User, line: str, *words: str, **variables: str) -> str:
    """What a command prints that is typed after a line of the shell, as `"$@"` in it."""
    done = subprocess.run(
        ["sh", "-c", line, "sh", *user.command(*words)],
        cwd=user.folder,
        env=user.variables | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def begins(user: User, line: str, name: str, **variables: str) -> str:
    """Start a run in the background, which goes on until a file is there; its id."""
    user.write(f"{name}.py", TELLS)
    words = ("run", "--detach", "--json", f"{name}.py", "--", f"{name}-ends")
    run = str(json.loads(types(user, line, *words, **variables))["run"])
    log = user.home / "runs" / run / "jobs" / name / "worker-0.log"
    wait.until(lambda: log.exists() and log.read_text().endswith("\n"), SECONDS, "the task runs")
    return run


def told(user: User, run: str, name: str) -> dict[str, object]:
    found = json.loads((user.home / "runs" / run / "jobs" / name / "worker-0.log").read_text())
    assert isinstance(found, dict)
    return found


def test_umask_nice_and_limits_of_a_task_are_those_of_the_terminal_that_submitted_it(
    user: User,
) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    first = begins(user, 'umask 077; ulimit -S -c 0; ulimit -n 400; exec "$@"', "first")
    line = (
        "umask 002; ulimit -n 300; ulimit -S -c 2000; ulimit -s 4096; ulimit -l 32; exec "
        'nice -n 3 "$@"'
    )
    second = begins(user, line, "second")
    assert len(user.traces.hubs()) == 1
    for name in ("first", "second"):
        user.touch(f"{name}-ends")
    there = told(user, first, "first")
    assert (there["mode"], there["nice"]) == (0o600, own)
    assert isinstance(there["limits"], dict)
    assert (there["limits"]["NOFILE"], there["limits"]["CORE"][0]) == ([400, 400], 0)
    here = told(user, second, "second")
    assert (here["mode"], here["nice"]) == (0o664, min(own + 3, 19))
    assert isinstance(here["limits"], dict)
    assert here["limits"]["NOFILE"] == [300, 300]
    assert here["limits"]["STACK"] == [4096 * KIB] * 2
    assert here["limits"]["MEMLOCK"] == [32 * KIB] * 2
    assert here["limits"]["CORE"][0] == 2000 * 512


def test_what_the_hub_may_not_give_is_said(user: User) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    begins(user, 'ulimit -n 400; exec "$@"', "first")
    second = begins(user, 'exec "$@"', "second")
    for name in ("first", "second"):
        user.touch(f"{name}-ends")
    limits = told(user, second, "second")["limits"]
    assert isinstance(limits, dict)
    wait.until(lambda: not runs.alive(user.home / "runs" / second), SECONDS, "all is recorded")
    warned = user.warnings(second)
    start = (
        "the hub was started elsewhere and may not give its tasks its limit nofile of "
        f"{before} (it has 400); end"
    )
    if may(CAP_SYS_RESOURCE):
        assert (limits["NOFILE"][1], warned) == (before, [])
    else:
        assert limits["NOFILE"][1] == 400
        assert [text.startswith(start) for text in warned] == [True]
    mine, theirs = (
        Attributes(0o22, nice, {"nofile": (100, hard)}) for nice, hard in ((5, 1000), (0, -1))
    )
    wanted = [] if may(CAP_SYS_NICE) else ["its nice value 0 (it has 5)"]
    wanted += [] if may(CAP_SYS_RESOURCE) else ["its limit nofile of unlimited (it has 1000)"]
    assert list(theirs.out_of_reach(mine)) == wanted
    assert list(mine.out_of_reach(theirs)) == []


@two_cpus
def test_a_terminal_with_other_cpus_has_a_hub_of_its_own_and_both_say_what_they_share(
    user: User,
) -> None:
    ours = sorted(os.sched_getaffinity(0))
    backwards = ",".join(map(str, reversed(ours)))
    first = begins(user, 'exec "$@"', "first")
    again = begins(user, f'exec taskset -c {backwards} "$@"', "again")
    assert len(user.traces.hubs()) == 1  # the same CPUs, said in another order
    other = begins(user, f'exec taskset -c {ours[1]} "$@"', "other")
    assert len(user.traces.hubs()) == 2
    assert told(user, first, "first")["cpus"] == told(user, again, "again")["cpus"] == ours
    assert told(user, other, "other")["cpus"] == [ours[1]]
    shared = f"has tasks on CPUs {ours[1]} too: these CPUs are oversubscribed"

    def warned(run: str) -> list[str]:
        return [
            each["text"]
            for each in user.json("status", run)["warnings"]
            if each["text"].endswith(shared)
        ]

    for run, whose in (
        (first, f"CPUs {ours[1]}"),
        (again, f"CPUs {ours[1]}"),
        (other, "all of the machine"),
    ):
        wait.until(lambda run=run: warned(run), SECONDS, "it says what is shared")  # type: ignore[misc]
        assert f"({whose};" in warned(run)[0]
    # Whatever terminal a command is typed in, it finds the hub of a run.
    assert {run["id"]: run["state"] for run in user.json("ps")} == dict.fromkeys(
        (first, again, other), "running"
    )
    assert (
        json.loads(types(user, 'exec "$@"', "stop", "--run", other, "--json"))[other]["other"][
            "state"
        ]
        == "stopped"
    )
    ended = json.loads(types(user, f'exec taskset -c {ours[1]} "$@"', "stop", "--all", "--json"))
    assert {
        run: {name: job["state"] for name, job in jobs.items()} for run, jobs in ended.items()
    } == {
        first: {"first": "stopped"},
        again: {"again": "stopped"},
    }


def test_a_batch_job_has_a_hub_of_its_own(user: User) -> None:
    first = begins(user, 'exec "$@"', "first")
    second = begins(user, 'exec "$@"', "second", SLURM_JOB_ID="17")
    assert len(user.traces.hubs()) == 2
    for name in ("first", "second"):
        user.touch(f"{name}-ends")
    for run, name in ((first, "first"), (second, "second")):
        user.sees_state(name, "done", run=run)


@pytest.fixture(params=[pytest.param("cpuset", marks=pytest.mark.long), "memory"])
def group(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A cgroup (v1) with limits, as a batch system makes for a job."""
    hierarchies = cgroup_layout.roots(Path("/sys/fs/cgroup"))
    own = cgroup_layout.folders_of(os.getpid(), Path("/sys/fs/cgroup"), "v1").get(request.param)
    if request.param not in hierarchies or own is None or not os.access(own, os.W_OK):
        pytest.skip(f"no cgroup v1 hierarchy of {request.param} can be written here")
    folder = own / f"batch-{os.getpid()}"
    folder.mkdir()
    try:
        if request.param == "cpuset":
            for file in ("cpuset.mems", "cpuset.cpus"):
                (folder / file).write_text((own / file).read_text())
            (folder / "cpuset.cpus").write_text(str(max(os.sched_getaffinity(0))))
        else:
            (folder / "memory.limit_in_bytes").write_text(str(2**30))
        yield folder
    finally:
        for each in [*sorted(folder.rglob("*/"), key=lambda path: -len(path.parts)), folder]:
            for pid in (each / "cgroup.procs").read_text().split() if each.is_dir() else ():
                os.kill(int(pid), signal.SIGKILL)
        wait.until(lambda: not _removed(folder), SECONDS, "the group is gone")


def _removed(folder: Path) -> bool:
    for each in [*sorted(folder.rglob("*/"), key=lambda path: -len(path.parts)), folder]:
        try:
            each.rmdir()
        except OSError:
            time.sleep(0.05)
    return folder.exists()


def _killed(group: Path) -> list[int]:
    """Kill what runs in a cgroup; its process ids."""
    pids = [int(pid) for file in group.rglob("cgroup.procs") for pid in file.read_text().split()]
    for pid in pids:
        with suppress(ProcessLookupError):  # it ended with another one
            os.kill(pid, signal.SIGKILL)
    return pids


@two_cpus
def test_a_job_outlives_the_end_of_an_allocation_that_it_is_not_in(group: Path, user: User) -> None:
    enters = f'echo $$ > {group}/cgroup.procs; exec "$@"'
    inside = begins(user, enters, "inside")  # it starts its hub first
    outside = begins(user, 'exec "$@"', "outside")
    assert len(user.traces.hubs()) == 2
    if (group / "cpuset.cpus").exists():
        assert told(user, inside, "inside")["cpus"] == [max(os.sched_getaffinity(0))]
        assert told(user, outside, "outside")["cpus"] == sorted(os.sched_getaffinity(0))
    assert len(_killed(group)) >= 3  # hub, guard and task
    wait.until(lambda: not _killed(group), SECONDS, "nothing is left of it")
    wait.until(lambda: not runs.alive(user.home / "runs" / inside), SECONDS, "that run is over")
    user.touch("outside-ends")
    user.sees_state("outside", "done", run=outside)
    wait.until(lambda: not runs.alive(user.home / "runs" / outside), SECONDS, "and that one")
    assert {run["id"]: run["state"] for run in user.json("ps")} == {
        inside: "interrupted",
        outside: "done",
    }
    again = begins(user, enters, "again")  # what the dead hub left is in nobody's way
    user.touch("again-ends")
    user.sees_state("again", "done", run=again)
