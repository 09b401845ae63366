"""A trial has a network of its own, and what it tries to reach elsewhere is told."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headgate.verification import network

TRIES = """
import os, socket, subprocess, sys, threading
from headgate.task import landlock, network_fence
namespaces, without, service = sys.argv[1], sys.argv[2], int(sys.argv[3])
if "landlock" in without:
    landlock._CREATE = -1
told = []
print(network_fence.shut(namespaces, told.append, ["/nowhere"]))
listener = socket.create_server(("localhost", 0))
threading.Thread(target=lambda: listener.accept()[0].sendall(b"ours")).start()
with socket.create_connection(("localhost", listener.getsockname()[1])) as own:
    print(own.recv(4).decode())
for address in (("192.0.2.7", 80), ("127.0.0.1", service)):
    try:
        socket.create_connection(address, timeout=5)
        print("reached")
    except OSError as error:
        print("refused")
for reach in (
    lambda: socket.socket(socket.AF_UNIX).connect("/var/run/nobody.sock"),
    lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.7", 53)),
):
    try:
        reach()
    except OSError as error:
        print(os.strerror(error.errno))
code = f"import socket; socket.create_connection(('127.0.0.1', {service}))"
print(subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode)
print(told)
"""


def tried(namespaces: str, without: str, service: int) -> list[str]:
    words = [sys.executable, "-c", TRIES, namespaces, without, str(service)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.fixture
def service() -> Iterator[int]:
    """The port of a program of this machine that is none of the trial's; below those of workers."""
    import socket

    for port in range(9_100, 9_200):
        try:
            with socket.create_server(("127.0.0.1", port)):
                yield port
                return
        except OSError:
            continue
    raise AssertionError("no port is free")


def test_in_namespaces_of_its_own_it_reaches_itself_alone(service: int) -> None:
    with network.apart() as namespaces:
        if not namespaces.folder:
            pytest.skip("no network namespaces in this kernel, or not for this user")
        assert not namespaces.tried()
        lines = tried(namespaces.folder, "", service)
        assert lines[:4] == ["namespace", "ours", "refused", "refused"]
        assert lines[4:6] == [os.strerror(101)] * 2
        assert lines[6] == "1"
        assert lines[7] == str(
            ["192.0.2.7:80", f"127.0.0.1:{service}", "/var/run/nobody.sock", "192.0.2.7:53"]
        )
        assert not namespaces.tried()  # Python was refused before the kernel was asked
        code = (
            "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.7', 53))"
        )
        entering = (
            f"from headgate.task import network_fence as n; n._enter({namespaces.folder!r}); {code}"
        )
        subprocess.run([sys.executable, "-c", entering], stderr=subprocess.DEVNULL, check=False)
        assert namespaces.tried()
    assert not os.path.exists(namespaces.folder)


def test_without_them_landlock_refuses_ports_of_services(service: int) -> None:
    lines = tried("", "", service)
    if lines[0] != "ports":
        pytest.skip("no Landlock for TCP in this kernel")
    assert lines[1:4] == ["ours", "refused", "refused"]
    assert lines[6] == "1"


def test_without_either_python_refuses_other_machines_by_itself(service: int) -> None:
    lines = tried("", "landlock", service)
    assert lines[:4] == ["python", "ours", "refused", "reached"]


AS_NOBODY = """
import ctypes, encodings.idna, os
from headgate.task import network_fence
from headgate.verification import network
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
ctypes.CDLL(None).prctl(4, 1)  # as of one who was never root
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may be another user")
def test_a_user_without_root_has_namespaces_too() -> None:
    words = [sys.executable, "-c", f"{AS_NOBODY}network._hold()"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        if holder.stdout.readline() != "ready\n":
            pytest.skip("no user namespaces for this user")
        place = f"/proc/{holder.pid}/ns"
        enters = (
            f"print(network_fence.shut({place!r}, print, []), "
            "open('/proc/net/dev').read().count(':'))"
        )
        ended = subprocess.run(
            [sys.executable, "-c", AS_NOBODY + enters], capture_output=True, text=True, check=True
        )
        assert ended.stdout.split() == ["namespace", "1"]
