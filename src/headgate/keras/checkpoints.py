"""Checkpoint files: written whole or not at all, and readable with `numpy.load(path)`, which runs
no code.

`step-<n>.npz` holds arrays named `models/<i>/<j>`, `optimizers/<i>/<j>`, `metrics/<i>/<j>`
(variable j of object i, in the order that the framework lists them), `held/<i>/<k>/<j>` (of
optimizer k that model i holds besides), `rates/<i>/0` and `held_rates/<i>/<k>/0` (a learning rate
that is none of these), `random/...`, `ended/<phase>/...` (random states at the end of a training),
and `headgate`: a JSON text as bytes, with the layout's version, the position in the training, and
the types of arrays whose type NumPy lacks.
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
        """The arrays `name/...` by what follows."""
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
        CheckpointError: It could not be written; what was there before is untouched.
    """
    path = folder / f"step-{step}.npz"
    types = {
        name: str(array.dtype) for name, array in saved.arrays.items() if array.dtype.kind == "V"
    }
    # NumPy's files do not know bfloat16 and its like: they go as bytes, with their names beside.
    plain = {
        name: array.view(f"u{array.itemsize}") if name in types else array
        for name, array in saved.arrays.items()
    }
    with saving.replacing(path) as partial, open(partial, "wb") as file:
        about = json.dumps({"layout": LAYOUT, "place": saved.place, "types": types}).encode()
        np.savez(file, headgate=np.frombuffer(about, np.uint8), **plain)  # type: ignore[arg-type]
    return path, saving.size(path)


def read(path: str) -> CheckpointContents:
    """What `write` saved.

    Raises:
        ResumeError: There is no such file, or it is no checkpoint of this layout.
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
