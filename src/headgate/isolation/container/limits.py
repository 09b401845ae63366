"""Translates a share into settings of Docker Engine, for a new container and for changes while it
runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headgate.machine.cgroups import cap_microseconds
from headgate.model.shares import WEIGHT_DEFAULT, Share, Unlimited

SHARES_DEFAULT, SHARES_LEAST, SHARES_MOST = 1024, 2, 262_144
_LOGARITHMIC = {"runc": (1, 3, 2), "crun": (1, 23)}
"""The first versions of runtimes whose v2 weights are logarithmic in CPU shares
(https://github.com/opencontainers/runc/issues/4896, https://github.com/containers/crun/pull/1767).
"""
NO_LIMIT_BYTES = 1 << 62
"""Lifts a limit: more than any machine has. Docker takes 0 for no change, and rejects negative
numbers.
"""

_UPDATE_NAMES = {
    "CpuShares": "cpu_shares",
    "CpuPeriod": "cpu_period",
    "CpuQuota": "cpu_quota",
    "Memory": "mem_limit",
    "MemorySwap": "memswap_limit",
}


@dataclass(frozen=True, slots=True)
class DockerHost:
    """The basis of a container's limits.

    Args:
        version: Version of the cgroups: `v1` or `v2`.
        most_cores: A cap at or above this is left out, because v1 refuses more than a surrounding
            folder allows.
        linear: Whether the runtime's v2 weights are proportional to CPU shares (`are_linear`).
    """

    version: str
    most_cores: float
    linear: bool = False


def are_linear(components: Mapping[str, str]) -> bool:
    """Whether v2 weights are proportional to CPU shares, by the versions of Docker's components.
    Unknown runtimes count as new.
    """
    for name, since in _LOGARITHMIC.items():
        if match := re.match(r"v?(\d+(?:\.\d+)*)", components.get(name, "")):
            return tuple(map(int, match[1].split("."))) < since
    return False


def settings(share: Share, machine: DockerHost) -> dict[str, int]:
    """The fields of a container's `HostConfig` for a share. Fields that Docker does not have are
    left out.

    Swap counts towards the memory limit. Otherwise a task over its limit would be swapped out, not
    ended.
    """
    options: dict[str, int] = {}
    if share.cpu_weight is not None:
        options["CpuShares"] = _shares(share.cpu_weight, machine)
    match share.cpu_cap_cores:
        case None:
            pass
        case Unlimited():
            options["CpuQuota"] = -1
        case cores if cores >= machine.most_cores:
            options["CpuQuota"] = -1
        case cores:
            options["CpuQuota"], options["CpuPeriod"] = cap_microseconds(cores)
    match share.memory_bytes:
        case None:
            pass
        case Unlimited():
            options |= {"Memory": NO_LIMIT_BYTES, "MemorySwap": NO_LIMIT_BYTES}
        case count:
            options |= {"Memory": int(count), "MemorySwap": int(count)}
    return options


def at_first(share: Share, machine: DockerHost) -> dict[str, int]:
    """As `settings`, for a new container, whose unset limits need not be lifted."""
    lifted = {
        name: None
        for name in ("cpu_cap_cores", "memory_bytes")
        if isinstance(getattr(share, name), Unlimited)
    }
    options = settings(replace(share, **lifted), machine)
    return {name: value for name, value in options.items() if value > 0}


def changes(share: Share, machine: DockerHost) -> dict[str, int]:
    """As `settings`, with the names of the SDK's `update_container`."""
    return {_UPDATE_NAMES[name]: value for name, value in settings(share, machine).items()}


def parts(share: Share) -> list[Share]:
    """The fields of a share that Docker can change, one share for each."""
    fields = ("cpu_weight", "cpu_cap_cores", "memory_bytes")
    return [
        Share(**{name: value}) for name in fields if (value := getattr(share, name)) is not None
    ]


def disk_rates(rates: Mapping[str, float]) -> dict[str, list[dict[str, object]]]:
    """The fields of a `HostConfig` that limit disk rates.

    Args:
        rates: Bytes per second by device number, `major:minor`.
    """
    devices = [
        {"Path": path, "Rate": max(1, round(rate))}
        for disk, rate in rates.items()
        if (path := _device(disk))
    ]
    return {"BlkioDeviceReadBps": devices, "BlkioDeviceWriteBps": devices} if devices else {}


def _device(disk: str) -> str | None:
    """Path of a disk in /dev, by its number."""
    try:
        lines = Path(f"/sys/dev/block/{disk}/uevent").read_text().splitlines()
    except OSError:
        return None
    names = [line.removeprefix("DEVNAME=") for line in lines if line.startswith("DEVNAME=")]
    return f"/dev/{names[0]}" if names else None


def _shares(weight: float, machine: DockerHost) -> int:
    """CPU shares of a weight.

    Under v2 the runtime makes a whole weight w of s shares again. Either w = 1 + (s - 2) * 9999 /
    262142, rounded down. Or log10(w) = (l^2 + 125 l) / 612 - 7/34 with l = log2(s), rounded up
    (https://github.com/opencontainers/cgroups/pull/20).
    """
    if machine.version == "v1":
        return max(SHARES_LEAST, round(weight / WEIGHT_DEFAULT * SHARES_DEFAULT))
    if machine.linear:
        return SHARES_LEAST + round((weight - 1) * (SHARES_MOST - SHARES_LEAST) / 9999)
    # l^2 + 125 l, in the middle of a weight
    square = 612 * (math.log10(max(round(weight) - 0.5, 1.0)) + 7 / 34)
    return min(round(math.exp2((math.sqrt(125**2 + 4 * square) - 125) / 2)), SHARES_MOST)
