"""How much of its NIC a node used."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.recorded.usage import Signal


@dataclass(frozen=True, slots=True, eq=False)
class NicUse:
    """What went through a node's NIC over time.

    Args:
        rate: Bytes a second that it carries each way; None if not known.
        received: Fraction of that rate in use, 0 to 1; bytes a second if the rate is not known.
        sent: The same, the other way.
    """

    node: str
    rate: float | None
    received: Signal
    sent: Signal


def nic_use(node: str, rate: float | None, received: Signal, sent: Signal) -> NicUse | None:
    """How much of its NIC a node used, from bytes a second; None if nothing was read."""
    if not (len(received) or len(sent)):
        return None
    size = rate or 1.0
    return NicUse(
        node,
        rate or None,
        *(Signal(way.start, way.end, way.value / size) for way in (received, sent)),
    )
