"""The confinement of an lxc sliver, tested by its root from inside, and controls without it."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import demo
import pytest
from tiny_sliver import Slivers, eventually, make_root, parse_lines, processes_named, tiny_node

from slicemgr import names
from slicemgr.drivers.kernel import cgroup
from slicemgr.drivers.libvirt import capabilities
from slicemgr.drivers.libvirt.host import Host
from slicemgr.errors import Failed
from slicemgr.model import MIB, Sliver

PIDS, PTYS = 64, 64  # the sliver's and the default of the settings

# Calls that root must not succeed with in a sliver, and their errors.
DENIED = {
    **dict.fromkeys(
        [
            "keyctl",
            "add_key",
            "perf_event_open",
            "io_uring_setup",
            "userfaultfd",
            "setns",
            "open_by_handle_at",
            "fanotify_init",
            "syslog",
            "quotactl",
            "move_pages",
            "kcmp",
            "btrfs_sync",
            "btrfs_start_sync",
            "btrfs_wait_sync",
            "btrfs_sync32",
            "keyctl32",
            "unshare_mount",
            "mknod",
        ],
        "EPERM",
    ),
    **dict.fromkeys(["bpf", "open_tree", "fsopen", "mount", "umount2", "pivot_root", "sethostname", "x32"], "ENOSYS"),
    **dict.fromkeys(["socket_alg", "socket_vsock", "socket_rds", "socket_xdp", "socket32_alg"], "EAFNOSUPPORT"),
    "socketcall32": "EAFNOSUPPORT",
    "unshare_user": "ENOSPC",
}
# Calls that must succeed.
ALLOWED = [
    "socket_unix",
    "socket_inet",
    "socket_inet6",
    "socket_netlink",
    "socket_packet",
    "socket_raw",
    "socket32_inet",
    "chroot",
]
# The calls in DENIED that succeed, or fail differently, without the launcher's filter.
FILTERED = [
    "btrfs_sync",
    "btrfs_start_sync",
    "btrfs_wait_sync",
    "btrfs_sync32",
    "keyctl",
    "add_key",
    "perf_event_open",
    "io_uring_setup",
    "kcmp",
    "keyctl32",
    "socket_vsock",
    "bpf",
]


@pytest.fixture(scope="module")
def slivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slivers]:
    with tiny_node(tmp_path_factory.mktemp("launcher"), f"launcher-{demo.CLONE}", "probe") as made:
        yield made


@pytest.fixture(autouse=True)
def _tidy(slivers: Slivers) -> Iterator[None]:
    yield
    slivers.end()


def probe(slivers: Slivers, *, confined: bool = True) -> tuple[Sliver, int, dict[str, str]]:
    """Boot a sliver that runs the probe. Returns the results."""
    sliver = slivers.new(pids=PIDS)
    root = slivers.root(sliver)
    rc = (
        "/bin/probe all > /root/found 2>&1; hostname > /root/hostname; "
        "wc -c /proc/keys /proc/timer_list > /root/masked; ls -A /sys/fs/cgroup /sys/firmware > /root/hidden; "
        "cat /proc/self/status > /root/status; cat /proc/sys/user/max_user_namespaces > /root/namespaces; "
        "touch /root/done"
    )
    make_root(root, rc=rc, files={"bin/probe": slivers.config.node.pool.parent / "probe"})
    if confined:
        init = slivers.start(sliver)
    else:
        root, init = slivers.start_unconfined(sliver)
    eventually((root / "root" / "done").exists)
    return sliver, init, parse_lines((root / "root" / "found").read_text())


def read(root: Path, name: str) -> str:
    return (root / "root" / name).read_text()


def test_root_inside_can_do_its_work_and_nothing_to_the_host(slivers: Slivers) -> None:
    sliver, init, found = probe(slivers)
    root = slivers.root(sliver)

    assert {name: found[name] for name in DENIED} == DENIED
    assert {name: found[name] for name in ALLOWED} == dict.fromkeys(ALLOWED, "ok")
    assert [name for name, result in found.items() if name.startswith("write:") and result == "ok"] == []
    assert int(found["ptys"]) < PTYS
    assert 0 < int(found["forks"]) < PIDS
    assert read(root, "hostname").strip() == sliver.hostname
    assert read(root, "namespaces").strip() == "0"
    assert read(root, "masked").split()[::2] == ["0", "0", "0"]
    assert [line for line in read(root, "hidden").splitlines() if line and not line.endswith(":")] == []

    status = dict(line.split(":\t", 1) for line in read(root, "status").splitlines() if ":\t" in line)
    assert int(status["CapBnd"], 16) == capabilities.bounding_set()
    assert int(status["CapEff"], 16) == capabilities.bounding_set()
    assert status["Seccomp"].strip() == "2"
    assert status["NoNewPrivs"].strip() == "0"  # sudo works
    assert cgroup.verify(init, sliver.limits) == []


def test_the_same_checks_fail_without_the_confinement(slivers: Slivers) -> None:
    sliver, init, found = probe(slivers, confined=False)
    root = slivers.config.node.pool.parent / sliver.id

    assert [name for name in FILTERED if found[name] == DENIED[name]] == []
    assert found["unshare_user"] == "ok"
    assert int(found["ptys"]) >= PTYS
    assert int(found["forks"]) >= PIDS
    assert read(root, "hostname").strip() != sliver.hostname
    assert read(root, "masked").split()[::2] != ["0", "0", "0"]
    assert [line for line in read(root, "hidden").splitlines() if line and not line.endswith(":")] != []
    status = dict(line.split(":\t", 1) for line in read(root, "status").splitlines() if ":\t" in line)
    assert capabilities.excess(int(status["CapBnd"], 16)) != 0
    assert [line for line in cgroup.verify(init, sliver.limits) if line.startswith("pids")] != []


WRITE_MASKS = """
for one in {files}; do
    (echo x > $one) 2>/dev/null && echo $one >> /root/writable
    wc -c < $one >> /root/sizes
done
touch /root/done
"""


def masks(slivers: Slivers, edit: Callable[[str], str] = lambda xml: xml) -> tuple[Path, list[os.stat_result]]:
    """The root of a sliver that tried to write to masked files, and its mounts."""
    sliver = slivers.new()
    root = make_root(slivers.root(sliver), rc=WRITE_MASKS.format(files=" ".join(slivers.place.masked_files)))
    init = slivers.start(sliver, edit=edit)
    eventually((root / "root" / "done").exists)
    return root, [Path(f"/proc/{init}/root{path}").stat() for path in slivers.place.masked_files]


def test_masked_files_are_empty_and_read_only_and_the_slivers_own(slivers: Slivers) -> None:
    (root, one), (_, other) = masks(slivers), masks(slivers)
    assert slivers.place.masked_files
    assert not (root / "root" / "writable").exists()
    assert set(read(root, "sizes").split()) == {"0"}
    assert all(stat.S_ISREG(found.st_mode) for found in one)
    assert {found.st_dev for found in one}.isdisjoint({found.st_dev for found in other})
    assert str(slivers.place.empty_file.parent) not in Path("/proc/self/mountinfo").read_text()


def test_masks_by_the_hosts_null_device_are_writable_and_shared(slivers: Slivers) -> None:
    def by_device(xml: str) -> str:
        return xml.replace(str(slivers.place.empty_file), "/dev/null")

    root, found = masks(slivers, by_device)
    assert read(root, "writable").split() == list(slivers.place.masked_files)
    assert {one.st_rdev for one in found} == {Path("/dev/null").stat().st_rdev}


def test_a_group_that_goes_while_it_is_read_is_gone() -> None:
    name = names.domain(names.sliver_id(names.new_tag(), 0))
    group = cgroup.pids_group_v1(name) or cgroup.MOUNT / name
    group.mkdir(parents=True)
    with (group / "cgroup.procs").open() as file:
        group.rmdir()
        with pytest.raises(Failed, match="has ended"), cgroup.gone_is_failed(1):
            file.read()
        with pytest.raises(PermissionError), cgroup.gone_is_failed(1):  # other errors are not changed
            raise PermissionError


def test_every_limit_that_can_be_asked_for_holds(slivers: Slivers) -> None:
    weight = 300 if cgroup.has_io_weight() else None
    sliver, init = slivers.boot(
        memory=96 * MIB, memory_soft=48 * MIB, pids=33, cpu=1.25, cpu_shares=512, io_weight=weight
    )
    assert cgroup.verify(init, sliver.limits) == []
    other = replace(sliver.limits, memory=95 * MIB, memory_soft=47 * MIB, pids=34, cpu=1.5, cpu_shares=513)
    assert {line.split()[0] for line in cgroup.verify(init, other)} == {
        "memory", "memory_soft", "pids", "cpu", "cpu_shares",
    }  # fmt: skip


def test_the_link_has_its_address_whoever_changed_it_outside(slivers: Slivers, tmp_path: Path) -> None:
    """udev can change it after libvirt sets it and before the container gets it; here libvirt sets a wrong one."""

    def booted(place: Host | None = None) -> tuple[Sliver, str]:
        sliver = slivers.new()
        make_root(slivers.root(sliver), rc="sleep 1000")
        init = slivers.start(sliver, place, lambda xml: xml.replace(names.mac(sliver.id), "52:54:00:00:00:01"))
        show = ["nsenter", "-t", str(init), "-n", "ip", "-o", "link", "show", "eth0"]
        return sliver, subprocess.run(show, check=True, capture_output=True, text=True).stdout

    sliver, link = booted()
    assert f"link/ether {names.mac(sliver.id)} " in link
    _, link = booted(slivers.weakened(tmp_path, "        set_link_address(launch);\n"))
    assert "link/ether 52:54:00:00:00:01 " in link


def test_a_32_bit_sliver_says_so_and_may_use_the_old_socket_call(slivers: Slivers) -> None:
    sliver = slivers.new("i686")
    root = slivers.root(sliver)
    rc = "uname -m > /root/machine; /bin/probe > /root/found; touch /root/done"
    make_root(root, rc=rc, files={"bin/probe": slivers.config.node.pool.parent / "probe"})
    slivers.start(sliver)
    eventually((root / "root" / "done").exists)
    assert read(root, "machine").strip() == "i686"
    found = parse_lines(read(root, "found"))
    assert found["socketcall32"] == "EINVAL"  # the kernel's own answer
    assert {found[name] for name in ("keyctl32", "keyctl")} == {"EPERM"}


def test_files_stay_owned_by_root_on_disk_and_the_host_sees_no_mount(slivers: Slivers) -> None:
    sliver, init = slivers.boot(rc="touch /root/made; echo x > /etc/other; touch /root/done")
    root = slivers.root(sliver)
    eventually((root / "root" / "done").exists)

    assert (root / "root" / "made").stat().st_uid == 0
    assert Path(f"/proc/{init}").stat().st_uid == sliver.uid_first
    assert str(root) not in Path("/proc/self/mountinfo").read_text()
    assert str(slivers.place.root) not in Path("/proc/self/mountinfo").read_text()
    assert "idmapped" in Path(f"/proc/{init}/mounts").read_text().splitlines()[0] or "idmapped" in next(
        line for line in Path(f"/proc/{init}/mountinfo").read_text().splitlines() if " / / " in line or " / rw" in line
    )


@pytest.mark.parametrize("name", ["proc", "sys", "dev", ".oldroot", ".slicemgr"])
def test_a_mount_point_that_is_a_symlink_is_refused(slivers: Slivers, name: str) -> None:
    sliver = slivers.new()
    root = make_root(slivers.root(sliver))
    if (root / name).exists():
        (root / name).rmdir()
    (root / name).symlink_to("/etc")
    with pytest.raises(Failed, match=f"/{name} of the sliver's root must be a directory"):
        slivers.start(sliver)
    assert slivers.hypervisor.domain(sliver.id) is None


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda path: path.unlink(), "cannot open"),
        (lambda path: path.chmod(0o644), "only root can read"),
        (lambda path: os.chown(path, 1, 1), "only root can read"),
        (lambda path: path.write_text("root=/\n"), "is incomplete"),
        (lambda path: path.write_text(path.read_text() + "uid=-1\n"), "not a positive number"),
        (lambda path: path.write_text(path.read_text() + "colour=red\n"), "unknown key"),
        (lambda path: path.write_text(path.read_text() + "root=/nowhere\n"), "cannot open the root"),
    ],
)
def test_a_bad_launch_file_starts_nothing_and_says_why(slivers: Slivers, spoil: object, complaint: str) -> None:
    sliver = slivers.new()
    make_root(slivers.root(sliver))

    def spoiled(xml: str) -> str:
        spoil(names.launch_file(slivers.config.node.run_dir, sliver.id))  # type: ignore[operator]
        return xml

    with pytest.raises(Failed, match=complaint):
        slivers.start(sliver, edit=spoiled)
    assert slivers.hypervisor.domain(sliver.id) is None


def test_a_container_whose_hardening_fails_does_not_start(slivers: Slivers) -> None:
    sliver = slivers.new()
    make_root(slivers.root(sliver), rc="touch /root/ran")

    def without_group(xml: str) -> str:
        path = names.launch_file(slivers.config.node.run_dir, sliver.id)
        lines = [line for line in path.read_text().splitlines() if not line.startswith(("pids_group", "cgroup2"))]
        path.write_text("\n".join([*lines, "pids_group=/nowhere", ""]))
        return xml

    with pytest.raises(Failed, match=r"/nowhere/pids\.max"):
        slivers.start(sliver, edit=without_group)
    assert not (slivers.root(sliver) / "root" / "ran").exists()


def test_init_reaps_and_stops_cleanly(slivers: Slivers) -> None:
    orphans = "for i in 1 2 3 4 5 6 7 8; do (sleep 0.1 & sleep 0.05 &) ; done; sleep 0.3; touch /root/done; sleep 1000"
    sliver, init = slivers.boot(rc=orphans)
    eventually((slivers.root(sliver) / "root" / "done").exists)

    namespace = Path(f"/proc/{init}/ns/pid").readlink()

    def zombies() -> list[str]:
        return [line for line in _processes(namespace) if line.endswith(" Z")]

    eventually(lambda: not zombies())
    assert len(_processes(namespace)) >= 2  # init, rc.local; no shell waits at the console
    assert slivers.hypervisor.stop(sliver.id, grace=30)
    assert slivers.hypervisor.domain(sliver.id) is None


def _processes(namespace: Path) -> list[str]:
    """`pid state` of every process of a pid namespace."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if (entry / "ns" / "pid").readlink() == namespace:
                    found.append(f"{entry.name} {(entry / 'stat').read_text().rpartition(') ')[2][0]}")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return found


def test_no_guard_stays_behind(slivers: Slivers) -> None:
    sliver, init = slivers.boot(rc="sleep 1000")
    controller = slivers.hypervisor.domain(sliver.id)
    assert controller is not None

    def guards() -> list[int]:
        return [pid for pid in processes_named(sliver.id) if pid not in (controller.pid, init)]

    eventually(lambda: not guards())
