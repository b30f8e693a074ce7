"""Interfaces of the kernel that no library offers: cgroups, BPF, packet sockets, openat2, counters."""
