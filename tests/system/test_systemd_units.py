"""A container whose init is the systemd of the image, by slicectl and ssh."""

from __future__ import annotations

import pytest
from testbed import IMAGES, Node, eventually

UNIT = """\
[Service]
ExecStart=/bin/sh -c 'echo started; exec sleep infinity'
PrivateTmp=yes
ProtectSystem=strict
NoNewPrivileges=yes
SystemCallFilter=@system-service
[Install]
WantedBy=multi-user.target
"""
READY = "systemctl is-system-running --wait; systemctl --failed --plain --no-legend"


@pytest.mark.timeout(900)
def test_units_start_stop_and_survive_a_restart(node: Node) -> None:
    made = node.create("units", "--init", "systemd", "--memory", "256M")
    assert made["init"] == "systemd"
    assert node.inside("units", READY) == "running\n"
    identity = node.inside("units", "hostname; cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub; cat /proc/1/comm")
    assert identity.splitlines() == ["units-0", made["slivers"][0]["ssh"]["host_key"], "systemd"]
    write = f"cat >/etc/systemd/system/mine.service <<'END'\n{UNIT}END\n"
    node.inside("units", f"{write}systemctl daemon-reload; systemctl enable --now mine")
    assert "started" in node.inside("units", "systemctl is-active mine; journalctl -u mine --no-pager -o cat")
    assert "libvirt" not in node.inside("units", "cat /proc/self/cgroup"), "paths are those of its own namespace"
    assert node.inside("units", "touch /root/kept /run/lost /tmp/lost; loginctl --no-legend | wc -l") != "0\n"

    node.ok("restart", "units")
    assert node.inside("units", READY) == "running\n"
    assert node.inside(
        "units", "systemctl is-active mine; ls /root/kept; ls /run/lost /tmp/lost 2>/dev/null; true"
    ) == ("active\n/root/kept\n")
    with node.client() as admin:
        steps = [step for one in admin.operations.list(limit=1) for step in one["steps"]]
    assert [step["detail"] for step in steps if step["name"] == "stop"] == [""], "systemd shut down by itself"

    before = node.inside("units", "cut -d' ' -f22 /proc/1/stat")
    node.ssh("units", "systemctl reboot")

    def again() -> bool:
        done = node.ssh("units", "cut -d' ' -f22 /proc/1/stat")
        return done.returncode == 0 and done.stdout != before

    eventually(again, "the sliver starts again after a reboot inside", 120)
    assert node.inside("units", "free -m | awk '/Mem/ { print $2 }'") == "256\n"
    node.ok("delete", "units")
    node.agrees()


def test_an_image_or_type_without_it_is_refused(node: Node) -> None:
    refused = node.slicectl("create", "no", "--type", "kvm", "--init", "systemd", "--image", IMAGES["lxc"])
    assert refused.returncode == 2
    assert "--init" in refused.stderr and "a virtual machine always boots the init of its image" in refused.stderr
    assert node.slices() == []
