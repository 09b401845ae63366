"""A container in a guest: a bundle of the OCI Runtime Specification, started by runc.

Its root is the files of its image, which stay unchanged: writes go to the guest's memory. The file
is loaded alone, with the files in its folder and without the package around it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess

from mounting import BIND, LIBC, NODEV, NOSUID, READ_ONLY, REMOUNT, mount  # type: ignore[import-not-found]

FOLDER = "/run/headgate"
_CLONE_NEWPID = 0x20000000  # linux/sched.h
_FINIT_MODULE, _COMPRESSED = 313, 4  # linux/module.h, and the call's number on x86-64


def start(container: dict, output: int) -> int:  # type: ignore[type-arg]
    """Start a container. Returns the process id of its task, whose parent becomes the guest's first
    process.

    Args:
        container: As of `containers.Content.container`.
        output: Descriptor for both output streams.

    Raises:
        OSError: It cannot be started. The message says why.
    """
    os.mkdir(FOLDER, 0o700)
    _mount_root(container["root"], container["modules"])
    config = container["config"]
    config["root"] = {"path": f"{FOLDER}/root"}
    config["mounts"] += [_bind(path) for path in container["seen"] if os.path.exists(path)]
    config["linux"]["namespaces"].append(
        {"type": "pid", "path": f"/proc/{_first_process()}/ns/pid"}
    )
    with open(f"{FOLDER}/config.json", "w") as file:
        json.dump(config, file)
    command = [
        container["runc"],
        "--root",
        f"{FOLDER}/runc",
        "--log",
        f"{FOLDER}/log",
        "--log-format",
        "json",
    ]
    command += ["run", "--detach", "--pid-file", f"{FOLDER}/pid", "--bundle", FOLDER, "task"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
    )
    if done.returncode != 0:
        raise OSError(_runc_error())
    with open(f"{FOLDER}/pid") as file:
        return int(file.read())


def _mount_root(image: str, modules: list[str]) -> None:
    """Mount a memory overlay on the files of an image. The image's path may be any name, so it is
    not part of the options.
    """
    with open("/proc/filesystems") as file:
        known = "\toverlay\n" in file.read()
    for path in [] if known else modules:
        _load(path)
    mount("tmpfs", FOLDER, "tmpfs", NOSUID | NODEV, b"mode=0700")
    for name in ("image", "root", "upper", "work"):
        os.mkdir(f"{FOLDER}/{name}")
    mount(image, f"{FOLDER}/image", "", BIND)
    mount("none", f"{FOLDER}/image", "", REMOUNT | BIND | READ_ONLY)
    layers = f"lowerdir={FOLDER}/image,upperdir={FOLDER}/upper,workdir={FOLDER}/work"
    mount("overlay", f"{FOLDER}/root", "overlay", 0, layers.encode())


def _load(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    flags = 0 if path.endswith(".ko") else _COMPRESSED
    # EEXIST
    if LIBC.syscall(_FINIT_MODULE, fd, b"", flags) != 0 and (number := ctypes.get_errno()) != 17:
        raise OSError(number, f"its guest cannot load {path}: {os.strerror(number)}")
    os.close(fd)


def _bind(path: str) -> dict[str, object]:
    return {"destination": path, "type": "bind", "source": path, "options": ["rbind", "rprivate"]}


def _first_process() -> int:
    """Make an idle process that is number 1 of a new process-id namespace. The task is not number 1
    itself, because that one ignores signals that would end any other (pid_namespaces(7)).
    """
    reading, writing = os.pipe()
    forking = os.fork()
    if forking == 0:
        if LIBC.unshare(_CLONE_NEWPID) == 0 and (first := os.fork()) != 0:
            os.write(writing, str(first).encode())
            os._exit(0)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for what is left to it
        os.closerange(0, 1024)
        while True:
            signal.pause()
    os.close(writing)
    os.waitpid(forking, 0)
    with open(reading, "rb") as pipe:
        output = pipe.read()
    return int(output)


def _runc_error() -> str:
    """Why runc could not start it."""
    with open(f"{FOLDER}/log") as file:
        lines = [json.loads(row) for row in file if row.strip()]
    messages = [row["msg"] for row in lines if row["level"] in ("error", "fatal")]
    return (
        messages[-1].rpartition("unable to start container process: ")[2]
        if messages
        else "runc told no reason"
    )
