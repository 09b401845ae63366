"""Finds the network interfaces that carry this machine's traffic, so that no byte is counted
twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headgate.machine.files import content


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface.

    Args:
        name: Its name.
        physical: Whether it is a device, and not a bond, bridge, VLAN, tunnel or one end of a veth
            pair.
        up: Whether it is up; true if unknown.
        master: The bond or bridge that it belongs to.
        bytes_per_second: Its rate in each direction; None if unknown.
    """

    name: str
    physical: bool
    up: bool
    master: str | None
    bytes_per_second: float | None


def interfaces(root: Path = Path("/")) -> tuple[Interface, ...]:
    """All interfaces except loopback, by name."""
    try:
        folders = sorted((root / "sys/class/net").iterdir())
    except OSError:
        return ()
    nics = []
    for folder in folders:
        if folder.name == "lo" or not folder.is_dir():  # bonding_masters is a plain file
            continue
        master = folder / "master"
        nics.append(
            Interface(
                name=folder.name,
                physical=(folder / "device").exists(),
                up=content(folder / "operstate") in ("up", "unknown", ""),
                master=master.resolve().name if master.exists() else None,
                bytes_per_second=_rate(content(folder / "speed")),
            )
        )
    return tuple(nics)


def counted(root: Path = Path("/")) -> tuple[Interface, ...]:
    """The interfaces whose bytes add up to the machine's traffic.

    These are the physical ones; bonds and bridges only pass on their bytes. If all are virtual, as
    in a container, they are those of a default route, otherwise those that belong to no other.
    """
    every = interfaces(root)
    physical = tuple(nic for nic in every if nic.physical)
    if physical:
        return physical
    routed = default_routes(root)
    return tuple(nic for nic in every if nic.name in routed) or tuple(
        nic for nic in every if nic.master is None and nic.up
    )


def default_routes(root: Path = Path("/"), process: str = "self") -> tuple[str, ...]:
    """Names of the interfaces of default routes, as a process (`self` or a process id) sees them:
    the preferred one first, IPv4 before IPv6.
    """
    routes: list[tuple[int, str]] = []
    for line in content(root / "proc" / process / "net/route").splitlines()[1:]:
        words = line.split()
        if len(words) > 7 and words[1] == "00000000" and words[7] == "00000000":
            routes.append((int(words[6]), words[0]))
    names = [name for _, name in sorted(routes)]
    routes.clear()
    for line in content(root / "proc" / process / "net/ipv6_route").splitlines():
        words = line.split()
        # A route that rejects packets is listed as a default route through lo.
        if len(words) > 9 and words[0] == "0" * 32 and words[1] == "00" and words[9] != "lo":
            routes.append((int(words[5], 16), words[9]))
    names += [name for _, name in sorted(routes)]
    return tuple(dict.fromkeys(names))


def outward(root: Path = Path("/")) -> Interface | None:
    """The interface that most likely leads to other nodes: that of the preferred default route,
    otherwise the fastest physical one.
    """
    every = {nic.name: nic for nic in interfaces(root)}
    for name in default_routes(root):
        if name in every:
            return every[name]
    candidates = [nic for nic in every.values() if nic.physical and nic.up]
    return max(candidates, key=lambda nic: nic.bytes_per_second or 0.0, default=None)


def _rate(megabits: str) -> float | None:
    try:
        speed = int(megabits)
    except ValueError:
        return None
    return speed * 1e6 / 8 if speed > 0 else None
