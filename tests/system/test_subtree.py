"""The cgroups of an image's systemd: the sliver manages its own, and reaches no others and none of its limits.

The systemd of these slivers is a script: what it is given does not depend on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import demo
import pytest
from tiny_sliver import Slivers, eventually, make_root, tiny_node

from slicemgr import names
from slicemgr.drivers.kernel import cgroup, subtrees
from slicemgr.drivers.libvirt.host import Host
from slicemgr.errors import Failed
from slicemgr.model import Init, Sliver

# Stops at SIGRTMIN+3, as systemd does, and not at SIGTERM.
SYSTEMD = "#!/bin/sh\ntrap '' TERM\ntrap 'exit 0' 37\n{script}\ntouch /root/done\nwhile :; do sleep 0.1; done\n"
SEES = """
cd /sys/fs/cgroup
find . -name cgroup.procs >/root/groups
cat /proc/1/cgroup >/root/paths
for one in $(ls); do (: >>$one) 2>/dev/null && echo $one; done >/root/writable
mkdir own && mkdir own/inner && echo 1 >own/inner/cgroup.procs && cat /proc/1/cgroup >/root/moved
echo 0 >own/inner/cgroup.procs
(unset n; i=0; while [ $i -lt 1100 ]; do mkdir many-$i 2>/dev/null || break; i=$((i + 1)); done; echo $i >/root/made)
mount -t tmpfs none /mnt 2>/root/mount; ls -ld /run /tmp >/root/modes
touch /run/here /tmp/here
"""
DELEGATED = ["cgroup.procs", "cgroup.subtree_control", "cgroup.threads"]


@pytest.fixture(scope="module")
def slivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slivers]:
    with tiny_node(tmp_path_factory.mktemp("subtree"), f"subtree-{demo.CLONE}") as made:
        yield made


@pytest.fixture(autouse=True)
def _tidy(slivers: Slivers) -> Iterator[None]:
    yield
    slivers.end()


def start(slivers: Slivers, script: str, place: Host | None = None) -> tuple[Sliver, int]:
    """Start a sliver whose systemd runs the script."""
    sliver = prepare(slivers, script)
    return sliver, slivers.start(sliver, place)


def prepare(slivers: Slivers, script: str) -> Sliver:
    """A sliver with the root for it."""
    sliver = replace(slivers.new(), init=Init.SYSTEMD)
    root = make_root(slivers.root(sliver))
    for applet in ("find", "ln"):
        (root / "bin" / applet).symlink_to("busybox")
    program = root / "usr" / "lib" / "systemd" / "systemd"
    program.parent.mkdir(parents=True)
    program.write_text(SYSTEMD.format(script=script))
    program.chmod(0o755)
    return sliver


def seen(slivers: Slivers, place: Host | None = None) -> tuple[Sliver, int, dict[str, list[str]]]:
    sliver, init = start(slivers, SEES, place)
    found = slivers.root(sliver) / "root"
    eventually((found / "done").exists)
    return sliver, init, {file.name: file.read_text().splitlines() for file in found.iterdir() if file.name != "done"}


def paths(found: dict[str, list[str]]) -> set[str]:
    return {line.partition(":")[2].partition(":")[2] for line in found["paths"]}


def test_a_sliver_manages_its_own_groups_and_no_others(slivers: Slivers) -> None:
    slivers.boot()  # another sliver, whose group must not be visible
    sliver, init, found = seen(slivers)
    assert found["groups"] == ["./cgroup.procs"]
    assert paths(found) == {"/"}
    assert sorted(found["writable"]) == DELEGATED
    assert [line for line in found["moved"] if line.startswith("0::")] == ["0::/own/inner"]
    assert int(found["made"][0]) < 1000
    assert "permitted" in found["mount"][0] or "denied" in found["mount"][0], "EPERM, as systemd expects, not ENOSYS"
    assert [line[:10] for line in found["modes"]] == ["drwxr-xr-x", "drwxrwxrwt"]
    assert not any((slivers.root(sliver) / name / "here").exists() for name in ("run", "tmp"))
    assert cgroup.verify(init, sliver.limits) == []


NAMESPACE = """\
    if (unshare(CLONE_NEWCGROUP) < 0)
        die("cannot make a cgroup namespace");
"""
MOST = '    write_file(subtree, "cgroup.max.descendants", DESCENDANTS);\n'


def test_without_namespace_and_bound_a_sliver_sees_other_groups_and_makes_more(
    slivers: Slivers, tmp_path: Path
) -> None:
    """The control."""
    _, _, found = seen(slivers, slivers.weakened(tmp_path, NAMESPACE, MOST))
    assert len(found["groups"]) > 1
    _, _, found = seen(slivers, slivers.weakened(tmp_path, MOST))
    assert int(found["made"][0]) == 1100


@pytest.mark.parametrize("name", ["run", "tmp"])
def test_a_mount_point_that_is_a_symlink_is_refused(slivers: Slivers, name: str) -> None:
    sliver = prepare(slivers, "")
    (slivers.root(sliver) / name).rmdir()
    (slivers.root(sliver) / name).symlink_to("/etc")
    with pytest.raises(Failed, match=f"/{name} of the sliver's root must be a directory"):
        slivers.start(sliver)


def test_it_stops_by_systemds_signal_and_leaves_no_groups(slivers: Slivers) -> None:
    sliver, _ = start(slivers, "mkdir -p /sys/fs/cgroup/a/b")
    eventually((slivers.root(sliver) / "root" / "done").exists)
    domain = names.domain(sliver.id)
    assert slivers.hypervisor.stop(sliver.id, grace=60), "it ended by itself"
    subtrees.remove(domain)
    assert domain not in subtrees.domains()


def test_an_image_without_systemd_ends(slivers: Slivers) -> None:
    sliver = prepare(slivers, "")
    (slivers.root(sliver) / "usr/lib/systemd/systemd").unlink()
    with contextlib.suppress(Failed):  # it may have ended before its process ID is read
        slivers.start(sliver)
    assert slivers.hypervisor.wait_gone(sliver.id, 60)
