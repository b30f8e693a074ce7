"""slicemgr: slices of KVM virtual machines and LXC containers on a testbed node, in seconds."""

__version__ = "0.1.0"
