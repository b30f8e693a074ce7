"""A researcher away from the node: signs in, works with the same verbs, and runs the documented experiment."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from testbed import BIN, Node, eventually

from slicemgr.client import Client
from slicemgr.errors import Code, Failed, SlicemgrError

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "rest.md"
PASSWORD = "correct horse battery"


class Laptop:
    """A home directory, and nothing of the node but its URL."""

    def __init__(self, home: Path) -> None:
        self.environment = {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        (home / ".ssh").mkdir(mode=0o700)
        self.key = home / ".ssh/id_ed25519"
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)

    def run(self, *words: str | Path, input: str = "", timeout: float = 240) -> subprocess.CompletedProcess[str]:
        argv = [str(word) for word in words]
        environment = self.environment
        return subprocess.run(argv, input=input, capture_output=True, text=True, timeout=timeout, env=environment)

    def slicectl(self, *words: str | Path, input: str = "") -> str:
        done = self.run(BIN / "slicectl", *words, input=input)
        assert done.returncode == 0, f"slicectl {' '.join(map(str, words))}: {done.stderr}{done.stdout}"
        return done.stdout


@pytest.fixture
def laptop(node: Node, tmp_path: Path) -> Iterator[Laptop]:
    """Carol's, signed in; she is the only member of a project."""
    there = {one["name"] for one in json.loads(node.ok("user", "list", "-f", "json"))}
    words = ("user", "invite", "carol") if "carol" not in there else ("user", "link", "carol")
    link = re.search(r"https?://\S+/invitation/\S+", node.ok(*words))
    assert link is not None
    if "carol" not in there:
        node.ok("project", "create", "far", "--pi", "carol", "--slices", "3")
    made = Laptop(tmp_path)
    made.slicectl("user", "accept", link[0], "--password-stdin", input=f"{PASSWORD}\n")
    made.slicectl("login", node.url, "--user", "carol", "--password-stdin", input=f"{PASSWORD}\n")
    yield made
    left = [one["name"] for one in json.loads(made.slicectl("list", "-f", "json"))]
    if left:
        made.slicectl("delete", *left)


def experiment() -> str:
    """The one of docs/how-to/rest.md, unchanged."""
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    assert len([line for line in blocks[0].splitlines() if line.strip()]) == 5
    return str(blocks[0])


def test_the_documented_experiment(node: Node, laptop: Laptop) -> None:
    done = laptop.run(sys.executable, "-c", experiment())
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+(\.\d+)? [GM]bits/sec", done.stdout), done.stdout
    assert json.loads(laptop.slicectl("list", "-f", "json")) == [], "it is deleted at the end"


def test_the_same_verbs_from_a_laptop(node: Node, laptop: Laptop) -> None:
    """Login creates only one file, which other users cannot read."""
    kept = Path(laptop.environment["HOME"]) / ".config/slicemgr/client.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    laptop.slicectl("key", "add", f"{laptop.key}.pub")
    laptop.slicectl("create", "far", "--type", "lxc", "--image", "debian-12")
    shown = json.loads(laptop.slicectl("show", "far", "-f", "json"))
    assert (shown["owner"], shown["project"], shown["state"]) == ("carol", "far", "running")
    assert laptop.slicectl("ssh", "-i", laptop.key, "far", "--", "id", "-u") == "0\n"
    laptop.slicectl("renew", "far", "--lease", "9d")
    for verb in ("stop", "start", "pause", "resume", "restart"):
        laptop.slicectl(verb, "far")
    laptop.slicectl("wait", "far")
    actions = [one["action"] for one in json.loads(laptop.slicectl("event", "list", "--slice", "far", "-f", "json"))]
    assert {"create", "renew", "stop", "restart"} <= set(actions)
    assert laptop.run(BIN / "slicectl", "user", "invite", "x").returncode == 5
    laptop.slicectl("delete", "far")
    laptop.slicectl("logout")
    assert laptop.run(BIN / "slicectl", "list").returncode != 0
    laptop.slicectl("login", node.url, "--user", "carol", "--password-stdin", input=f"{PASSWORD}\n")


def test_ssh_itself_with_the_printed_configuration(node: Node, laptop: Laptop, tmp_path: Path) -> None:
    """ssh and the inventory's options log in with the recorded host key; with another recorded key they refuse."""
    laptop.slicectl("key", "add", f"{laptop.key}.pub")
    laptop.slicectl("create", "far", "--type", "lxc", "--image", "debian-12", "--count", "2")
    config = tmp_path / "slices"
    config.write_text(laptop.slicectl("ssh-config", "far/far", "-i", str(laptop.key)))

    def hostname(*words: str) -> subprocess.CompletedProcess[str]:
        return laptop.run("ssh", "-o", "BatchMode=yes", *words, "hostname")

    assert hostname("-F", str(config), "far-1").stdout == "far-1\n"
    groups = yaml.safe_load(laptop.slicectl("ssh-config", "far", "-i", str(laptop.key), "--ansible"))["all"]["children"]
    host = groups["far_far"]["hosts"]["far-0"]
    words = [*shlex.split(host["ansible_ssh_args"]), "-p", str(host["ansible_port"]), f"root@{host['ansible_host']}"]
    assert hostname("-F", "/dev/null", *words).stdout == "far-0\n"
    (known,) = (tmp_path / ".cache/slicemgr/known_hosts").glob(f"*-{host['ansible_port']}")
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    first, _, _ = known.read_text().partition(" ")
    known.write_text(f"{first} {Path(f'{other}.pub').read_text()}")
    assert hostname("-F", str(config), "far-0").returncode == 255
    assert hostname("-F", "/dev/null", *words).returncode == 255
    laptop.slicectl("delete", "far")


@pytest.fixture
def client(node: Node) -> Iterator[Client]:
    with node.client() as made:
        made.identity = str(node.key)
        yield made


def test_a_held_slice_from_beginning_to_end(
    node: Node, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with client.slices.create("held", image="debian-12", memory="256M") as held:
        assert held.wait_ssh(timeout=120).ssh("echo one; echo two >&2") == "one\n"
        with pytest.raises(Failed) as caught:
            held.ssh("echo why >&2; exit 3")
        assert "exit status 3" in caught.value.message and "why" in caught.value.hint
        with pytest.raises(Failed) as caught:
            held.ssh("sleep 60", timeout=2)
        assert caught.value.code is Code.TIMEOUT
        with pytest.raises(SlicemgrError, match="no sliver 1"):
            held.ssh("true", sliver=1)
        assert held.renew("9d") == client.slices.get("held")["expires_at"]
        same = client.slices.handle("held").refresh()
        assert [one["id"] for one in same.slivers] == [one["id"] for one in held.slivers]
        assert held.act("stop").wait().refresh().info["state"] == "stopped"
        held.act("start").wait_ssh(timeout=120)
        key = (
            "ssh-keygen -q -t ed25519 -N '' -f /tmp/k && cp /tmp/k /etc/ssh/ssh_host_ed25519_key && pkill -HUP -o sshd"
        )
        held.ssh(key)

        def stranger() -> bool:
            try:
                held.ssh("true")
            except Failed as error:
                return "exit status 255" in error.message
            return False

        eventually(stranger, "its other key is refused")
    assert client.slices.list() == []


def test_what_fails_within_is_told_and_the_slice_is_deleted(node: Node, client: Client) -> None:
    with pytest.raises(RuntimeError, match="mine"), client.slices.create("held", image="debian-12"):
        raise RuntimeError("mine")
    assert client.slices.list() == []
    with client.slices.create("held", image="debian-12") as held:
        held.delete()
    assert client.slices.list() == [], "who has deleted it already is not disturbed"
