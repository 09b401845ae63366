"""Cluster files: YAML in, a `Cluster` out; every problem at once, each with its line, the value and the cure.

A cluster may exist only on paper. With `lab: true` the file describes a lab: nodes made inside this machine.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from headgate import units
from headgate.cluster import Cluster, Gpu, Node
from headgate.userfile import Entry, Number, Place, UserFile, Whole

NAME_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
"""What a node or a lab may be called: it is a host name, and a part of other names."""
NETWORK = ipaddress.IPv4Network("10.77.0.0/24")
"""Where nodes of a lab get their addresses from unless the file says."""
LEAST_CORES = 0.01
LEAST_RATE = 12_500.0
"""Bytes a second: 100 kbit/s. With less a packet of full size takes longer than a connection waits."""
MOST_NODES = 254

Overlay = Literal["vxlan"]


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """What a cluster file says.

    Args:
        name: Its name; that of the file, without its ending, where it gives none.
        cluster: The nodes, in the order of the file.
        lab: Whether its nodes are made inside this machine.
        overlay: What is put between the nodes of a lab besides the wire.
        oversubscribe: Whether the nodes of a lab may have more cores than the machine.
    """

    name: str
    cluster: Cluster
    lab: bool = False
    overlay: Overlay | None = None
    oversubscribe: bool = False


def _name(value: str) -> str:
    if not NAME_PATTERN.fullmatch(value):
        raise ValueError("expected lower-case letters, digits and '-', at most 32, as in a host name")
    return value


def _address(value: str) -> str:
    try:
        address = ipaddress.IPv4Address(value)
    except ValueError:
        raise ValueError("expected an IPv4 address such as 10.77.0.1") from None
    if address.is_multicast or address.is_reserved or address.is_unspecified or address.is_link_local:
        raise ValueError("expected an address that a machine can have, such as 10.77.0.1")
    return str(address)


def _gpu(value: object) -> object:
    return {"index": value} if isinstance(value, int) and not isinstance(value, bool) else value


def _example(kind: str | list[str], example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": kind, "examples": [example]})


Text = Annotated[str, WithJsonSchema({"type": ["string", "number"]})]
Name = Annotated[Text, AfterValidator(_name)]
Address = Annotated[str, AfterValidator(_address), _example("string", "10.77.0.1")]
Cores = Annotated[Number, Field(ge=LEAST_CORES)]
Count = Annotated[Whole, Field(ge=1, le=MOST_NODES)]
Bytes = Annotated[int, BeforeValidator(units.size), Field(gt=0), _example(["integer", "string"], "2GiB")]
Rate = Annotated[float, BeforeValidator(units.rate), Field(ge=LEAST_RATE), _example("string", "200Mbit")]


class GpuEntry(Entry):
    """A GPU: of this machine by its number alone, or one on paper by name and memory."""

    index: Annotated[Whole, Field(ge=0)] | None = None
    name: Text = ""
    memory: Bytes | None = None


class NodeEntry(Entry):
    """A node, or `count` nodes that are alike."""

    name: Name | None = None
    kind: Name | None = None
    count: Count | None = None
    address: Address | None = None
    cores: Cores
    memory: Bytes
    nic: Rate | None = None
    disk: Rate | None = None
    gpus: list[Annotated[GpuEntry, BeforeValidator(_gpu)]] = []


class ClusterEntry(Entry):
    """A cluster file."""

    name: Name | None = None
    lab: bool = False
    overlay: Overlay | None = None
    oversubscribe: bool = False
    nodes: Annotated[list[NodeEntry], Field(min_length=1)]


_MODELS: Mapping[str, type[Entry]] = {"": ClusterEntry, "nodes": NodeEntry, "gpus": GpuEntry}
_TEXTS = {"name", "kind", "address"}


def _is_text(place: Place) -> bool:
    return bool(place) and place[-1] in _TEXTS


def schema() -> dict[str, Any]:
    """The JSON schema of a cluster file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **ClusterEntry.model_json_schema(),
        "title": "Headgate cluster file",
    }


def network_of(addresses: Sequence[str]) -> ipaddress.IPv4Network | None:
    """The smallest network from /24 up to /16 that has all these addresses; None where none has."""
    for length in range(24, 15, -1):
        network = ipaddress.IPv4Network(f"{addresses[0]}/{length}", strict=False)
        if all(ipaddress.IPv4Address(address) in network for address in addresses):
            return network
    return None


def read(path: str) -> ClusterFile:
    """The cluster of a file.

    Raises:
        InvalidFileError: With every problem found.
        UsageError: The file cannot be read.
    """
    file = UserFile(path, _is_text)
    entries, wrong = file.well(ClusterEntry, _MODELS, "nodes")
    data = file.data if isinstance(file.data, dict) else {}
    lab = data.get("lab") is True
    _check_lab_keys(file, data, lab)
    drafts = _Nodes(file, lab)
    for i, kept in entries.items():
        entry = NodeEntry.model_validate({"cores": 1, "memory": 1, **kept})  # which stand in for what is not well
        drafts.add(i, entry, {place[2] for place in wrong if place[:2] == ("nodes", i) and len(place) > 2})
    drafts.check()
    name = data.get("name")
    if name is None:
        name = Path(path).stem.lower()
        if not NAME_PATTERN.fullmatch(name):
            file.problem(("name",), f"there is none, and the file's own name {name!r} cannot be one", "add `name: lab`")
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
            file.problem((key,), f"found {data[key]!r} in a file that is no lab", "add `lab: true`, or remove it")


class _Nodes:
    """The nodes of a file on their way to a `Cluster`."""

    def __init__(self, file: UserFile, lab: bool) -> None:
        self._file = file
        self._lab = lab
        self._lines: dict[str, int | None] = {}
        self._holders: dict[str, str] = {}
        self._found: list[tuple[str, NodeEntry, str | None]] = []

    def add(self, index: int, entry: NodeEntry, wrong: set[str | int]) -> None:
        """Take an entry of the file, and note what is wrong with it among the others."""
        place = ("nodes", index)
        base = entry.name or (entry.kind if entry.count is not None else None)
        if base is None and "name" not in wrong:
            self._file.problem((*place, "name"), "it is missing", "add it, or `kind` and `count`")
        for i in range(entry.count or 1):
            name = f"{base}-{i + 1}" if entry.count is not None else base
            if name is not None and "name" not in wrong and "kind" not in wrong:
                self._claim_name(name, place)
            address = str(ipaddress.IPv4Address(entry.address) + i) if entry.address is not None else None
            if address is not None:
                if self._lab and ipaddress.IPv4Address(address).is_loopback:
                    self._file.problem((*place, "address"), f"found {address}", "expected one such as 10.77.0.1")
                self._claim_address(address, name or "", place)
            self._found.append((name or "", entry, address))
        for i, gpu in enumerate(entry.gpus):
            if self._lab and (gpu.index is None or gpu.name or gpu.memory is not None):
                self._file.problem((*place, "gpus", i), "a lab's node has GPUs of this machine", "give its number")
            elif not self._lab and (not gpu.name or gpu.memory is None):
                self._file.problem(
                    (*place, "gpus", i), "it has no name or no memory", "write {name: H200, memory: 141GB}"
                )

    def check(self) -> None:
        """Note what is wrong with the nodes as a whole."""
        if not self._lab:
            return
        if len(self._found) > MOST_NODES:
            self._file.problem(("nodes",), f"found {len(self._found)} nodes", f"expected at most {MOST_NODES}")
            return
        addresses = [node.address for node in self.nodes()]
        network = network_of(addresses) if addresses else NETWORK
        if network is None:
            cure = "choose them within one network such as 10.77.0.0/16"
            self._file.problem(("nodes",), "the addresses are too far apart", cure)
            return
        for address, holder in self._holders.items():
            if ipaddress.IPv4Address(address) in (network[0], network[-1]):
                found = f"the address {address} of {holder!r} stands for the whole network {network}"
                self._file.problem(("nodes",), found, f"choose one from {network[1]} to {network[-2]}")

    def nodes(self) -> tuple[Node, ...]:
        """The nodes; those of a lab that were given no address get the next free one."""
        free = (str(host) for host in NETWORK.hosts() if str(host) not in self._holders)
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
            )
            if address is None and self._lab:
                address = next(free, NETWORK[-1].exploded)
            nodes.append(replace(node, address=address) if address is not None else node)
        return tuple(nodes)

    def _claim_name(self, name: str, place: Place) -> None:
        if name in self._lines:
            found = f"found {name!r}, as on line {self._lines[name]}"
            self._file.problem((*place, "name"), found, "give each node its own")
        elif not NAME_PATTERN.fullmatch(name):
            self._file.problem((*place, "name"), f"{name!r} is too long for a host name", "choose a shorter one")
        self._lines.setdefault(name, self._file.line((*place, "name")))

    def _claim_address(self, address: str, name: str, place: Place) -> None:
        holder = self._holders.setdefault(address, name)
        if holder != name:
            found = f"{address} is that of {holder!r} already"
            self._file.problem((*place, "address"), found, "give each node its own")
