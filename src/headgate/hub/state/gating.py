"""What the steps of a task are held to, where nothing else divides what it uses (docs/shares.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from headgate.shares import Share

OPEN: Mapping[str, object] = {"type": "gate"}
"""Nothing is held."""
PAUSED: Mapping[str, object] = {"type": "gate", "paused": True}
"""No step begins for a moment."""
_TURNS = "turns"


def gate(
    share: Share, entitled_cores: float, node_cores: float | None, uncontrolled: Sequence[str], turns: Sequence[str]
) -> Mapping[str, object]:
    """The `gate` message for a task.

    Args:
        share: What it is granted.
        entitled_cores: What its weight and cap come to.
        node_cores: Cores of its node; None: it is gone.
        uncontrolled: What its engine cannot control.
        turns: Paths of the files by which the tasks on its GPUs take turns; empty: they cannot.
    """
    if isinstance(share.gpu_fraction, int | float) and share.gpu_fraction < 1:
        return {"type": "gate", "fraction": share.gpu_fraction, **({"turns": list(turns)} if turns else {})}
    divided = not any(line.startswith("CPU weight") for line in uncontrolled)
    if divided or node_cores is None or entitled_cores > node_cores - 1e-9:
        return OPEN
    return {"type": "gate", "cores": entitled_cores}


def turns_in(home: Path) -> Path | None:
    """The folder of the files by which tasks take turns on GPUs, made where it is not there; None: it cannot be.

    Args:
        home: Headgate's folder.
    """
    folder = home / _TURNS
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:  # the disk is full: steps are held all the same, but may overlap
        return None
    return folder


def turns_at(home: Path, gpus: Sequence[int]) -> list[str]:
    """Paths of the files by which the tasks on these GPUs of this machine take turns; empty where there are none.

    Args:
        home: Headgate's folder.
        gpus: Numbers of the GPUs that a task uses.
    """
    folder = turns_in(home) if gpus else None
    return [str(folder / f"gpu-{gpu}") for gpu in gpus] if folder is not None else []


def strictest(gates: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    """The gate of one worker that the others wait for. It is as strict as each worker's own gate, and takes turns on
    the GPUs of all."""
    turns = sorted({path for each in gates for path in cast("Sequence[str]", each.get("turns", ()))})
    for field in ("fraction", "cores"):
        held = [(float(str(each[field])), each) for each in gates if field in each]
        if held:
            gate = min(held, key=lambda pair: pair[0])[1]
            return {**gate, "turns": turns} if turns and field == "fraction" else gate
    return OPEN
