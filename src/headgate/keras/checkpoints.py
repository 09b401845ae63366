"""Checkpoint files, written atomically, and readable with `numpy.load(path)`, which runs no code.

`step-<n>.npz` holds arrays named `models/<i>/<j>`, `optimizers/<i>/<j>`, `metrics/<i>/<j>`
(variable j of object i, in the framework's order). `held/<i>/<k>/<j>` are of optimizer k that model
i holds besides. `rates/<i>/0` and `held_rates/<i>/<k>/0` are learning rates that are not among
these variables. `random/...` and `ended/<phase>/...` are random states, now and at the end of a
training. `headgate` is a JSON text as bytes. It has the layout's version, the position in the
training, and types that NumPy lacks.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headgate.task import saving
from headgate.task.saving import CheckpointError, ResumeError

__all__ = ["CheckpointError", "ResumeError", "CheckpointContents", "read", "write"]

LAYOUT = 1
_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    AttributeError,
    zipfile.BadZipFile,
)
Arrays = Mapping[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class CheckpointContents:
    """What a checkpoint holds.

    Args:
        arrays: By name.
        place: Where the training was: plain JSON values.
    """

    arrays: Arrays
    place: Mapping[str, Any]

    def of(self, section: str) -> list[np.ndarray[Any, Any]]:
        """The arrays `section/0`, `section/1`, ..."""
        arrays: list[np.ndarray[Any, Any]] = []
        while (name := f"{section}/{len(arrays)}") in self.arrays:
            arrays.append(self.arrays[name])
        return arrays

    def section(self, name: str) -> dict[str, np.ndarray[Any, Any]]:
        """The arrays `name/...`, by the rest of their names."""
        prefix = f"{name}/"
        return {
            full_name[len(prefix) :]: array
            for full_name, array in self.arrays.items()
            if full_name.startswith(prefix)
        }


def write(folder: Path, step: int, saved: CheckpointContents) -> tuple[Path, int]:
    """Save as `step-<step>.npz` and remove all but the newest two.

    Returns:
        Its path and size in bytes.

    Raises:
        CheckpointError: The checkpoint could not be written. Earlier ones are untouched.
    """
    path = folder / f"step-{step}.npz"
    types = {
        name: str(array.dtype) for name, array in saved.arrays.items() if array.dtype.kind == "V"
    }
    # NumPy files do not support bfloat16 and similar types. They are saved as bytes, next to the
    # names of the types.
    plain = {
        name: array.view(f"u{array.itemsize}") if name in types else array
        for name, array in saved.arrays.items()
    }
    with saving.replacing(path) as partial, open(partial, "wb") as file:
        about = json.dumps({"layout": LAYOUT, "place": saved.place, "types": types}).encode()
        np.savez(file, headgate=np.frombuffer(about, np.uint8), **plain)  # type: ignore[arg-type]
    return path, saving.size(path)


def read(path: str) -> CheckpointContents:
    """Load what `write` saved.

    Raises:
        ResumeError: The checkpoint does not exist, or has another layout.
    """
    with saving.reading(path, *_DAMAGE):
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(arrays.pop("headgate").tobytes())
        layout = about["layout"]
    saving.check_layout(path, layout, LAYOUT)
    for name, kind in about["types"].items():
        arrays[name] = arrays[name].view(_dtype(kind))
    return CheckpointContents(arrays, about["place"])


def _dtype(kind: str) -> Any:
    try:
        return np.dtype(kind)
    except TypeError:
        import ml_dtypes  # every framework whose variables can have such a type brings it

        return np.dtype(getattr(ml_dtypes, kind))
