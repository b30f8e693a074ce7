"""The main path, over slicectl and ssh: the tenant gets what was requested, as the kernel confirms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from testbed import BIN, IMAGES, Node, eventually

from slicemgr import ssh_banner

MIB = 1 << 20
both_types = pytest.mark.usefixtures("each_type")


@both_types
def test_a_slice_from_request_to_root_shell(node: Node) -> None:
    own = ("--pids", "200") if node.type == "lxc" else ()
    made = node.create("exp", "--count", "2", "--memory", "256M", "--disk", "2G", "--cpu", "0.5", *own)
    assert (made["state"], made["type"], made["project"]) == ("running", node.type, "default")
    assert made["image"] == IMAGES[node.type]
    first, second = made["slivers"]
    assert first["ports"]["first"] == first["ssh"]["port"]
    assert second["ports"]["first"] == first["ports"]["last"] + 1
    assert first["limits"]["memory"] == 256 * MIB
    assert first["ssh"]["fingerprint"].startswith("SHA256:")
    told = node.inside(
        "exp/1", "id -u; hostname; cat /etc/hostname; grep -c exp-1 /etc/hosts; sed -n 's/^ID=//p' /etc/os-release"
    )
    assert told.split() == ["0", "exp-1", "exp-1", "1", "debian"]
    if node.type == "lxc":  # the small guest has no cloud-init, which writes the names in a machine
        assert node.inside("exp/1", "getent hosts exp-0").split() == [first["address"], "exp-0"]
    link = node.inside("exp/1", "ip -4 -o addr show dev eth0; ip route").split()
    assert f"{second['address']}/32" in link or second["address"] in link
    assert node.inside("exp/1", "cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub || true") in (
        "",
        f"{second['ssh']['host_key']}\n",
    )
    usage = eventually(lambda: (node.show("exp")["slivers"][0]["usage"]["memory"] or 0) > 0, "usage is measured", 20)
    assert usage
    node.agrees()


def test_ssh_passes_exit_status_and_checks_the_recorded_key(node: Node) -> None:
    node.create("exp")
    assert node.ssh("exp", "exit 42").returncode == 42
    change = "ssh-keygen -q -t ed25519 -N '' -f /tmp/k && cp /tmp/k /etc/ssh/ssh_host_ed25519_key && pkill -HUP -o sshd"
    node.inside("exp", change)

    def refused() -> bool:
        done = node.ssh("exp", "true")
        return done.returncode == 255 and "host key" in done.stderr.lower()

    eventually(refused, "the new key is refused")


def test_a_container_has_a_log_of_who_came_in(node: Node) -> None:
    node.create("exp")
    node.inside("exp", "logger -p user.notice it is written")
    told = node.inside("exp", "cat /var/log/messages")
    assert "Accepted publickey for root" in told
    assert "it is written" in told


@both_types
def test_stop_start_restart_keep_files_and_key(node: Node) -> None:
    before = node.create("exp")["slivers"][0]
    node.inside("exp", "echo precious > /root/data; sync")
    node.ok("stop", "exp")
    assert node.show("exp")["state"] == "stopped"
    node.agrees()
    node.ok("start", "exp")
    assert node.inside("exp", "cat /root/data") == "precious\n"
    node.ok("restart", "exp")
    assert node.inside("exp", "cat /root/data") == "precious\n"
    after = node.show("exp")["slivers"][0]
    assert (after["ssh"], after["ports"], after["address"]) == (before["ssh"], before["ports"], before["address"])


def greets(node: Node, port: int) -> bool:
    """Whether the sliver's sshd sends its banner to a client outside the node."""
    return ssh_banner.answers(str(node.box.address), port)


@both_types
def test_pause_freezes_and_resume_goes_on(node: Node) -> None:
    port = node.create("exp")["slivers"][0]["ssh"]["port"]
    node.inside("exp", "echo kept > /dev/shm/memory")
    eventually(lambda: greets(node, port), "its sshd answers")
    node.ok("pause", "exp")
    assert node.show("exp")["state"] == "paused"
    assert not greets(node, port)
    node.agrees()
    node.ok("resume", "exp")
    assert node.show("exp")["state"] == "running"
    assert node.inside("exp", "cat /dev/shm/memory") == "kept\n"


def test_every_port_of_the_block_leads_to_itself(node: Node) -> None:
    sliver = node.create("exp", "--ports", "5")["slivers"][0]
    last = sliver["ports"]["last"]
    serve = f"python3 -m http.server {last} --directory /etc"
    node.inside("exp", f"nohup {serve} >/dev/null 2>&1 &")
    url = f"http://{node.box.address}:{last}/hostname"
    fetch = ["python3", "-c", f"import urllib.request as u; print(u.urlopen('{url}', timeout=5).read().decode())"]
    eventually(lambda: "exp-0" in node.box.run(fetch).stdout, "the server answers at its own port, from the node", 20)


@both_types
def test_slices_are_apart_and_a_slice_is_together(node: Node) -> None:
    ours = node.create("ours", "--count", "2")["slivers"]
    theirs = node.create("theirs")["slivers"][0]

    def reaches(address: str, port: int) -> bool:
        probe = f"timeout 3 bash -c 'exec 3<>/dev/tcp/{address}/{port} && head -c 4 <&3'"
        return "SSH-" in node.ssh("ours", probe).stdout

    eventually(lambda: reaches(ours[1]["address"], 22), "a sliver of the same slice is reached")
    assert not reaches(theirs["address"], 22), "another slice's private address"
    for one, whose in ((theirs, "another slice's"), (ours[0], "its own")):
        ssh = one["ssh"]
        eventually(lambda ssh=ssh: reaches(ssh["host"], ssh["port"]), f"{whose} public port is reached")  # type: ignore[misc]
    closed = node.ssh("ours", f"timeout 3 bash -c 'exec 3<>/dev/tcp/{node.box.address}/8480'")
    assert closed.returncode != 0, "the node's own service"


def test_user_data_is_done_in_a_container_too(node: Node, tmp_path: Path) -> None:
    """cloud-init of the image applies it once; name, network and host key are not changed."""
    wishes = tmp_path / "user-data"
    wishes.write_text(
        "#cloud-config\nwrite_files:\n- {path: /root/wanted, content: first}\nruncmd:\n- echo again >> /root/count\n"
    )
    made = node.create("exp", "--user-data", str(wishes))["slivers"][0]
    eventually(lambda: node.ssh("exp", "cat /root/count").stdout == "again\n", "cloud-init has done it", 90)
    assert node.inside("exp", "cat /root/wanted; echo; hostname").split() == ["first", "exp-0"]
    node.ok("restart", "exp")
    eventually(lambda: "finished at" in node.inside("exp", "cat /var/log/cloud-init-output.log"), "it ran again", 90)
    assert node.inside("exp", "cat /root/count") == "again\n"
    assert node.show("exp")["slivers"][0]["ssh"]["fingerprint"] == made["ssh"]["fingerprint"]


def test_dry_run_and_no_wait(node: Node) -> None:
    key = f"{node.key}.pub"
    planned = json.loads(
        node.ok("create", "exp", "--type", "lxc", "--image", "debian-12", "--ssh-key", key, "--dry-run", "-f", "json")
    )
    assert planned["slivers"][0]["ports"]["first"] >= 10000
    assert json.loads(node.ok("list", "-f", "json")) == []
    node.ok("create", "exp", "--type", "lxc", "--image", "debian-12", "--ssh-key", key, "--no-wait")
    node.ok("wait", "exp", "--timeout", "60s")
    assert node.inside("exp", "echo here") == "here\n"


def test_bulk_commands_go_on_past_a_failure(node: Node) -> None:
    node.create("exp")
    done = node.slicectl("delete", "missing", "exp")
    assert done.returncode == 1
    assert "missing" in done.stderr
    assert json.loads(node.ok("list", "-f", "json")) == []


def test_the_same_image_twice_is_one_and_one_in_use_stays(node: Node) -> None:
    from testbed import ensure_image

    before = json.loads(node.ok("image", "list", "-f", "json"))
    node.ok("image", "import", ensure_image(), "--name", "another")
    assert json.loads(node.ok("image", "list", "-f", "json")) == before
    node.create("exp")
    refused = node.slicectl("image", "delete", "debian-12")
    assert refused.returncode == 4
    assert "in use" in refused.stderr


def test_doctor_finds_nothing_missing(node: Node) -> None:
    checks = json.loads(node.ok("doctor", "-f", "json"))
    assert {one["name"] for one in checks} >= {"launcher", "disk quota", "firewall", "libvirt lxc driver"}
    assert [one for one in checks if one["ok"] is False] == []
    beside = node.box.run([BIN / "slicemgr", "doctor", "-f", "json"], timeout=300)  # as on a host without an agent
    assert [one for one in json.loads(beside.stdout)["checks"] if one["ok"] is False] == []
