"""NIC use of nodes."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.recorded.usage import Signal


@dataclass(frozen=True, slots=True, eq=False)
class NicUse:
    """Traffic through a node's NIC over time.

    Args:
        rate: Bytes a second in each direction; None: unknown.
        received: Fraction of that rate in use, 0 to 1; bytes a second if the rate is unknown.
        sent: The same in the other direction.
    """

    node: str
    rate: float | None
    received: Signal
    sent: Signal


def nic_use(node: str, rate: float | None, received: Signal, sent: Signal) -> NicUse | None:
    """NIC use of a node from bytes a second; None: no readings."""
    if not (len(received) or len(sent)):
        return None
    size = rate or 1.0
    return NicUse(
        node,
        rate or None,
        *(Signal(way.start, way.end, way.value / size) for way in (received, sent)),
    )
