"""The system calls that an importer of disk images may not use, as a BPF program for seccomp. Pure; x86-64 only.

Denied are groups of calls that no reader of files needs and in which kernels had vulnerabilities: mounts, other
namespaces, tracing, keys, BPF, performance counters, io_uring, userfaultfd, modules, kexec, file handles, and sockets
other than unix sockets. Calls newer than this table fail with ENOSYS. A 32-bit call kills the process. Numbers:
arch/x86/entry/syscalls/syscall_64.tbl of Linux.
"""

from __future__ import annotations

import errno
import socket
import struct

REFUSED = {
    "ptrace": 101,
    "syslog": 103,
    "uselib": 134,
    "vhangup": 153,
    "modify_ldt": 154,
    "pivot_root": 155,
    "_sysctl": 156,
    "adjtimex": 159,
    "chroot": 161,
    "acct": 163,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "create_module": 174,
    "init_module": 175,
    "delete_module": 176,
    "get_kernel_syms": 177,
    "query_module": 178,
    "quotactl": 179,
    "nfsservctl": 180,
    "lookup_dcookie": 212,
    "clock_settime": 227,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "migrate_pages": 256,
    "unshare": 272,
    "move_pages": 279,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "clock_adjtime": 305,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
}
_SOCKETS = {"socket": 41, "socketpair": 53}
_CLONE, _CLONE3 = 56, 435
_FIRST_UNKNOWN = 451
_NAMESPACES = 0x7E02_0000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET

# linux/bpf_common.h, linux/seccomp.h, linux/audit.h; offsets of struct seccomp_data
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF_0000, 0x0005_0000, 0x8000_0000
_X86_64 = 0xC000_003E
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
_INSTRUCTION = struct.Struct("=HBBI")


def program() -> bytes:
    """The instructions in the format of `bwrap --seccomp`: a sequence of struct sock_filter."""
    words = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, _X86_64), _end(_KILL), (_LOAD, 0, 0, _NUMBER)]
    words += _when(_AT_LEAST, _FIRST_UNKNOWN, _ERRNO | errno.ENOSYS)
    words += _when(_EQUAL, _CLONE3, _ERRNO | errno.ENOSYS)  # its flags are in memory; libraries then use clone
    for number in REFUSED.values():
        words += _when(_EQUAL, number, _ERRNO | errno.EPERM)
    for number in _SOCKETS.values():
        own = [(_LOAD, 0, 0, _FIRST_ARGUMENT), *_when(_EQUAL, socket.AF_UNIX, _ALLOW)]
        words += [(_EQUAL, 0, 4, number), *own, _end(_ERRNO | errno.EAFNOSUPPORT)]
    other = _when(_ANY_BIT, _NAMESPACES, _ERRNO | errno.EPERM)
    words += [(_EQUAL, 0, 3, _CLONE), (_LOAD, 0, 0, _FIRST_ARGUMENT), *other]
    return b"".join(_INSTRUCTION.pack(*word) for word in [*words, _end(_ALLOW)])


def _when(test: int, value: int, verdict: int) -> list[tuple[int, int, int, int]]:
    return [(test, 0, 1, value), _end(verdict)]


def _end(verdict: int) -> tuple[int, int, int, int]:
    return _RETURN, 0, 0, verdict
