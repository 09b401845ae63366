"""GPUs in containers: which devices are asked of Docker, what a task calls them, and how jobs take
turns on one.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests.hub.test_gating import STEPS
from tests.hub.user import SECONDS, User
from tests.task.test_gate import Engine, gate_of, steps

from headgate.isolation.base import HOST_IMAGE, Launch
from headgate.isolation.container import limits, request
from headgate.isolation.container.request import ContainerRequest
from headgate.model.identifiers import TaskId
from headgate.model.shares import Share
from headgate.testing import wait

CONTROL = ("nvidia-uvm", "nvidiactl")


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """As a machine with three GPUs and MIG has them."""
    folder = tmp_path / "dev"
    (folder / "nvidia-caps").mkdir(parents=True)
    for name in ("nvidia0", "nvidia1", "nvidia10", *CONTROL):
        (folder / name).symlink_to("/dev/null")
    return folder


@pytest.mark.parametrize(
    ("image", "gpus", "numbers", "seen"),
    [
        (HOST_IMAGE, None, (0, 1, 10), None),
        (HOST_IMAGE, (10, 1), (10, 1), "1,0"),
        (HOST_IMAGE, (), (), ""),
        ("other", None, (0, 1, 10), None),
        ("other", (10, 1), (10, 1), "1,0"),
        ("other", (), (), ""),
    ],
)
def test_docker_is_asked_for_the_gpus_of_a_task_and_no_others(
    devices: Path,
    image: str,
    gpus: tuple[int, ...] | None,
    numbers: tuple[int, ...],
    seen: str | None,
) -> None:
    launch = Launch(
        TaskId("run/job/worker-0"), ("true",), {}, str(devices.parent), 1, image=image, gpus=gpus
    )
    config = ContainerRequest(
        launch, image, None, Share(), limits.DockerHost("v1", 2.0), devices=devices
    ).config()
    host = config["HostConfig"]
    paths = [str(devices / name) for name in (*(f"nvidia{number}" for number in numbers), *CONTROL)]
    each = [
        {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"} for path in paths
    ]
    asked = [{"DeviceIDs": [str(number) for number in numbers], "Capabilities": [["gpu"]]}]
    assert host.get("Devices") == (each if image == HOST_IMAGE and numbers else None)
    assert host.get("DeviceRequests") == (asked if image != HOST_IMAGE and numbers else None)
    env = dict(variable.split("=") for variable in config["Env"])
    assert env.get("CUDA_VISIBLE_DEVICES") == seen


@pytest.mark.parametrize(
    ("image", "gpus", "asked"),
    [
        (HOST_IMAGE, (0, 2), ["nvidia1", "nvidia10"]),
        (HOST_IMAGE, None, ["nvidia1", "nvidia0", "nvidia10"]),
        ("other", (0, 2), ["0", "2"]),
        ("other", None, ["0", "1", "2"]),
    ],
)
def test_a_gpu_has_the_device_file_that_nvml_tells(
    devices: Path,
    monkeypatch: pytest.MonkeyPatch,
    image: str,
    gpus: tuple[int, ...] | None,
    asked: list[str],
) -> None:
    monkeypatch.setattr(request, "open_nvml", lambda: None)
    monkeypatch.setattr(request, "device_numbers", lambda nvml: {0: 1, 1: 0, 2: 10})
    launch = Launch(
        TaskId("run/job/worker-0"), ("true",), {}, str(devices.parent), 1, image=image, gpus=gpus
    )
    host = ContainerRequest(
        launch, image, None, Share(), limits.DockerHost("v1", 2.0), devices=devices
    ).config()["HostConfig"]
    if image == HOST_IMAGE:
        assert [Path(each["PathOnHost"]).name for each in host["Devices"]] == [*asked, *CONTROL]
    else:
        assert host["DeviceRequests"][0]["DeviceIDs"] == asked


def test_a_task_tells_the_numbers_of_its_node_whatever_its_container_calls_them(
    devices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Launch(TaskId("run/job/worker-0"), ("true",), {}, str(devices.parent), 1, gpus=(10, 1))
    config = ContainerRequest(
        launch, HOST_IMAGE, None, Share(), limits.DockerHost("v1", 2.0), devices=devices
    ).config()
    for variable in config["Env"]:
        monkeypatch.setenv(*variable.split("="))

    def told(*seen: int) -> list[dict[str, object]]:
        engine = Engine()
        steps(engine, gate_of(engine, gpus=lambda: seen), 1, 1.0)
        return engine.sent

    assert told(0) == [{"type": "gpus", "gpus": [10]}]  # its first is the first that it was given
    assert told(1) == [{"type": "gpus", "gpus": [1]}]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # of these, the script itself chose one
    assert told(0) == [{"type": "gpus", "gpus": [10]}]


def test_jobs_in_containers_take_turns_on_a_gpu(user: User, daemon: str) -> None:
    user.variables["DOCKER_HOST"] = daemon
    says = 'import os\nprint("pid", os.getpid(), flush=True)\n'
    for name in ("a", "b"):
        user.write(f"{name}.py", STEPS).write_text(says + (user.folder / f"{name}.py").read_text())
    user.write(
        "jobs.yaml",
        "jobs: [{script: a.py, isolation: container}, {script: b.py, isolation: process}]",
    )
    user.detaches("jobs.yaml", "--policy", "equal")
    pids = set[int]()
    for name in ("a", "b"):
        user.sees_job(name, lambda job: bool(job["step"]), what="steps")
        pids.add(int(user.log(name).split()[1]))
    turn = user.home / "turns" / socket.gethostname() / "gpu-0"
    had = set[int]()

    def all_had_it() -> bool:
        had.update(holders(turn))
        return had >= pids

    wait.until(all_had_it, SECONDS, "both have had their turn")
    user.types("stop", "--all")
    for name in ("a", "b"):
        user.sees_state(name, "stopped")


def holders(path: Path) -> set[int]:
    """Processes that have a file locked."""
    inode = str(path.stat().st_ino) if path.exists() else ""
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return {int(lock[4]) for lock in locks if "->" not in lock and lock[5].split(":")[-1] == inode}
