"""Jobs in guests of user-mode Linux: their connection to the hub, checkpoints, networks, and what
is left of them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hub.team import Team
from tests.hub.test_lab import pytestmark as of_labs
from tests.hub.traces import command
from tests.hub.user import User, speed, user
from tests.kernel import kernel

from headgate.isolation.vm.isolation import PREFIX
from headgate.isolation.vm.machines import EMULATION, KERNEL, QEMU
from headgate.recorded.reader import RunReader
from headgate.testing import wait

__all__ = ["speed", "user"]

VM = ("--isolation", "vm")
EMULATED_SECONDS = 300.0
ALONE = """
    import os, zipfile
    from headgate.task import Channel, TaskEnvironment

    environment = TaskEnvironment.claim()
    channel = Channel.open(environment, "plain", "1", 0)
    channel.wait_for(lambda: bool(channel.welcome), 60)
    step = 0
    print("begins", os.getpid(), step, flush=True)
    while not channel.stopping:
        step += 1
        channel.send({"type": "progress", "step": step, "epoch": 0, "loss": 1.0, "count": 1})
        channel.wait_for(lambda: bool(channel.stopping), 0.05)
    path = os.path.join(environment.checkpoints, f"step-{step}.pt")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("step", str(step))
    message = {"type": "checkpoint", "path": path, "step": step, "position": step, "why": "stop"}
    channel.send({**message, "epoch": 0})
    channel.flush(5)
"""


@pytest.fixture(params=["uml"])
def team(user: User, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Team]:
    user.variables |= {EMULATION: request.param, "TMPDIR": str(tmp_path)}
    if request.param == "qemu":
        user.variables[KERNEL] = str(kernel_with_modules())
    elif shutil.which("linux.uml") is None:
        pytest.skip("user-mode Linux is not installed (apt-get install user-mode-linux)")
    found = Team(user)
    user.write("worker.py", ALONE)
    yield found
    wait.until(
        lambda: not guests(tmp_path) and not list(tmp_path.glob(f"{PREFIX}*")),
        EMULATED_SECONDS,
        "no guest is left",
    )


def kernel_with_modules() -> Path:
    """Debian's kernel for virtual machines, as it is once its package is installed."""
    depmod = shutil.which("depmod", path=f"{os.environ['PATH']}:/sbin")
    if depmod is None or shutil.which(QEMU) is None:
        pytest.skip("QEMU or kmod is not installed (apt-get install qemu-system-x86 kmod)")
    image = kernel()
    release = image.name.removeprefix("vmlinuz-")
    subprocess.run([depmod, "-b", image.parents[1], release], check=True)
    return image


def guests(folder: Path) -> list[list[str]]:
    """Command lines of the programs of guests below a folder."""
    every = (command(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return [words for words in every if any(f"{folder}/{PREFIX}" in word for word in words)]


def test_without_kvm_a_job_is_refused_with_what_is_missing(user: User) -> None:
    user.write("train.py", "print('loss 1.0')\n")
    done = user.types("run", "train.py", *VM, code=7, **{KERNEL: "/nowhere/vmlinuz"})
    assert re.match(
        (
            r"isolation vm: (no KVM on this machine: .*|there is no kernel at /nowhere.*|not "
            r"installed: .*)"
        ),
        done.message,
    )
    assert "emulation" not in user.types("doctor").stdout


@pytest.mark.parametrize(
    "team", ["uml", pytest.param("qemu", marks=pytest.mark.long)], indirect=True
)
def test_a_job_in_a_guest_reports_and_is_stopped_with_a_checkpoint(
    team: Team, tmp_path: Path
) -> None:
    team.starts(*VM, "--memory", "256MiB")
    wait.until(lambda: team.lines("worker-0"), EMULATED_SECONDS, "its guest is up")
    pid, _ = team.begun("worker-0")
    assert guests(tmp_path)
    assert str(tmp_path) not in " ".join(command(pid)), "its process has a number of this machine's"
    assert team.events("warning") == [
        f"team: its guest is emulated, as {EMULATION} allows; its times tell nothing"
    ]
    team.user.types("stop", "team")
    assert team.ends("stopped")["state"] == "stopped"
    saved = list((team.folder / "jobs/team/checkpoints").glob("step-*.pt"))
    assert saved, "it was asked through its guest, and saved nothing"
    with RunReader(team.folder / "run.sqlite") as reader:
        [task] = reader.rows("tasks")
    assert '"memory_peak_bytes": null' not in task["exit"]


def test_a_mount_at_a_path_that_is_not_there_is_refused_at_once(team: Team, tmp_path: Path) -> None:
    team.user.write("train.py", "import os; print(os.listdir('/tmp/seen'))\n")
    team.user.types("run", "train.py", *VM, "--name", "a", "--mount", f"{tmp_path}:/tmp/seen")
    team.user.types(
        "run", "train.py", *VM, "--name", "b", "--mount", f"{tmp_path}:/of/mine", code=1
    )
    reason = team.user.sees_job("b", lambda job: job["state"] == "failed")["reason"]
    assert (
        "`mounts`: a guest sees this machine's files, and there is no /of/mine; name a folder"
        in reason
    )


def test_a_guest_ends_with_a_killed_hub(team: Team, tmp_path: Path) -> None:
    team.starts(*VM, wait_for=("worker-0",))
    assert guests(tmp_path)
    team.user.kills(team.user.traces.hub())
    wait.until(lambda: not guests(tmp_path), EMULATED_SECONDS, "no guest is left")


@of_labs
@pytest.mark.parametrize("isolation", ["vm", pytest.param("vm+container", marks=pytest.mark.long)])
def test_guests_on_nodes_of_a_lab_have_their_addresses_and_find_each_other(
    team: Team, isolation: str
) -> None:
    nodes = ", ".join(f"{{name: {name}, cores: 0.4, memory: 512MiB}}" for name in "ab")
    team.user.write("lab.yaml", f"lab: true\nname: guests\nnodes: [{nodes}]\n")
    team.user.write(
        "meet.py",
        """
        import os, socket, time
        mine, theirs = socket.gethostname(), {"a": "b", "b": "a"}[socket.gethostname()]
        server = socket.create_server((mine, 4000))
        if mine == "a":
            print("heard", server.accept()[0].recv(100).decode(), flush=True)
        else:
            for _ in range(600):
                try:
                    with socket.create_connection((theirs, 4000), 1) as connection:
                        connection.sendall(f"{mine} {os.uname().release}".encode())
                    break
                except OSError:
                    time.sleep(0.1)
        """,
    )
    team.user.types("lab", "up", "lab.yaml")
    try:
        plan = "plan: {strategy: allreduce, workers: 2}"
        team.user.write(
            "jobs.yaml",
            f"jobs: [{{name: meet, script: meet.py, isolation: {isolation}, {plan}}}]\n",
        )
        run = team.user.detaches("jobs.yaml", "--cluster", "guests")
        team.user.sees_state("meet", "done", run=run)
        heard = (team.user.home / "runs" / run / "jobs/meet/worker-0.log").read_text()
        heard += (team.user.home / "runs" / run / "jobs/meet/worker-1.log").read_text()
        assert re.search(r"^heard b \d", heard, re.MULTILINE)
        assert os.uname().release not in heard
    finally:
        team.user.types("lab", "down", "guests")
