"""Checkpoints, written atomically: by Orbax if it is installed, otherwise as a NumPy archive.

`step-<n>.orbax` is a folder with `state`, which Orbax reads, and `headgate.json`. `step-<n>.npz`
has an entry `headgate.json`. Both hold the same arrays, named by the number of the prepared part
and the path in it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from headgate.task import saving
from headgate.task.saving import CheckpointError, ResumeError

__all__ = ["CheckpointError", "ResumeError", "read", "write"]

LAYOUT = 1
_PLACE = "headgate.json"


def write(
    folder: Path, step: int, arrays: Mapping[str, Any], place: Mapping[str, Any]
) -> tuple[Path, int]:
    """Save `arrays` and `place` as step `step`, and remove all but the newest two checkpoints.

    Args:
        arrays: NumPy arrays by name.
        place: The script's position, in plain JSON values.

    Returns:
        Path of the checkpoint, and its size in bytes.

    Raises:
        CheckpointError: The checkpoint could not be written. Earlier ones are untouched.
    """
    through_orbax = importlib.util.find_spec("orbax") is not None
    path = folder / f"step-{step}.{'orbax' if through_orbax else 'npz'}"
    note = {
        "headgate": LAYOUT,
        "arrays": {name: [str(a.dtype), list(a.shape)] for name, a in arrays.items()},
        **place,
    }
    with saving.replacing(path) as partial:
        if through_orbax:
            _write_orbax(partial, arrays, note)
        else:
            _write_npz(partial, arrays, note)
    return path, saving.size(path)


def read(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load the arrays and the place that `write` saved.

    Raises:
        ResumeError: The checkpoint does not exist, or has another layout.
    """
    with saving.reading(path, OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        arrays, note = _read_orbax(Path(path)) if os.path.isdir(path) else _read_npz(path)
    saving.check_layout(path, note.get("headgate"), LAYOUT)
    return arrays, note


def _write_npz(path: Path, arrays: Mapping[str, Any], note: Mapping[str, Any]) -> None:
    # NumPy archives do not support bfloat16 and similar types. They are saved as integers of the
    # same size; the note holds the names of the types.
    plain: dict[str, Any] = {
        name: a if a.dtype.isbuiltin == 1 else a.view(f"u{a.dtype.itemsize}")
        for name, a in arrays.items()
    }
    savez: Any = np.savez
    with open(path, "wb") as file:
        savez(file, **{_PLACE: np.frombuffer(json.dumps(note).encode(), np.uint8)}, **plain)


def _read_npz(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    with np.load(path, allow_pickle=False) as archive:
        note = json.loads(archive[_PLACE].tobytes())
        arrays = {name: archive[name] for name in archive.files if name != _PLACE}
    return {
        name: array.view(np.dtype(note["arrays"][name][0])) for name, array in arrays.items()
    }, note


def _checkpointer() -> Any:
    """Orbax for this process alone. By default it waits for all workers, but only one saves."""
    ocp: Any = importlib.import_module("orbax.checkpoint")
    alone = ocp.options.MultiprocessingOptions(
        primary_host=jax.process_index(),
        active_processes={jax.process_index()},
        barrier_sync_key_prefix=f"headgate-{jax.process_index()}",
    )
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _write_orbax(path: Path, arrays: Mapping[str, Any], note: Mapping[str, Any]) -> None:
    ocp = importlib.import_module("orbax.checkpoint")
    path.mkdir()
    (path / _PLACE).write_text(json.dumps(note))
    # Orbax refuses arrays without elements
    full = {name: array for name, array in arrays.items() if array.size}
    with _checkpointer() as checkpointer:
        checkpointer.save(path.absolute() / "state", args=ocp.args.PyTreeSave(full))


def _read_orbax(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    if importlib.util.find_spec("orbax") is None:
        raise OSError(
            "it was written through Orbax, which is not installed here (pip install "
            "orbax-checkpoint)"
        )
    ocp: Any = importlib.import_module("orbax.checkpoint")
    note = json.loads((path / _PLACE).read_text())
    names = [name for name, (_, shape) in note["arrays"].items() if 0 not in shape]
    args = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
    with _checkpointer() as checkpointer:
        arrays = checkpointer.restore(
            path.absolute() / "state",
            args=ocp.args.PyTreeRestore(item=dict.fromkeys(names, 0), restore_args=args),
        )
    empty = {
        name: np.zeros(shape, dtype)
        for name, (dtype, shape) in note["arrays"].items()
        if 0 in shape
    }
    return {**{name: np.asarray(array) for name, array in arrays.items()}, **empty}, note
