"""Estimate the all-reduce rate among a node's GPUs from what is known of the node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headgate.model.cluster import Node
from headgate.model.units import say_percent

_REACHED: Mapping[str | None, float] = {
    "nvlink": 0.75,
    "pcie": 0.5,
    "host": 0.4,
    None: 0.6,
    "measured": 1.0,
}
"""Fraction of a link's rate reached in an all-reduce, by the kind of link."""
_WORDS: Mapping[str | None, str] = {
    "nvlink": "NVLink",
    "pcie": "PCIe",
    "host": "PCIe through the host",
    None: "a link",
}
_NVLINK: Mapping[str, float] = {
    "v100": 150e9,
    "a100": 300e9,
    "a800": 200e9,
    "h100": 450e9,
    "h200": 450e9,
    "h800": 200e9,
    "b200": 900e9,
}
"""Total NVLink rate of a GPU in each direction, bytes a second as its maker states it, for models
that usually have NVLink.
"""
_SXM = {"p100": 80e9, **_NVLINK}
"""The same for models that have NVLink only in their SXM version."""
_PCIE_4 = {"a100", "a800", "a30", "a40", "a10", "l4", "l40", "l40s", "3090", "4090", "a6000"}
_PCIE_5 = {"h100", "h200", "h800", "b200", "5090"}
_GENERATION_3 = 15.8e9  # 16 lanes, each direction; each generation doubles the rate
_HALVES = {"k80", "m60"}  # two GPUs on a board share its lanes


class Rate(NamedTuple):
    """Bytes a second that a GPU sends in an all-reduce, the deviation of its logarithm, and its
    origin. `assumed`: the assumption made if the link is not stated; else empty.
    """

    bytes_per_second: float
    deviation: float
    how: str
    assumed: str = ""


def all_reduce(node: Node) -> Rate:
    """The rate between the GPUs of a node with at least two."""
    link, name = node.gpu_link, node.gpus[0].name
    how, unsure = (link.how, 0.5) if link is not None else _usual(name)
    reached = _REACHED[how]
    if link is None or link.bytes_per_second is None:
        rate = _maker(name, how)
        words = f"{_WORDS[how]}, {rate / 1e9:,.0f} GB/s each direction"
        return Rate(rate * reached, unsure, f"as {name or 'a GPU'} mostly has it: {words}", words)
    if how == "measured":
        return Rate(link.bytes_per_second, 0.15, "an all-reduce between them was measured")
    words = (
        f"{_WORDS[how]}, {link.bytes_per_second / 1e9:,.3g} GB/s; an all-reduce reaches "
        f"{say_percent(reached)} of it"
    )
    return Rate(link.bytes_per_second * reached, 0.3 if how else 0.5, words)


def _usual(name: str) -> tuple[str, float]:
    """The usual link of a GPU model, and the deviation of its rate."""
    words = _words(name)
    if any(word.startswith("sxm") for word in words) and not words.isdisjoint(_SXM):
        return "nvlink", 0.3
    if "pcie" not in words and not words.isdisjoint(_NVLINK):
        return "nvlink", 0.9
    return "host", 0.7


def _maker(name: str, how: str | None) -> float:
    """A link's rate as the maker of the GPU states it."""
    words = _words(name)
    if how == "nvlink":
        return next((rate for kind, rate in _SXM.items() if kind in words), _NVLINK["v100"])
    generation = 4 if words & _PCIE_4 else 3
    if words & _PCIE_5:
        generation = 5
    return _GENERATION_3 * 2.0 ** (generation - 3) / (2 if words & _HALVES else 1)


def _words(name: str) -> set[str]:
    return set(name.lower().replace("-", " ").replace("_", " ").split())
