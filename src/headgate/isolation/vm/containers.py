"""The isolation `vm+container`: a task in a container inside its own guest.

The container is the one that Docker Engine would make if the guest were its machine: `docker.json`
has the defaults that Docker 20.10 passes to runc. No daemon runs in the guest. This machine's
daemon exports the files of an image, once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headgate.isolation.base import HOST_IMAGE, Launch
from headgate.isolation.container.daemon import Daemon, GoneError, default_url
from headgate.isolation.container.files import host_image
from headgate.isolation.container.isolation import marked, with_path_of_image
from headgate.isolation.container.request import binds
from headgate.isolation.vm.isolation import (
    FRESH,
    GUEST_CHANNEL,
    Content,
    File,
    VmIsolation,
    files_of,
)
from headgate.isolation.vm.machines import Machine, cache, find_runc
from headgate.model.errors import IsolationError
from headgate.model.mounts import Mount
from headgate.model.shares import Lever, Share, Uncontrolled

_DOCKERS = Path(__file__).with_name("docker.json")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH of an image that sets none (moby: oci/defaults.go)."""
_OF_NETWORK = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")


class VmContainerIsolation(VmIsolation):
    """Boxes tasks in as containers inside of guests, one each.

    A container has its own process ids, mounts, IPC and cgroup, and the guest's network. It sees
    the same files as under the isolation `container`. Other writes go to the guest's memory.
    """

    name = "vm+container"
    waits = True

    def describe(self, launch: Launch, share: Share) -> Sequence[str]:
        *lines, cd, run = super().describe(replace(launch, mounts=()), share)
        program = None
        with contextlib.suppress(IsolationError):  # which `start` will say
            program = self.program(launch)
        mounts = _binds(launch, program)
        return [
            *lines,
            (
                f"runc run, image {launch.image}, as {os.geteuid()}:{os.getegid()}, in the network "
                "of the guest"
            ),
            *(
                f"mount {mount.target}, {'writable' if mount.writable else 'read-only'}"
                for mount in mounts
            ),
            cd,
            run,
        ]

    def check(self) -> None:
        super().check()
        try:
            find_runc()
        except IsolationError as error:
            raise IsolationError(f"isolation {self.name}: {error}") from None

    def uncontrolled(self) -> tuple[Uncontrolled, ...]:
        try:
            find_runc()
        except IsolationError as error:
            return (Uncontrolled(Lever.CONTAINERS, str(error), scope="in guests"),)
        return super().uncontrolled()

    def program(self, launch: Launch) -> str | None:
        return super().program(launch) if launch.image == HOST_IMAGE else None

    def content(
        self, folder: Path, machine: Machine, launch: Launch, program: str | None, share: Share
    ) -> Content:
        container: dict[str, Any] = {"runc": find_runc(), "modules": machine.modules("overlay")}
        env = {"PATH": _PATH}
        if launch.image == HOST_IMAGE:
            container["root"] = str(_empty(folder / "image"))
        else:
            daemon = Daemon(launch.daemon or default_url())
            launch = with_path_of_image(daemon, launch)
            container["root"] = str(_exported(daemon, launch.image))
            env |= daemon.environment(launch.image)
        mounts = _binds(launch, program)
        channel = (
            [GUEST_CHANNEL] if launch.env.get("HEADGATE_CHANNEL") == f"unix:{GUEST_CHANNEL}" else []
        )
        container["seen"] = [*_OF_NETWORK, *channel]
        container["config"] = _config(
            replace(launch, env={**env, **launch.env}), program, mounts, share
        )
        needed = [container["root"], container["runc"], *container["modules"]]
        return Content(_shown(launch, program, mounts, needed), container)


def _binds(launch: Launch, program: str | None) -> list[Mount]:
    """The paths of this machine that the container sees. It sees no sockets, because nothing
    listens in the guest, and no hosts file, which the guest has.
    """
    all_binds = binds(replace(launch, place=None), program)
    return [bind for bind in all_binds if os.path.isdir(bind.source) or os.path.isfile(bind.source)]


def _config(
    launch: Launch, program: str | None, mounts: Sequence[Mount], share: Share
) -> dict[str, Any]:
    """The configuration for runc (OCI Runtime Specification, config.md), without the guest's
    additions.
    """
    config: dict[str, Any] = json.loads(_DOCKERS.read_text())
    if os.geteuid() != 0:  # Docker leaves those of others only what they may get back
        del (
            config["process"]["capabilities"]["effective"],
            config["process"]["capabilities"]["permitted"],
        )
    config["process"] |= {
        "user": {"uid": os.geteuid(), "gid": os.getegid(), "additionalGids": os.getgroups()},
        "args": [program or launch.argv[0], *launch.argv[1:]],
        "env": [f"{name}={value}" for name, value in launch.env.items()],
        "cwd": launch.cwd,
    }
    config["hostname"] = launch.place.hostname if launch.place is not None else socket.gethostname()
    config["mounts"] += [
        {
            "destination": mount.target,
            "type": "bind",
            "source": mount.source,
            "options": ["rbind", "rw" if mount.writable else "ro", "rprivate"],
        }
        for mount in mounts
    ]
    config["linux"]["cgroupsPath"] = "/task"
    config["linux"]["resources"]["unified"] = {"memory.oom.group": "1"}
    if isinstance(share.memory_bytes, int):
        config["linux"]["resources"]["memory"] = {"limit": share.memory_bytes}
    return config


def _shown(
    launch: Launch, program: str | None, mounts: Iterable[Mount], needed: Iterable[str]
) -> list[File]:
    """The paths that the guest mounts specially, so that its container sees them."""
    binds_by_target = {
        target: (source, target, may)
        for source, target, may in files_of(replace(launch, mounts=()), program)
    }
    shown = dict.fromkeys([*needed, *(mount.source for mount in mounts)], False)
    # the same path may be mounted in both ways
    shown |= {mount.source: True for mount in mounts if mount.writable}
    for path, writable in shown.items():
        fresh = (
            path.startswith(tuple(f"{fresh_folder}/" for fresh_folder in FRESH)) or path in FRESH
        )
        if writable or (fresh and path not in binds_by_target):
            binds_by_target[path] = (path, path, writable)
    return list(binds_by_target.values())


def _empty(folder: Path) -> Path:
    """The files of the image `host`: folders to mount on, and links."""
    folder.mkdir(mode=0o755)
    _unpack([host_image()[1]], folder)
    return folder


def _exported(daemon: Daemon, image: str) -> Path:
    """The files of an image, which Docker Engine exports once.

    Raises:
        IsolationError: The image is not on this machine, or cannot be exported.
    """
    try:
        id = daemon.image_id(image)
    except GoneError as error:
        raise IsolationError(
            f"image {image!r} is not on this machine; get it with: docker pull {image}"
        ) from error
    folder = cache() / "images" / id.removeprefix("sha256:")
    part = folder.with_suffix(".part")
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir(mode=0o755, exist_ok=True)
                _unpack(daemon.export(id, marked()), part)
                part.rename(folder)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise IsolationError(
            f"the files of image {image!r} cannot be written to {folder}: {error}"
        ) from error
    return folder


def _unpack(parts: Iterable[bytes], folder: Path) -> None:
    """Unpack an archive, with owners and permissions if this user may set them.

    Raises:
        OSError: It cannot be unpacked.
    """
    command = ["tar", "--extract", "--preserve-permissions", "--numeric-owner", "--exclude=dev/*"]
    command += [f"--directory={folder}"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as tar:
        assert tar.stdin is not None
        assert tar.stderr is not None
        try:
            for part in parts:
                tar.stdin.write(part)
            tar.stdin.close()
        except BrokenPipeError:  # it says why
            pass
        output = tar.stderr.read().decode(errors="replace").strip()
    if tar.returncode != 0:
        raise OSError(
            output.splitlines()[0] if output else f"tar ended with status {tar.returncode}"
        )
