"""The description of a run in its store: when, where and with what it ran."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from headgate.recorded.reader import RunReader
from headgate.recorded.rows import as_object, loads
from headgate.sampling.outside_programs import PROGRAMS, OutsideProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDescription:
    """A node as the run found it; None: unknown.

    Args:
        gpus: Names of its GPUs.
        gpu_bytes: Memory of each GPU, by number, as far as known.
        cpu_model: Its CPU model; empty: unknown.
    """

    name: str
    cores: float | None = None
    memory_bytes: float | None = None
    nic_bytes_per_second: float | None = None
    disk_bytes_per_second: float | None = None
    gpus: tuple[str, ...] | None = None
    gpu_bytes: Mapping[int, float] = field(default_factory=dict)
    cpu_model: str = ""
    core_gflops: float | None = None
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDescription:
    """A run as a whole; empty or None: not recorded, or damaged.

    Args:
        state: `running` or `done`, regardless of its jobs.
        mode: The purpose of the run, such as `run` or `profile`.
        headgate: The version that recorded it.
        began: Seconds since the epoch.
        ended: Seconds since it began.
        clock: The boot id, and seconds since that boot at the start.
        git_commit: Commit of its working folder; `+` and the changed files follow.
        only: The nodes chosen by its user.
        from_scratch: Jobs that ignored their checkpoints and started over.
        has_input: Whether it was given standard input.
        controller: Identifies the controller of its events.
        packages: Installed packages, by interpreter.
        programs: The programs outside Headgate that used most meanwhile.
    """

    id: str = ""
    state: str = "running"
    mode: str = ""
    policy: str = ""
    headgate: str = ""
    command: str = ""
    cwd: str = ""
    host: str = ""
    label: str = ""
    seed: str = ""
    git_commit: str = ""
    began: float | None = None
    ended: float | None = None
    clock: str = ""
    cluster: str = ""
    engine: str = ""
    address: str = ""
    shared_files: bool = False
    only: tuple[str, ...] = ()
    resumed_from: str = ""
    from_scratch: tuple[str, ...] = ()
    has_input: bool = False
    controller: str = ""
    nodes: tuple[NodeDescription, ...] = ()
    packages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    programs: tuple[OutsideProgram, ...] = ()

    @classmethod
    def read(cls, reader: RunReader) -> RunDescription:
        """Read the description from an open store."""
        meta = reader.meta()
        return cls(
            **{name: meta.get(name, "") for name in _TEXTS},
            state=meta.get("state", "running"),
            began=_number(meta.get("began")),
            ended=_number(meta.get("ended")),
            shared_files=meta.get("shared_files") == "1",
            only=_names(meta.get("only")),
            from_scratch=_names(meta.get("from_scratch")),
            has_input=bool(meta.get("stdin")),
            nodes=tuple(_nodes(meta.get("node"))),
            packages=_packages(meta.get("packages")),
            programs=_programs(meta.get(PROGRAMS)),
        )


_TEXTS = (
    *("id", "mode", "policy", "headgate", "command", "cwd", "host", "label", "seed"),
    *("git_commit", "clock", "cluster", "engine", "address", "resumed_from", "controller"),
)


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(filter(None, (text or "").split(",")))


def _nodes(text: str | None) -> list[NodeDescription]:
    described = loads(text)
    nodes = described if isinstance(described, list) else [described]
    return [_node(node) for node in nodes if isinstance(node, dict) and "name" in node]


def _node(node: Mapping[str, Any]) -> NodeDescription:
    gpus = node.get("gpus")
    return NodeDescription(
        name=node["name"],
        cores=node.get("cores"),
        memory_bytes=node.get("memory_bytes"),
        nic_bytes_per_second=node.get("nic_bytes_per_second"),
        disk_bytes_per_second=node.get("disk_bytes_per_second"),
        gpus=None if gpus is None else tuple(str(gpu.get("name", "")) for gpu in gpus),
        gpu_bytes={
            gpu["index"]: float(gpu["memory_bytes"])
            for gpu in gpus or ()
            if "index" in gpu and gpu.get("memory_bytes")
        },
        cpu_model=str(node.get("cpu_model") or ""),
        core_gflops=node.get("core_gflops"),
        address=str(node.get("address") or ""),
    )


def _packages(text: str | None) -> dict[str, tuple[str, ...]]:
    """Installed packages by interpreter; an earlier version has one list without an interpreter."""
    recorded = loads(text)
    lists = {"": recorded} if isinstance(recorded, list) else as_object(text)
    return {
        interpreter: tuple(map(str, names))
        for interpreter, names in lists.items()
        if isinstance(names, list) and names
    }


def _programs(text: str | None) -> tuple[OutsideProgram, ...]:
    recorded = loads(text)
    with suppress(TypeError):  # of another version
        if isinstance(recorded, list):
            return tuple(OutsideProgram(**fields) for fields in recorded)
    return ()
