"""The confinement of the importer, tested by a probe that replaces it; the same probe unconfined is the control."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from testbed import eventually

from slicemgr.drivers.command import CommandFailed
from slicemgr.drivers.importer import confinement, disk_image, unpack
from slicemgr.drivers.importer.confinement import Bounds, User, View
from slicemgr.drivers.kernel import cgroup
from slicemgr.drivers.libvirt.host import Acceleration

MIB = 1 << 20
WHO = User(2_000_000 + os.getpid(), 2_000_000 + os.getpid())  # the kernel counts processes for each user
CALLS = {  # with arguments by which root, too, does nothing
    "mount": 165, "ptrace": 101, "keyctl": 250, "bpf": 321, "unshare": 272, "setns": 308, "open_by_handle_at": 304,
    "perf_event_open": 298, "move_mount": 429, "fsopen": 430, "finit_module": 313, "kexec_file_load": 320,
}  # fmt: skip
PROBE = f"""
import ctypes, json, os, socket, sys
port, secret, ours, theirs, marked = int(sys.argv[1]), *sys.argv[2:6]
libc = ctypes.CDLL(None, use_errno=True)
def can(what):
    try:
        what()
        return True
    except OSError:
        return False
def refused(number):
    return libc.syscall(number, -1, 0, 0, 0, 0, 0) < 0 and ctypes.get_errno() in (1, 38)
def processes():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            yield open(f"/proc/{{pid}}/cmdline").read()
        except OSError:
            pass
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({{
    "uids": sorted(set(os.getresuid())), "groups": os.getgroups(),
    "capabilities": {{name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}},
    "no_new_privs": int(status["NoNewPrivs"]), "seccomp": int(status["Seccomp"]),
    "links": sorted(line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line),
    "sees the caller": any(marked[::-1] in one for one in processes()),
    "reaches the node": can(lambda: socket.create_connection(("127.0.0.1", port), 3).close()),
    "sends packets": can(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()),
    "talks to the kernel": can(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()),
    "reads passwords": can(lambda: open("/etc/shadow").read()),
    "reads another's": can(lambda: open(secret).read()),
    "reads the image": can(lambda: open(ours).read()),
    "writes the image": can(lambda: open(ours, "r+").close()),
    "writes beside": can(lambda: open(theirs + "/new", "w").close()),
    "writes to the scratch": can(lambda: open(os.environ["TMPDIR"] + "/new", "w").close()),
    "knows the proxy": "https_proxy" in os.environ,
    "refused": sorted(name for name, number in {CALLS!r}.items() if refused(number)),
}}))
"""


@dataclass
class Ground:
    image: Path
    secret: Path
    beside: Path
    port: int

    def words(self, image: str, marked: str) -> list[str]:
        """marked: of a process's words; given backwards, for the probe's own words are in /proc, too."""
        told = [str(self.port), str(self.secret), image, str(self.beside), marked[::-1]]
        return [disk_image.SYSTEM_PYTHON, "-I", "-B", "-c", PROBE, *told]


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    image, secret, beside = tmp_path / "image", tmp_path / "other-image", tmp_path / "pool"
    image.write_text("image")
    os.chown(image, 0, WHO.gid)
    image.chmod(0o640)
    secret.write_text("secret")
    beside.mkdir(mode=0o777)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Ground(image, secret, beside, server.getsockname()[1])


def confined(program: list[str], bounds: Bounds, view: View) -> bytes:
    return confinement.run(program, WHO, bounds, view, timeout=120)


def view_of(image: Path, tmp_path: Path) -> View:
    """The view of the importer itself."""
    made = tmp_path / "appliance"
    made.mkdir(exist_ok=True)
    return disk_image.importer_view(image, made, None)


def test_the_importer_can_do_next_to_nothing(ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://user:secret@127.0.0.1:1")
    marked = f"caller-{os.getpid()}"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(["sh", "-c", "sleep 60; :", marked]) as caller:
        try:
            view = view_of(ground.image, tmp_path)
            seen = json.loads(confined(ground.words("/image/disk", marked), disk_image.IMPORT_BOUNDS, view))
            words = ground.words(str(ground.image), marked)
            done = subprocess.run(words, check=True, capture_output=True, timeout=60, env=environment)
        finally:
            caller.kill()
    control: dict[str, Any] = json.loads(done.stdout)
    expected = {
        "sees the caller": False,
        "reaches the node": False,
        "sends packets": False,
        "talks to the kernel": False,
        "reads passwords": False,
        "reads another's": False,
        "reads the image": True,
        "writes the image": False,
        "writes beside": False,
        "writes to the scratch": True,
        "knows the proxy": False,
    }
    assert {name: seen[name] for name in expected} == expected
    assert {name: control[name] for name in expected} == dict.fromkeys(expected, True)
    assert (seen["uids"], seen["groups"]) == ([WHO.uid], [])
    assert set(seen["capabilities"].values()) == {0}
    assert (seen["no_new_privs"], seen["seccomp"], seen["links"]) == (1, 2, ["lo"])
    assert seen["refused"] == sorted(CALLS)
    assert 0 in control["uids"]
    assert control["capabilities"]["CapEff"]
    assert control["seccomp"] == 0
    assert len(control["refused"]) <= 2, "what this kernel does not have"


@pytest.mark.skipif(not Path("/dev/kvm").exists(), reason="there is no /dev/kvm")
def test_kvm_opens_only_where_machines_run_under_it(ground: Ground, tmp_path: Path) -> None:
    words = [disk_image.SYSTEM_PYTHON, "-I", "-c", "open('/dev/kvm', 'r+b', 0); print('opened')"]
    made = tmp_path / "appliance"
    made.mkdir()
    with pytest.raises(CommandFailed, match="No such file"):
        confined(words, disk_image.IMPORT_BOUNDS, disk_image.importer_view(ground.image, made, None))
    view = disk_image.importer_view(ground.image, made, Acceleration.KVM)
    with_group = disk_image.with_kvm(WHO)
    assert confinement.run(words, with_group, disk_image.IMPORT_BOUNDS, view, timeout=60) == b"opened\n"


SMALL = Bounds(memory=96 * MIB, data=1 << 30, cpu=60, file=MIB, files=32, processes=16, scratch=2 * MIB)
EXCESSES = {
    "memory": (SMALL, "held = bytearray(192 << 20); held[::4096] = b'x' * (len(held) // 4096)"),
    "data": (replace(SMALL, memory=1 << 30, data=64 * MIB), "held = bytearray(192 << 20)"),
    "cpu": (replace(SMALL, cpu=1), "import time\nwhile time.process_time() < 3: pass"),
    "file": (SMALL, "open(os.environ['TMPDIR'] + '/a', 'wb').write(bytes(3 << 19))"),
    "scratch": (
        replace(SMALL, file=8 * MIB),
        "open(os.environ['TMPDIR'] + '/a', 'wb', 0).write(bytes(3 << 20)) == 3 << 20 or sys.exit(1)",
    ),
    "files": (SMALL, "held = [open('/dev/null') for _ in range(64)]"),
    "processes": (SMALL, "held = [subprocess.Popen(['sleep', '1']) for _ in range(32)]; [one.wait() for one in held]"),
}


@pytest.mark.parametrize("name", EXCESSES)
def test_each_limit_bites(name: str, tmp_path: Path) -> None:
    bounds, excess = EXCESSES[name]
    words = [disk_image.SYSTEM_PYTHON, "-I", "-B", "-c", f"import os, subprocess, sys\n{excess}\nprint('done')"]
    with pytest.raises(CommandFailed):
        confined(words, bounds, View({}, {}))
    wide = Bounds(memory=1 << 30, data=2 << 30, cpu=60, file=64 * MIB, files=256, processes=256, scratch=64 * MIB)
    assert confined(words, wide, View({}, {})) == b"done\n", "the control fails for another reason"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    assert subprocess.run(words, check=True, capture_output=True, env=environment).stdout == b"done\n"


def groups() -> set[Path]:
    """v1: a directory for each controller; v2: one of systemd's scopes, or one at the top."""
    places = ("*/slicemgr", "system.slice", ".")
    return {path for place in places for path in cgroup.MOUNT.glob(f"{place}/{cgroup.IMPORTER}*")}


def test_nothing_is_left_of_what_is_killed(tmp_path: Path) -> None:
    before = groups()
    words = ["sh", "-c", "touch $TMPDIR/left; setsid sleep 300 & echo started; sleep 300"]
    with confinement.converse(words, WHO, SMALL, View({}, {}), timeout=60, env={}) as talk:
        assert talk.line() == "started"
        assert len(groups() - before) == (2 if cgroup.version() == "v1" else 1)
        sleeping = eventually(
            lambda: [one for one in Path("/proc").glob("[0-9]*/status") if _is_ours(one)], "it sleeps"
        )
    eventually(lambda: not [one for one in sleeping if one.exists()], "what it started is gone")
    eventually(lambda: groups() == before, "its cgroup is gone")


def test_a_group_that_no_process_has_joined_yet_stays() -> None:
    """The agent searches for empty groups every few seconds; at its start, the control, it removes these, too."""
    with cgroup.own_groups(f"{cgroup.IMPORTER}test", memory=64 * MIB, processes=8) as made:
        cgroup.collect_empty(set())
        assert made and all(one.is_dir() for one in made)
        cgroup.collect_importers()
        assert not any(one.is_dir() for one in made) or cgroup.version() == "v2"


def _is_ours(status: Path) -> bool:
    try:
        text = status.read_text()
        words = status.with_name("cmdline").read_text()
    except OSError:
        return False
    return f"\nUid:\t{WHO.uid}\t" in text and words == "sleep\x00300\x00"


def test_unpacking_has_limits_and_few_capabilities(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with unpack.prepared(target, MIB) as (line, fd):
        look = "grep -E '^(CapPrm|CapEff|NoNewPrivs|Seccomp):' /proc/self/status; ulimit -f"
        shown = subprocess.run([*line[:-1], look], pass_fds=(fd,), capture_output=True, text=True, check=False).stdout
    held = dict(one.split(":") for one in shown.splitlines() if ":\t" in one)
    kept = sum(1 << number for number in (0, 1, 3, 4, 27, 31))  # linux/capability.h
    assert {int(held["CapPrm"], 16), int(held["CapEff"], 16)} == {kept}
    assert (int(held["NoNewPrivs"]), int(held["Seccomp"])) == (1, 2)
    assert "2048" in shown, "blocks of 512 bytes"
