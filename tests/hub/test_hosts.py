"""A home that two hosts share, and sockets that somebody removes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hub.user import SECONDS, User

from headgate.testing import wait

WAITS = """
    import os, time
    print("epoch 1 loss 0.5", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.02)
"""
CONNECTS = """
    import os, socket
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["HEADGATE_CHANNEL"].removeprefix("unix:"))
"""


@pytest.fixture(params=[pytest.param("in its home", marks=pytest.mark.long), "below /tmp"])
def user_of(request: pytest.FixtureRequest, tmp_path: Path, speed: Path) -> Iterator[User]:
    """Somebody whose sockets are in that folder."""
    deep = "h" * (10 if request.param == "in its home" else 90)
    somebody = User(tmp_path / "work", tmp_path / deep, speed)
    yield somebody
    somebody.leaves()


def test_sockets_that_somebody_removed_are_made_again_and_jobs_go_on(user_of: User) -> None:
    user = user_of
    user.write("waits.py", WAITS)
    user.write("connects.py", CONNECTS)
    run = user.detaches("waits.py")
    user.sees_job("waits", lambda job: job["loss"] is not None)
    hub = user.traces.hub()
    for path in user.traces.sockets():
        if path.is_dir():  # away first, as the hub makes a socket again at once
            shutil.rmtree(path.rename(user.folder / "removed"))
        else:
            path.unlink()
    assert user.json("run", "connects.py")["state"] == "done"
    assert user.traces.hub() == hub

    def made_again() -> list[str]:
        texts = [warning["text"] for warning in user.json("status", run)["warnings"]]
        again = [text.split()[2].rstrip(";") for text in texts if "it is made again" in text]
        return sorted(Path(path).name for path in again)

    both = ["channel.sock", "hub.sock"]
    wait.until(lambda: made_again() == both, SECONDS, "warnings of both sockets")
    assert user.json("stop")[run]["waits"]["state"] == "stopped"


@pytest.mark.skipif(os.geteuid() != 0, reason="to be another host takes root")
def test_of_two_hosts_that_share_a_home_each_has_a_hub_and_names_the_other(user: User) -> None:
    user.write("waits.py", WAITS)
    run = user.detaches("waits.py")
    user.sees_job("waits", lambda job: job["loss"] is not None)
    here = socket.gethostname()

    assert f"run {run}: running on host {here}," in elsewhere(user, "status").stdout
    assert f"running on {here}" in elsewhere(user, "ps").stdout
    for words in (("stop",), ("stop", "--run", run), ("checkpoint",)):
        refused = elsewhere(user, *words)
        assert refused.returncode == 5, refused
        assert refused.stderr.strip().endswith(f"run {run} runs on host {here}: type it there")
    assert f"runs on host {here}: watch it there" in elsewhere(user, "attach").stderr
    assert f"run {run} is running" in elsewhere(user, "resume", run).stderr

    there = elsewhere(user, "run", "--json", "true")
    assert there.returncode == 0, there
    assert [each["host"] for each in user.json("ps")] == [here, "elsewhere"]
    assert user.jobs(run)["waits"]["state"] == "running"
    user.touch("go")
    user.sees_state("waits", "done", run=run)
    wait.until(lambda: len(user.traces.hubs()) == 1, SECONDS, "the hub elsewhere has ended")


def elsewhere(user: User, *words: str) -> subprocess.CompletedProcess[str]:
    """Type a command on a host of another name, which reaches none of the sockets of this one, as
    over NFS.
    """
    away = user.folder / "away"
    away.mkdir(exist_ok=True)
    (away / "host").write_text(socket.gethostname())
    hub = user.home / "hub"
    script = f'hostname elsewhere; mount --bind {away} {hub} && exec "$@"'
    return subprocess.run(
        ["unshare", "--uts", "--mount", "sh", "-c", script, "sh", *user.command(*words)],
        cwd=user.folder,
        env={**user.variables, "HEADGATE_IDLE_SECONDS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
