"""The disk of the emulated machine: this Python, pytest, the package and its tests; Docker Engine
for those that need it, and nothing else.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
GUEST = "headgate"
"""Folder in the guest that holds the packages and the tests."""
PACKAGES = ("pytest", "psutil", "pydantic", "pyyaml")
UNUSED = (
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "lib2to3",
    "ensurepip",
    "site-packages",
    "dist-packages",
)
DOCKER = ("dockerd", "containerd", "containerd-shim-runc-v2", "runc", "umount")
SPARE_MIB = 256


def make_disk(folder: Path, runs: str) -> Path:
    """Make an ext4 image in `folder` for these runs of `init.py`; returns its path."""
    root = folder / "root"
    docker = DOCKER if runs == "containers" else ()
    packages = [*PACKAGES, *(["docker"] if docker else [])]
    programs = [Path(shutil.which(name) or name) for name in docker]
    python = make_root(root, root / GUEST / "site", packages, programs)
    for name in ("src", "tests/arbiter", "tests/isolation", "tests/v2"):
        shutil.copytree(REPOSITORY / name, root / GUEST / name, dirs_exist_ok=True)
    shutil.copy2(REPOSITORY / "tests/dockerd.py", root / GUEST / "tests")
    (root / GUEST / "runs").write_text(runs)
    (root / GUEST / "pytest.ini").write_text("[pytest]\nmarkers = hardware\n")
    init = root / "init"
    init.write_text(f"#!{python} -IS\n" + (Path(__file__).parent / "init.py").read_text())
    init.chmod(0o755)
    return pack(root, folder / "disk.ext4")


def make_root(root: Path, site: Path, packages: list[str], programs: list[Path]) -> str:
    """Make the root of a machine that has what `fill_root` puts there, and nothing else."""
    for name in ("proc", "sys", "dev", "run", "tmp", "etc"):
        (root / name).mkdir(parents=True)
    users = {"root": 0, "user": 1000, "other": 1001}
    lines = (f"{name}:x:{uid}:{uid}::/tmp:/bin/sh\n" for name, uid in users.items())
    (root / "etc/passwd").write_text("".join(lines))
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    return fill_root(root, site, packages, programs)


def fill_root(root: Path, site: Path, packages: list[str], programs: list[Path]) -> str:
    """Put this Python into a root, other programs, and installed distributions in its folder
    `site`; returns the path of the interpreter there.
    """
    python = _copy_programs(root, programs)
    for name in packages:
        # fails for what is missing; what these require may be for another system
        importlib.metadata.distribution(name)
    _copy_distributions(packages, site)
    for library in _shared_libraries(site.rglob("*.so")):
        if not library.is_relative_to(root):
            _copy(root, library)
    return python


def pack(root: Path, disk: Path) -> Path:
    """Make an ext4 image of a root, with its modules compiled; returns its path."""
    _compile(root)
    used = int(
        subprocess.run(
            ["du", "-sm", root], capture_output=True, text=True, check=True
        ).stdout.split()[0]
    )
    options = ["-q", "-F", "-O", "^has_journal", "-E", "root_owner=0:0"]
    subprocess.run(
        ["mke2fs", "-t", "ext4", *options, "-d", root, disk, f"{used + SPARE_MIB}M"], check=True
    )
    return disk


def _copy_programs(root: Path, programs: list[Path]) -> str:
    """The interpreter with its standard library, other programs, and the shared libraries of all;
    returns the path of the interpreter in the guest.
    """
    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    libraries = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    libraries = {library for library in libraries if library.is_relative_to(sys.base_prefix)}
    for library in libraries:
        ignore = shutil.ignore_patterns(*UNUSED, "config-*", "*.a")
        shutil.copytree(library, _inside(root, library), ignore=ignore, dirs_exist_ok=True)
    modules = (file for library in libraries for file in library.rglob("lib-dynload/*.so"))
    binaries = [python, Path("/bin/sh"), *programs, *modules]
    for file in {*binaries, *_shared_libraries(binaries)}:
        _copy(root, file)
    return str(python)


def _copy(root: Path, file: Path) -> None:
    """Copy a file, unless the root has it: there it may be a link that leads out of it."""
    target = _inside(root, file)
    if os.path.lexists(target):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(file, target)


def _shared_libraries(binaries: Iterable[Path]) -> set[Path]:
    listed = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"(?:=> |^\s+)(/\S+)", listed, flags=re.MULTILINE)}


def _copy_distributions(names: list[str], target: Path) -> None:
    """Installed distributions and all that they require."""
    done: set[str] = set()
    while names:
        name = names.pop()
        if name in done:
            continue
        done.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # required for another system or Python
        for file in distribution.files or ():
            source = Path(str(distribution.locate_file(file)))
            if ".." not in file.parts and file.suffix != ".pyc" and source.exists():
                (target / file.parent).mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target / file)
        required = (line for line in distribution.requires or () if "extra ==" not in line)
        names += (re.split(r"[^A-Za-z0-9._-]", line)[0] for line in required)


def _compile(root: Path) -> None:
    """Compile all modules that are not yet: emulated, that would take most of the time, for each
    process anew.
    """
    command = [sys.executable, "-m", "compileall", "-qq", "-j", "0", "-s", str(root), str(root)]
    subprocess.run(command, check=False)  # what cannot be compiled is not imported either


def _inside(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")
