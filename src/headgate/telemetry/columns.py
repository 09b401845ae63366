"""Names and units of what is sampled; the columns of the store's `usage` table."""

from __future__ import annotations

from typing import Literal, get_args

Column = Literal[
    "cpu_cores",  # mean cores in use
    "cpu_fullest_core",  # of the fullest core, 0 to 1
    "memory_bytes",  # resident, page cache not counted
    "cache_bytes",  # page cache
    "disk_read",  # bytes a second
    "disk_write",  # bytes a second
    "net_in",  # bytes a second, physical NICs only (of a task: only in a network namespace of its own)
    "net_out",  # bytes a second
    "gpu_busy",  # 0 to 1, the mean over its GPUs
    "gpu_memory_bytes",
    "psi_cpu",  # fraction of time in which some task waited for CPU, 0 to 1
    "psi_memory",
    "psi_io",
]
COLUMNS: tuple[Column, ...] = get_args(Column)
