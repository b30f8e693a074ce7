"""Kernel memory that no memory limit counts: how much root inside a sliver can get, compared with controls."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import demo
import pytest
from tiny_sliver import REPOSITORY, Slivers, copy_program, eventually, make_root, parse_lines, tiny_node

from slicemgr import names
from slicemgr.agent.chores import capture_rings as captures
from slicemgr.agent.chores.capture_rings import Captures
from slicemgr.drivers.kernel import capture_rings, cgroup
from slicemgr.drivers.libvirt import launch
from slicemgr.drivers.libvirt.host import Host
from slicemgr.drivers.network import fragments
from slicemgr.model import MIB, Sliver

MOST = 200 * MIB  # of one attempt of the probe
RINGS = 8 * MIB  # the default of the settings
LARGE = ["large", "large_v1", "large_v3", "large_send", "large_long", "large_longer", "large_32"]
COUNTED = MOST // 4  # the least growth of the memory cgroup if it counts the memory
FILTER = """        if (abis[i].is_compat || !*launch->socket_program)
            answer_rings(&program, abis[i].setsockopt);
"""


@pytest.fixture(scope="module")
def slivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slivers]:
    with tiny_node(tmp_path_factory.mktemp("memory"), f"memory-{demo.CLONE}", "probe_kernel_memory") as made:
        yield made


@pytest.fixture(scope="module")
def unfiltered(slivers: Slivers, tmp_path_factory: pytest.TempPathFactory) -> Host:
    """The control, whose filter does not cover capture rings."""
    return slivers.weakened(tmp_path_factory.mktemp("unfiltered"), FILTER)


@pytest.fixture(autouse=True)
def _tidy(slivers: Slivers) -> Iterator[None]:
    yield
    slivers.end()


def without(slivers: Slivers, sliver: Sliver, *keys: str) -> Callable[[str], str]:
    """Takes these lines out of the launch file just before the start: a weakened control."""

    def edit(xml: str) -> str:
        path = names.launch_file(slivers.config.node.run_dir, sliver.id)
        lines = path.read_text().splitlines()
        kept = [line for line in lines if line.partition("=")[0] not in keys]
        assert len(kept) == len(lines) - len(keys)
        path.write_text("\n".join([*kept, ""]))
        return xml

    return edit


def attempt(
    slivers: Slivers,
    *what: str,
    lacks: tuple[str, ...] = (),
    place: Host | None = None,
    arch: str = "x86_64",
    memory: int = 128 * MIB,
) -> tuple[int, dict[str, str]]:
    """The results of the probe as root of a sliver, which it still holds, and the host's PID of the sliver's init."""
    sliver = slivers.new(arch, memory=memory)
    root = slivers.root(sliver)
    rc = f"/bin/probe {' '.join(what)} > /root/found 2>&1"
    make_root(root, rc=rc, files={"bin/probe": slivers.config.node.pool.parent / "probe_kernel_memory"})
    init = slivers.start(sliver, place, without(slivers, sliver, *lacks))
    return init, awaited(root / "root" / "found")


def awaited(path: Path) -> dict[str, str]:
    eventually(lambda: path.exists() and "end=ok" in path.read_text(), 180)
    return parse_lines(path.read_text())


def charged(init: int) -> int:
    group = cgroup.group_of(init, "memory")
    return int((group / ("memory.current" if cgroup.version() == "v2" else "memory.usage_in_bytes")).read_text())


def test_capture_rings_are_bounded_over_all_sockets_of_a_sliver(slivers: Slivers) -> None:
    _, found = attempt(slivers, "large", "many", "long_option")
    assert {name: found[name] for name in LARGE} == dict.fromkeys(LARGE, "ENOMEM")
    assert found["large_socketcall"] == "EAFNOSUPPORT"
    assert int(found["many"]) == RINGS
    assert found["long_option"] == "ok"  # an option longer than the program reads

    _, other = attempt(slivers, "many")  # no sliver took those of another
    assert int(other["many"]) == RINGS


def test_without_the_program_and_the_filter_rings_are_free_and_not_counted(slivers: Slivers, unfiltered: Host) -> None:
    init, found = attempt(slivers, "large", "many", lacks=("socket_program",), place=unfiltered)
    assert {name: found[name] for name in LARGE} == dict.fromkeys(LARGE, "ok")
    assert int(found["many"]) == MOST
    assert charged(init) < COUNTED


def test_calls_of_32_bit_programs_go_round_the_program_but_not_round_the_filter(
    slivers: Slivers, unfiltered: Host
) -> None:
    _, found = attempt(slivers, "large", place=unfiltered)
    assert (found["large"], found["large_32"]) == ("ENOMEM", "ok")


def test_where_the_kernel_runs_no_such_program_no_ring_is_made(slivers: Slivers) -> None:
    _, found = attempt(slivers, "large", "capture", lacks=("socket_program",))
    assert {found[name] for name in [*LARGE, "capture"]} == {"ENOMEM"}


def test_a_32_bit_sliver_has_no_packet_sockets_in_any_abi(slivers: Slivers) -> None:
    _, found = attempt(slivers, "large", "families", arch="i686")
    assert {found[name] for name in [*LARGE, "large_socketcall"]} == {"EAFNOSUPPORT"}
    packet = ["family_packet", "family_packet_32", "family_packet_socketcall"]
    assert {found[name] for name in packet} == {"EAFNOSUPPORT"}
    assert {found["family_raw"], found["family_inet_socketcall"]} == {"ok"}

    _, found = attempt(slivers, "families")
    assert {found["family_packet"], found["family_packet_32"]} == {"ok"}


@pytest.mark.parametrize("size", [0, 64 * MIB])
def test_libpcap_captures_with_its_usual_ring_and_with_less_than_it_asks_for(slivers: Slivers, size: int) -> None:
    program = slivers.config.node.pool.parent / f"capture-{size}"
    source = REPOSITORY / "tests" / "system" / "probe_capture.c"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", program, source, "-l:libpcap.so.0.8"], check=True)
    sliver = slivers.new()
    root = make_root(slivers.root(sliver), rc=f"{program} {size} > /root/found 2>&1; touch /root/done; sleep 1000")
    copy_program(program, root)
    slivers.start(sliver)
    eventually((root / "root" / "done").exists)
    assert parse_lines((root / "root" / "found").read_text()) == {"capture": "ok"}


def test_rings_that_are_gone_can_be_had_again_and_those_that_are_there_cannot(slivers: Slivers) -> None:
    config = slivers.config
    sliver = slivers.new()
    root = slivers.root(sliver)
    rc = "for i in 1 2 3; do /bin/probe many > /root/found$i; rm /root/release; done"
    make_root(root, rc=rc, files={"bin/probe": config.node.pool.parent / "probe_kernel_memory"})
    slivers.start(sliver)
    settled = Captures(config)

    def found(turn: int) -> int:
        return int(awaited(root / "root" / f"found{turn}")["many"])

    assert found(1) == RINGS
    for now in (0, captures.SETTLED, 2 * captures.SETTLED):
        settled.settle(now)
    (root / "root" / "release").touch()
    assert found(2) == 0  # they were all there when they were counted
    settled.settle(2 * captures.SETTLED + 1)
    (root / "root" / "release").touch()
    assert found(3) == RINGS


def test_the_account_of_a_sliver_that_ended_is_removed(slivers: Slivers) -> None:
    attempt(slivers, "capture")
    program = capture_rings.program(slivers.config.node.run_dir)
    assert program is not None
    settled = Captures(slivers.config)
    with capture_rings.Accounts(program) as accounts:
        settled.settle(0)
        settled.settle(1)
        assert len(accounts.granted()) == 1
        slivers.end()
        settled.settle(2)
        settled.settle(3)
        assert accounts.granted() == {}


def test_another_install_keeps_the_program_and_changes_the_limit(slivers: Slivers) -> None:
    run_dir = slivers.config.node.run_dir
    program = capture_rings.program(run_dir)
    assert program is not None
    inode = program.stat().st_ino
    try:
        assert capture_rings.install(run_dir, 3 * MIB) == program
        assert program.stat().st_ino == inode
        _, found = attempt(slivers, "many")
        assert int(found["many"]) == 3 * MIB
    finally:
        capture_rings.install(run_dir, RINGS)


def test_the_programs_can_be_removed_and_loaded_again(slivers: Slivers) -> None:
    run_dir = slivers.config.node.run_dir
    try:
        capture_rings.remove(run_dir)
        assert capture_rings.program(run_dir) is None
        assert not (run_dir / capture_rings.OWN_MOUNT).is_mount()
        capture_rings.remove(run_dir)  # a second removal is not an error
    finally:
        assert capture_rings.install(run_dir, RINGS) == capture_rings.program(run_dir)


def test_network_settings_that_cost_memory_are_read_only(slivers: Slivers) -> None:
    _, found = attempt(slivers, "settings", "fragments")
    assert writable(found) == USEFUL
    assert int(found["fragments"]) < 2 * launch.FRAGMENTS


def test_without_closed_settings_fragments_take_what_they_like(slivers: Slivers) -> None:
    init, found = attempt(slivers, "settings", "fragments", lacks=("fragments",))
    assert {"ipv4/ipfrag_high_thresh", "ipv6/ip6frag_high_thresh", "ipv4/igmp_max_msf"} <= writable(found)
    assert int(found["fragments"]) > 50 * launch.FRAGMENTS
    assert charged(init) < int(found["fragments"]) / 4


USEFUL = {
    "ipv4/ip_forward",
    "ipv4/conf/all/forwarding",
    "ipv4/conf/lo/rp_filter",
    "ipv4/tcp_sack",
    "ipv6/conf/all/disable_ipv6",
}


def writable(found: dict[str, str]) -> set[str]:
    start = "write:/proc/sys/net/"
    return {name.removeprefix(start) for name, result in found.items() if name.startswith(start) and result == "ok"}


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_socket_buffers_count_or_have_a_limit(slivers: Slivers, kind: str) -> None:
    """On v1 a connection may exceed the limit by the size of one write: the probe has at most 225 connections."""
    limited = cgroup.has_socket_limit()
    init, found = attempt(slivers, kind, memory=(128 if limited else 512) * MIB)
    if limited:
        assert int(found[kind]) <= cgroup.socket_memory(128 * MIB) + (225 * 128 * 1024 if kind == "tcp" else 0)
    else:
        assert charged(init) >= int(found[kind]) // 2 >= COUNTED


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_without_the_limit_of_v1_socket_buffers_are_free(slivers: Slivers, kind: str) -> None:
    if not cgroup.has_socket_limit():  # v2 counts them as memory, independent of the launch file
        return
    init, found = attempt(slivers, kind, lacks=("socket_memory",))
    assert int(found[kind]) > MOST * 3 // 4
    assert charged(init) < COUNTED


def test_pipes_and_unix_sockets_count_as_memory(slivers: Slivers) -> None:
    init, found = attempt(slivers, "counted")
    assert int(found["counted"]) >= 48 * MIB
    assert charged(init) >= int(found["counted"])


PORT = 9999  # as the probe has it
THRESHOLD = 16 * MIB  # about 7000 fragments


@pytest.fixture
def listening(slivers: Slivers) -> Iterator[socket.socket]:
    """A socket of a node that tracks connections, and so puts packets together; it can hold THRESHOLD of fragments."""
    Path("/proc/sys/net/ipv4/ipfrag_high_thresh").write_text(str(THRESHOLD))
    rules = "table ip tracking { chain in { type filter hook prerouting priority 0; ct state invalid counter; }; }"
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as node:
        node.bind(("0.0.0.0", PORT))
        node.settimeout(3)
        yield node
    subprocess.run(["nft", "delete", "table", "ip", "tracking"], check=True)


def waiting() -> int:
    """Bytes of fragments in the node's network."""
    lines = Path("/proc/thread-self/net/sockstat").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("FRAG:")).split()[-1])


def arrives(node: socket.socket) -> bool:
    try:
        return len(node.recv(8192)) == 4000
    except TimeoutError:
        return False


def test_one_slivers_fragments_leave_room_for_those_of_others(slivers: Slivers, listening: socket.socket) -> None:
    fragments.install()
    try:
        assert fragments.is_installed()
        attempt(slivers, "flood")
        assert fragments.BURST * 1400 < waiting() < THRESHOLD * 0.9
        attempt(slivers, "whole")
        assert arrives(listening)
    finally:
        subprocess.run(["nft", "delete", "table", "inet", fragments.TABLE], check=True)


def test_without_the_chain_one_sliver_keeps_the_fragments_of_others_out(
    slivers: Slivers, listening: socket.socket
) -> None:
    assert not fragments.is_installed()
    attempt(slivers, "flood")
    assert waiting() > THRESHOLD * 0.9
    attempt(slivers, "whole")
    assert not arrives(listening)
