"""Names and units of the sampled values: the columns of the store's `usage` table."""

from __future__ import annotations

from typing import Literal, get_args

Column = Literal[
    "cpu_cores",  # mean cores in use
    "cpu_system",  # cores in use by the kernel on behalf of the target
    "cpu_fullest_core",  # of the fullest core, 0 to 1
    "memory_bytes",  # resident, page cache not counted
    "cache_bytes",  # page cache
    # bytes available on a node under the limits that hold for it; page cache counts as available
    "memory_available",
    "disk_read",  # bytes a second
    "disk_write",  # bytes a second
    # bytes a second, physical NICs only (of a task: only in a network namespace of its own)
    "net_in",
    "net_out",  # bytes a second
    "gpu_busy",  # 0 to 1, the mean over its GPUs
    "gpu_memory_bytes",
    "psi_cpu",  # fraction of time in which some task waited for CPU, 0 to 1
    "psi_memory",
    "psi_io",
    # thread-seconds a second in which a thread was ready and had no core, including throttled ones
    "cpu_waiting",
    "cpu_ready",  # part of the time in which its busiest thread ran or waited for a core, 0 to 1
    # 1 if any thread of it ran or waited for a core at the reading, otherwise 0
    "any_ready",
    "main_ready",  # the same of the processes that train: not of its loader's workers
    # cores that children of its main process, such as loader workers, ran on or waited for
    "helper_cores",
    "cpu_throttled",  # core-seconds a second that its own cap held back
    "cpu_stolen",  # cores that the hypervisor kept from a node
    "disk_waiting",  # thread-seconds a second that were spent blocked on a disk
    "major_faults",  # pages a second that had to be read before the task went on
    # pages of files a second that had been dropped from the page cache and were read again
    "refaults",
    # retransmitted TCP segments a second (of a task: only in a network namespace of its own)
    "net_retransmits",
    # bytes a second received by a task's connections from other addresses, without headers
    "tcp_in",
    "tcp_out",  # bytes a second that they took
    "cpu_cycles",  # a second, where the machine has hardware counters
    "cpu_instructions",  # retired, a second; likewise
    # bytes a second between the last cache and memory, if the machine has resctrl
    "memory_bandwidth",
    "cache_occupancy",  # bytes of the last cache; likewise
]
COLUMNS: tuple[Column, ...] = get_args(Column)
