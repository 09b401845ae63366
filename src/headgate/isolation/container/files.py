"""Selects this machine's files that a container sees: always the task's own, and with `image: host`
the system.

The image of `host` is empty except for folders to mount on and the links at this system's top, such
as `/bin -> usr/bin`. Mounted paths are the same as outside, so that a script finds its data in the
usual place.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import re
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from headgate.isolation.base import HOST_IMAGE, Launch
from headgate.model.errors import IsolationError
from headgate.model.jobs import Job
from headgate.model.mounts import Mount

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
"""Files of /etc that ordinary programs need: no passwords, no keys, and no network settings, which
Docker makes.
"""
FOLDERS = ("dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "var", "var/tmp")
ASK_SECONDS = 20.0
_MISSING = re.compile(
    r"FileNotFoundError|No such file|Errno 2\b|not found|does(n't| not) exist|[Uu]nable "
    r"to open|[Cc]an'?t open"
)
_READ_ONLY = re.compile(r"Read-only file system|Errno 30\b")
_PATH = re.compile(
    r"""(["'`])(?P<quoted>(?:[~/]|\.\./)[^"'`]*)\1|(?<![\w./~])(?P<plain>(?:~?/(?!/)|\.\./)[^\s"'`,;:()\[\]]+)"""
)

_OUTPUTS = frozenset(
    (
        *("o", "out", "output", "outputs", "outdir", "save", "saves", "savedir"),
        *("saved", "write", "ckpt", "ckpts", "checkpoint", "checkpoints", "log", "logs"),
        *(
            "logdir",
            "result",
            "results",
            "export",
            "snapshot",
            "snapshots",
            "artifact",
            "artifacts",
        ),
        *("dest", "destination", "dump", "report", "reports", "run", "runs", "work"),
        *("workdir", "tensorboard"),
    )
)
"""Words in the name of an option for an output path."""
_INPUTS = frozenset(
    (
        *("load", "resume", "from", "init", "pretrained", "restore", "input", "inputs"),
        *("data", "level", "every", "interval", "steps"),
    )
)
"""Words in the name of an option for an input path, whatever its other words are."""
_SHARED = ("/", "/home", "/mnt", "/media", "/srv", "/tmp", "/var", "/var/tmp")
_NO_OUTPUTS = ("/etc", "/proc", "/sys", "/dev", "/boot", "/run")

Mounts = dict[str, bool]
"""Mounted paths, the same inside as outside, and whether they may be written."""


def mounts(launch: Launch, program: str | None) -> Mounts:
    """The paths to mount. A path within another with the same rights is left out.

    Args:
        launch: The launch.
        program: Path of its program on this machine, if that one is started.
    """
    same_path = [mount for mount in launch.mounts if mount.target == mount.source]
    reads = {*launch.reads, *(mount.source for mount in same_path if not mount.writable)}
    if launch.image == HOST_IMAGE:
        reads |= {*_system(), *_programs(launch.env, program)}
    parents = dict.fromkeys(_existing(reads), False)
    parents |= dict.fromkeys(
        _existing(
            {launch.cwd, *launch.writes, *(mount.source for mount in same_path if mount.writable)}
        ),
        True,
    )
    parents |= dict.fromkeys(outputs(launch), True)
    kept: Mounts = {}
    for path in sorted(parents):
        around = [folder for folder in map(str, Path(path).parents) if folder in kept]
        # The closest surrounding one counts.
        if not around or kept[around[0]] != parents[path]:
            kept[path] = parents[path]
    return kept


def outputs(launch: Launch) -> list[str]:
    """Folders for output in the arguments of a command, such as `--output_dir /results`, that exist
    or can be made outside of its own folder.

    The root, a home, temporary folders and system folders do not count.
    """
    words = list(launch.argv)
    if "-c" in words[:-1]:  # a line for a shell
        at = words.index("-c") + 1
        words[at : at + 1] = _words(words[at])
    pairs = [
        (option, value)
        for option, equals, value in (word.partition("=") for word in words)
        if equals
    ]
    pairs += [
        (option, value) for option, value in itertools.pairwise(words) if option.startswith("-")
    ]
    folders = (_folder(value, launch.cwd) for option, value in pairs if is_output(option))
    return [folder for folder in dict.fromkeys(folders) if folder is not None]


def make_outputs(launch: Launch) -> None:
    """Make the missing folders of `outputs`.

    Raises:
        IsolationError: A folder cannot be made.
    """
    for folder in outputs(launch):
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise IsolationError(
                f"the folder {folder} of its arguments cannot be made: {error.strerror}; name "
                "one that can"
            ) from error


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # which its shell will say
        return []


def is_output(option: str) -> bool:
    """Whether an option or a variable names an output path."""
    names = set(re.split(r"[-_.]+", option.lower()))
    return not names.isdisjoint(_OUTPUTS) and names.isdisjoint(_INPUTS)


def _folder(value: str, cwd: str) -> str | None:
    """The folder outside of `cwd` that a value names, or that holds the file that it names; None:
    no such folder.
    """
    if not value.startswith(("/", "~/", "../", "./")) and "/../" not in value:
        return None
    path = os.path.normpath(os.path.join(cwd, os.path.expanduser(value)))
    if os.path.isfile(path) or (not os.path.isdir(path) and os.path.splitext(path)[1]):
        path = os.path.dirname(path)
    home = os.path.expanduser("~")
    around = (cwd, home)
    if (
        path in _SHARED
        or any(Path(folder).is_relative_to(path) for folder in around)
        or Path(path).is_relative_to(cwd)
    ):
        return None
    if any(Path(path).is_relative_to(folder) for folder in (*SYSTEM, *_NO_OUTPUTS)):
        return None
    parent = next(
        folder for folder in (path, *map(str, Path(path).parents)) if os.path.isdir(folder)
    )
    return path if os.access(parent, os.W_OK) and (parent == path or parent != "/") else None


def system_mounts(*reads: str) -> Mounts:
    """The system and the other named paths, all read-only."""
    return dict.fromkeys(_existing({*_system(), *reads}), False)


def host_image() -> tuple[str, bytes]:
    """Tag and content of the empty image for this machine. The tag changes with the content."""
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
    """Paths of the program, and of the Pythons in use: the program itself if it is one, and those
    that a shell would find.
    """
    path = env.get("PATH", os.defpath)
    pythons = {
        program_path
        for name in ("python", "python3")
        if (program_path := shutil.which(name, path=path)) is not None
    }
    if program is not None:
        yield from (os.path.dirname(program), os.path.dirname(os.path.realpath(program)))
        if os.path.basename(program).startswith("python"):
            pythons.add(program)
    for python in pythons:
        yield from _parts_of_python(python, env.get("PYTHONPATH", ""))


@lru_cache(maxsize=64)
def _parts_of_python(python: str, added: str) -> tuple[str, ...]:
    """The prefix of an interpreter and its base prefix, and every folder that it imports from."""
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
    except (OSError, subprocess.SubprocessError):
        # it is no Python, or cannot run; the task itself will report it
        return ()
    return tuple(line for line in done.stdout.splitlines() if os.path.isabs(line))


def _existing(paths: Iterable[str]) -> Iterator[str]:
    """The paths that exist, with links resolved. The root is never mounted, because a container has
    one.
    """
    for path in paths:
        for name in {os.path.normpath(path), os.path.realpath(path)}:
            if name != "/" and os.path.isabs(name) and os.path.exists(name):
                yield name


def hint(job: Job, output: str) -> str:
    """Advice for an error about a file that the job's container does not see, or may not write;
    empty if that is not the cause.

    Args:
        job: A job in a container on this machine, with absolute paths.
        output: The error.
    """
    if not (_MISSING.search(output) or _READ_ONLY.search(output)):
        return ""
    for path_match in _PATH.finditer(output):
        said_path = os.path.expanduser(path_match["quoted"] or path_match["plain"])
        path = os.path.normpath(os.path.join(job.workdir, said_path))
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        if folder == "/" or not os.path.isdir(folder):
            continue
        sees = _mount_of(job, path)
        if _READ_ONLY.search(output) and (sees is None or not sees.writable):
            return (
                f"its container may not write {folder}: --mount {folder}:rw, or `mounts: "
                f'["{folder}:rw"]`'
            )
        if sees is None:
            cure = f"--mount {folder}, or `mounts: [{folder}]`"
            return f"its container does not see {folder} of this machine: {cure}"
    return ""


def _mount_of(job: Job, path: str) -> Mount | None:
    """The mount that shows a path to the job's container; None: none is known."""
    shown = [Mount(job.workdir, job.workdir, writable=True), *map(Mount.of, job.mounts)]
    if job.script is not None:
        folder = os.path.dirname(os.path.join(job.workdir, job.script))
        shown.append(Mount(folder, folder))
    if job.image in (None, HOST_IMAGE):
        shown += [Mount(system_path, system_path) for system_path in SYSTEM]
    around = [mount for mount in shown if Path(path).is_relative_to(mount.target)]
    return max(around, key=lambda mount: len(mount.target), default=None)
