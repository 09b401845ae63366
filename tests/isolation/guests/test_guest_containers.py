"""What is special about containers in guests: their images, what they see, and whole runs in
them.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.dockerd import daemon
from tests.hub.team import Team
from tests.hub.user import User, speed, user
from tests.isolation.guests.test_guest_jobs import EMULATED_SECONDS, guests, team

from headgate.isolation.base import Launch
from headgate.isolation.container.daemon import Daemon
from headgate.isolation.container.isolation import OWNER
from headgate.isolation.vm.containers import VmContainerIsolation
from headgate.isolation.vm.isolation import PREFIX
from headgate.isolation.vm.machines import EMULATION
from headgate.model.errors import IsolationError
from headgate.model.identifiers import TaskId
from headgate.model.jobs import Job
from headgate.model.mounts import Mount
from headgate.model.reason_text import in_words
from headgate.model.shares import Share
from headgate.testing.isolation import MIB, RUN, Running
from headgate.testing.wait import until

__all__ = ["daemon", "speed", "team", "user"]

BOXED = ("--isolation", "vm+container")
IMAGE = "headgate-test:in-guest"
Run = Callable[..., Running]


@pytest.fixture(autouse=True)
def _has_programs() -> None:
    for name, package in {"linux.uml": "user-mode-linux", "runc": "runc"}.items():
        if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            pytest.skip(f"{name} is not installed (apt-get install {package})")


@pytest.fixture
def isolation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> VmContainerIsolation:
    monkeypatch.setenv(EMULATION, "uml")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return VmContainerIsolation(f"test-in-guests-{os.getpid()}")


@pytest.fixture
def run(isolation: VmContainerIsolation, tmp_path: Path) -> Iterator[Run]:
    """Starts tasks, of which nothing is left when the test ends."""
    running: list[Running] = []

    def start(launch: Launch) -> Running:
        running.append(Running.start(isolation, launch, Share(memory_bytes=128 * MIB)))
        return running[-1]

    yield start
    for each in running:
        each.close()
    assert not list(tmp_path.glob(f"{PREFIX}*"))


@pytest.fixture
def image(daemon: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An image that holds a shell, a few programs and their libraries, and nothing else."""
    monkeypatch.setenv("DOCKER_HOST", daemon)
    programs = ("/bin/sh", "/bin/ls", "/bin/cat")
    listed = subprocess.run(["ldd", *programs], check=True, capture_output=True, text=True).stdout
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", dereference=True) as tar:
        for path in {*programs, *re.findall(r"(/\S+) \(0x", listed)}:
            tar.add(path)
        mark = tarfile.TarInfo("of-image")
        tar.addfile(mark)
    docker = pytest.importorskip("docker")
    with closing(docker.APIClient(base_url=daemon)) as client:
        name, tag = IMAGE.split(":")
        client.import_image_from_data(
            content.getvalue(), repository=name, tag=tag, changes=["ENV GIVEN=by-image"]
        )
    yield IMAGE
    assert Daemon(daemon).find(OWNER) == []


def launch(command: str, folder: Path, **fields: object) -> Launch:
    return replace(
        Launch(TaskId(f"{RUN}/job/worker-0"), ("/bin/sh", "-c", command), {}, str(folder), 1),
        **fields,  # type: ignore[arg-type]
    )


def test_it_sees_an_image_its_own_processes_and_folders_and_no_other_files(
    run: Run, image: str, tmp_path: Path
) -> None:
    for name in ("work", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "text").write_text("told\n")
    looks = """
        cat ../data/text; echo here > made; echo lost > /of-image || exit 2
        echo > ../data/made || echo refused
        echo > /read/made || echo refused too; echo > /a/written/made && echo written
        echo sees $GIVEN $(ls /of-image) $(ls -d /usr/share /root 2> unseen)
        numbers() { while read name; do case $name in *[!0-9]*) ;; *) echo $name;; esac; done; }
        echo processes $(ls /proc | numbers)
        echo number $$ in $(cat /proc/self/cgroup)
        exit 7
    """
    work, images = tmp_path / "work", tmp_path / "cache/headgate/images"
    begun = (
        images / f"{Daemon(os.environ['DOCKER_HOST']).image_id(image).removeprefix('sha256:')}.part"
    )
    begun.mkdir(parents=True)
    (begun / "half").write_text("of one who was killed meanwhile")
    data = str(tmp_path / "data")
    both = (Mount(data, "/a/written", writable=True), Mount(data, "/read"))
    task = run(launch(looks, work, image=image, reads=(data,), mounts=both))
    assert task.said("sees") == "by-image /of-image"
    processes = sorted(map(int, task.said("processes").split()))
    assert processes[:2] == [1, 2] and len(processes) <= 5, "it sees processes of the guest"
    assert task.said("number") == "2 in 0::/"
    assert task.ended().code == 7
    assert {"told", "refused", "refused too", "written"} <= set(task.text.splitlines())
    assert (work / "made").read_text() == "here\n"
    [root] = (path for path in images.iterdir() if path.is_dir())
    assert not (root / "half").exists()
    assert (root / "of-image").read_text() == "", "what it writes is to stay in its guest's memory"
    written = root.stat().st_ino
    again = run(
        launch("cat /of-image; echo ready", work, image=image, task=f"{RUN}/again/worker-0")
    )
    again.said("ready")
    assert "lost" not in again.text
    assert root.stat().st_ino == written, "the image was written out once more"


def test_what_is_missing_is_said(
    run: Run,
    image: str,
    isolation: VmContainerIsolation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absent = (
        "job/worker-0: image 'headgate-test:absent' is not on this machine; get it with: "
        "docker pull"
    )
    with pytest.raises(IsolationError, match=absent):
        run(launch("true", tmp_path, image="headgate-test:absent"))
    end = run(launch("", tmp_path, image=image, argv=("no-such-program",))).ended()
    assert (
        end.reason
        == 'could not be started: exec: "no-such-program": executable file not found in $PATH'
    )
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nowhere")
    with pytest.raises(IsolationError, match="no Docker daemon answers"):
        run(launch("true", tmp_path, image=image))
    which, lacks = shutil.which, "not installed: runc; try: apt-get install runc"
    monkeypatch.setattr(
        shutil, "which", lambda name, path: which(name, path=path) if name != "runc" else None
    )
    with pytest.raises(IsolationError, match=rf"^isolation vm\+container: {lacks}"):
        isolation.check()
    assert [in_words(limit.warning()) for limit in isolation.uncontrolled()] == [
        f"containers in guests: {lacks}"
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"isolation": "vm", "image": "x"},
            r"`image`: only containers have it; add `isolation: vm\+container`",
        ),
        (
            {"isolation": "vm+container", "runtime": "runsc"},
            "`runtime`: only containers of Docker Engine have it",
        ),
        (
            {"isolation": "vm+container", "mounts": ("data",)},
            "`mounts`: found 'data'; give an absolute path",
        ),
    ],
)
def test_what_makes_no_sense_of_it_is_said_of_its_job(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Job(name="a", run="true", **fields)  # type: ignore[arg-type]


@pytest.mark.long  # so does one in a guest, and one in a container
@pytest.mark.parametrize(
    "team", ["uml", pytest.param("qemu", marks=pytest.mark.long)], indirect=True
)
def test_a_job_learns_in_it_and_is_stopped_with_a_checkpoint(team: Team, tmp_path: Path) -> None:
    team.starts(*BOXED, "--memory", "256MiB")
    until(lambda: team.lines("worker-0"), EMULATED_SECONDS, "its guest is up")
    pid, _ = team.begun("worker-0")
    assert pid == 2, "its process has a number of its container's"
    assert guests(tmp_path)
    assert team.events("warning") == [
        f"team: its guest is emulated, as {EMULATION} allows; its times tell nothing"
    ]
    team.user.types("stop", "team")
    assert team.ends("stopped")["state"] == "stopped"
    assert list((team.folder / "jobs/team/checkpoints").glob("step-*.pt")), (
        "it was asked, and saved nothing"
    )


def test_a_job_is_told_its_memory_limit_its_exit_code_and_what_its_container_did_not_see(
    team: Team, tmp_path: Path
) -> None:
    user = team.user
    (tmp_path / "unseen").mkdir()
    user.write("holds.py", "held = b'x' * (256 << 20)")
    user.write("leaves.py", "raise SystemExit(9)")
    user.write("opens.py", f"open({str(tmp_path / 'unseen' / 'data')!r})")
    jobs = "".join(
        (
            f"  - {{name: {name}, script: {name}.py, isolation: vm+container, limits: {{memory: "
            "64MiB}}\n"
        )
        for name in ("holds", "leaves", "opens")
    )
    user.write("jobs.yaml", f"jobs:\n{jobs}")
    user.types("run", "jobs.yaml", code=1)
    holds, leaves, opens = (
        user.sees_job(name, lambda job: job["state"] == "failed")["reason"]
        for name in ("holds", "leaves", "opens")
    )
    assert holds.startswith("killed: over its memory limit of 64 MiB (peak ")
    assert leaves == "exit code 9"
    assert f"--mount {tmp_path}/unseen" in opens


def test_a_dry_run_and_doctor_tell_of_it(user: User) -> None:
    user.variables[EMULATION] = "uml"
    user.write("train.py", "print('loss 1.0')\n")
    told = user.types("run", "train.py", *BOXED, "--mount", "/var/lib:/of/mine", "--dry-run")
    assert "boot a guest (uml, its own kernel, 1 core)" in told.stdout
    assert (
        f"runc run, image host, as {os.geteuid()}:{os.getegid()}, in the network of the guest"
        in told.stdout
    )
    assert "mount /of/mine, read-only" in told.stdout
    assert re.search("guests .*; containers in them by /.*runc", user.types("doctor").stdout)
