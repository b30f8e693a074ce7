"""System calls and sockets inside an lxc sliver, in each ABI, compared with controls with a weakened filter."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator
from pathlib import Path

import demo
import pytest
from tiny_sliver import Slivers, eventually, make_root, parse_lines, processes_named, tiny_node

from slicemgr.drivers.kernel import cgroup
from slicemgr.drivers.libvirt.host import Host

LAST = 1024  # of the numbers that are tried
OPEN_TREE_ATTR = 467
# The reviewed calls, by ABI, ascending; all other numbers must not exist: tools/launcher/abi_filter.c.
REVIEWED = {
    "x86_64": [*range(335), *range(424, 457), *range(462, 467)],
    "i386": [
        *(number for number in range(387) if number not in (222, 223, 251, 285)),
        *(number for number in range(393, 457) if number != 415),
        *range(462, 467),
    ],
    "x32": [],
}
TRAMPOLINES = {"x86_64": {335, 336}}  # uretprobe, uprobe: newer kernels bypass the filter and kill other callers
# Numbers from the kernel's tables (arch/x86/entry/syscalls), written down apart from the names in filter.c.
DENIED = {  # EPERM
    "x86_64": {
        134, 136, 139, 156, 163, 164, 167, 168, 169, 172, 173, 174, 175, 176, 177, 178, 179, 180, 212, 227, 246, 248,
        249, 250, 256, 279, 298, 300, 304, 305, 308, 312, 313, 320, 323, 425, 426, 427, 443,
    },
    "i386": {
        25, 51, 62, 79, 86, 87, 88, 101, 103, 110, 113, 115, 127, 128, 129, 130, 131, 135, 149, 166, 167, 169, 253, 264,
        283, 286, 287, 288, 294, 317, 336, 338, 342, 343, 346, 349, 350, 374, 404, 405, 425, 426, 427, 443,
    },
}  # fmt: skip
ABSENT = {  # ENOSYS: the mount calls, and calls that only libvirt_lxc may use at its start
    "x86_64": {155, 165, 166, 170, 171, 321, 428, 429, 430, 431, 432, 433, 442},
    "i386": {21, 22, 52, 74, 121, 217, 357, 428, 429, 430, 431, 432, 433, 442},
}


@pytest.fixture(scope="module")
def slivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slivers]:
    with tiny_node(tmp_path_factory.mktemp("calls"), f"calls-{demo.CLONE}", "probe_calls", "probe_sockets32") as made:
        yield made


@pytest.fixture(autouse=True)
def _tidy(slivers: Slivers) -> Iterator[None]:
    yield
    slivers.end()


def answers(slivers: Slivers, probe: str, place: Host | None = None, arch: str = "x86_64") -> dict[str, str]:
    """The results of the probe as root of a sliver."""
    sliver = slivers.new(arch)
    root = slivers.root(sliver)
    rc = "/bin/probe > /root/found; touch /root/done; sleep 1000"
    make_root(root, rc=rc, files={"bin/probe": slivers.config.node.pool.parent / probe})
    slivers.start(sliver, place)
    eventually((root / "root" / "done").exists, 180)
    return parse_lines((root / "root" / "found").read_text())


def test_only_reviewed_calls_exist_in_each_abi_and_the_denied_ones_are_refused(slivers: Slivers) -> None:
    found = answers(slivers, "probe_calls")
    assert len(found) == 3 * (LAST + 1)
    for abi, reviewed in REVIEWED.items():
        unknown = set(range(LAST + 1)) - set(reviewed) - TRAMPOLINES.get(abi, set())
        assert {number: found[f"{abi}:{number}"] for number in unknown} == dict.fromkeys(unknown, "ENOSYS")
        for expected, numbers in (("EPERM", DENIED), ("ENOSYS", ABSENT)):
            refused = numbers.get(abi, set())
            assert {number: found[f"{abi}:{number}"] for number in refused} == dict.fromkeys(refused, expected)
    # Calls that programs of a tenant need: read, clone, openat, statx, clone3.
    for call in ("x86_64:0", "x86_64:56", "x86_64:257", "x86_64:332", "x86_64:435", "i386:3", "i386:383"):
        assert found[call] not in ("ENOSYS", "EPERM")


def test_without_the_filter_by_numbers_new_calls_are_open(slivers: Slivers, tmp_path: Path) -> None:
    found = answers(slivers, "probe_calls", slivers.weakened(tmp_path, "    filter_numbers(&launch);\n"))
    open_calls = {call for call, answer in found.items() if answer != "ENOSYS"}
    new = {f"{abi}:{number}" for abi in ("x86_64", "i386") for number in range(457, LAST)}
    assert open_calls & new, "the kernel of this machine has no call that libseccomp does not know"
    if _kernel_has(OPEN_TREE_ATTR):
        assert {f"x86_64:{OPEN_TREE_ATTR}", f"i386:{OPEN_TREE_ATTR}"} <= open_calls


REFUSED = dict.fromkeys(["vsock", "xdp", "alg", "rds"], "EAFNOSUPPORT")
# What a 32-bit program finds through socketcall(2) in a 32-bit sliver: what the kernel itself would answer, but for
# packet sockets, whose capture rings nothing could bound there.
SOCKETS = {
    **{f"root_{name}": "ok" for name in ("unix", "inet", "inet6", "netlink", "raw")},
    **{f"user_{name}": "ok" for name in ("unix", "inet", "inet6", "netlink")},
    **{f"{who}_{name}": answer for who in ("root", "user") for name, answer in REFUSED.items()},
    **dict.fromkeys(["root_packet", "user_packet"], "EAFNOSUPPORT"),
    "user_raw": "EPERM",
    **dict.fromkeys(["bind", "sendto", "recv", "pair", "pair_write", "pair_read"], "ok"),
    **dict.fromkeys(["pair_vsock", "direct_pair_vsock"], "EAFNOSUPPORT"),
    "text": "hello",
    "cloexec": "1",
    "bad_pointer": "EFAULT",
    "owner": "1000:1001",
    "one_by_one": "2000",
    "too_many": "EMFILE",
}


def test_a_32_bit_sliver_has_its_sockets_and_no_other_family(slivers: Slivers) -> None:
    assert answers(slivers, "probe_sockets32", arch="i686") == SOCKETS


def test_a_32_bit_program_in_another_sliver_gets_no_socket_by_socketcall(slivers: Slivers) -> None:
    found = answers(slivers, "probe_sockets32")
    made = [name for name in found if name.startswith(("root_", "user_", "pair", "direct_pair"))]
    assert {found[name] for name in made if name not in ("pair_write", "pair_read")} == {"EAFNOSUPPORT"}


def test_without_the_guard_a_32_bit_sliver_opens_other_families(slivers: Slivers, tmp_path: Path) -> None:
    place = slivers.weakened(tmp_path, "        add_socketcall(filter);\n")
    found = answers(slivers, "probe_sockets32", place, "i686")
    assert "ok" in (found["root_vsock"], found["root_xdp"]), "the kernel of this machine has neither family"


def test_the_guard_of_a_32_bit_sliver_is_bounded_with_it_and_ends_with_it(slivers: Slivers) -> None:
    sliver = slivers.new("i686")
    make_root(slivers.root(sliver), rc="sleep 1000")
    init = slivers.start(sliver)
    controller = slivers.hypervisor.domain(sliver.id)
    assert controller is not None

    def guards() -> list[int]:
        return [pid for pid in processes_named(sliver.id) if pid not in (controller.pid, init)]

    eventually(lambda: len(guards()) == 1)
    (guard,) = guards()
    for controller_name in ("memory", "cpu"):
        assert cgroup.group_of(guard, controller_name) == cgroup.group_of(init, controller_name)
    for namespace in ("user", "net"):
        assert Path(f"/proc/{guard}/ns/{namespace}").readlink() == Path(f"/proc/{init}/ns/{namespace}").readlink()
    assert Path(f"/proc/{guard}/environ").stat().st_uid == 0  # not dumpable
    slivers.hypervisor.kill(sliver.id)
    eventually(lambda: not guards())


def _kernel_has(number: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.syscall(number, -1, -1, -1, -1, -1, -1) == -1
    return ctypes.get_errno() != errno.ENOSYS
