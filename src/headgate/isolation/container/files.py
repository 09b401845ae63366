"""What of this machine's files a container sees: always what the task was given, and with `image: host` the system.

The image of `host` is empty but for folders to mount on and the links that this system has at its top, such as
`/bin -> usr/bin`. What is mounted keeps its path, so that a script finds its data where it always was.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from headgate.isolation.base import HOST_IMAGE, Launch
from headgate.jobs import Job, Mount

REPOSITORY = "headgate-host"
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt")
SETTINGS = (
    "alternatives",
    "ca-certificates",
    "crypto-policies",
    "fonts",
    "group",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "OpenCL",
    "passwd",
    "pki",
    "protocols",
    "services",
    "ssl",
    "timezone",
)
"""What of /etc programs need that are merely run: no passwords, no keys, nothing of the network, which is Docker's."""
FOLDERS = ("dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "var", "var/tmp")
ASK_SECONDS = 20.0
_MISSING = re.compile(
    r"FileNotFoundError|No such file|Errno 2\b|not found|does(n't| not) exist|[Uu]nable to open|[Cc]an'?t open"
)
_READ_ONLY = re.compile(r"Read-only file system|Errno 30\b")
_PATH = re.compile(r"""(["'`])(?P<quoted>[~/][^"'`]*)\1|(?<![\w./~])(?P<plain>~?/(?!/)[^\s"'`,;:()\[\]]+)""")

Mounts = dict[str, bool]
"""Paths of this machine that are mounted at the same path, and whether they may be written."""


def mounts(launch: Launch, program: str | None) -> Mounts:
    """What is mounted under its own path: a file or folder that lies in another with the same rights comes with that.

    Args:
        launch: What is started.
        program: Path of its program on this machine, where that is the one that is started.
    """
    here = [mount for mount in launch.mounts if mount.target == mount.source]
    reads = {*launch.reads, *(mount.source for mount in here if not mount.writable)}
    if launch.image == HOST_IMAGE:
        reads |= {*_system(), *_programs(launch.env, program)}
    found = dict.fromkeys(_there(reads), False)
    found |= dict.fromkeys(
        _there({launch.cwd, *launch.writes, *(mount.source for mount in here if mount.writable)}), True
    )
    kept: Mounts = {}
    for path in sorted(found):
        around = [folder for folder in map(str, Path(path).parents) if folder in kept]
        # The nearest one around it counts.
        if not around or kept[around[0]] != found[path]:
            kept[path] = found[path]
    return kept


def system_mounts(*reads: str) -> Mounts:
    """The system alone, and what else is named, all of it only to be read."""
    return dict.fromkeys(_there({*_system(), *reads}), False)


def host_image() -> tuple[str, bytes]:
    """Tag and content of the empty image for this machine; the tag changes with the content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in FOLDERS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
            tar.addfile(entry)
        for path in SYSTEM:
            if os.path.islink(path):
                entry = tarfile.TarInfo(path.removeprefix("/"))
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
                tar.addfile(entry)
    content = buffer.getvalue()
    return hashlib.sha256(content).hexdigest()[:12], content


def _system() -> Iterator[str]:
    yield from (path for path in SYSTEM if os.path.isdir(path) and not os.path.islink(path))
    yield from (f"/etc/{name}" for name in SETTINGS)


def _programs(env: Mapping[str, str], program: str | None) -> Iterator[str]:
    """Where the program lies, and all that the Pythons in use are made of: the one that is the program, and those that
    a shell would find."""
    path = env.get("PATH", os.defpath)
    pythons = {found for name in ("python", "python3") if (found := shutil.which(name, path=path)) is not None}
    if program is not None:
        yield from (os.path.dirname(program), os.path.dirname(os.path.realpath(program)))
        if os.path.basename(program).startswith("python"):
            pythons.add(program)
    for python in pythons:
        yield from _parts_of_python(python, env.get("PYTHONPATH", ""))


@lru_cache(maxsize=64)
def _parts_of_python(python: str, added: str) -> tuple[str, ...]:
    """The prefix of an interpreter and that below it, and every folder that it imports from."""
    code = "import sys; print(sys.prefix, sys.base_prefix, *sys.path[1:], sep='\\n')"
    try:
        done = subprocess.run(
            [python, "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_SECONDS,
            check=True,
            env={"PYTHONPATH": added},
            cwd="/",
        )
    except (OSError, subprocess.SubprocessError):  # it is no Python, or cannot run: the task will say so
        return ()
    return tuple(line for line in done.stdout.splitlines() if os.path.isabs(line))


def _there(paths: Iterable[str]) -> Iterator[str]:
    """Those that exist, and where they are links what these lead to. The root is never mounted: a container has one."""
    for path in paths:
        for name in {os.path.normpath(path), os.path.realpath(path)}:
            if name != "/" and os.path.isabs(name) and os.path.exists(name):
                yield name


def hint(job: Job, said: str) -> str:
    """What to do about an error that names a file which the job's container does not see, or may not write; empty where
    that is not the cause.

    Args:
        job: One in a container on this machine, with absolute paths.
        said: The error.
    """
    if not (_MISSING.search(said) or _READ_ONLY.search(said)):
        return ""
    for found in _PATH.finditer(said):
        path = os.path.expanduser(found["quoted"] or found["plain"])
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        if folder == "/" or not os.path.isdir(folder):
            continue
        sees = _sees(job, path)
        if _READ_ONLY.search(said) and (sees is None or not sees.writable):
            return f'; its container may not write {folder}: --mount {folder}:rw, or `mounts: ["{folder}:rw"]`'
        if sees is None:
            cure = f"--mount {folder}, or `mounts: [{folder}]`"
            return f"; {folder} is there on this machine, and its container does not see it: {cure}"
    return ""


def _sees(job: Job, path: str) -> Mount | None:
    """What shows a path to the job's container; None: nothing that is known."""
    shown = [Mount(job.workdir, job.workdir, writable=True), *map(Mount.of, job.mounts)]
    if job.script is not None:
        folder = os.path.dirname(os.path.join(job.workdir, job.script))
        shown.append(Mount(folder, folder))
    if job.image in (None, HOST_IMAGE):
        shown += [Mount(each, each) for each in SYSTEM]
    around = [mount for mount in shown if Path(path).is_relative_to(mount.target)]
    return max(around, key=lambda mount: len(mount.target), default=None)
