"""Machines that boot guests: QEMU with KVM; for tests also emulating QEMU and user-mode Linux,
which need no KVM.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headgate.model.errors import IsolationError

EMULATION = "HEADGATE_VM_EMULATION"
"""The variable that allows a guest without KVM: `qemu`, or `uml` for user-mode Linux."""
KERNEL = "HEADGATE_VM_KERNEL"
"""The variable that names the guests' kernel. Its modules are in `../lib/modules` from there, or in
`/lib/modules`.
"""
QEMU = "qemu-system-x86_64"
_UML = "linux.uml"
_DAEMONS = ("/usr/libexec/virtiofsd", "/usr/lib/virtiofsd", "/usr/lib/qemu/virtiofsd")
_MODULES = ("virtio_pci", "virtiofs", "virtio_console", "virtio_net")
_EARLY = {"sh": "dash", "insmod": "kmod", "mount": "mount", "switch_root": "util-linux"}
"""Programs of this machine that a guest has before it sees the others, and their packages."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """A kind of machine for guests.

    Args:
        name: `kvm`, `qemu` or `uml`.
        programs: Path of each program that it needs.
        kernel: The kernel's image; None if the kernel is a program.
    """

    name: str
    programs: dict[str, str]
    kernel: Path | None = None

    @property
    def cores(self) -> int:
        return 1 if self.name == "uml" else len(os.sched_getaffinity(0))

    @property
    def device(self) -> str:
        """The guest's network interface."""
        return "vec0" if self.name == "uml" else "eth0"

    def modules(self, *names: str) -> list[str]:
        """Files of its kernel's modules, each after its dependencies, without built-in ones.

        Raises:
            IsolationError: The modules are not installed.
        """
        if self.kernel is None:
            output = subprocess.run(
                [self.programs[_UML], "--version"], capture_output=True, text=True, check=True
            )
            release, places = output.stdout.strip(), [Path("/usr/lib/uml/modules")]
        else:
            release, places = (
                self.kernel.name.removeprefix("vmlinuz-"),
                [self.kernel.parent.parent / "lib/modules"],
            )
        return _find_modules(
            release, [place / release for place in (*places, Path("/lib/modules"))], names
        )

    def network(self, in_node: bool) -> list[list[str]]:
        """Command lines that set up the network of a guest outside of nodes."""
        lines = ["link set lo up"]
        if self.name != "uml" and not in_node:
            device = self.device
            lines += [f"address add {_ALONE} dev {device}", f"link set {device} up"]
            lines.append(f"route add default via {_ALONE_GATEWAY} dev {device}")
        return [[self.programs["ip"], *line.split()] for line in lines]

    def commands(self, folder: Path, root: Path, memory: int, tap: str | None) -> list[list[str]]:
        """The programs of a guest, the guest itself last. `{line}` and `{files}` stand for
        descriptors.

        Args:
            folder: Folder of its files: `init`, `console`, and those made here.
            root: The path that the guest sees as `/`.
            memory: Bytes of its memory.
            tap: The interface that joins it to a node; None: it has its own network.
        """
        if self.kernel is None:
            joined = [] if tap is None else [f"vec0:transport=tap,ifname={tap}"]
            console = ["con=null", "con0=null,fd:1", "ssl=null", "ssl0=fd:{line}"]
            files = ["rootfstype=hostfs", f"rootflags={root}", "rw", f"init={folder}/init"]
            place = [f"uml_dir={folder}/", "umid=guest"]
            return [
                [
                    self.programs[_UML],
                    f"mem={memory // _MIB}M",
                    *files,
                    *console,
                    *place,
                    *joined,
                    "quiet",
                ]
            ]
        initrd = folder / "initrd"
        initrd.write_bytes(_initrd(self.modules(*_MODULES), self.programs, f"{folder}/init"))
        accelerator, cpu = ("kvm", "host") if self.name == "kvm" else ("tcg", "max")
        daemon = self.programs["virtiofsd"]
        sharing = [daemon, "--fd={files}", *_shared(daemon, root)]
        nic = "user,id=nic" if tap is None else f"tap,id=nic,ifname={tap},script=no,downscript=no"
        qemu = [
            self.programs[QEMU],
            *BARE,
            "-machine",
            f"q35,accel={accelerator},memory-backend=ram",
        ]
        qemu += ["-cpu", cpu, "-smp", str(self.cores)]
        qemu += [
            "-object",
            f"memory-backend-memfd,id=ram,share=on,size={memory // _MIB}M",
            "-m",
            f"{memory // _MIB}M",
        ]
        qemu += [
            "-kernel",
            str(self.kernel),
            "-initrd",
            str(initrd),
            "-append",
            "console=ttyS0 quiet panic=-1",
        ]
        qemu += [
            "-serial",
            "stdio",
            "-device",
            "virtio-serial-pci",
            "-chardev",
            "socket,id=line,fd={line}",
        ]
        qemu += ["-device", "virtserialport,chardev=line,name=headgate"]
        qemu += ["-chardev", f"socket,id=files,path={folder}/files"]
        qemu += ["-device", "vhost-user-fs-pci,chardev=files,tag=headgate"]
        qemu += ["-netdev", nic, "-device", "virtio-net-pci,netdev=nic"]
        return [sharing, qemu]


BARE = ("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none")
_ALONE, _ALONE_GATEWAY, NAME_SERVER = "10.0.2.15/24", "10.0.2.2", "10.0.2.3"
"""Addresses of QEMU's user network."""


def cache() -> Path:
    """The folder of cached results."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headgate"


def find(name: str) -> Machine:
    """The machine of that name.

    Raises:
        IsolationError: A part that it needs is not on this machine.
    """
    if name == "uml":
        return Machine(name, find_programs({_UML: "user-mode-linux", "ip": "iproute2"}))
    packages = {
        QEMU: "qemu-system-x86",
        "virtiofsd": "virtiofsd",
        "ip": "iproute2",
        "ldd": "libc-bin",
    }
    return Machine(name, find_programs(packages | _EARLY), _kernel())


def find_runc() -> str:
    """Path of the program that starts containers in guests.

    Raises:
        IsolationError: It is not installed.
    """
    return find_programs({"runc": "runc"})["runc"]


def find_programs(packages: dict[str, str]) -> dict[str, str]:
    """Paths of programs of this machine, by name.

    Args:
        packages: For each program, the package to install.

    Raises:
        IsolationError: A program is not installed.
    """
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    paths = {name: shutil.which(name, path=path) for name in packages}
    if paths.get("virtiofsd", "") is None:
        paths["virtiofsd"] = next(
            (daemon for daemon in _DAEMONS if os.access(daemon, os.X_OK)), None
        )
    if lacking := [name for name, program in paths.items() if program is None]:
        cure = f"try: apt-get install {' '.join(packages[name] for name in lacking)}"
        raise IsolationError(f"not installed: {', '.join(lacking)}; {cure}")
    return {name: program for name, program in paths.items() if program is not None}


def _kernel() -> Path:
    """The kernel for guests: the one in `KERNEL`, this machine's, or another installed one."""
    if named := os.environ.get(KERNEL):
        candidates = [Path(named)]
    else:
        candidates = [
            Path("/boot") / f"vmlinuz-{platform.release()}",
            *sorted(Path("/boot").glob("vmlinuz-*"))[::-1],
        ]
    kernels = [candidate for candidate in candidates if candidate.exists()]
    for kernel in kernels:
        if os.access(kernel, os.R_OK):
            return kernel
    if kernels:
        raise IsolationError(
            f"the kernel {kernels[0]} cannot be read; try: chmod a+r {kernels[0]}, or name one "
            f"in {KERNEL}"
        )
    raise IsolationError(
        f"there is no kernel at {candidates[0]}; install linux-image-amd64, or name one in {KERNEL}"
    )


def _shared(daemon: str, root: Path) -> list[str]:
    """Options of virtiofsd to serve a folder. QEMU's own virtiofsd, in C, has other options."""
    help_text = subprocess.run([daemon, "--help"], capture_output=True, text=True, check=False)
    if "--shared-dir" not in help_text.stdout + help_text.stderr:
        return ["-o", f"source={root}", "-o", "cache=auto"]
    sandbox = "namespace" if os.geteuid() == 0 else "none"
    return [f"--shared-dir={root}", "--cache=auto", f"--sandbox={sandbox}"]


# --- the initial file system of a QEMU guest ------------------------------------------------------


def _initrd(modules: Sequence[str], programs: dict[str, str], init: str) -> bytes:
    """The initial file system, which loads the modules for this machine's files, and continues from
    these files.
    """
    script = ["#!/bin/sh", *(f"/bin/insmod /modules/{os.path.basename(path)}" for path in modules)]
    script += ["/bin/mount -t virtiofs headgate /root", f"exec /bin/switch_root /root {init}"]
    early = [Path(programs[name]) for name in _EARLY]
    libraries = subprocess.run(
        [programs["ldd"], *early], capture_output=True, text=True, check=True
    ).stdout
    content = {f"bin/{name}": (0o755, Path(programs[name]).read_bytes()) for name in _EARLY}
    for path in map(Path, set(re.findall(r"(?:=> |^\s+)/(\S+)", libraries, flags=re.MULTILINE))):
        content[str(path)] = 0o755, (Path("/") / path).read_bytes()
    content |= {
        f"modules/{os.path.basename(path)}": (0o644, Path(path).read_bytes()) for path in modules
    }
    content["init"] = 0o755, "\n".join([*script, ""]).encode()
    return _archive(content)


def _find_modules(release: str, places: Sequence[Path], names: Sequence[str]) -> list[str]:
    """Files of a kernel's modules, each after its dependencies, without built-in ones.

    Args:
        release: The kernel's release.
        places: Folders that may have its modules.
        names: Names of the modules.
    """
    folder = next((place for place in places if (place / "modules.dep").exists()), None)
    if folder is None:
        places_text = " nor at ".join(map(str, places))
        raise IsolationError(
            f"the modules of the kernel {release} are neither at {places_text}; install them"
        )
    needs = dict(
        line.split(":", 1)
        for line in (folder / "modules.dep").read_text().splitlines()
        if ":" in line
    )
    by_name = {Path(path).name.partition(".")[0].replace("-", "_"): path for path in needs}
    module_folders: dict[str, None] = {}
    for name in names:
        if (path := by_name.get(name)) is not None:
            module_folders |= dict.fromkeys([*reversed(needs[path].split()), path])
    return [str(folder / path) for path in module_folders]


def _archive(content: dict[str, tuple[int, bytes]]) -> bytes:
    """Files as a cpio archive in the form `newc`, with their folders (kernel:
    buffer-format.rst).
    """
    folders = {str(parent) for path in content for parent in Path(path).parents} - {"."} | {
        "root",
        "dev",
    }
    entries = [(path, 0o040755, b"") for path in sorted(folders)]
    entries += [(path, 0o100000 | mode, text) for path, (mode, text) in content.items()]
    archive = bytearray()
    for number, (path, mode, text) in enumerate([*entries, ("TRAILER!!!", 0, b"")], start=1):
        name = path.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(text), 0, 0, 0, 0, len(name), 0)
        archive += b"070701" + b"".join(b"%08X" % field for field in fields) + name
        archive += bytes(-len(archive) % 4) + text
        archive += bytes(-len(archive) % 4)
    return bytes(archive)
