"""Interfaces to the host: programs, libvirt, storage, the network, the kernel and the content of guests."""
