"""Tests whether KVM works here, by booting a guest: its device opens even on machines where no
guest runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading

from headgate.isolation.vm.machines import BARE, EMULATION, QEMU, Machine, cache, find
from headgate.machine import processes
from headgate.model.errors import IsolationError
from headgate.model.paths import write_whole

BOOT_SECONDS = 10.0
_FIRST_LINE = b"Linux version"
_NO_KVM = "no KVM on this machine"


def machine() -> Machine:
    """The machine for guests here: with KVM, or as `EMULATION` allows.

    Raises:
        IsolationError: There can be no guests. The message says why.
    """
    emulated = os.environ.get(EMULATION, "")
    if emulated in ("qemu", "uml"):
        return find(emulated)
    if emulated:
        raise IsolationError(
            f"{EMULATION} is {emulated!r}; expected qemu, or uml for user-mode Linux, or nothing"
        )
    return accelerated()


def emulation() -> str:
    """A warning about emulated guests; empty if they are not emulated."""
    if not os.environ.get(EMULATION):
        return ""
    return f"its guest is emulated, as {EMULATION} allows; its times tell nothing"


def accelerated() -> Machine:
    """A machine with KVM.

    Raises:
        IsolationError: There can be no guests. The message says why.
    """
    if not os.path.exists("/dev/kvm"):
        raise IsolationError(
            f"{_NO_KVM}: there is no /dev/kvm; turn virtualization on in its firmware or hypervisor"
        )
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        raise IsolationError(
            f"{_NO_KVM}: /dev/kvm may not be opened; try: sudo usermod -aG kvm $USER"
        )
    machine = find("kvm")
    if why := _cached_failure(machine):
        raise IsolationError(f"{_NO_KVM}: {why}")
    return machine


def _cached_failure(machine: Machine) -> str:
    """Why no guest boots, empty if one does; tested once per boot of this machine and kernel."""
    remembered = cache() / "kvm.json"
    asked = [processes.boot_id(), str(machine.kernel), machine.programs[QEMU]]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        answer = json.loads(remembered.read_text())
        if answer["asked"] == asked:
            return str(answer["why"])
    why = _boot_failure(machine)
    with contextlib.suppress(OSError):
        remembered.parent.mkdir(parents=True, exist_ok=True)
        write_whole(remembered, json.dumps({"asked": asked, "why": why}))
    return why


def _boot_failure(machine: Machine) -> str:
    """Boot the guests' kernel until its first line. Returns why that did not come, empty if it
    did.
    """
    command = [machine.programs[QEMU], *BARE, "-machine", "q35,accel=kvm"]
    command += ["-cpu", "host", "-m", "256M", "-serial", "stdio"]
    command += [
        "-kernel",
        str(machine.kernel),
        "-append",
        "console=ttyS0 earlyprintk=serial panic=-1 edd=off",
    ]
    output = b""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as qemu:
        watchdog = threading.Timer(BOOT_SECONDS, qemu.kill)
        watchdog.start()
        try:
            assert qemu.stdout is not None
            while _FIRST_LINE not in output and (part := os.read(qemu.stdout.fileno(), 4096)):
                output += part
        finally:
            watchdog.cancel()
            qemu.kill()
    if _FIRST_LINE in output:
        return ""
    if not watchdog.is_alive() and qemu.returncode == -signal.SIGKILL:
        return f"/dev/kvm opens, but no guest got to its kernel's first line in {BOOT_SECONDS:g} s"
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    return (
        f"no guest boots: {lines[-1] if lines else f'{QEMU} ended with status {qemu.returncode}'}"
    )
