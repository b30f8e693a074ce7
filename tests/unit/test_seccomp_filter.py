"""The filter of the importers, evaluated as the kernel does: the action for each system call."""

from __future__ import annotations

import errno
import socket
import struct

import pytest

from slicemgr.drivers.importer import seccomp_filter

X86_64, I386, X32_BIT = 0xC000003E, 0x40000003, 0x40000000
ALLOW, KILL = 0x7FFF0000, 0x80000000
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06


def verdict(number: int, first: int = 0, arch: int = X86_64) -> int:
    """Interprets the program: classic BPF over struct seccomp_data."""
    data = struct.pack("=iIQ6Q", number, arch, 0, first & 0xFFFFFFFFFFFFFFFF, 0, 0, 0, 0, 0)
    words = list(struct.iter_unpack("=HBBI", seccomp_filter.program()))
    place, held = 0, 0
    while True:
        code, yes, no, value = words[place]
        place += 1
        if code == RETURN:
            return int(value)
        if code == LOAD:
            held = struct.unpack_from("=I", data, value)[0]
        else:
            met = {EQUAL: held == value, AT_LEAST: held >= value, ANY_BIT: bool(held & value)}[code]
            place += yes if met else no


def refused(number: int, with_errno: int, first: int = 0) -> bool:
    return verdict(number, first) == 0x50000 | with_errno


@pytest.mark.parametrize("name", sorted(seccomp_filter.REFUSED))
def test_the_named_calls_are_refused(name: str) -> None:
    assert refused(seccomp_filter.REFUSED[name], errno.EPERM)


@pytest.mark.parametrize("number", [0, 1, 2, 9, 16, 57, 58, 59, 60, 61, 117, 157, 202, 257, 302, 322])
def test_what_programs_need_is_allowed(number: int) -> None:
    """read, write, open, mmap, ioctl, fork, vfork, execve, exit, wait4, setresuid, prctl, futex, openat, prlimit64."""
    assert verdict(number) == ALLOW


@pytest.mark.parametrize("call", [41, 53])
def test_only_unix_sockets(call: int) -> None:
    assert verdict(call, socket.AF_UNIX) == ALLOW
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET, socket.AF_VSOCK, 38, 44, 0):
        assert refused(call, errno.EAFNOSUPPORT, family)
    assert verdict(call, socket.AF_UNIX | 1 << 32) == ALLOW, "the kernel takes an int"


@pytest.mark.parametrize("flag", [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000])
def test_no_new_namespaces(flag: int) -> None:
    threads = 0x3D0F00
    assert verdict(56, threads) == ALLOW
    assert refused(56, errno.EPERM, threads | flag)
    assert refused(435, errno.ENOSYS), "clone3 has its flags in memory"


@pytest.mark.parametrize("number", [451, 467, 1000, X32_BIT, X32_BIT | 1, 0xFFFFFFFF - (1 << 32)])
def test_unknown_calls_do_not_exist(number: int) -> None:
    assert refused(number, errno.ENOSYS)


def test_calls_of_another_architecture_end_it() -> None:
    assert verdict(0, arch=I386) == KILL
