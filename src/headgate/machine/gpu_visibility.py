"""The GPUs that an environment allows: `CUDA_VISIBLE_DEVICES`, as CUDA reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from headgate.model.cluster import Gpu, Node

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible(environment: Mapping[str, str], gpus: Sequence[Gpu]) -> Mapping[int, str] | None:
    """The GPUs that an environment allows, by index, in its order and with its names for them. None
    if it does not restrict them, or no GPU is known.

    The variable has numbers and prefixes of UUIDs, of GPUs or of their parts (MIG). CUDA ignores
    everything from the first invalid entry on (`-1`, `NoDevFiles`, nothing), and has no GPU if one
    occurs twice.

    Args:
        environment: Environment of a process.
        gpus: GPUs of the machine.
    """
    text = environment.get(VARIABLE)
    if text is None or not gpus:
        return None
    gpus_by_number: dict[int, str] = {}
    for name in map(str.strip, text.split(",")):
        index = _find(name, gpus)
        if index is None:
            break
        if index in gpus_by_number:
            return {}
        gpus_by_number[index] = name
    return gpus_by_number


def missing(environment: Mapping[str, str], gpus: Sequence[Gpu]) -> str:
    """A sentence about entries that are no GPUs of the machine, with a remedy; empty if there are
    none.

    Entries that allow no GPU on purpose (`-1`, `NoDevFiles`, nothing) do not count.
    """
    text = environment.get(VARIABLE, "")
    seen: set[int] = set()
    for name in map(str.strip, text.split(",")):
        if re.match(r"\d|GPU-|MIG-", name, re.IGNORECASE) is None:
            return ""
        index = _find(name, gpus)
        if index is None or index in seen:
            break
        seen.add(index)
    else:
        return ""
    has = (
        f"its GPUs are {', '.join(str(gpu.index) for gpu in gpus)}"
        if gpus
        else "Headgate finds none here"
    )
    if index is not None:
        return (
            f"{VARIABLE}={text} names GPU {index} twice, and CUDA then has none; name each "
            f"once: {has}"
        )
    called = f"GPU {name}" if name.isdigit() else name
    which = "begins more than one GPU" if _several(name, gpus) else "is no GPU of this machine"
    cure = (
        "name others"
        if gpus
        else "unset it to train on the CPU, or see whether `nvidia-smi` finds any"
    )
    return f"{VARIABLE}={text}: {called} {which}, so jobs have {_number(len(seen))}; {has}; {cure}"


def indices(environment: Mapping[str, str], gpus: Sequence[Gpu]) -> tuple[int, ...] | None:
    """The indices of the GPUs that an environment allows."""
    visible_gpus = visible(environment, gpus)
    return tuple(visible_gpus) if visible_gpus is not None else None


def names(
    environment: Mapping[str, str], gpus: Sequence[Gpu], by_uuid: bool = False
) -> Mapping[int, str]:
    """The name of each of a machine's GPUs for `CUDA_VISIBLE_DEVICES`: the environment's, otherwise
    its number, or for a part (MIG) its UUID. `by_uuid`: all have their UUID, because CUDA numbers
    only those that a job can open.
    """
    numbers = {
        gpu.index: gpu.uuid if gpu.is_part or (by_uuid and gpu.uuid) else str(gpu.index)
        for gpu in gpus
    }
    return numbers | dict(visible(environment, gpus) or {})


def within(node: Node, environment: Mapping[str, str]) -> Node:
    """This machine, only with the GPUs that an environment allows."""
    visible_gpus = visible(environment, node.gpus)
    return (
        node
        if visible_gpus is None
        else replace(node, gpus=tuple(gpu for gpu in node.gpus if gpu.index in visible_gpus))
    )


def _several(name: str, gpus: Sequence[Gpu]) -> bool:
    return sum(gpu.uuid.lower().startswith(name.lower()) for gpu in gpus) > 1


def _number(count: int) -> str:
    if count == 0:
        return "no GPU"
    return "only the GPU before it" if count == 1 else f"only the {count} GPUs before it"


def _find(name: str, gpus: Sequence[Gpu]) -> int | None:
    if number := re.match(r"\d+", name):
        # For a divided GPU, CUDA uses the first part.
        return next((gpu.index for gpu in gpus if gpu.number == int(number[0])), None)
    if not name.upper().startswith(("GPU-", "MIG-")):
        return None
    fitting = [gpu.index for gpu in gpus if gpu.uuid.lower().startswith(name.lower())]
    return fitting[0] if len(fitting) == 1 else None
