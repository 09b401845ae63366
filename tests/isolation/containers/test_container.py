"""What is special about containers: files, images, the daemon's end, lab nodes, and whole runs in
them.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.dockerd import own_dockerd
from tests.hub.user import SECONDS, User
from tests.isolation.test_signals import SAVES
from tests.places import ADDRESS, placed, set_memory

from headgate.isolation import make
from headgate.isolation.base import Launch
from headgate.isolation.container import box, limits, outside, parents
from headgate.isolation.container import box as box_module
from headgate.isolation.container import daemon as daemon_module
from headgate.isolation.container import isolation as isolation_module
from headgate.isolation.container.box import ContainerBox
from headgate.isolation.container.daemon import TOKEN, Daemon, NoAnswerError, Unframer
from headgate.isolation.container.files import hint, mounts, outputs
from headgate.isolation.container.isolation import GROUP as LABEL
from headgate.isolation.container.isolation import OWNER, TASK, ContainerIsolation
from headgate.machine import arbiter_socket, cgroup_layout, processes
from headgate.model.cluster import Place
from headgate.model.errors import IsolationError
from headgate.model.identifiers import TaskId
from headgate.model.jobs import Job
from headgate.model.shares import UNLIMITED, Lever, Share
from headgate.testing import wait
from headgate.testing.isolation import RUN, Running

GROUP = f"test-{os.getpid()}"
MIB = 1 << 20
NOTHING = Share()
Run = Callable[..., Running]


def launch(command: str, folder: Path, **fields: object) -> Launch:
    env = {"PATH": os.environ["PATH"]}
    return replace(
        Launch(TaskId(f"{RUN}/job/worker-0"), ("/bin/sh", "-c", command), env, str(folder), 1),
        **fields,  # type: ignore[arg-type]
    )


def groups() -> set[Path]:
    """The cgroups of the group, in each hierarchy; none where Docker has one of its own."""
    return {
        folder.parent
        for folder in parents.find_parent(f"headgate-{GROUP}", "job", None, "cgroupfs").own
    }


@pytest.fixture
def run() -> Iterator[Run]:
    """Starts tasks, which are gone when the test ends."""
    running: list[Running] = []

    def start(isolation: ContainerIsolation, launch: Launch, share: Share = NOTHING) -> Running:
        running.append(Running.start(isolation, launch, share))
        return running[-1]

    yield start
    for each in running:
        each.close()


@pytest.fixture
def isolation(daemon: str) -> ContainerIsolation:
    return ContainerIsolation(GROUP, daemon=daemon)


# --- files and images -----------------------------------------------------------------------------


def test_of_the_machine_it_sees_what_is_installed_and_its_own_folders(
    isolation: ContainerIsolation, run: Run, tmp_path: Path
) -> None:
    for name in ("work", "data", "strange"):
        (tmp_path / name).mkdir()
    looks = (
        "touch made && echo wrote; touch ../data/made || echo refused; ls -d ../strange "
        "/etc/shadow || echo unseen; python -c 'print(\"python\")'; echo ready"
    )
    task = run(isolation, launch(looks, tmp_path / "work", reads=(str(tmp_path / "data"),)))
    task.said("ready")
    assert {"wrote", "refused", "unseen", "python"} <= set(task.text.splitlines())
    assert (tmp_path / "work" / "made").stat().st_uid == os.geteuid()
    assert list((tmp_path / "data").iterdir()) == []


def test_what_a_task_writes_to_its_container_alone_is_told_and_copied(
    isolation: ContainerIsolation, run: Run, tmp_path: Path
) -> None:
    """Whether it ends well or not; caches, what was deleted and what is mounted are left out."""
    for name in ("work", "data"):
        (tmp_path / name).mkdir()
    writes = (
        f"mkdir -p {tmp_path}/models/deep ~/.cache/hub; echo weights > "
        f"{tmp_path}/models/deep/last; printf 12345 > ~/result; echo x > ~/.cache/hub/x; echo y > "
        f"/tmp/gone; rm /tmp/gone; echo mine > here; echo theirs > {tmp_path}/data/there; exit 3"
    )
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home")}
    where = launch(
        writes,
        tmp_path / "work",
        writes=(str(tmp_path / "data"),),
        keeps=str(tmp_path / "kept"),
        env=env,
    )
    exit = run(isolation, where).ended()
    assert exit.code == 3 and exit.outside is not None
    last, result = f"{tmp_path}/models/deep/last", f"{tmp_path}/home/result"
    assert (set(exit.outside.paths), exit.outside.count, exit.outside.size) == (
        {last, result},
        2,
        8 + 5,
    )
    assert (exit.outside.kept, exit.outside.copied) == (str(tmp_path / "kept"), 2)
    assert (tmp_path / f"kept{last}").read_text() == "weights\n"
    assert (tmp_path / f"kept{result}").read_text() == "12345"
    again = run(
        isolation, launch("echo mine > here", tmp_path / "work", keeps=str(tmp_path / "kept"))
    )
    assert again.ended().outside is None


def test_links_that_lead_to_copies_are_copied_as_links_and_others_are_told(
    isolation: ContainerIsolation, run: Run, tmp_path: Path
) -> None:
    for name in ("work", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "set").write_text("mounted")
    links = {
        "best": "last",
        "deep/absolute": f"{tmp_path}/models/last",
        "deep/chain": "../best",
        "folder": "deep",
        "astray": "../data/set",
        "after": "astray",
        "out": "/etc/hostname",
        "gone": "nothing",
        "circle": "circle",
    }
    made = "; ".join(f"ln -s {target} {tmp_path}/models/{name}" for name, target in links.items())
    writes = (
        f"mkdir -p {tmp_path}/models/deep; echo weights > {tmp_path}/models/last; ln "
        f"{tmp_path}/models/last"
    )
    writes += f" {tmp_path}/models/deep/same; {made}"
    kept = tmp_path / "kept"
    where = launch(writes, tmp_path / "work", reads=(str(tmp_path / "data"),), keeps=str(kept))
    found = run(isolation, where).ended().outside
    assert found is not None and found.count == 2 + len(links)
    astray = {f"{tmp_path}/models/{name}" for name in ("astray", "after", "out", "gone", "circle")}
    assert (set(found.astray), found.links, found.copied, found.unsized) == (astray, 5, 6, 0)
    models = Path(f"{kept}{tmp_path}/models")
    assert {path.name for path in models.rglob("*")} == {
        "last",
        "deep",
        "same",
        "best",
        "absolute",
        "chain",
        "folder",
    }
    for name in ("best", "deep/absolute", "deep/chain", "folder/same"):
        assert (models / name).read_text() == "weights\n"
    assert {name for name in links if (models / name).is_symlink()} == {
        "best",
        "deep/absolute",
        "deep/chain",
        "folder",
    }


def test_many_files_come_in_one_archive_a_folder(
    isolation: ContainerIsolation, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, archive = list[str](), Daemon.archive

    def counted(self: Daemon, id: str, path: str) -> AbstractContextManager[tarfile.TarFile | None]:
        asked.append(path)
        return archive(self, id, path)

    monkeypatch.setattr(Daemon, "archive", counted)
    for name in ("work", "cache"):
        (tmp_path / name).mkdir()
    writes = (
        f"mkdir -p {tmp_path}/out/a/b /root/.cache; for i in $(seq 300); do echo $i > /tmp/$i; "
        f"echo $i > {tmp_path}/out/a/b/$i; done; head -c 80000000 /dev/zero > "
        f"{tmp_path}/out/__pycache__; echo 1 > /root/result"
    )
    kept = tmp_path / "kept"
    found = run(isolation, launch(writes, tmp_path / "work", keeps=str(kept))).ended().outside
    assert found is not None and (found.count, found.copied, found.unsized) == (601, 601, 0)
    assert (
        (kept / "tmp/300").read_text()
        == Path(f"{kept}{tmp_path}/out/a/b/300").read_text()
        == "300\n"
    )
    assert len(asked) <= 5


def test_what_a_task_writes_without_room_for_copies_is_told_all_the_same(
    isolation: ContainerIsolation, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "MOST_BYTES", 1000)
    large = launch(
        "head -c 900 /dev/zero > /tmp/a; head -c 900 /dev/zero > /tmp/b",
        tmp_path,
        keeps=str(tmp_path / "k"),
    )
    found = run(isolation, large).ended().outside
    assert found is not None and (found.count, found.copied, found.size) == (2, 1, 1800)
    found = run(isolation, replace(large, keeps="")).ended().outside
    assert found is not None and (found.count, found.copied, found.kept) == (2, 0, "")
    large_first = "head -c 1900 /dev/zero > /tmp/a; printf 1 > /tmp/result"
    found = run(isolation, launch(large_first, tmp_path, keeps=str(tmp_path / "l"))).ended().outside
    assert found is not None and (found.count, found.copied, found.size) == (2, 1, 1901)
    assert (tmp_path / "l/tmp/result").read_text() == "1"


def test_of_more_files_than_are_looked_at_results_come_first_and_all_are_counted(
    isolation: ContainerIsolation, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "MOST_PATHS", 3)
    writes = (
        "mkdir -p /var/installed /tmp/a/many /tmp/z; touch /tmp/a/many/0 /tmp/a/many/1 "
        "/tmp/a/many/2 /tmp/a/many/3;"
        " echo x > /var/installed/one; echo best > /tmp/z/best.pt; echo last > /tmp/z/last.pt"
    )
    found = run(isolation, launch(writes, tmp_path, keeps=str(tmp_path / "kept"))).ended().outside
    assert found is not None and found.copied == found.count - found.unsized == 3
    assert found.unsized >= 4  # and what Docker makes to mount on
    assert found.paths == ("/tmp/z/best.pt", "/tmp/z/last.pt", "/tmp/a/many/0")
    assert (tmp_path / "kept/tmp/z/best.pt").read_text() == "best\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--output_dir", "{}/results/deep"), "{}/results/deep"),
        (("--save-path={}/results/model.pt",), "{}/results"),
        (("-o", "../results"), "{}/results"),
        (("hydra.run.dir={}/there",), "{}/there"),
        (("sh", "-c", "python t.py --logdir '{}/a b' | tee log"), "{}/a b"),
        (("--data_dir", "{}/there"), None),
        (("--resume_from_checkpoint", "{}/there"), None),
        (("--output_dir", "inside"), None),
        (("--output_dir", "./inside/deep"), None),
        (("--output_dir", "/usr/share/results"), None),
        (("--output_dir", "/tmp"), None),
        (("--output_dir", "/"), None),
        (("--output_dir", ".."), None),
        (("--log_level", "/debug"), None),
        (("--output_dir", "/no-such-folder-at-the-top"), None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_folders_that_arguments_name_for_output_may_be_written(
    tmp_path: Path, words: tuple[str, ...], expected: str | None
) -> None:
    for name in ("work", "there"):
        (tmp_path / name).mkdir()
    argv = tuple(word.replace("{}", str(tmp_path)) for word in words)
    command = replace(launch("", tmp_path / "work"), argv=argv)
    assert outputs(command) == ([expected.replace("{}", str(tmp_path))] if expected else [])
    assert all(mounts(command, None)[folder] for folder in outputs(command))


def test_any_image_will_do(
    isolation: ContainerIsolation, daemon: str, run: Run, tmp_path: Path
) -> None:
    """One that holds a shell and the libraries of that, and nothing else."""
    content = io.BytesIO()
    listed = subprocess.run(["ldd", "/bin/sh"], check=True, capture_output=True, text=True).stdout
    with tarfile.open(fileobj=content, mode="w", dereference=True) as tar:
        for path in ("/bin/sh", *re.findall(r"(/\S+) \(0x", listed)):
            tar.add(path)
    docker = pytest.importorskip("docker")
    with closing(docker.APIClient(base_url=daemon)) as client:
        client.import_image_from_data(
            content.getvalue(),
            repository="headgate-test",
            tag="shell",
            changes=["ENV PYTHONPATH=/of/image"],
        )
    (tmp_path / "file").write_text("told")
    foreign = launch(
        'read text < file; echo "$text $HEADGATE_TASK" /usr/*',
        tmp_path,
        image="headgate-test:shell",
        env={},
    )
    task = run(isolation, foreign)
    assert task.said("told") == f"{RUN}/job/worker-0 /usr/*"
    task.ended()
    for given, found in (
        ("/library", "/library:/of/image"),
        ("/library:/of/job", "/library:/of/job"),
    ):
        told = launch(
            'echo "path $PYTHONPATH"',
            tmp_path,
            image="headgate-test:shell",
            env={"PYTHONPATH": given},
            task=f"{RUN}/a/b",
        )
        task = run(isolation, told)
        assert task.said("path") == found
        task.ended()
    missing = replace(foreign, argv=("no-such-program",))
    with pytest.raises(
        IsolationError, match="'no-such-program' cannot be started in image 'headgate-test:shell'"
    ):
        run(isolation, missing)
    absent = replace(foreign, image="headgate-test:absent")
    with pytest.raises(
        IsolationError,
        match="'headgate-test:absent' is not on this machine; get it with: docker pull",
    ):
        run(isolation, absent)


def test_lines_of_both_streams_stay_whole_wherever_their_frames_are_cut() -> None:
    parts = ((1, b"loss "), (2, b"50 %"), (1, b"0.5\nlo"), (2, b"\r60"), (2, b""))
    framed = b"".join(
        bytes([stream, 0, 0, 0]) + len(text).to_bytes(4, "big") + text for stream, text in parts
    )
    for size in range(1, len(framed) + 1):
        frames = Unframer()
        whole = b"".join(frames.feed(framed[i : i + size]) for i in range(0, len(framed), size))
        assert (whole, frames.holds) == (b"loss 0.5\n50 %\r", True)
        assert (frames.rest(), frames.holds) == (b"lo60", False)


# --- limits ---------------------------------------------------------------------------------------


def logarithmic(shares: int) -> int:
    """What runc 1.3.2 makes of CPU shares: `ConvertCPUSharesToCgroupV2Value` of
    opencontainers/cgroups.
    """
    if not 2 < shares < 262_144:
        return 1 if shares <= 2 else 10_000
    exponent = math.log2(shares)
    return math.ceil(10 ** ((exponent**2 + 125 * exponent) / 612 - 7 / 34))


def test_under_v2_a_weight_survives_what_docker_makes_of_it() -> None:
    assert [logarithmic(shares) for shares in (2, 1024, 2000, 262_144)] == [1, 100, 170, 10_000]
    for weight in range(1, 10_001):
        for linear in (True, False):
            machine = limits.DockerHost("v2", 4.0, linear)
            shares = limits.settings(Share(cpu_weight=weight), machine)["CpuShares"]
            if linear:
                assert 1 + (shares - 2) * 9999 // 262_142 == pytest.approx(weight, abs=1)
            else:
                assert logarithmic(shares) == weight


@pytest.mark.parametrize(
    ("components", "linear"),
    [
        ({"runc": "1.1.5+ds1"}, True),
        ({"runc": "1.3.1", "containerd": "2.1.4"}, True),
        ({"runc": "1.3.2"}, False),
        ({"runc": "1.4.0-rc.1"}, False),
        ({"crun": "1.14.1"}, True),
        ({"crun": "1.23"}, False),
        ({"containerd": "1.6.20"}, False),
        ({}, False),
    ],
)
def test_how_weights_come_of_shares_is_told_by_the_runtime(
    components: Mapping[str, str], linear: bool
) -> None:
    assert limits.are_linear(components) is linear


def test_the_daemon_says_which_version_of_its_runtime_it_has(isolation: ContainerIsolation) -> None:
    isolation.check()
    said = subprocess.run(
        ["runc", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[2]
    assert isolation._connected().components["runc"] == said


def test_under_v2_what_is_around_a_container_has_every_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names, top = {"unified", *cgroup_layout.V2_CONTROLLERS}, Path("/sys/fs/cgroup")
    monkeypatch.setattr(
        cgroup_layout,
        "find_layout",
        lambda _: cgroup_layout.CgroupLayout("v2", dict.fromkeys(names, top)),
    )
    monkeypatch.setattr(cgroup_layout, "roots", lambda _: {"unified": top})
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    parent = parents.find_parent("group", "job", None, "cgroupfs")
    assert parent.folders == dict.fromkeys(names, top / "group" / "job")


def test_a_container_starts_while_the_last_boxes_of_its_group_go(
    isolation: ContainerIsolation, run: Run, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("Docker puts containers of others than root in a group of its own")
    over = threading.Event()

    def go() -> None:
        while not over.is_set():
            for group in groups():
                with suppress(OSError):  # it is not there, or something is in it
                    group.rmdir()

    going = threading.Thread(target=go)
    going.start()
    try:
        for i in range(3):
            run(isolation, launch("echo ready", tmp_path, task=f"{RUN}/job/worker-{i}")).said(
                "ready"
            )
    finally:
        over.set()
        going.join()


def test_a_script_in_one_saves_while_its_workers_live(
    isolation: ContainerIsolation, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "saves.py").write_text(SAVES)
    for i, number in enumerate((signal.SIGTERM, signal.SIGINT)):
        command = f"python saves.py fork {number.name.removeprefix('SIG')}; echo after"
        task = run(isolation, launch(command, tmp_path, task=f"{RUN}/job/worker-{i}"))
        task.said("ready")
        task.box.ask(number)
        assert task.ended().ok
        (tmp_path / "saved").unlink()


@pytest.mark.hardware
def test_over_its_limit_is_told_even_if_its_cgroup_went_unread(
    isolation: ContainerIsolation, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not os.access(box.KERNEL_LOG, os.R_OK):
        pytest.skip(f"{box.KERNEL_LOG} cannot be read")
    monkeypatch.setattr(ContainerBox, "_look", lambda self: None)
    nurse = "python -I -S -c 'held = b\"x\" * (256 << 20)'; exit 1"
    end = run(isolation, launch(nurse, tmp_path), Share(memory_bytes=64 * MIB)).ended()
    assert (end.code, end.over_memory) == (1, True)
    assert end.reason == "killed: over its memory limit of 64 MiB (peak 64 MiB)"


def test_one_that_ended_before_it_was_seen_can_be_asked_to_end(
    isolation: ContainerIsolation, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, unseen = Daemon.state, threading.Event()

    def ended(docker: Daemon, id: str) -> Mapping[str, object]:
        found = state(docker, id)
        return found if unseen.is_set() else {**found, "Pid": 0}

    monkeypatch.setattr(Daemon, "state", ended)
    os.mkfifo(tmp_path / "in")
    task = run(isolation, launch("read code < in; exit $code", tmp_path))
    unseen.set()
    assert (task.box.pid, task.box.cgroups) == (0, {})
    assert task.box.pids() == []
    task.box.terminate()
    task.box.kill()
    (tmp_path / "in").write_text("3\n")
    assert task.ended().code == 3


def test_one_that_runs_and_whose_cgroups_cannot_be_seen_is_refused(
    isolation: ContainerIsolation,
    daemon: str,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(isolation_module, "folders_of", lambda *_: {})
    monkeypatch.setattr(isolation_module, "SEEN_SECONDS", 0.0)
    with pytest.raises(
        IsolationError,
        match="cgroups of its container cannot be seen from here; run headgate outside",
    ):
        run(isolation, launch("exec sleep 1000", tmp_path))
    assert Daemon(daemon).find(f"{LABEL}={GROUP}") == []


# --- when the daemon, or somebody else, ends it ---------------------------------------------------


def test_a_container_that_somebody_else_removes_is_told(
    isolation: ContainerIsolation,
    daemon: str,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(box_module, "REMOVAL_SECONDS", 0.001)  # it takes longer on a busy machine
    task = run(isolation, launch("echo ready; exec sleep 1000", tmp_path))
    task.said("ready")
    docker = Daemon(daemon)
    (found,) = docker.find(f"{LABEL}={GROUP}")
    docker.remove(found["id"])
    end = task.ended()
    assert (end.reason, end.lost) == ("its container was removed by somebody else", True)
    assert task.box.apply(Share(cpu_weight=50)) == ()


def test_a_task_is_lost_with_the_daemon_and_its_container_goes_once_that_is_back(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_dockerd() as dockerd:
        isolation = ContainerIsolation(GROUP, daemon=dockerd.url)
        sleeps = launch("echo ready; exec sleep 1000", tmp_path)
        task = run(isolation, sleeps)
        task.said("ready")
        with monkeypatch.context() as impatient:
            impatient.setattr(daemon_module, "RESTART_SECONDS", 1.0)
            dockerd.stop()
            end = task.ended()
        assert (
            end.reason
            == f"the Docker daemon at {dockerd.url} stopped, and with it the task's container"
        )
        assert end.lost
        task.close()
        refused = f"{RUN}/job/worker-0: no Docker daemon answers at .*; start"
        stopped = threading.Event()
        threading.Timer(0.2, stopped.set).start()
        with monkeypatch.context() as patient, pytest.raises(IsolationError, match=refused):
            patient.setattr(daemon_module, "RESTART_SECONDS", 3600.0)
            isolation.start(sleeps, NOTHING, 1, stopped)
        with monkeypatch.context() as impatient, pytest.raises(IsolationError, match=refused):
            impatient.setattr(daemon_module, "RESTART_SECONDS", 1.0)
            run(isolation, sleeps)
        dockerd.start()
        again = run(isolation, sleeps)
        again.said("ready")
        assert len(Daemon(dockerd.url).find(OWNER)) == 1
        again.close()
        assert Daemon(dockerd.url).find(OWNER) == []


def test_how_a_task_ended_while_the_daemon_was_away_is_told_once_that_is_back(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "in")
    reads = launch("trap 'exit 0' TERM; echo ready; read code < in; exit $code", tmp_path)
    with own_dockerd() as dockerd:
        isolation = ContainerIsolation(GROUP, daemon=dockerd.url)
        task = run(isolation, reads)
        task.said("ready")
        noticed, reattach = threading.Event(), task.box._watch._again  # type: ignore[attr-defined]

        def again() -> int | None:
            noticed.set()
            return cast("int | None", reattach())

        monkeypatch.setattr(task.box._watch, "_again", again)  # type: ignore[attr-defined]
        dockerd.kill()
        # had it ended before that was noticed, the daemon might have asked it to end
        assert noticed.wait(60)
        (tmp_path / "in").write_text("3\n")
        wait.until(lambda: processes.look(task.box.pid) is None, what="its end")
        dockerd.start()
        end = task.ended()
        assert (end.code, end.lost) == (3, False), end
        task.close()
        killed = run(isolation, replace(reads, task=TaskId(f"{RUN}/job/worker-1")))
        killed.said("ready")
        dockerd.kill()
        killed.box.kill()
        end = killed.ended()  # whoever killed it need not wait for the daemon
        assert (end.signal, end.reason, end.lost) == (signal.SIGKILL, None, False)
        killed.close()
        dockerd.start()
        asked = run(isolation, reads)
        asked.said("ready")
        dockerd.stop()  # which lets it end as if it were done
        dockerd.start()
        assert asked.ended().lost
        asked.close()
        assert Daemon(dockerd.url).find(OWNER) == []
    assert not any(folder.exists() for folder in groups())


def test_a_task_that_closed_its_output_is_told_to_have_ended_as_it_did(
    isolation: ContainerIsolation, run: Run, tmp_path: Path
) -> None:
    end = run(isolation, launch("exec > out.log 2>&1; sleep 0.5; kill -SEGV $$", tmp_path)).ended()
    assert (end.signal, end.reason, end.lost) == (signal.SIGSEGV, None, False)


def test_a_task_that_the_daemon_lets_run_on_is_heard_again_and_told_to_have_ended_as_it_did(
    run: Run, tmp_path: Path
) -> None:
    prints = (
        "echo ready; until [ -e dies ]; do if [ -e up ]; then echo again; fi; sleep 0.05; "
        "done; kill -ABRT $$"
    )
    with own_dockerd("--live-restore") as dockerd:
        isolation = ContainerIsolation(GROUP, daemon=dockerd.url)
        # before the daemon, which would let it run on
        with closing(run(isolation, launch(prints, tmp_path))) as task:
            task.said("ready")
            dockerd.kill()
            dockerd.start()
            (tmp_path / "up").touch()
            task.said("again")
            (tmp_path / "dies").touch()
            end = task.ended()
            assert (end.signal, end.reason, end.lost) == (signal.SIGABRT, None, False)


@pytest.mark.parametrize(("asked", "starts"), [("attach", 1), ("state", 2)])
def test_a_task_whose_daemon_goes_while_it_is_started_is_started_once_it_is_back(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, starts: int
) -> None:
    with own_dockerd() as dockerd:
        isolation = ContainerIsolation(GROUP, daemon=dockerd.url)
        ask, again = getattr(Daemon, asked), threading.Thread(target=dockerd.start)

        def goes(docker: Daemon, id: str) -> object:
            if again.ident is None:
                if asked == "state":
                    wait.until((tmp_path / "starts").exists, SECONDS, "its first process runs")
                dockerd.kill()
                again.start()
            return ask(docker, id)

        monkeypatch.setattr(Daemon, asked, goes)
        try:
            with closing(
                run(
                    isolation, launch("echo start >> starts; echo ready; exec sleep 1000", tmp_path)
                )
            ) as task:
                task.said("ready")
                assert (tmp_path / "starts").read_text().split() == ["start"] * starts
                docker = Daemon(dockerd.url)
                assert [each[TOKEN] for each in docker.find(TASK)] == [task.box.record()["token"]]
        finally:
            again.join()
        assert docker.find(TASK) == []


def test_what_changes_of_a_share_while_the_daemon_is_away_is_in_force_once_it_is_back(
    run: Run, tmp_path: Path
) -> None:
    with own_dockerd("--live-restore") as dockerd:
        isolation = ContainerIsolation(GROUP, daemon=dockerd.url)
        sleeps = launch("echo ready; exec sleep 1000", tmp_path)
        with closing(
            run(isolation, sleeps, Share(cpu_cap_cores=1.0, memory_bytes=512 * MIB))
        ) as task:
            task.said("ready")
            assert limits_of(task) == (1.0, 512 * MIB)
            dockerd.kill()
            away = f"{RUN}/job/worker-0: no Docker daemon answers"
            with pytest.raises(IsolationError, match=away):
                task.box.apply(Share(memory_bytes=256 * MIB))
            with pytest.raises(IsolationError, match=away):
                task.box.apply(Share(cpu_cap_cores=0.5))
            assert limits_of(task) == (1.0, 512 * MIB)
            dockerd.start()
            wait.until(lambda: limits_of(task) == (0.5, 256 * MIB), SECONDS, "both changes")


def limits_of(task: Running) -> tuple[float, int]:
    """Cores and bytes of memory that the kernel allows a task."""
    cgroups = task.box.cgroups
    if (quota := cgroups["cpu"] / "cpu.cfs_quota_us").exists():
        period, memory = quota.with_name("cpu.cfs_period_us").read_text(), "memory.limit_in_bytes"
        cap = f"{quota.read_text()} {period}"
    else:
        cap, memory = (cgroups["cpu"] / "cpu.max").read_text(), "memory.max"
    used, whole = cap.split()
    return int(used) / int(whole), int((cgroups["memory"] / memory).read_text())


def test_an_end_that_docker_is_late_to_tell_of_is_told_as_it_was(
    isolation: ContainerIsolation, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box_module, "RESTART_SECONDS", 0.0)
    tell, asked = Daemon.wait, list[str]()

    def late(docker: Daemon, id: str) -> int:
        asked.append(id)
        if len(asked) == 1:
            raise NoAnswerError("it has not ended")
        return tell(docker, id)

    monkeypatch.setattr(Daemon, "wait", late)
    end = run(isolation, launch("exit 3", tmp_path)).ended()
    assert (end.code, end.reason, end.lost) == (3, None, False)


def test_a_task_is_killed_without_root_and_without_the_daemon(
    isolation: ContainerIsolation, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = run(isolation, launch("echo ready; exec sleep 1000", tmp_path))
    task.said("ready")

    def refuse(*_: object) -> None:
        raise PermissionError

    def away(*_: object) -> None:
        raise NoAnswerError("it is away")

    with monkeypatch.context() as limited:
        limited.setattr(type(task.box._enclosure), "kill", refuse)  # type: ignore[attr-defined]
        limited.setattr(Daemon, "kill", away)
        task.box.kill()
    assert task.ended().signal == signal.SIGKILL


def test_of_several_that_are_removed_at_once_each_is_asked_for_once(
    daemon: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker, asked = Daemon(daemon), list[str]()

    def find(label: str) -> list[dict[str, str]]:
        asked.append(label)
        if len(asked) == 1:
            docker.clear("second", lambda: None)
        return []

    monkeypatch.setattr(docker, "find", find)
    docker.clear("first", lambda: None)
    assert asked == [f"{TOKEN}=first", f"{TOKEN}=second"]


_DIES = """
import os, signal, sys
from headgate.isolation.base import Launch
from headgate.isolation.container import ContainerIsolation
from headgate.isolation.container.daemon import Daemon
from headgate.model.shares import Share

start = Daemon.start
Daemon.start = lambda docker, id: (start(docker, id), os.kill(os.getpid(), signal.SIGKILL))
launch = Launch(sys.argv[1], ("/bin/sleep", "1000"), dict(os.environ), sys.argv[2], 1)
ContainerIsolation(sys.argv[3], daemon=sys.argv[4]).start(launch, Share(), 1)
"""


def test_what_a_process_left_that_died_in_a_start_is_removed_by_the_next_that_uses_containers(
    daemon: str, tmp_path: Path
) -> None:
    task = f"{RUN}/dies/worker-0"
    died = subprocess.run(
        [sys.executable, "-c", _DIES, task, str(tmp_path), GROUP, daemon], check=False
    )
    assert died.returncode == -signal.SIGKILL
    assert len(Daemon(daemon).find(f"{TASK}={task}")) == 1
    ContainerIsolation(GROUP, daemon=daemon).check()
    assert Daemon(daemon).find(f"{TASK}={task}") == []
    assert not any(folder.exists() for folder in groups())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "unix:///nowhere/docker.sock",
            "no Docker daemon answers at unix:///nowhere/docker.sock .*start it",
        ),
        (
            "tcp://10.0.0.1:2375",
            "the Docker daemon at tcp://10.0.0.1:2375 may be another machine's",
        ),
    ],
)
def test_without_a_daemon_it_is_said_what_to_do(
    url: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", url)
    isolation = make("container", GROUP)
    with pytest.raises(IsolationError, match=f"^{said}"):
        isolation.check()  # before a run is taken in
    with pytest.raises(IsolationError, match=f"^{RUN}/job/worker-0: {said}"):
        isolation.start(launch("true", tmp_path), NOTHING, 1)
    assert re.search(said, isolation.uncontrolled()[0].reason)


@pytest.mark.parametrize(("uid", "is_told"), [(1000, True), (0, False)])
def test_that_limits_of_users_hold_no_containers_is_told(
    uid: int, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolation = ContainerIsolation(GROUP)
    monkeypatch.setattr(isolation, "_connected", lambda: SimpleNamespace(driver="cgroupfs"))
    monkeypatch.setattr(arbiter_socket, "is_shared", lambda: True)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    levers = {limit.lever for limit in isolation.uncontrolled()}
    assert (Lever.CONTAINERS in levers) is is_told


def test_of_an_address_that_nobody_named_that_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(daemon_module, "SOCKET", tmp_path / "docker.sock")
    with pytest.raises(IsolationError, match="No such file or directory; DOCKER_HOST is not set"):
        make("container", GROUP).check()


# --- runtimes -------------------------------------------------------------------------------------


def test_a_runtime_that_the_daemon_lacks_is_refused_with_those_it_has(
    isolation: ContainerIsolation, tmp_path: Path
) -> None:
    with pytest.raises(
        IsolationError,
        match=r"`runtime`: the Docker daemon at .* has no 'kata'; expected one of .*runc",
    ):
        isolation.start(launch("true", tmp_path, runtime="kata"), NOTHING, 1)


@pytest.mark.long
def test_a_runtime_with_a_kernel_of_its_own_is_limited_held_asked_and_leaves_nothing(
    run: Run, tmp_path: Path
) -> None:
    if (runsc := shutil.which("runsc")) is None:
        pytest.skip("gVisor is not installed (apt-get install runsc)")
    options = ["--network=host", "--fsgofer-host-uds"]
    config = tmp_path / "daemon.json"
    config.write_text(json.dumps({"runtimes": {"runsc": {"path": runsc, "runtimeArgs": options}}}))
    with own_dockerd("--config-file", str(config)) as dockerd:
        isolation = ContainerIsolation(GROUP, daemon=dockerd.url)
        waits = "trap 'echo asked; exit 3' TERM; echo $(uname -r); while :; do sleep 0.1; done"
        with closing(
            run(isolation, launch(waits, tmp_path, runtime="runsc"), Share(cpu_weight=100))
        ) as task:
            task.said("4.4.0")  # gVisor's version of Linux
            assert (
                task.box.apply(Share(cpu_weight=50, cpu_cap_cores=0.5, memory_bytes=512 * MIB))
                == ()
            )
            folders = task.box.cgroups
            v1 = cgroup_layout.find_layout(Path("/sys/fs/cgroup")).mode == "v1"
            limit, quota = (
                ("memory.limit_in_bytes", "cpu.cfs_quota_us") if v1 else ("memory.max", "cpu.max")
            )
            assert (folders["memory"] / limit).read_text().strip() == str(512 * MIB)
            assert int((folders["cpu"] / quota).read_text().split()[0]) > 0, "a cap"
            assert task.box.hold()
            task.box.release()
            task.box.ask(signal.SIGTERM)
            task.said("asked")
            assert task.ended().code == 3
        killed = run(isolation, launch("echo ready; sleep 600", tmp_path, runtime="runsc"))
        killed.said("ready")
        killed.box.kill()
        assert killed.ended().signal == signal.SIGKILL
        killed.close()
    assert not any(folder.exists() for folder in groups())


# --- nodes of a lab -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A node; under v1 its memory is limited by a cgroup of another path than the one of its
    CPU.
    """
    with placed(tmp_path_factory.mktemp("place"), "box") as place, ExitStack() as undo:
        memory = place.cgroups.get("memory")
        if memory is not None and cgroup_layout.find_layout(Path("/sys/fs/cgroup")).mode == "v1":
            above = Path(f"{memory}-apart")
            for made in (above, above / "box"):
                made.mkdir()
                undo.callback(made.rmdir)
            place = replace(place, cgroups={**place.cgroups, "memory": str(above / "box")})
        yield place


@pytest.mark.hardware
def test_on_a_node_it_has_the_node_s_network_name_and_limits(
    isolation: ContainerIsolation, run: Run, place: Place, tmp_path: Path
) -> None:
    sights = (
        'echo "name $(cat /proc/sys/kernel/hostname)"; echo "hosts $(tail -n 1 /etc/hosts)"; '
        'echo "sysfs $(echo $(ls /sys/class/net))"; echo "address $(ip -brief -4 addr show '
        'eth0)"; exec sleep 1000'
    )
    task = run(isolation, launch(sights, tmp_path, place=place), Share(cpu_cap_cores=0.5))
    assert ADDRESS in task.said("address")
    assert task.said("name") == place.hostname
    assert task.said("hosts") == f"{ADDRESS} {place.hostname}"
    assert task.said("sysfs") == "eth0 lo"
    folders = task.box.cgroups
    assert all(
        folders[name].is_relative_to(folder)
        for name, folder in place.cgroups.items()
        if name in folders
    )
    task.close()
    walk = [name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names]
    assert not any(name.startswith(f"headgate-{GROUP}") for name in walk)


@pytest.mark.hardware
def test_a_node_that_is_not_there_or_cannot_be_had_is_refused(
    isolation: ContainerIsolation, run: Run, place: Place, tmp_path: Path
) -> None:
    gone = launch("true", tmp_path, place=replace(place, namespace="/run/netns/no-such-node"))
    with pytest.raises(
        IsolationError, match="node 'box' cannot be entered: /run/netns/no-such-node does not exist"
    ):
        run(isolation, gone)


@pytest.mark.hardware
def test_what_a_node_limits_holds_for_all_that_runs_in_its_containers(
    isolation: ContainerIsolation, run: Run, place: Place, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "in")
    program = (
        "held = b'x' * (64 << 20); print('ready', flush=True); open('in').read(); held "
        "+= b'x' * (256 << 20)"
    )
    command = f'sleep 1000 & python -I -S -c "{program}" || exit 1'
    task = run(isolation, launch(command, tmp_path, place=place), Share(memory_bytes=256 * MIB))
    task.said("ready")
    folder = task.box.cgroups["memory"]
    assert folder.is_relative_to(place.cgroups["memory"])
    assert {int(pid) for pid in (folder / "cgroup.procs").read_text().split()} == set(
        task.box.pids()
    )
    assert len(task.box.pids()) == 3
    limit = folder / ("memory.max" if (folder / "memory.max").exists() else "memory.limit_in_bytes")
    assert limit.read_text().strip() == str(256 * MIB)
    with pytest.raises(
        IsolationError, match=r"a memory limit of 16 MiB is below the .* that the task holds now"
    ):
        task.box.apply(Share(memory_bytes=16 * MIB))
    task.box.apply(Share(cpu_weight=50, memory_bytes=UNLIMITED))
    set_memory(place, 128 * MIB)  # of the node as a whole
    (tmp_path / "in").write_text("go on")
    end = task.ended()
    assert end.reason is not None
    assert end.reason.startswith("killed: node box ran out of memory")
    assert not end.over_memory


# --- whole runs -----------------------------------------------------------------------------------

LEARNS = """
    import sys
    from headgate.task import Channel, ProgressReporter, TaskEnvironment

    channel = Channel.open(TaskEnvironment.claim(), "none", "", None)
    progress = ProgressReporter(channel.send, list)
    progress.step = 7
    progress.report(0.25, {})
    progress.flush()
    channel.flush(30)
    print("in", open("/proc/self/cgroup").readline().strip())
"""


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"image": "x"}, "`image`: only containers have it; add `isolation: container`"),
        (
            {"isolation": "container", "image": "No Such"},
            "`image`: found 'No Such'; give the name of an image",
        ),
        ({"runtime": "runsc"}, "`runtime`: only containers have it; add `isolation: container`"),
        (
            {"isolation": "container", "runtime": "a b"},
            "`runtime`: found 'a b'; give the name of a runtime",
        ),
        (
            {"isolation": "container", "mounts": ("data",)},
            "`mounts`: found 'data'; give an absolute path",
        ),
        (
            {"isolation": "container", "mounts": "/data"},
            "`mounts` is '/data'; expected a list of texts",
        ),
    ],
)
def test_what_makes_no_sense_of_a_container_is_said_of_its_job(
    fields: dict[str, object], said: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        Job(name="a", run="true", **fields)  # type: ignore[arg-type]


@pytest.fixture
def docker_user(user: User, daemon: str) -> User:
    user.variables["DOCKER_HOST"] = daemon
    return user


def test_the_daemon_is_the_one_that_the_submitter_names_and_not_the_hub(
    user: User, daemon: str
) -> None:
    user.variables["DOCKER_HOST"] = "unix:///nowhere/docker.sock"
    user.write("first.yaml", "jobs: [{name: first, run: 'until [ -e go ]; do sleep 0.05; done'}]")
    user.detaches("first.yaml")  # its hub was started there
    user.write("jobs.yaml", "jobs: [{name: a, run: echo loss 0.5, isolation: container}]")
    assert (
        "no Docker daemon answers at unix:///nowhere"
        in user.types("run", "jobs.yaml", code=7).message
    )
    user.variables["DOCKER_HOST"] = daemon
    assert user.json("run", "jobs.yaml")["jobs"][0]["state"] == "done"
    user.touch("go")


def test_jobs_run_in_containers_and_say_what_they_learned_or_why_they_ended(
    docker_user: User,
) -> None:
    user = docker_user
    user.write("a.py", LEARNS)
    user.write("b.py", "held = b'x' * (256 << 20)")
    child = (
        "import subprocess, sys\nended = subprocess.run([sys.executable, "
        "'b.py'])\nprint('it ended with', ended)"
    )
    user.write("d.py", child)
    user.write(
        "jobs.yaml",
        """
        jobs:
          - {name: a, script: a.py, isolation: container}
          - {name: b, script: b.py, isolation: container, limits: {memory: 64MiB}}
          - {name: c, run: "true", isolation: container, image: "headgate-test:absent"}
          - {name: d, script: d.py, isolation: container, limits: {memory: 64MiB}}
        """,
    )
    user.types("run", "jobs.yaml", code=1)
    a, b, c, d = (
        user.sees_job(name, lambda job: job["state"] in ("done", "failed")) for name in "abcd"
    )
    assert (a["state"], a["loss"], a["step"]) == ("done", 0.25, 7)
    assert any("headgate-" in log.read_text() for log in user.home.glob("runs/*/jobs/a/*.log"))
    assert b["reason"].startswith("killed: over its memory limit of 64 MiB (peak ")
    assert d["reason"] == "finished, but 1 of its processes was killed for want of memory"
    [told] = [each["text"] for each in user.json("status")["warnings"] if each["job"] == "d"]
    assert told.startswith(
        "one of its processes was killed: over its memory limit of 64 MiB (peak "
    )
    assert (
        "image 'headgate-test:absent' is not on this machine; get it with: docker pull"
        in c["reason"]
    )


def test_the_address_of_a_daemon_is_no_file_that_its_container_should_see() -> None:
    job = Job(name="a", run="true", workdir="/srv/a", isolation="container", image="x")
    assert (
        hint(
            job,
            "no Docker daemon answers at unix:///usr/lib/docker.sock (No such file or directory)",
        )
        == ""
    )
    assert "--mount /usr/lib," in hint(
        job, "cannot open /usr/lib/absent.txt: No such file or directory"
    )


def test_what_a_container_does_not_see_is_named_with_its_cure_and_seen_with_it(
    docker_user: User, tmp_path: Path
) -> None:
    user, data = docker_user, tmp_path / "data sets"
    data.mkdir()
    (data / "numbers.txt").write_text("17")
    user.variables["HOME"] = str(tmp_path)
    user.write(
        "reads.py",
        "import os, sys\nprint(open(os.path.expanduser(sys.argv[1])).read(), flush=True)",
    )
    user.write("writes.py", "import sys\nopen(sys.argv[1], 'w').write('1')")
    boxed = ("run", "--isolation", "container")

    def fails(*words: str) -> str:
        user.types(*boxed, *words, code=1)
        return str(next(iter(user.jobs().values()))["reason"])

    file = str(data / "numbers.txt")
    told = fails("reads.py", "--", file)
    assert "FileNotFoundError" in told
    assert told.endswith(
        f". Next: its container does not see {data} of this machine: --mount {data}, or "
        f"`mounts: [{data}]`"
    )
    assert fails("reads.py", "--", "../data sets/numbers.txt").endswith(
        f"--mount {data}, or `mounts: [{data}]`"
    )
    # in its own folder, where it is not
    assert "--mount" not in fails("reads.py", "--", "absent.txt")
    # of the system, which it sees
    assert "--mount" not in fails("reads.py", "--", "/usr/absent.txt")
    user.types(*boxed, "--mount", str(data), "reads.py", "--", file)
    assert user.log("reads") == "17\n"
    user.types(*boxed, "--mount=~/data sets:/elsewhere", "reads.py", "--", "/elsewhere/numbers.txt")
    assert user.log("reads") == "17\n"
    told = fails("--mount", f"{data}:ro", "writes.py", "--", f"{data}/new")
    assert told.endswith(
        f'. Next: its container may not write {data}: --mount {data}:rw, or `mounts: ["{data}:rw"]`'
    )
    user.types(*boxed, "--mount", f"{data}:/out:rw", "writes.py", "--", "/out/new")
    assert (data / "new").read_text() == "1"
    refused = user.types("run", "--mount", str(data), "reads.py", code=2).message
    assert "`mounts`: only containers have it" in refused


def test_what_a_dead_hub_and_guard_left_is_removed_by_the_next_command(
    docker_user: User, daemon: str
) -> None:
    user = docker_user
    user.write("a.py", "import time\nprint('ready', flush=True)\ntime.sleep(1000)")
    run = user.detaches("--isolation", "container", "a.py")
    user.sees_job("a", lambda job: job["state"] == "running")
    mine = f"{TASK}={run}/a/worker-0"
    wait.until(
        lambda: list((user.home / "hub" / "boxes").glob("*.json")), SECONDS, "the record of its box"
    )
    assert len(Daemon(daemon).find(mine)) == 1
    hub = user.traces.hub()
    assert hub is not None
    os.kill(hub, signal.SIGSTOP)  # or it might start another guard
    user.kills(user.traces.guard())
    user.kills(hub)
    user.types("ps")
    assert Daemon(daemon).find(mine) == []
