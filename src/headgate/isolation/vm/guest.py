"""The first process of a guest: prepares the files and the network that the task sees, starts it,
and reports its end.

Started as `python -I -S guest.py ORDER`, by a kernel whose root is this machine's. It switches the
guest off when its monitor is gone. The file is loaded alone, with the files in its folder and
without the package around it.
"""

from __future__ import annotations

import marshal
import os
import signal
import socket
import subprocess
import sys
import tty

sys.path.append(os.path.dirname(__file__))
from guest_channel import EXIT, GO, OPEN, OUTPUT, READY, SIGNAL, GuestLine  # type: ignore[import-not-found]
from mounting import BIND, LIBC, NODEV, NOSUID, READ_ONLY, REMOUNT, mount  # type: ignore[import-not-found]

_POWER_OFF = 0x4321FEDC
_FRESH = ("/tmp", "/var/tmp", "/run")
_CGROUP = "/sys/fs/cgroup/task"


def main() -> None:
    with open(sys.argv[1], "rb") as file:
        order = marshal.load(file)
    with open(order["network"], "rb") as file:
        network = marshal.load(file)
    _mount_kernel()
    line = GuestLine(_open_line())
    _mount_files(order["files"])
    socket.sethostname(order["hostname"])
    for command in network:
        subprocess.run(command, check=True)
    server = _listen(order["channel"], order["user"]) if order["channel"] else None
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    line.send(READY)
    task, last = None, 0
    while not line.over:
        others = [woken] if server is None else [woken, server.fileno()]
        ready, messages = line.turn(others)
        for kind, _, content in messages:
            if kind == GO:
                task = _start(order, line)
            elif kind == SIGNAL and task is not None:
                _signal(content[0], bool(content[1]), task, order["package"])
        if server is not None and server.fileno() in ready:
            last += 1
            line.send(OPEN, number=last)
            line.join(last, server.accept()[0].detach())
        if woken in ready:
            os.read(woken, 4096)
            task = _reap(task, line, order["memory"])


def _start(order: dict, line: GuestLine) -> int | None:  # type: ignore[type-arg]
    """Start the task. Returns its process id, None if it cannot be started."""
    reading, writing = os.pipe()
    try:
        task = (
            _start_here(order, writing)
            if order["container"] is None
            else _start_in_container(order, writing)
        )
    except OSError as error:
        os.close(reading)
        line.send(
            EXIT,
            marshal.dumps(
                {"refused": str(error) if error.filename else error.strerror or str(error)}
            ),
        )
        return None
    finally:
        os.close(writing)
    line.join(OUTPUT, reading)
    return task


def _start_here(order: dict, output: int) -> int:  # type: ignore[type-arg]
    uid, gid, groups = order["user"]
    ours, theirs = socket.socketpair()
    with theirs:
        argv = [sys.executable, "-I", "-S", order["launcher"], str(theirs.fileno())]
        task = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=order["cwd"],
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            user=uid,
            group=gid,
            extra_groups=groups,
        )
    _limit(order["memory"], task.pid)
    with ours:
        ours.sendall(order["task"])
        ours.shutdown(socket.SHUT_WR)
        answer = b""
        while part := ours.recv(4096):
            answer += part
    task.returncode = 0  # it is waited for by its number
    if answer[1:]:
        raise OSError(int(answer[1:]), os.strerror(int(answer[1:])))
    return task.pid


def _start_in_container(order: dict, output: int) -> int:  # type: ignore[type-arg]
    from bundle import start  # type: ignore[import-not-found]  # only where it is needed

    return start(order["container"], output)  # type: ignore[no-any-return]


def _limit(memory: int | None, pid: int) -> None:
    """Put the task into a cgroup with a memory limit."""
    os.mkdir(_CGROUP)
    _write(f"{_CGROUP}/memory.oom.group", "1")
    if memory is not None:
        _write(f"{_CGROUP}/memory.max", str(memory))
    _write(f"{_CGROUP}/cgroup.procs", str(pid))


def _reap(task: int | None, line: GuestLine, memory: int | None) -> int | None:
    """Wait for ended processes. Returns the task's process id, None once it has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return task
        if pid == 0:
            return task
        if pid == task:
            task = None
            line.drain()
            os.sync()
            with open(f"{_CGROUP}/memory.events") as file:
                events = dict(row.split() for row in file)
            with open(f"{_CGROUP}/memory.peak") as file:
                peak = int(file.read())
            end = {
                "status": os.waitstatus_to_exitcode(status),
                "kills": int(events["oom_kill"]),
                "at_limit": memory is not None and int(events["oom"]) > 0,
                "peak": peak,
            }
            line.send(EXIT, marshal.dumps(end))


def _signal(number: int, everybody: bool, task: int, package: str) -> None:
    """Signal all processes of the task, or those that `signals.targets` selects."""
    if everybody:
        os.kill(-1, number)
        return
    sys.path.append(package)
    from headgate.isolation.signals import targets  # takes a while: only where it is needed
    from headgate.machine.processes import look, send

    if (first := look(task)) is not None:
        send(targets(first, number), number)


def _mount_kernel() -> None:
    """Mount the kernel's file systems."""
    mount("proc", "/proc", "proc")
    mount("sysfs", "/sys", "sysfs")
    mount("devtmpfs", "/dev", "devtmpfs")
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"/dev/{name}")
    os.mkdir("/dev/pts")
    mount("devpts", "/dev/pts", "devpts", data=b"ptmxmode=0666")
    os.mkdir("/dev/shm")
    mount("tmpfs", "/dev/shm", "tmpfs", NOSUID | NODEV, b"mode=1777")
    mount("cgroup2", "/sys/fs/cgroup", "cgroup2")
    _write("/sys/fs/cgroup/cgroup.subtree_control", "+memory")
    # As on a machine with more memory than the task's limit: the limit ends the task before an
    # allocation fails.
    _write("/proc/sys/vm/overcommit_memory", "1")


def _mount_files(files: list[tuple[str, str, bool]]) -> None:
    """Make the machine's files read-only except those that the task may write, and hide temporary
    files except those that it sees.
    """
    kept = [(os.open(source, os.O_PATH), target, writable) for source, target, writable in files]
    mount("none", "/", "", REMOUNT | BIND | READ_ONLY)
    for target in _FRESH:
        mount("tmpfs", target, "tmpfs", NOSUID | NODEV, b"mode=1777")
    for fd, target, writable in sorted(kept, key=lambda entry: entry[1].count("/")):
        source = f"/proc/self/fd/{fd}"
        if not os.path.exists(target):
            os.makedirs(
                os.path.dirname(target) if os.path.isfile(source) else target, exist_ok=True
            )
            if os.path.isfile(source):
                os.close(os.open(target, os.O_CREAT, 0o600))
        mount(source, target, "", BIND)
        mount("none", target, "", REMOUNT | BIND | (0 if writable else READ_ONLY))
        os.close(fd)


def _open_line() -> int:
    """Open the line to the monitor: a port of QEMU, or a serial line of user-mode Linux."""
    ports = "/sys/class/virtio-ports"
    for name in os.listdir(ports) if os.path.isdir(ports) else []:
        with open(f"{ports}/{name}/name") as file:
            if file.read().strip() == "headgate":
                return os.open(f"/dev/{name}", os.O_RDWR | os.O_CLOEXEC)
    fd = os.open("/dev/ttyS0", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    tty.setraw(fd)
    return fd


def _listen(path: str, user: tuple[int, int, list[int]]) -> socket.socket:
    """Listen at the task's path of its engine's channel."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(path)
    os.chown(path, user[0], user[1])
    server.listen(8)
    return server


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


try:
    main()
finally:
    sys.excepthook(*sys.exc_info()) if sys.exc_info()[0] else None  # for the console
    os.sync()
    LIBC.reboot(_POWER_OFF)
