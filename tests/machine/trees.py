"""The files that other machines show of themselves, cut down to what is read; planted under a
folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

Tree = Mapping[str, str]

ROUTES = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"


def plant(root: Path, *trees: Tree) -> Path:
    """Write files; content that starts with `->` makes a symbolic link, an empty name at the end of
    a path a folder.
    """
    for tree in trees:
        for name, content in tree.items():
            path = root / name
            if name.endswith("/"):
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if content.startswith("->"):
                path.symlink_to(root / content[2:])
            else:
                path.write_text(content)
    return root


def net_dev(counters: Mapping[str, tuple[int, int]]) -> str:
    """/proc/net/dev with bytes in and out by interface."""
    rows = [
        f"{name:>6}: {got} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n"
        for name, (got, sent) in counters.items()
    ]
    return (
        "Inter-|   Receive  |  Transmit\n face |bytes packets errs|bytes packets errs\n"
        + "".join(rows)
    )


def route(interface: str, metric: int = 0) -> str:
    """A default route in /proc/net/route."""
    return f"{interface}\t00000000\t0101A8C0\t0003\t0\t0\t{metric}\t00000000\t0\t0\t0\n"


def nic(name: str, *, physical: bool = True, speed: str = "", master: str = "") -> Tree:
    """A folder of /sys/class/net."""
    folder = f"sys/class/net/{name}"
    tree = {f"{folder}/operstate": "up\n"}
    if speed:
        tree[f"{folder}/speed"] = f"{speed}\n"
    if physical:
        tree[f"{folder}/device/vendor"] = "0x8086\n"
    if master:
        tree[f"{folder}/master"] = f"->sys/class/net/{master}"
    return tree


def disk(
    name: str, number: str, gib: int, *, rotational: bool = False, on: tuple[str, ...] = ()
) -> Tree:
    """A folder of /sys/block."""
    folder = f"sys/block/{name}"
    tree = {
        f"{folder}/dev": f"{number}\n",
        f"{folder}/size": f"{gib << 21}\n",
        f"{folder}/queue/rotational": f"{int(rotational)}\n",
        f"{folder}/slaves/": "",
    }
    return tree | {f"{folder}/slaves/{below}/dev": "\n" for below in on}


def _numa_server() -> Tree:
    """Two sockets of 8 cores with two threads each (siblings are n and n + 16); a third NUMA node
    has memory only.
    """
    tree = {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Xeon Gold 9999\n",
        "proc/meminfo": "MemTotal:       263913132 kB\nMemFree: 1000 kB\n",
        "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-31\n",
        "proc/self/cgroup": "0::/user.slice/session-1.scope\n",
        "proc/self/mountinfo": (
            "30 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
        ),
        "sys/fs/cgroup/user.slice/session-1.scope/cpu.max": "max 100000\n",
        "sys/fs/cgroup/user.slice/session-1.scope/memory.max": "max\n",
        "sys/fs/cgroup/user.slice/memory.max": "max\n",
        "sys/devices/system/cpu/online": "0-31\n",
        "sys/devices/system/node/node0/cpulist": "0-7,16-23\n",
        "sys/devices/system/node/node1/cpulist": "8-15,24-31\n",
        "sys/devices/system/node/node2/cpulist": "\n",
    }
    for cpu in range(32):
        siblings = f"{cpu % 16},{cpu % 16 + 16}\n"
        tree[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = siblings
    return tree


NUMA_SERVER = _numa_server()

BONDED_NICS: Tree = {
    "sys/class/net/bonding_masters": "bond0\n",
    **nic("lo", physical=False),
    **nic("bond0", physical=False, speed="20000", master="br0"),
    **nic("eno1", speed="10000", master="bond0"),
    **nic("eno2", speed="10000", master="bond0"),
    **nic("br0", physical=False, speed="20000"),
    **nic("br0.7", physical=False, speed="20000"),
    **nic("veth12", physical=False, speed="10000", master="br0"),
    "proc/self/net/route": ROUTES + route("br0.7", 20) + route("br0", 10),
}
"""Two NICs in a bond, the bond in a bridge, a VLAN on the bridge, and a container's veth in it."""

CONTAINER_V2: Tree = {
    "proc/cpuinfo": "processor\t: 0\nBogoMIPS\t: 50.00\nCPU part\t: 0xd0c\n",
    "proc/meminfo": "MemTotal:       16000000 kB\n",
    "proc/self/status": "Cpus_allowed_list:\t0-3\n",
    "proc/self/cgroup": "0::/\n",
    "proc/self/mountinfo": "612 600 0:27 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n",
    "sys/fs/cgroup/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/memory.max": "2147483648\n",
    **nic("lo", physical=False),
    **nic("eth0", physical=False, speed="10000"),
    **nic("tunl0", physical=False),
    "proc/self/net/route": ROUTES + route("eth0"),
}
"""A container with 1.5 cores and 2 GiB on an ARM machine without topology files; its NIC is one end
of a veth pair.
"""

DOCKER_V1: Tree = {
    "proc/meminfo": "MemTotal:       16000000 kB\n",
    "proc/self/status": "Cpus_allowed_list:\t1,3\n",
    "proc/self/cgroup": (
        "5:memory:/docker/ab\n3:cpu,cpuacct:/docker/ab\n1:name=systemd:/docker/ab\n"
    ),
    "proc/self/mountinfo": (
        "40 39 0:33 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
        "41 39 0:34 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
        "42 39 0:35 / /proc rw - proc proc rw\n"
    ),
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
}
"""A container under cgroup v1, without a cgroup namespace: it sees its own folder as the mount's
root.
"""

STACKED_DISKS: Tree = {
    **disk("sda", "8:0", 1000, rotational=True),
    **disk("nvme0n1", "259:0", 500),
    **disk("nvme0c0n1", "259:7", 500),
    "sys/block/nvme0c0n1/hidden": "1\n",
    **disk("md0", "9:0", 1500, on=("sda1", "nvme0n1p1")),
    **disk("dm-0", "253:0", 1500, on=("md0",)),
    **disk("loop0", "7:0", 1),
    **disk("zram0", "252:0", 4),
    **disk("sr0", "11:0", 1),
    **disk("sdb", "8:16", 0),
}
"""A hard disk and an NVMe in a RAID with a volume on it, one path of a multipath NVMe, and what is
no disk.
"""
