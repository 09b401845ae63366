"""The network of a lab: a bridge in its own network namespace, with a wire to the namespace of each
node.

A token bucket (tbf) on both ends of its wire limits a NIC. The node's end limits what it sends, the
switch's end what it receives. The bridge is outside of the machine's own namespace, so the
machine's packet filter never sees its packets. Docker would have bridged packets filtered, and drop
unknown ones.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from pathlib import Path

from headgate.lab.names import BRIDGE, UNDERLAY, WIRE, path, port
from headgate.lab.record import Record
from headgate.lab.tools import ask, batch
from headgate.model.cluster import Node

VXLAN = "id 77 dstport 4789"
VXLAN_MTU = 1450
EVERYBODY = "00:00:00:00:00:00"
"""The destination of a VXLAN's packets with an unknown receiver."""
FRAMED = 1514 / 1500
"""Rates are of IP packets; the kernel also counts their Ethernet headers."""
BURST_SECONDS = 0.001
"""Length of a burst after a pause, at the NIC's rate. With less, the rate is missed whenever the
kernel's timer is late. With more, a short message would seem faster than possible.
"""
BURST_LEAST = 80_000
"""Bytes that the network stack passes on at once (64 KiB) with headers. Larger packets than the
bucket are split.
"""
QUEUE_SECONDS = 0.005
QUEUE_LEAST = 200_000
"""Least bytes that wait at a full NIC; more are dropped. It is as short as in a switch: behind a
long queue, a growing connection overshoots by as much, and loses it at once.
"""


def make(record: Record, nodes: Sequence[Node]) -> None:
    """Connect new nodes, and make the switch if it does not exist.

    Raises:
        HeadgateError: The kernel refused something.
    """
    names = record.names
    plug = WIRE if record.overlay is None else UNDERLAY
    new_switch = not record.complete
    batch(
        "ip",
        [
            *([f"netns add {names.switch}"] if new_switch else ()),
            *(f"netns add {names.namespace(node.name)}" for node in nodes),
            *(
                f"link add name {port(node.name)} netns {names.switch} type veth peer name {plug} "
                f"address {_hardware(node, plug)} netns {names.namespace(node.name)}"
                for node in nodes
            ),
        ],
    )
    bridge = (
        "link set lo up",
        f"link add {BRIDGE} type bridge mcast_snooping 0",
        f"link set {BRIDGE} up",
    )
    ports = (f"link set {port(node.name)} master {BRIDGE} up" for node in nodes)
    batch("ip", [*(bridge if new_switch else ()), *ports], names.switch)
    for node in nodes:
        batch("ip", _node_lines(record, node), names.namespace(node.name))
    set_rates(record, nodes)
    if record.overlay is not None:
        _introduce(record, nodes)


def set_rates(record: Record, nodes: Iterable[Node]) -> None:
    """Apply the NIC rates of nodes. Packets in flight are not lost."""
    nodes = list(nodes)
    plug = WIRE if record.overlay is None else UNDERLAY
    for node in nodes:
        batch("tc", [_bucket(plug, node)], record.names.namespace(node.name))
    batch("tc", [_bucket(port(node.name), node) for node in nodes], record.names.switch)


def plug(record: Record, node: str, connected: bool) -> None:
    """Connect or disconnect a node's NIC, like its cable. Addresses and routes stay."""
    batch("ip", [f"link set {port(node)} {'up' if connected else 'down'}"], record.names.switch)


def remove(record: Record, nodes: Iterable[str]) -> None:
    """Remove nodes, complete or not, whose processes have ended."""
    names, nodes = record.names, list(nodes)
    if names.switch_found():
        existing_links = {
            link["ifname"] for link in ask("ip", "link", "show", namespace=names.switch)
        }
        # Now, because a link disappears some time after its namespace, and its name could not be
        # reused until then. If the namespace was removed otherwise, the link may just be
        # disappearing.
        links = [f"link del {port(node)}" for node in nodes if port(node) in existing_links]
        batch("ip", links, names.switch, keep_going=True)
    node_names = set(names.nodes_found())
    batch("ip", [f"netns del {names.namespace(node)}" for node in nodes if node in node_names])
    left = [
        made.node
        for name, made in record.nodes.items()
        if name not in nodes and made.stage != "making"
    ]
    if record.overlay is not None:
        for other in left:
            gone = [record.nodes[name].node for name in nodes if name in record.nodes]
            lines = [f"fdb del {EVERYBODY} dev {WIRE} dst {_underlay(node)}" for node in gone]
            batch("bridge", lines, names.namespace(other.name), keep_going=True)


def remove_switch(record: Record) -> None:
    """Remove the switch, with every wire that is still in it."""
    if record.names.switch_found():
        batch("ip", [f"netns del {record.names.switch}"])


def carried(record: Record) -> dict[str, tuple[int, int]]:
    """Bytes that each node has received and sent since it was connected."""
    links = ask("ip", "-s", "link", "show", namespace=record.names.switch)
    counts = {link["ifname"]: link["stats64"] for link in links}
    return {
        name: (counts[port(name)]["tx"]["bytes"], counts[port(name)]["rx"]["bytes"])
        for name in record.nodes
        if port(name) in counts
    }


def there(record: Record, node: str) -> bool:
    return path(record.names.namespace(node)).exists()


def _node_lines(record: Record, node: Node) -> list[str]:
    lines = ["link set lo up"]
    if record.overlay is not None:
        lines += [
            f"address add {_underlay(node)}/16 dev {UNDERLAY} noprefixroute",
            f"link set {UNDERLAY} up",
            f"route add 169.254.0.0/16 dev {UNDERLAY} scope link src {_underlay(node)}",
            _overlay(node),
        ]
    length = ipaddress.IPv4Network(record.network).prefixlen
    control = _congestion_control()
    return [
        *lines,
        f"address add {node.address}/{length} dev {WIRE} noprefixroute",
        f"link set {WIRE} up",
        f"route add {record.network} dev {WIRE} scope link src {node.address}{control}",
        # It leads nowhere, but programs ask for the default route to find their own address.
        f"route add default dev {WIRE} src {node.address}{control}",
    ]


def _overlay(node: Node) -> str:
    return (
        f"link add {WIRE} address {_hardware(node, WIRE)} mtu {VXLAN_MTU} "
        f"type vxlan {VXLAN} local {_underlay(node)} dev {UNDERLAY}"
    )


def _introduce(record: Record, new: Sequence[Node]) -> None:
    """Tell every node the addresses of the others below the overlay."""
    every = [made.node for made in record.nodes.values()]
    for node in every:
        others = [other for other in (every if node in new else new) if other is not node]
        lines = [f"fdb append {EVERYBODY} dev {WIRE} dst {_underlay(other)}" for other in others]
        batch("bridge", lines, record.names.namespace(node.name))


def _hardware(node: Node, interface: str) -> str:
    """The constant hardware address of a node's NIC, so that others find a new node of the same
    name at once.
    """
    parts = (0x02, 0x68 if interface == WIRE else 0x69, *map(int, node.address.split(".")))
    return ":".join(f"{part:02x}" for part in parts)


def _underlay(node: Node) -> str:
    """A node's address below the overlay, in the network reserved for the inside of a link."""
    return "169.254." + ".".join(node.address.split(".")[2:])


def _bucket(interface: str, node: Node) -> str:
    rate = node.nic_bytes_per_second
    if rate is None:
        return f"qdisc replace dev {interface} root noqueue"
    bits = round(rate * FRAMED * 8)
    burst = round(max(rate * BURST_SECONDS, BURST_LEAST))
    limit = round(max(rate * QUEUE_SECONDS, QUEUE_LEAST))
    return (
        f"qdisc replace dev {interface} root handle 1: tbf rate {bits}bit burst {burst} "
        f"limit {limit}"
    )


def _congestion_control() -> str:
    """The congestion control of routes: Cubic, if the machine's default is another.

    A namespace inherits the default and can only choose what the machine allows, but a route can
    set any. BBR takes up to a tenth longer for short bursts, and varies.
    """
    settings = Path("/proc/sys/net/ipv4")
    if (settings / "tcp_congestion_control").read_text().strip() == "cubic":
        return ""
    known = (settings / "tcp_available_congestion_control").read_text().split()
    return " congctl cubic" if "cubic" in known else ""
