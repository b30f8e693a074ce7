"""The emulated machine of `prodhost`: the programs of its two boots, its start, and its results."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from slicemgr.drivers.libvirt.host import EMULATED_CPU

ADDRESS = "192.0.2.10"  # as in tools/units/slicemgr.toml
NAME = "testbed.example"  # of the machine, as in the documents
SECONDS = 6000.0  # timeout of both boots
DISK = "6G"
MEMORY = "4G"
# An emulated kernel can panic while it patches its own code ("Oops: int3"). It then boots again instead of waiting.
KERNEL_OPTIONS = "root=/dev/vda rw console=ttyS0 quiet mitigations=off panic=5 systemd.show_status=false loglevel=3"
# With cgroup v1 and systemd 243 or newer, libvirt's containers do not start if machined is there (systemd #13629).
MACHINED = "usr/share/dbus-1/system-services/org.freedesktop.machine1.service"
OWN_PYTHON = "/opt/testenv/bin/python"  # not that of the program, which must bring all of its dependencies
XML_START = "<?xml "

# Emulation is slow, hence the long times. The setting skips the probe for acceleration, which would nest emulations.
SETTINGS = r"""
    sed -i 's/^\[libvirt\]$/&\nacceleration = "emulation"/' /etc/slicemgr/slicemgr.toml
    printf '\n[agent]\nreconcile = "8s"\nssh_wait = "120s"\nboot_wait = "900s"\n' >>/etc/slicemgr/slicemgr.toml
    printf '\n[spares]\nkeep = []\n' >>/etc/slicemgr/slicemgr.toml
"""

RUN = """\
#!/bin/sh
# Run at each boot by slicemgr-tests.service. First boot: what is documented for a running system, then the tests.
export LC_ALL=C.UTF-8 HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export SLICEMGR_NO_BOX=1 SLICEMGR_TEST_IMAGES=/opt/tests/images.json PYTHONDONTWRITEBYTECODE=1
mark() {{ echo "== $(cut -d' ' -f1 /proc/uptime) $*"; }}
finish() {{
    journalctl --no-pager -b -u 'slicemgr-*' | tail -n 60
    mark "$how"
    sync
    systemctl $how
}}
check() {{
    mark testing
    {python} -m pytest -p no:cacheprovider --color=no --tb=short --durations=12 --junitxml=/tmp/results.xml "$@"
    stty -F /dev/ttyS1 raw 2>/dev/null
    cat /tmp/results.xml >/dev/ttyS1
}}
how='poweroff --force --force'
trap finish EXIT
cd /opt/tests
if [ ! -e rebooted ]; then
    touch rebooted
    mark setting up
    set -ex
    {settings}
    if [ -b /dev/vdc ]; then mkswap /dev/vdc && swapon /dev/vdc; fi
    {start}
    set +ex
    check {tests}
    {again}
else
    check {after_reboot}
fi
"""

UNIT = """\
[Unit]
Description=the tests of slicemgr
After=multi-user.target libvirtd.service
Wants=libvirtd.service
[Service]
Type=oneshot
ExecStart=/opt/tests/run
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
TimeoutStartSec=infinity
[Install]
WantedBy=multi-user.target
"""

# The node's address, and another host in its network. Up when a unit needs the network online, as on any host.
LAN = f"""\
[Unit]
Description=a network for the tests
Before=network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=ip netns add users
ExecStart=ip link add lan type veth peer name eth0 netns users
ExecStart=ip addr add {ADDRESS}/24 dev lan
ExecStart=ip link set lan up
ExecStart=ip -n users addr add 192.0.2.99/24 dev eth0
ExecStart=ip -n users link set eth0 up
ExecStart=ip -n users link set lo up
[Install]
WantedBy=network-online.target
"""


@dataclass(frozen=True)
class Script:
    """The work of the machine: the documented commands for a running system and for removal, tests of each boot.

    settings: commands that change the settings first, for an emulated machine.
    """

    start: Sequence[str]
    remove: Sequence[str]
    tests: Sequence[str]
    after_reboot: Sequence[str]
    settings: str = SETTINGS


@dataclass(frozen=True)
class Hardware:
    """Of the machine, and how it is booted. swap: size of a third disk for it, compressed in memory first (zswap); "":
    none. legacy: with cgroup v1.
    """

    memory: str = MEMORY
    swap: str = ""
    legacy: bool = False

    @property
    def options(self) -> str:
        """For the command line of the kernel."""
        found = ["zswap.enabled=1"] if self.swap else []
        if self.legacy:
            found += ["systemd.unified_cgroup_hierarchy=0", "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"]
        return " ".join(found)


USUAL = Hardware()


def write_files(root: Path, script: Script, images: str) -> list[str]:
    """Write the files that a machine needs for boot and tests. Returns the commands to run in the tree then."""
    ours, units = root / "opt" / "tests", root / "etc" / "systemd" / "system"
    runner, remove = ours / "run", ours / "remove"
    runner.write_text(
        RUN.format(
            settings=script.settings,
            start="\n    ".join(script.start).replace("/dev/YOUR-DISK", "/dev/vdb"),
            python=OWN_PYTHON,
            tests=shlex.join(script.tests),
            after_reboot=shlex.join(script.after_reboot),
            again="how=reboot" if script.after_reboot else ":",
        )
    )
    remove.write_text("set -ex\n" + "\n".join(script.remove) + "\n")
    runner.chmod(0o755)
    (ours / "images.json").write_text(images)
    (units / "slicemgr-tests.service").write_text(UNIT)
    (units / "lan.service").write_text(LAN)
    (root / "etc" / "fstab").write_text("/dev/vda / ext4 defaults 0 1\n")
    (root / "etc" / "hostname").write_text("node1\n")
    (root / "etc" / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 node1\n{ADDRESS} {NAME}\n")
    (root / "etc" / "resolv.conf").write_text("")
    return [
        "systemctl enable slicemgr-tests.service lan.service",
        "systemctl mask serial-getty@ttyS0.service getty@tty1.service",  # their hang-up would truncate the output
    ]


def make_disk(root: Path, target: Path) -> None:
    """Create a raw disk with the tree as its ext4 file system, without partitions."""
    subprocess.run(["truncate", "-s", DISK, target], check=True)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=1", "-d", root, target], check=True)


def read_output(disk: Path, target: Path) -> None:
    """Copy the files that tests keep (/opt/tests/output) from the machine's disk into a folder."""
    subprocess.run(["debugfs", "-R", f"rdump /opt/tests/output {shlex.quote(str(target))}", disk], check=True)


def merge(text: str) -> tuple[int, str]:
    """Merge consecutive JUnit documents. Returns the number of complete ones, and the merged document."""
    whole, merged = 0, ET.Element("testsuites")
    for part in text.replace("\r", "").split(XML_START)[1:]:
        try:
            merged.extend(ET.fromstring(XML_START + part))
        except ET.ParseError:
            continue
        whole += 1
    return whole, ET.tostring(merged, encoding="unicode")


def boot(work: Path, pool_disk: Path, console: Path, hardware: Hardware = USUAL, seconds: float = SECONDS) -> str:
    """Run the machine to its end, for at most `seconds`, and return the output of its second serial port.

    work: has `vmlinuz`, `initrd`, `root.raw`. console: the file for the output of its first serial port.
    """
    results, swap = work / "results.xml", work / "swap.raw"
    if hardware.swap:
        subprocess.run(["truncate", "-s", hardware.swap, swap], check=True)
    words = [
        "setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64",
        "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", EMULATED_CPU, "-smp", "2", "-m", hardware.memory,
        "-nodefaults", "-no-user-config", "-display", "none", "-nic", "none",
        "-kernel", str(work / "vmlinuz"), "-initrd", str(work / "initrd"),
        "-append", f"{KERNEL_OPTIONS} {hardware.options}",
        "-drive", f"file={work / 'root.raw'},format=raw,if=virtio,cache=unsafe",
        "-drive", f"file={pool_disk},format=raw,if=virtio,cache=unsafe,snapshot=on",
        *(["-drive", f"file={swap},format=raw,if=virtio,cache=unsafe"] if hardware.swap else []),
        "-object", "rng-random,filename=/dev/urandom,id=rng", "-device", "virtio-rng-pci,rng=rng",
        "-chardev", f"file,id=console,path={console}", "-serial", "chardev:console",
        "-chardev", f"file,id=results,path={results}", "-serial", "chardev:results",
    ]  # fmt: skip
    with subprocess.Popen(words, stdin=subprocess.DEVNULL) as machine:
        try:
            machine.wait(seconds)
        except subprocess.TimeoutExpired:
            machine.kill()
    return results.read_text(errors="replace") if results.exists() else ""
