"""Checkpoint files, written atomically, and readable with `torch.load(path, weights_only=True)`.

`step-<n>.pt` holds a dict: `headgate` (version of the layout); `models`, `optimizers`, `schedulers`
(lists of state dicts in the order of `prepare`, with the user's own keys); `kept` (state dicts by
name); `step`, `samples`, `phase`, `epoch`, `position`, `loaders`, `rng`, `epoch_rng`.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from headgate.task import saving
from headgate.task.file_writes import file_writes
from headgate.task.overheads import overheads
from headgate.task.saving import CheckpointError, ResumeError

__all__ = ["CheckpointError", "ResumeError", "read", "storable", "write"]

LAYOUT = 1
_PLAIN = (type(None), bool, int, float, complex, str, bytes, Counter, torch.dtype, torch.device)


def storable(value: Any, where: str) -> Any:
    """`value` with NumPy scalars as Python numbers, after a check that it can be loaded without
    running code.

    Raises:
        CheckpointError: It holds something else. The message says where.
    """
    kind = type(value)
    if (
        kind.__module__ == "numpy"
        and getattr(value, "shape", None) == ()
        and kind.__name__ != "ndarray"
    ):
        return value.item()
    if kind in _PLAIN or isinstance(value, torch.Tensor):
        return value
    if kind is OrderedDict:
        checked = OrderedDict(
            (key, storable(item, f"{where}[{key!r}]")) for key, item in value.items()
        )
        # a module's state dict carries its table of versions in this attribute
        checked.__dict__.update(value.__dict__)
        return checked
    if isinstance(value, dict):
        return {key: storable(item, f"{where}[{key!r}]") for key, item in value.items()}
    if kind in (list, tuple, set, torch.Size):
        return kind(storable(item, f"{where}[{index}]") for index, item in enumerate(value))
    raise CheckpointError(
        f"{where} is a {kind.__module__}.{kind.__qualname__}; expected tensors, numbers, strings "
        "and containers of them, which can be loaded without running code"
    )


def write(folder: Path, step: int, payload: dict[str, Any]) -> tuple[Path, int]:
    """Save `payload` as `step-<step>.pt`, and remove all but the newest two checkpoints.

    Returns:
        Its path, and its size in bytes.

    Raises:
        CheckpointError: The checkpoint could not be written. Earlier ones are untouched.
    """
    payload = {name: storable(value, name) for name, value in payload.items()}
    path = folder / f"step-{step}.pt"
    with saving.replacing(path) as partial, open(partial, "wb") as file, _checksums():
        torch.save({"headgate": LAYOUT, **payload}, file)
    return path, saving.size(path)


@contextmanager
def _checksums() -> Iterator[None]:
    """Write checksums of the saved parts, whatever the script has set."""
    if not hasattr(torch.serialization, "set_crc32_options"):  # a PyTorch that always does
        yield
        return
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(True)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def read(path: str) -> dict[str, Any]:
    """Load what `write` saved, with tensors on the CPU.

    Raises:
        ResumeError: The file does not exist, or is no checkpoint of this layout.
    """
    with saving.reading(path, OSError, RuntimeError, EOFError, pickle.UnpicklingError):
        payload = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if not isinstance(payload, dict):
        payload = {}
    saving.check_layout(path, payload.get("headgate"), LAYOUT)
    return payload


def watch_saving() -> None:
    """Note the files that `torch.save` writes and how long it takes. PyTorch opens them without
    Python's `open`.
    """
    writer: Any = getattr(torch.serialization, "_open_zipfile_writer_file", None)
    if writer is None:
        return
    opens, closes = writer.__init__, writer.__exit__
    begun = 0.0

    def begin(self: Any, name: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal begun
        begun = time.perf_counter()
        file_writes.wrote(name)
        opens(self, name, *args, **kwargs)

    def end(self: Any, *args: Any) -> None:
        closes(self, *args)
        overheads.add("saving", time.perf_counter() - begun)

    writer.__init__, writer.__exit__ = begin, end
