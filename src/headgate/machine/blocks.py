"""Finds block devices that are whole disks, so that no byte is counted twice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headgate.machine.files import content

_NOT_DISKS = ("loop", "ram", "zram", "fd", "sr")
_SECTOR = 512  # of /sys/block/X/size, whatever the disk's own sector is


@dataclass(frozen=True, slots=True)
class WholeDisk:
    """A disk that is neither part of another nor built on others. `number` is its MAJOR:MINOR."""

    name: str
    number: str
    bytes: int
    rotational: bool | None


def whole_disks(root: Path = Path("/")) -> tuple[WholeDisk, ...]:
    """The whole disks of /sys/block.

    It leaves out RAID and device-mapper volumes, whose bytes the disks below them count. It also
    leaves out loop and memory devices, and the hidden paths of a multipath NVMe disk.
    """
    disks = []
    for folder in _entries(root / "sys/block"):
        if (
            folder.name.startswith(_NOT_DISKS)
            or _entries(folder / "slaves")
            or content(folder / "hidden") == "1"
        ):
            continue
        sectors = content(folder / "size")
        if not sectors.isdigit() or sectors == "0":
            continue
        spins = content(folder / "queue/rotational")
        disks.append(
            WholeDisk(
                name=folder.name,
                number=content(folder / "dev"),
                bytes=int(sectors) * _SECTOR,
                rotational=spins == "1" if spins else None,
            )
        )
    return tuple(disks)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
