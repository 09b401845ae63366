"""The first process, on this machine, of a task in a guest: starts the guest, relays its data, and
ends as the task does.

Started as `python -I -S monitor.py FOLDER`. A signal is passed to the task; `EVERYBODY` asks all of
its processes to end. The file is loaded alone, with the files in its folder and without the package
around it.
"""

from __future__ import annotations

import ctypes
import json
import marshal
import os
import resource
import signal
import socket
import subprocess
import sys
import time

sys.path.append(os.path.dirname(__file__))
from guest_channel import CLOSE, EVERYBODY, EXIT, GO, OPEN, OUTPUT, READY, SIGNAL, GuestLine  # type: ignore[import-not-found]

GUEST_MAC, TAP_MAC, GATEWAY = "02:68:67:00:00:01", "02:68:67:00:00:02", "169.254.1.1"
TABLE = "7707"
"""Number of the routing table for a guest in a node."""
FAILED = 125
_CLONE_NEWNS = 0x00020000  # linux/sched.h
_BIND, _REC, _SLAVE, _READ_ONLY = 4096, 16384, 1 << 19, 1  # linux/mount.h
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_TOLD = 2000
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    folder = sys.argv[1]
    # it may have to end by a signal that would dump core
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(f"{folder}/plan", "rb") as file:
        plan = marshal.load(file)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    for number in signal.valid_signals() - {
        signal.SIGKILL,
        signal.SIGSTOP,
        signal.SIGTSTP,
        signal.SIGCONT,
    }:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    addresses, mtu = _address_of_node() if plan["tap"] is not None else ([], 0)
    with open(f"{folder}/network", "wb") as file:
        marshal.dump([*plan["network"], *_network_of_guest(addresses, mtu, plan["device"])], file)
    if os.geteuid() == 0:
        _show_read_only(f"{folder}/root", plan["writes"])
    ours, theirs = socket.socketpair()
    guest = _boot(folder, plan["programs"], theirs)
    line = GuestLine(ours.detach())
    line.join(OUTPUT, os.dup(1))
    deadline: float | None = time.monotonic() + plan["seconds"]
    asked: list[bytes] = []
    while not line.over and guest.poll() is None:
        ready, messages = line.turn(
            [woken], None if deadline is None else max(0.0, deadline - time.monotonic())
        )
        for kind, number, content in messages:
            if kind == READY:
                if plan["tap"] is not None:
                    _join_node(plan["tap"], addresses, mtu)
                deadline = None
                line.send(GO)
                for request in asked:
                    line.send(SIGNAL, request)
            elif kind == OPEN:
                _connect(line, number, plan["channel"])
            elif kind == EXIT:
                _end(folder, line, marshal.loads(content))
        for byte in os.read(woken, 4096) if ready else b"":
            if byte not in (signal.SIGCHLD, signal.SIGPIPE):
                everybody = byte == EVERYBODY
                asked.append(bytes([signal.SIGTERM if everybody else byte, everybody]))
                if deadline is None:
                    line.send(SIGNAL, asked[-1])
        if deadline is not None and time.monotonic() >= deadline:
            _end(
                folder,
                line,
                {"refused": f"its guest was not up after {plan['seconds']:g} s{_console(folder)}"},
            )
    guest.wait()
    _end(folder, line, {"lost": f"its guest ended before it did{_console(folder)}"})


def _boot(folder: str, programs: list[list[str]], line: socket.socket) -> subprocess.Popen:  # type: ignore[type-arg]
    """Start the programs that serve the guest, and the guest, which is the last."""
    files = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    files.bind(f"{folder}/files")
    files.listen(1)
    environment = {**os.environ, "TMPDIR": folder}
    fds = {"line": line.fileno(), "files": files.fileno()}
    with open(f"{folder}/console", "ab") as console, line, files:
        for program in programs:
            guest = subprocess.Popen(
                [word.format_map(fds) if "{" in word else word for word in program],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                pass_fds=list(fds.values()),
                env=environment,
                preexec_fn=_end_with_monitor,  # noqa: PLW1509  # there is one thread
            )
    return guest


def _end_with_monitor() -> None:
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)


def _connect(line: GuestLine, number: int, channel: str) -> None:
    """Connect to the task's engine for the guest."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(channel)
    except OSError:
        connection.close()
        line.send(CLOSE, number=number)
        return
    line.join(number, connection.detach())


def _end(folder: str, line: GuestLine, end: dict) -> None:  # type: ignore[type-arg]
    """Record how the task ended, and end in the same way. The guest ends with its monitor."""
    line.flush()
    with open(f"{folder}/end", "w") as file:
        json.dump(end, file)
    status = end.get("status", FAILED)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _console(folder: str) -> str:
    """The last lines of the guest's console."""
    with open(f"{folder}/console", errors="replace") as file:
        lines = [row.strip() for row in file.read()[-_TOLD:].splitlines() if row.strip()]
    return "".join(f"; {row}" for row in lines[-3:])


def _show_read_only(root: str, writes: list[str]) -> None:
    """Make a second view of all files of this machine, in its own mount namespace, with only some
    of them writable.
    """
    _call("unshare", _CLONE_NEWNS)
    _mount(b"none", b"/", _REC | _SLAVE)
    target = os.fsencode(root)
    os.mkdir(target)
    _mount(b"/", target, _BIND | _REC)
    read_only = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
    _call(
        "syscall",
        _MOUNT_SETATTR,
        _AT_FDCWD,
        target,
        _AT_RECURSIVE,
        read_only,
        ctypes.sizeof(read_only),
    )
    for path in map(os.fsencode, writes):
        _mount(path, target + path, _BIND | _REC)


def _address_of_node() -> tuple[list[str], int]:
    """The addresses of this process's network namespace, and its smallest MTU."""
    interfaces = json.loads(
        subprocess.run(["ip", "-j", "-4", "address"], stdout=subprocess.PIPE, check=True).stdout
    )
    devices = [
        interface
        for interface in interfaces
        if interface["ifname"] != "lo" and interface["addr_info"]
    ]
    return [info["local"] for device in devices for info in device["addr_info"]], min(
        device["mtu"] for device in devices
    )


def _network_of_guest(addresses: list[str], mtu: int, device: str) -> list[list[str]]:
    """Command lines that give a guest the addresses of its node."""
    if not addresses:
        return []
    lines = [f"link set {device} mtu {mtu} address {GUEST_MAC}", f"link set {device} up"]
    lines += [f"address add {address}/32 dev {device}" for address in addresses]
    lines += [
        f"route add {GATEWAY} dev {device}",
        f"neighbour replace {GATEWAY} lladdr {TAP_MAC} dev {device}",
        f"route add default via {GATEWAY} dev {device}",
    ]
    return [["ip", *row.split()] for row in lines]


def _join_node(tap: str, addresses: list[str], mtu: int) -> None:
    """Route packets for the node's addresses to the guest, which has the same, and its packets to
    the node's interfaces.
    """
    lines = [f"link set {tap} address {TAP_MAC} mtu {mtu}", f"link set {tap} up"]
    for address in addresses:
        lines.append(f"neighbour replace {address} lladdr {GUEST_MAC} nud permanent dev {tap}")
        lines.append(f"route replace {address}/32 dev {tap} table {TABLE}")
    if (
        TABLE
        not in subprocess.run(["ip", "rule"], stdout=subprocess.PIPE, check=True, text=True).stdout
    ):
        lines += [
            f"rule add priority 6 not iif lo lookup {TABLE}",
            "rule add priority 100 lookup local",
        ]
        lines.append("rule delete priority 0")
    for row in lines:
        subprocess.run(["ip", *row.split()], check=True)
    settings = {
        "ip_forward": 1,
        "conf/all/rp_filter": 0,
        f"conf/{tap}/rp_filter": 0,
        f"conf/{tap}/accept_local": 1,
    }
    settings |= {"conf/all/proxy_arp": 1}
    settings |= {f"neigh/{name}/proxy_delay": 0 for name in os.listdir("/proc/sys/net/ipv4/neigh")}
    for name, value in settings.items():
        with open(f"/proc/sys/net/ipv4/{name}", "w") as file:
            file.write(str(value))


def _mount(source: bytes, target: bytes, flags: int) -> None:
    _call("mount", source, target, None, ctypes.c_ulong(flags), None)


def _call(function: str, *arguments: object) -> None:
    if getattr(_LIBC, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
