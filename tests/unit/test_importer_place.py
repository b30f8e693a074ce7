"""The users of importers, and the command lines that confine them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slicemgr.config import Config
from slicemgr.drivers.importer import confinement, disk_image
from slicemgr.drivers.importer.confinement import Bounds, User, View
from slicemgr.drivers.libvirt.host import Acceleration
from slicemgr.errors import Refused

BOUNDS = Bounds(memory=5, data=6, cpu=7, file=8, files=9, processes=10, scratch=11)


def test_the_default_user_is_nobody_elses() -> None:
    who = confinement.user(Config().importer.user)
    assert who.uid >= 30000, "below are a system's own users"
    assert not 61184 <= who.uid <= 65535, "systemd's dynamic users, nobody"


@pytest.mark.parametrize("text", ["root", "0:0", "0:7", "7:0", "no-such-user", "7", "7:x", "-1:7", "1879048192:7", ""])
def test_root_slivers_and_nobody_known_are_refused(text: str) -> None:
    with pytest.raises(Refused) as refused:
        confinement.user(text)
    assert refused.value.field == "importer.user"


def test_a_name_is_looked_up() -> None:
    assert confinement.user("daemon") == User(1, 1)


def test_kvm_is_seen_only_where_machines_run_under_it() -> None:
    for acceleration in (None, Acceleration.EMULATION, Acceleration.KVM):
        view = disk_image.importer_view(Path("/i"), Path("/a"), acceleration)
        assert view.devices == (("/dev/kvm",) if acceleration is Acceleration.KVM else ())
        assert not view.writes
        line = confinement.words(["x"], User(5, 6, (7,)), BOUNDS, view, 3)
        assert ("/dev/kvm" in line) is (acceleration is Acceleration.KVM)
        assert line[line.index("setpriv") :][:4] == ["setpriv", "--reuid=5", "--regid=6", "--groups"]


def test_root_is_kept_only_with_named_capabilities() -> None:
    line = confinement.words(["x"], None, BOUNDS, View({}, {"/target": Path("/t")}), 3, keep_caps=["CAP_CHOWN"])
    assert "setpriv" not in line
    assert [line[place + 1] for place, word in enumerate(line) if word.startswith("--cap-")] == ["ALL", "CAP_CHOWN"]


def test_systemd_keeps_the_limits_where_it_keeps_the_cgroups() -> None:
    line = confinement.scoped(["bwrap", "x"], BOUNDS, "slicemgr-import-1")
    assert line[:5] == ["systemd-run", "--scope", "--quiet", "--collect", "--unit=slicemgr-import-1"]
    assert {"MemoryMax=5", "MemorySwapMax=0", "TasksMax=10"} <= set(line)
    assert line[-3:] == ["sh", "bwrap", "x"]


def test_a_group_is_joined_before_anything_is_read() -> None:
    line = confinement.grouped(["bwrap", "x"], [Path("/sys/fs/cgroup/a b")])
    assert line[2].startswith("echo $$ >'/sys/fs/cgroup/a b/cgroup.procs' && ")
    assert line[2].endswith('exec "$@"')
