"""The records of labs: a folder for each, `$HEADGATE_HOME/labs/LAB`.

It holds the cluster file as given (`lab.yaml`), the state of the lab (`state.json`), and the nodes'
`/etc/hosts`. Each change is recorded before it is made. So a command after one that was killed
knows what to repair.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from headgate.lab.names import Names, labs_found, path
from headgate.machine.processes import boot_id
from headgate.model import records
from headgate.model.cluster import Node, Place
from headgate.model.errors import NotFoundError, StorageError, UsageError, writing_cure
from headgate.model.paths import write_whole
from headgate.recorded import runs

Stage = Literal["making", "setting", "ready"]


@dataclass(frozen=True, slots=True)
class Made:
    """A node of a lab.

    Args:
        node: The intended node, without a place.
        stage: `making`: its state is unknown. `setting`: it exists, but its limits may differ.
        plugged: Whether its NIC is connected.
        cpus: The CPUs of this machine that it may use; empty: all.
    """

    node: Node
    stage: Stage = "making"
    plugged: bool = True
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """A lab.

    Args:
        name: Its name.
        boot: The boot in which it was made, which it does not outlive.
        network: The network of its addresses, for example `10.77.0.0/24`.
        overlay: As `ClusterFile.overlay`.
        oversubscribe: As `ClusterFile.oversubscribe`.
        mode: Version of the cgroups.
        bases: Parent folder of its own cgroup, by controller.
        complete: Whether the switch exists; False: unknown.
        nodes: Its nodes, by name.
    """

    name: str
    boot: str
    network: str
    overlay: str | None
    oversubscribe: bool
    mode: Literal["v1", "v2"]
    bases: Mapping[str, str]
    complete: bool = False
    nodes: Mapping[str, Made] = field(default_factory=dict)

    @property
    def names(self) -> Names:
        return Names(self.name, runs.home())

    @property
    def hosts(self) -> Path:
        return folder(self.name) / "hosts"

    def with_nodes(self, changed: Mapping[str, Made]) -> Record:
        """This lab with some nodes added or changed."""
        return replace(self, nodes={**self.nodes, **changed})

    def cgroups(self, node: str) -> dict[str, Path]:
        """Folder of a node's cgroup by controller."""
        return {
            controller: Path(base) / self.names.group / node
            for controller, base in self.bases.items()
        }

    def place(self, node: str) -> Place:
        """The place where the tasks of a node run."""
        return Place(
            namespace=str(path(self.names.namespace(node))),
            hostname=node,
            hosts=str(self.hosts),
            cgroups={controller: str(folder) for controller, folder in self.cgroups(node).items()},
            cpus=self.nodes[node].cpus if node in self.nodes else (),
        )


def folder(lab: str) -> Path:
    """The folder of a lab."""
    return _labs() / lab


def names() -> list[str]:
    """The labs of this home, including incomplete ones."""
    return sorted(entry.parent.name for entry in _labs().glob("*/state.json"))


def left_behind() -> list[str]:
    """Labs of this home that exist without their folder, because somebody deleted it."""
    return [lab for lab in labs_found(runs.home()) if lab not in names()]


def none_up() -> str:
    """The message that no lab is up."""
    if left := left_behind():
        return (
            f"no lab is up, but nodes of {', '.join(left)} are left; remove them with: "
            f"headgate lab down {left[0]}"
        )
    return "no lab is up; make one with: headgate lab up lab.yaml"


def read(lab: str) -> Record | None:
    """The record of a lab. None if there is none since this machine was started.

    Raises:
        StorageError: The record cannot be read.
    """
    file = folder(lab) / "state.json"
    try:
        record = records.read(Record, file.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StorageError(
            f"{file} cannot be read ({error}); take the lab down: headgate lab down {lab}"
        ) from error
    return record if record.boot == boot_id() else None


def write(record: Record) -> None:
    """Write the record of a lab atomically."""
    place = folder(record.name)
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        write_whole(place / "state.json", records.text_of(record))
    except OSError as error:
        raise StorageError(
            f"cannot write {place}: {error.strerror}; {writing_cure(error)}"
        ) from error


def write_file(lab: str, text: str) -> None:
    """Save the cluster file as given."""
    (folder(lab) / "lab.yaml").write_text(text)


def write_hosts(record: Record) -> None:
    """Write the hosts file in place, because it is mounted for the nodes' processes.

    Sockets for IPv6 and IPv4 have IPv6 addresses (`::ffff:10.77.0.1`). Without a name for these,
    each reverse lookup, as torch.distributed does for each connection, would wait six seconds for a
    name server. They have separate names, so that a lookup of a node's name never returns them.
    """
    lines = ["127.0.0.1 localhost", "::1 ip6-localhost", "::ffff:127.0.0.1 ip6-localhost"]
    for name, made in record.nodes.items():
        lines += [f"{made.node.address} {name}", f"::ffff:{made.node.address} {name}.{record.name}"]
    text = "\n".join(lines) + "\n"
    if not record.hosts.exists() or record.hosts.read_text() != text:
        record.hosts.write_text(text)
        record.hosts.chmod(0o644)


def remove(lab: str) -> None:
    """Delete the record of a lab."""
    try:
        shutil.rmtree(folder(lab))
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(
            f"cannot delete {folder(lab)}: {error.strerror}; delete it by hand"
        ) from error


@contextmanager
def locked() -> Iterator[None]:
    """Let only one command of this home change labs at a time. Others wait."""
    fd = os.open(_labs(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def choose(lab: str | None, also: Iterable[str] = ()) -> str:
    """The lab of that name, by default the only one.

    Args:
        also: Further labs that may be meant, besides those of `names`.

    Raises:
        NotFoundError: The lab does not exist.
        UsageError: No name is given, and there are several labs.
    """
    known = sorted({*names(), *also})
    if lab is not None and lab not in known:
        raise NotFoundError(f"no lab {lab!r} is up; {_listed(known)}")
    if lab is None and len(known) != 1:
        if not known:
            raise NotFoundError(none_up())
        raise UsageError(f"expected the name of a lab; {_listed(known)}")
    return lab if lab is not None else known[0]


def choose_node(text: str) -> tuple[Record, str]:
    """The lab and the node of `NODE` or `LAB/NODE`.

    Raises:
        NotFoundError: The node does not exist.
        UsageError: Several labs have a node of that name.
    """
    lab, _, node = text.rpartition("/")
    records = [
        record for name in ([choose(lab)] if lab else names()) if (record := read(name)) is not None
    ]
    records_with_node = [record for record in records if node in record.nodes]
    if len(records_with_node) > 1:
        several = ", ".join(f"{record.name}/{node}" for record in records_with_node)
        raise UsageError(f"{node!r} could be any of {several}; give its lab too")
    if not records_with_node:
        known = [name for record in records for name in record.nodes]
        raise NotFoundError(
            f"no node {node!r} in any lab; "
            + (f"there are {', '.join(known)}" if known else _listed([]))
        )
    if records_with_node[0].nodes[node].stage == "making":
        raise NotFoundError(
            f"making node {node!r} was interrupted; make it again: headgate lab up FILE"
        )
    return records_with_node[0], node


def _listed(known: list[str]) -> str:
    return (
        f"these are up: {', '.join(known)}" if known else "make one with: headgate lab up lab.yaml"
    )


def _labs() -> Path:
    place = runs.home() / "labs"
    try:
        place.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot make {place}: {error.strerror}; set HEADGATE_HOME to a folder you can write"
        ) from error
    return place
