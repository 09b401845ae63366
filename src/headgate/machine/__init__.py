"""The Linux machine: its cgroups, namespaces, disks, NICs, visible GPUs and allocations."""
