"""Sees the checkpoints that a script saves by itself, and tells the engine of each: when its
writing begins, and when it is whole.

A file is whole when the call that saves it has returned. A folder such as `checkpoint-500` gets
several files: it is whole when training goes on, or when the trainer's own call has returned. What
a store such as `s3://` holds is named as the script names it, and not looked into.
"""

from __future__ import annotations

import functools
import json
import os
import re
import socket
import struct
import sys
import threading
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable

from headgate.task.environment import TaskEnvironment
from headgate.task.exit_hooks import at_end

_SECONDS = 1.0
"""Longest that a save waits for the engine."""
_NUMBERED = r"(?i)(check[-_]?point|ckpt|global[-_]?step|step|epoch|iter)s?[-_=]?\d+"
"""Names of folders that hold one checkpoint."""
_NUMBER = re.compile(r"\d+")
_ORBAX = "orbax.checkpoint"
"""Its checkpoints are whole when their folders are renamed."""
_UNFINISHED = ".orbax-checkpoint-tmp"
"""In names of folders that Orbax has not finished yet."""
_HDF5 = b"\x89HDF\r\n\x1a\n"
_NEVER_EMPTY = (".pt", ".pth", ".ckpt", ".bin", ".keras", ".h5", ".pkl", ".npz", ".msgpack")
_MOST_LISTED = 1 << 26
"""Most bytes of the list of tensors of a safetensors file."""

PathOf = Callable[..., Any]
"""The path that a call saves to, from its arguments; None: it saves no checkpoint."""


class SaveWatcher:
    """Reports the checkpoints that this process saves.

    Attributes:
        pending: A folder whose files have been saved; it is whole once training goes on.
        session: The session that reports the script's steps, once these are observed.
    """

    def __init__(self) -> None:
        self.pending: str | None = None
        self.session: Any = None
        self._step: int | None = None  # of the latest save
        self._environment: TaskEnvironment | None = None
        self._process = 0
        self._saving: set[int] = set()  # threads that save
        self._began = 0.0
        self._seen: set[str] = set()
        self._failed: dict[str, str] = {}  # files that could not be saved, and their checkpoints
        self._sees_renames = False

    def open(self) -> None:
        """Report from now on."""
        if self._process == 0:
            self._environment, self._process = TaskEnvironment.read(), os.getpid()
            at_end(self.goes_on)

    def see_renames(self) -> None:
        """Follow files that are renamed, from now on. That costs each `open` 0.3 µs, and each `id`
        0.13 µs, so it begins with the first save.
        """
        if not self._sees_renames:
            self._sees_renames = True
            sys.addaudithook(self._hook)

    def follow(self, session: Any) -> None:
        """Report from this process, maybe a fork, with the steps of its session."""
        self.session = session
        if self._process != os.getpid():
            self._process = os.getpid()
            at_end(self.goes_on)

    def around(self, save: Callable[..., Any], path_of: PathOf) -> Callable[..., Any]:
        """The function `save`, whose calls are reported."""

        @functools.wraps(save)
        def saves(*args: Any, **kwargs: Any) -> Any:
            path = self._begin(path_of, args, kwargs)
            if path is None:
                return save(*args, **kwargs)
            try:
                saved = save(*args, **kwargs)
            except Exception as error:
                self._fail(path, error)
                raise
            finally:
                self._saving.discard(threading.get_ident())
            self._end(path)
            return saved

        return saves

    def goes_on(self) -> None:
        """Training goes on, or has ended: a folder is whole."""
        pending, self.pending = self.pending, None
        if pending is not None:
            self._tell(pending)

    def _begin(self, path_of: PathOf, args: Any, kwargs: Any) -> str | None:
        if threading.get_ident() in self._saving or self._process != os.getpid():
            return None  # part of a save that is seen, or in another process
        try:
            path = _path(path_of(*args, **kwargs))
            if path is None:
                return None
            self.see_renames()
            unit = _unit(path)
            if self.pending is not None and self.pending != unit:
                self.goes_on()
            self._began = time.monotonic() if self.pending is None else self._began
            if self.pending is None and _is_written(unit):
                self._tell(unit, begins=True)
            self._saving.add(threading.get_ident())
            self._step = self.session.steps if self.session is not None else None
        except Exception:  # noqa: BLE001 - the script saves, whatever happens
            return None
        return path

    def _end(self, path: str) -> None:
        unit = _unit(path)
        self._failed.pop(path, None)
        if unit in self._failed.values():
            return
        if unit == path:
            self._tell(path)
        else:
            self.pending = unit  # more files may come

    def _fail(self, path: str, error: Exception) -> None:
        """A save failed, as on a full disk. The script may go on, and its folder stays in part."""
        unit = self._failed[path] = _unit(path)
        if self.pending == unit:
            self.pending = None
        lines = str(error).strip().splitlines() or [type(error).__name__]
        cause = f"{os.path.basename(unit)}: {lines[0]}"
        self._send({"type": "checkpoint_failed", "error": cause})

    def _hook(self, event: str, args: Any) -> None:
        if event != "os.rename" or self._process != os.getpid():
            return
        try:
            source, target = (os.path.abspath(os.fsdecode(name)) for name in args[:2])
            if self.pending == source:
                self.pending = target
            elif source in self._seen or (
                _UNFINISHED in os.path.basename(source) and os.path.isdir(source)
            ):
                self._tell(target, source)
        except Exception:  # noqa: BLE001 - the script renames, whatever happens
            return

    def _tell(self, path: str, source: str = "", begins: bool = False) -> None:
        """Report a checkpoint. `source`: what is about to be renamed to `path`."""
        message: dict[str, object] = {"type": "script_saves", "path": path, "begins": begins}
        if not begins:
            from headgate.task.saving import size  # with the first save, not at the import

            self._seen.add(path)
            message["step"] = self._step
            message["seconds"] = time.monotonic() - self._began
            with suppress(OSError):
                message["bytes"] = 0 if is_remote(path) else size(Path(source or path))
        self._send(message)

    def _send(self, message: dict[str, object]) -> None:
        """Send one message, over a connection of its own if the script has no other."""
        environment = self._environment
        if environment is None or environment.channel is None or self._process != os.getpid():
            return
        if self.session is not None and self.session.warn(message):
            return
        hello = {"type": "hello", "v": 1, "task": environment.task, "key": environment.key}
        hello.update({"pid": 0, "observes": True, "saves": True})
        lines = json.dumps(hello) + "\n" + json.dumps(message) + "\n"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_SECONDS)
                connection.connect(environment.channel)
                connection.sendall(lines.encode())
        except OSError:
            return  # the engine is gone, and so is whoever would ask


def is_remote(path: str) -> bool:
    """Whether a checkpoint lies in a store such as `s3://`, which is not looked into."""
    return "://" in path


def _path(named: Any) -> str | None:
    """The path of a file or folder that a call names, or of the open file that it writes to."""
    named = getattr(named, "name", None) if hasattr(named, "write") else named
    if not isinstance(named, (str, bytes, os.PathLike)):
        return None
    path = os.fsdecode(named)
    if not is_remote(path):
        return os.path.abspath(path)
    scheme, _, rest = path.partition("://")
    if scheme in ("file", "local"):
        return os.path.abspath(rest)
    return None if scheme == "memory" else path  # the process takes that one with it


def _is_written(unit: str) -> bool:
    return bool(os.listdir(unit)) if os.path.isdir(unit) else os.path.exists(unit)


def _unit(path: str) -> str:
    """The checkpoint that a file is part of: its folder, or the file itself."""
    folder = os.path.dirname(path)
    return folder if re.fullmatch(_NUMBERED, os.path.basename(folder)) else path


def later_beside(path: str) -> str | None:
    """A checkpoint beside the newest whole one, of the same name with a higher number: a script
    that looks for the latest would take it. None: there is none.
    """
    folder, name = os.path.split(path)
    if not os.path.isdir(folder) or not _numbers(name):
        return None
    shape = _NUMBER.sub("#", name)
    beside = [other for other in os.listdir(folder) if _NUMBER.sub("#", other) == shape]
    latest = max(beside, key=_numbers, default=name)
    return os.path.join(folder, latest) if _numbers(latest) > _numbers(name) else None


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(map(int, _NUMBER.findall(name)))


def damage(named: str) -> str | None:
    """What is wrong with a checkpoint that a script saved, as the end of a sentence; None: nothing
    that its length and its lists of parts would tell.
    """
    if is_remote(named):
        return None
    path = Path(named)
    try:
        if not path.is_dir():
            return _damage_of_file(path)
        files = [file for file in sorted(path.rglob("*")) if file.is_file()]
        if not files:
            return "is empty"
        if any(_UNFINISHED in str(file.relative_to(path)) for file in files):
            return "was not finished"
        wrong = ((file.name, _damage_of_file(file)) for file in files)
        return next((f"is damaged: {name} {damage}" for name, damage in wrong if damage), None)
    except FileNotFoundError:
        return "is gone"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"


def _damage_of_file(path: Path) -> str | None:
    length = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(48)
        if path.suffix == ".safetensors":
            return _told(_is_cut(length, _end_of_safetensors, head, file))
        if head.startswith(b"PK\x03\x04"):
            return _told(not zipfile.is_zipfile(path))
        if head.startswith(_HDF5):
            return _told(_is_cut(length, _end_of_hdf5, head, file))
        if path.suffix == ".json":
            file.seek(0)
            return _told(_is_cut(length, _end_of_json, head, file))
    return None if length or path.suffix not in _NEVER_EMPTY else "is empty"


def _told(is_cut: bool) -> str | None:
    return "is cut short" if is_cut else None


def _is_cut(length: int, end_of: Callable[[bytes, Any], int], head: bytes, file: Any) -> bool:
    try:
        return length < end_of(head, file)
    except (ValueError, TypeError, KeyError, struct.error):
        return True


def _end_of_safetensors(head: bytes, file: Any) -> int:
    (listed,) = struct.unpack("<Q", head[:8])
    file.seek(8)
    parts = json.loads(file.read(min(listed, _MOST_LISTED)))
    ends = [part["data_offsets"][1] for name, part in parts.items() if name != "__metadata__"]
    return 8 + int(listed) + max(ends, default=0)


def _end_of_hdf5(head: bytes, _: Any) -> int:
    """The length that the file's first block states."""
    (end,) = struct.unpack_from("<Q", head, 40 if head[8] < 2 else 28)
    return int(end)


def _end_of_json(_: bytes, file: Any) -> int:
    json.load(file)
    return 0


def _of_torch(saved: Any, f: Any = None, *_: Any, **__: Any) -> Any:
    """Of `torch.save`: states and models are checkpoints, other objects are results."""
    return f if _holds_state(saved) else None


def _holds_state(saved: Any, depth: int = 2) -> bool:
    if _is_state(saved):
        return True
    values = saved.values() if depth and isinstance(saved, Mapping) else ()
    return any(_holds_state(value, depth - 1) for value in values)


def _is_state(saved: Any) -> bool:
    """Whether an object is a model or an optimizer, the state of one, or a parameter."""
    if not isinstance(saved, Mapping):
        is_parameter = getattr(saved, "requires_grad", False) is True and saved.is_leaf
        return hasattr(saved, "state_dict") or is_parameter
    is_of_optimizer = "param_groups" in saved or hasattr(saved, "_metadata")
    return is_of_optimizer or any(_is_weight(*item) for item in saved.items())


def _is_weight(name: Any, value: Any) -> bool:
    names = str(name).rpartition(".")[2].lower()
    return hasattr(value, "numel") and any(part in names for part in ("weight", "bias", "kernel"))


def _second(_saved: Any, path: Any = None, *_: Any, **named: Any) -> Any:
    return next((named[name] for name in ("filename", "filepath") if name in named), path)


def _of_trainer(trainer: Any, *_: Any, **__: Any) -> Any:
    """Of transformers' `Trainer`: its folder of this step."""
    folder = trainer._get_output_dir(trial=None)
    return os.path.join(folder, f"checkpoint-{trainer.state.global_step}")


def _of_lightning(_trainer: Any, filepath: Any, *_: Any, **__: Any) -> Any:
    return filepath


def _of_accelerate(_accelerator: Any, output_dir: Any = None, *_: Any, **__: Any) -> Any:
    return output_dir


CALLS: dict[str, dict[str, PathOf]] = {
    "torch.serialization": {"save": _of_torch},
    "safetensors.torch": {"save_file": _second, "save_model": _second},
    "keras.src.saving.saving_api": {"save_model": _second, "save_weights": _second},
    "tf_keras.src.saving.saving_api": {"save_model": _second, "save_weights": _second},
    "transformers.trainer": {"Trainer._save_checkpoint": _of_trainer},
    "lightning.pytorch.trainer.trainer": {"Trainer.save_checkpoint": _of_lightning},
    "pytorch_lightning.trainer.trainer": {"Trainer.save_checkpoint": _of_lightning},
    "accelerate.accelerator": {"Accelerator.save_state": _of_accelerate},
    _ORBAX: {},
}
"""The calls that save a checkpoint, by their module."""

saves = SaveWatcher()


def watch(module: Any) -> None:
    """Watch the calls of a module of `CALLS` that was just imported."""
    try:
        saves.open()
        if module.__name__ == _ORBAX:
            saves.see_renames()
        for name, path_of in CALLS[module.__name__].items():
            *owners, function = name.split(".")
            owner = functools.reduce(getattr, owners, module)
            save = getattr(owner, function)
            watched = saves.around(save, path_of)
            setattr(owner, function, watched)
            package = sys.modules.get(module.__name__.partition(".")[0])
            if not owners and getattr(package, function, None) is save:
                setattr(package, function, watched)
    except Exception:  # noqa: BLE001 - another version than is known
        return
