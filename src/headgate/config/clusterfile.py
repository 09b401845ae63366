"""Cluster files: read a `Cluster` from YAML, and report all problems at once with line, value and
cure.

A cluster may exist only on paper. With `lab: true` the file describes a lab: nodes made inside this
machine.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from headgate.config import userfile
from headgate.config.fields import Bytes, example
from headgate.config.userfile import Entry, Number, Place, UserFile, Whole
from headgate.model import units
from headgate.model.cluster import Cluster, Gpu, GpuLink, Node

NAME_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
"""Valid names of nodes and labs: host names that are parts of other names."""
NETWORK = ipaddress.IPv4Network("10.77.0.0/24")
"""Default address range of a lab's nodes."""
_WIDEST = 16  # prefix length of the largest network of a lab
LEAST_CORES = 0.01
LEAST_RATE = 12_500.0
"""100 kbit/s in bytes a second. Below it a full-size packet takes longer than a connection
waits.
"""
MOST_NODES = 254
"""Most nodes of a lab."""
MOST_ON_PAPER = 100_000

Overlay = Literal["vxlan"]


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """The content of a cluster file.

    Args:
        name: Its name; by default the file's name without suffix.
        cluster: The nodes, in the order of the file.
        lab: Whether its nodes are made inside this machine.
        overlay: Overlay network of a lab, on top of the links.
        oversubscribe: Whether a lab's nodes together may have more cores than the machine.
    """

    name: str
    cluster: Cluster
    lab: bool = False
    overlay: Overlay | None = None
    oversubscribe: bool = False


def _name(value: str) -> str:
    if not NAME_PATTERN.fullmatch(value):
        raise ValueError(
            "expected lower-case letters, digits and '-', at most 32, as in a host name"
        )
    return value


def _address(value: str) -> str:
    try:
        address = ipaddress.IPv4Address(value)
    except ValueError:
        raise ValueError("expected an IPv4 address such as 10.77.0.1") from None
    if (
        address.is_multicast
        or address.is_reserved
        or address.is_unspecified
        or address.is_link_local
    ):
        raise ValueError("expected an address that a machine can have, such as 10.77.0.1")
    return str(address)


def _gpu(value: object) -> object:
    return {"index": value} if isinstance(value, int) and not isinstance(value, bool) else value


def _rate(value: float) -> float:
    if value < LEAST_RATE:
        raise ValueError(
            f"expected at least {units.say_bits(LEAST_RATE)}, which is {LEAST_RATE / 1e3:g} kB/s"
        )
    return value


def _gpu_link(value: object) -> object:
    """Accept `nvlink` or `25GB/s` alone; the other property is then unknown."""
    if not isinstance(value, str):
        return value
    return {"rate": value} if value[:1].isdigit() else {"how": value}


Text = Annotated[str, WithJsonSchema({"type": ["string", "number"]})]
Name = Annotated[Text, AfterValidator(_name)]
Address = Annotated[str, AfterValidator(_address), example("string", "10.77.0.1")]
Cores = Annotated[Number, Field(ge=LEAST_CORES)]
Count = Annotated[Whole, Field(ge=1, le=MOST_ON_PAPER)]
Rate = Annotated[
    float, BeforeValidator(units.rate), AfterValidator(_rate), example("string", "200Mbit")
]


class GpuEntry(Entry):
    """A GPU: one of this machine by number, or one on paper by name and memory."""

    index: Annotated[Whole, Field(ge=0)] | None = None
    """The number of a GPU of this machine; only in a lab."""
    name: Text = ""
    """The model of the GPU, such as `H200`; only on paper."""
    memory: Bytes | None = None
    """The GPU's memory, in bytes or with a unit such as `141GB`; only on paper."""


class GpuLinkEntry(Entry):
    """How the GPUs of a node are connected."""

    rate: Rate | None = None
    """Rate between two GPUs, with a unit: `300GB/s`."""
    how: Literal["nvlink", "pcie", "host", "measured"] | None = None
    """The kind of connection between the GPUs."""


class NodeEntry(Entry):
    """A node, or `count` equal nodes."""

    name: Name | None = None
    """The node's host name; by default made of its `kind` and a number."""
    kind: Name | None = None
    """A name for equal nodes."""
    count: Count | None = None
    """Number of nodes like this one."""
    address: Address | None = None
    """The IPv4 address of the node, or of the first of `count`; in a lab, by default the next free
    one.
    """
    cores: Cores
    """CPU cores; fractions are allowed."""
    memory: Bytes
    """Memory, in bytes or with a unit such as `2GiB`."""
    nic: Rate | None = None
    """Rate of the network interface in each direction, with a unit: `200Mbit`, `100MB/s`."""
    disk: Rate | None = None
    """Rate of the disk, with a unit: `100MB/s`."""
    gpus: list[Annotated[GpuEntry, BeforeValidator(_gpu)]] = []
    """The node's GPUs: numbers of this machine's GPUs in a lab; name and memory of each on
    paper.
    """
    gpu_link: Annotated[GpuLinkEntry, BeforeValidator(_gpu_link)] | None = None
    """How the GPUs of the node are connected; `nvlink` or `25GB/s` alone is enough."""


class ClusterEntry(Entry):
    """A cluster file."""

    name: Name | None = None
    """The name of the cluster or lab; by default the file's."""
    lab: bool = False
    """Whether the nodes are made inside this machine."""
    overlay: Overlay | None = None
    """Overlay network between the nodes of a lab: `vxlan`, or none."""
    oversubscribe: bool = False
    """Whether the nodes of a lab may have more cores together than the machine."""
    nodes: Annotated[list[NodeEntry], Field(min_length=1)]
    """The nodes."""


def schema() -> dict[str, Any]:
    """The JSON schema of a cluster file."""
    return userfile.json_schema(ClusterEntry, "Headgate cluster file")


def network_of(addresses: Sequence[str]) -> ipaddress.IPv4Network | None:
    """The smallest network from /24 up to /16 with all these addresses; None if there is none, or
    no address.
    """
    for length in range(24, _WIDEST - 1, -1) if addresses else ():
        network = ipaddress.IPv4Network(f"{addresses[0]}/{length}", strict=False)
        if all(ipaddress.IPv4Address(address) in network for address in addresses):
            return network
    return None


def read(path: str) -> ClusterFile:
    """Read the cluster of a file.

    Raises:
        InvalidFileError: The file has problems; the error lists them all.
        UsageError: The file cannot be read.
    """
    file = UserFile(path, ClusterEntry)
    entries, wrong = file.valid_entries("nodes")
    data = file.data if isinstance(file.data, dict) else {}
    lab = data.get("lab") is True
    _check_lab_keys(file, data, lab)
    drafts = _Nodes(file, lab)
    for i, kept in entries.items():
        # they stand in for invalid values
        entry = NodeEntry.model_validate({"cores": 1, "memory": 1, **kept})
        drafts.add(
            i, entry, {place[2] for place in wrong if place[:2] == ("nodes", i) and len(place) > 2}
        )
    drafts.check()
    name = data.get("name")
    if name is None:
        name = Path(path).stem.lower()
        if not NAME_PATTERN.fullmatch(name):
            file.problem(
                ("name",),
                f"there is none, and the file's own name {name!r} cannot be one",
                "add `name: lab`",
            )
    file.check()
    return ClusterFile(
        name=str(name),
        cluster=Cluster(drafts.nodes()),
        lab=lab,
        overlay=data.get("overlay"),
        oversubscribe=data.get("oversubscribe") is True,
    )


def _check_lab_keys(file: UserFile, data: Mapping[str, Any], lab: bool) -> None:
    for key in ("overlay", "oversubscribe"):
        if not lab and data.get(key):
            file.problem(
                (key,),
                f"found {data[key]!r} in a file that is no lab",
                "add `lab: true`, or remove it",
            )


class _Nodes:
    """The nodes of a file on their way to a `Cluster`."""

    def __init__(self, file: UserFile, lab: bool) -> None:
        self._file = file
        self._lab = lab
        self._lines: dict[str, int | None] = {}
        self._holders: dict[str, str] = {}
        self._numbered = Counter[str]()  # nodes of each kind that are named by number
        self._asked = 0
        self._found: list[tuple[str, NodeEntry, str | None]] = []

    def add(self, index: int, entry: NodeEntry, wrong: set[str | int]) -> None:
        """Add an entry of the file, and record its conflicts with the others."""
        place = ("nodes", index)
        base = entry.name or (entry.kind if entry.count is not None else None)
        named = not wrong & {"name", "kind", "count"}
        if base is None and named:
            self._file.problem((*place, "name"), "it is missing", "add it, or `kind` and `count`")
        if not self._room(entry, place, wrong):
            return
        alone = True
        first = self._numbered[base] + 1 if base is not None and entry.name is None else 1
        for i in range(entry.count or 1):
            name = f"{base}-{first + i}" if entry.count is not None else base
            if name is not None and named and not self._claim_name(name, place):
                named = False  # report only one problem of an entry
            address = (
                str(ipaddress.IPv4Address(entry.address) + i) if entry.address is not None else None
            )
            if address is not None and alone:
                alone = self._claim_address(address, name or "", place)
            self._found.append((name or "", entry, address))
        if base is not None and entry.name is None:
            self._numbered[base] += entry.count or 0
        for i, gpu in enumerate(entry.gpus):
            if self._lab and (gpu.index is None or gpu.name or gpu.memory is not None):
                self._file.problem(
                    (*place, "gpus", i), "a lab's node has GPUs of this machine", "give its number"
                )
            elif not self._lab and (not gpu.name or gpu.memory is None):
                self._file.problem(
                    (*place, "gpus", i),
                    "it has no name or no memory",
                    "write {name: H200, memory: 141GB}",
                )

        link = entry.gpu_link
        if link is not None and len(entry.gpus) < 2 and "gpus" not in wrong:
            fault = f"found {len(entry.gpus)} GPUs, and a link is between two or more"
            self._file.problem(
                (*place, "gpu_link"), fault, "add the others below `gpus`, or remove it"
            )
        elif (
            link is not None
            and link.rate is None
            and link.how in (None, "measured")
            and "gpu_link" not in wrong
        ):
            self._file.problem(
                (*place, "gpu_link"), "it says no rate", "write {rate: 300GB/s, how: nvlink}"
            )

    def check(self) -> None:
        """Record problems of the nodes together."""
        if not self._lab or self._asked > MOST_NODES:
            return
        addresses = [node.address for node in self.nodes()]
        network = network_of(addresses) or (None if addresses else NETWORK)
        if network is None:
            cure = "choose them within one network such as 10.77.0.0/16"
            self._file.problem(("nodes",), "the addresses are too far apart", cure)
            return
        for address, holder in self._holders.items():
            if ipaddress.IPv4Address(address) in (network[0], network[-1]):
                fault = (
                    f"the address {address} of {holder!r} stands for the whole network {network}"
                )
                self._file.problem(
                    ("nodes",), fault, f"choose one from {network[1]} to {network[-2]}"
                )

    def nodes(self) -> tuple[Node, ...]:
        """The nodes. In a lab, nodes without an address get the next free one."""
        network = network_of(list(self._holders)) or NETWORK
        wider = chain(network.hosts(), network.supernet(new_prefix=_WIDEST).hosts())
        free = (str(host) for host in wider if str(host) not in self._holders)
        nodes = []
        for name, entry, address in self._found:
            node = Node(
                name=name,
                cores=entry.cores,
                memory_bytes=entry.memory,
                nic_bytes_per_second=entry.nic,
                disk_bytes_per_second=entry.disk,
                gpus=tuple(
                    Gpu(i if gpu.index is None else gpu.index, gpu.name, gpu.memory or 0)
                    for i, gpu in enumerate(entry.gpus)
                ),
                kind=entry.kind or "",
                gpu_link=GpuLink(link.rate, link.how)
                if (link := entry.gpu_link) is not None
                else None,
            )
            if address is None and self._lab:
                address = next(free)
            nodes.append(replace(node, address=address) if address is not None else node)
        return tuple(nodes)

    def _room(self, entry: NodeEntry, place: Place, wrong: Collection[str | int]) -> bool:
        """Whether this many nodes, at these addresses, are allowed."""
        count, most = entry.count or 1, MOST_NODES if self._lab else MOST_ON_PAPER
        before, self._asked = self._asked, self._asked + count
        if self._asked > most:
            if before <= most:
                kind = "a lab" if self._lab else "a file"
                fault, cure = (
                    f"found {self._asked} nodes up to here",
                    f"expected at most {most:,} in {kind}",
                )
                self._file.problem(
                    (*place, *(("count",) if entry.count is not None else ())), fault, cure
                )
            return False
        if entry.address is None or "address" in wrong:
            return True
        first = ipaddress.IPv4Address(entry.address)
        try:
            last = _address(str(first + (count - 1)))
        except ValueError:
            fault, cure = (
                f"{count} nodes from {first} on do not all get addresses that machines can have",
                "lower it",
            )
            self._file.problem((*place, "address"), fault, cure)
            return False
        if self._lab and (first.is_loopback or ipaddress.IPv4Address(last).is_loopback):
            self._file.problem(
                (*place, "address"), f"found {first}", "expected one such as 10.77.0.1"
            )
        return True

    def _claim_name(self, name: str, place: Place) -> bool:
        """Claim a name. False: it is taken, which is recorded."""
        if name in self._lines:
            fault = f"found {name!r}, as on line {self._lines[name]}"
            self._file.problem((*place, "name"), fault, "give each node its own")
            return False
        self._lines[name] = self._file.line((*place, "name"))
        if not NAME_PATTERN.fullmatch(name):
            self._file.problem(
                (*place, "name"), f"{name!r} is too long for a host name", "choose a shorter one"
            )
            return False
        return True

    def _claim_address(self, address: str, name: str, place: Place) -> bool:
        holder = self._holders.setdefault(address, name)
        if holder != name:
            fault = f"{address} is that of {holder!r} already"
            self._file.problem((*place, "address"), fault, "give each node its own")
        return holder == name
