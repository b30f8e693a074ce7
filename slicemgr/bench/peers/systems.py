"""The peers: the programs of each, and how it creates, reaches and deletes a container with forwarded ports.

All containers have the same configuration: the files of the image as a snapshot on the pool, sshd as the first
process, the same memory limit if the peer supports one, and the same TCP ports (the lowest leads to port 22, each
other to the same number). ID mappings and system call filters are the defaults of each peer. `ip` and `iptables`
provide what plain LXC and systemd-nspawn lack: forwarded ports, and for systemd-nspawn an address.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from slicemgr.bench.peers.namespaces import CGROUPS, PEER_SIDE, Sandbox, Words
from slicemgr.drivers import command
from slicemgr.errors import Failed

MIB = 1 << 20
NSPAWN = "systemd-nspawn"
FIRST_PORT = 10_000  # in the network of the peers, below the kernel's range of ephemeral ports
FIRST_PROCESS = "/.bench-peer"
IMAGE = "localhost/bench-peer"
MOST = 1000  # containers for which ports and addresses suffice, with MOST_PORTS each
MOST_PORTS = 22
_NET, _GATEWAY = "198.19", "198.19.0.1"
_BRIDGE = "peers0"
_LONG = 600.0  # timeout in seconds of a program that copies an image
_CREATE = 120.0  # timeout in seconds of a program that creates or deletes a container
_ELSEWHERE = ("/usr/libexec/incus", "/opt/incus/bin")  # directories of daemons that are not in PATH
# $0: the mount point of the control groups. $1: a new group, below one of the peer. $2: its memory limit in bytes. The
# rest: the program that runs in it. On v2 there is one hierarchy; on v1 the memory controller has its own.
_JOIN = """
for top in "$0" "$0/memory"; do
    [ -e "$top/cgroup.procs" ] || continue
    mkdir -p "$top/$1"
    [ ! -e "$top/cgroup.subtree_control" ] || echo +memory > "$top/${1%/*}/cgroup.subtree_control"
    for file in memory.max memory.limit_in_bytes; do
        [ ! -e "$top/$1/$file" ] || echo "$2" > "$top/$1/$file"
    done
    echo 0 > "$top/$1/cgroup.procs"
done
shift 2
exec "$@"
"""
_SCRIPT = b"#!/bin/sh\nmkdir -p /run/sshd\nexec /usr/sbin/sshd -D -e\n"


@dataclass(frozen=True, slots=True)
class One:
    """A container. first, last: its ports on PEER_SIDE. address: used if the peer does not assign one."""

    name: str
    first: int
    last: int
    address: str


@dataclass(frozen=True, slots=True)
class Work:
    """Parameters of the containers. memory: limit of each in bytes. ports: number of ports of each."""

    memory: int
    ports: int

    def one(self, prefix: str, index: int) -> One:
        first = FIRST_PORT + self.ports * index
        return One(f"{prefix}{index:04}", first, first + self.ports - 1, f"{_NET}.{index // 200}.{10 + index % 200}")


class System(Protocol):
    """A peer in a sandbox. Each method raises Failed."""

    def begin(self) -> None:
        """Preparations, which are not measured: daemon, image, bridge."""

    def create(self, one: One) -> None: ...

    def delete(self, one: One) -> None: ...

    def within(self, one: One) -> list[str]:
        """The command prefix that runs a program of the node in the network of the container, in the sandbox."""


def find(program: str) -> str | None:
    """The path of a program; None if it is not installed."""
    return shutil.which(program, path=":".join((command.environment()["PATH"], *_ELSEWHERE)))


# --- the root ---------------------------------------------------------------------------------------------------------


def pattern(sandbox: Sandbox, base: Path) -> Path:
    """Create the snapshot of the image from which containers are made, with a host key and the first process."""
    path = sandbox.directory / "pattern"
    sandbox.run(["btrfs", "subvolume", "snapshot", base, path])
    # tar does not follow symbolic links of the image: it replaces them by directories.
    sandbox.run(["tar", "--extract", "--directory", path], input=_additions())
    return path


def _additions() -> bytes:
    """The additional files. All containers share one host key, because no user logs in."""
    key = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    files = {"etc/ssh/ssh_host_ed25519_key": (key, 0o600), FIRST_PROCESS.lstrip("/"): (_SCRIPT, 0o755)}
    return _archive(files, ("etc", "etc/ssh"))


def _archive(files: Mapping[str, tuple[bytes, int]], directories: Sequence[str] = ()) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name in directories:
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member)
        for name, (content, mode) in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()


def _packed(sandbox: Sandbox) -> Path:
    """The pattern as an archive, for peers that unpack the image themselves."""
    path = sandbox.directory / "root.tar"
    words = ("tar", "--create", "--numeric-owner", "--one-file-system", "--file", path, "--directory")
    sandbox.run([*words, sandbox.directory / "pattern", "."], _LONG)
    return path


# --- Docker and Podman ------------------------------------------------------------------------------------------------


class Engine:
    """Docker or Podman, whose command lines are the same. daemon: the daemon that must run first."""

    def __init__(self, sandbox: Sandbox, work: Work, words: Words, daemon: Words = ()) -> None:
        self._sandbox, self._work = sandbox, work
        self._words, self._daemon = words, daemon

    def begin(self) -> None:
        if self._daemon:
            self._sandbox.start("daemon", self._daemon)
            self._sandbox.ready("daemon", [*self._words, "version"])
        archive = _packed(self._sandbox)
        self._sandbox.run([*self._words, "import", archive, IMAGE], _LONG)
        archive.unlink()

    def create(self, one: One) -> None:
        limits = ["--memory", str(self._work.memory), "--cgroup-parent", f"/{self._sandbox.directory.name}"]
        ports = ["--publish", f"{one.first}:22"]
        if one.last > one.first:
            rest = f"{one.first + 1}-{one.last}"
            ports += ["--publish", f"{rest}:{rest}"]
        options = ["--detach", "--pull", "never", "--log-driver", "none", "--name", one.name, *limits, *ports]
        self._sandbox.run([*self._words, "run", *options, IMAGE, FIRST_PROCESS], _CREATE)

    def delete(self, one: One) -> None:
        self._sandbox.run([*self._words, "rm", "--force", one.name], _CREATE)

    def within(self, one: One) -> list[str]:
        output = self._sandbox.run([*self._words, "inspect", "--format", "{{.State.Pid}}", one.name])
        return _network_of(output)


def docker(sandbox: Sandbox, work: Work) -> System:
    """Docker with its own daemon, which does not read the configuration of the node."""
    settings = sandbox.directory / "docker.json"
    settings.write_text("{}\n")
    driver = ("--storage-driver", "btrfs", "--exec-opt", "native.cgroupdriver=cgroupfs")
    daemon = ("dockerd", "--config-file", settings, "--data-root", sandbox.directory / "docker", *driver)
    return Engine(sandbox, work, ("docker",), daemon)


def podman(runtime: str) -> Callable[[Sandbox, Work], System]:
    def make(sandbox: Sandbox, work: Work) -> System:
        files = ("--root", sandbox.directory / "podman", "--storage-driver", "btrfs")
        return Engine(sandbox, work, ("podman", *files, "--runtime", runtime, "--cgroup-manager", "cgroupfs"))

    return make


# --- LXD and Incus ----------------------------------------------------------------------------------------------------


class Lxd:
    """LXD or Incus. daemon, client, admin: their commands; `waitready` and `init` are subcommands of admin."""

    def __init__(
        self, sandbox: Sandbox, work: Work, variable: str, daemon: str, client: str, admin: Sequence[str]
    ) -> None:
        self._sandbox, self._work = sandbox, work
        self._daemon = find(daemon) or daemon
        self._env = f"{variable}=/var/lib/{daemon}"
        self._client = ("env", self._env, client)
        self._admin = ("env", self._env, *admin)

    def begin(self) -> None:
        self._sandbox.start("daemon", [self._daemon, "--group", "root"], [self._env])
        self._sandbox.ready("daemon", [*self._admin, "waitready", "--timeout", "60"])
        network = {"ipv4.address": f"{_GATEWAY}/16", "ipv4.nat": "true", "ipv6.address": "none"}
        disk = {"type": "disk", "path": "/", "pool": "default"}
        link = {"type": "nic", "name": "eth0", "network": _BRIDGE}
        settings = {
            "storage_pools": [
                {"name": "default", "driver": "btrfs", "config": {"source": str(self._sandbox.directory / "storage")}}
            ],
            "networks": [{"name": _BRIDGE, "type": "bridge", "config": network}],
            "profiles": [{"name": "default", "devices": {"root": disk, "eth0": link}}],
        }
        self._sandbox.run([*self._admin, "init", "--preseed"], _LONG, json.dumps(settings).encode())
        about = self._sandbox.directory / "metadata.tar"
        about.write_bytes(_archive({"metadata.yaml": (b"architecture: x86_64\ncreation_date: 1\n", 0o644)}))
        archive = _packed(self._sandbox)
        self._sandbox.run([*self._client, "image", "import", about, archive, "--alias", "bench-peer"], _LONG)
        archive.unlink()

    def create(self, one: One) -> None:
        """Create a privileged container, as the others are, so file owners stay. Ports are proxied, the default."""
        config = {
            "raw.lxc": f"lxc.init.cmd = {FIRST_PROCESS}",
            "limits.memory": str(self._work.memory),
            "security.privileged": "true",
        }
        devices = {"ssh": _proxy(str(one.first), "22")}
        if one.last > one.first:
            rest = f"{one.first + 1}-{one.last}"
            devices["ports"] = _proxy(rest, rest)
        wanted = json.dumps({"config": config, "devices": devices}).encode()
        self._sandbox.run([*self._client, "launch", "bench-peer", one.name], _CREATE, wanted)

    def delete(self, one: One) -> None:
        self._sandbox.run([*self._client, "delete", "--force", one.name], _CREATE)

    def within(self, one: One) -> list[str]:
        output = self._sandbox.run([*self._client, "query", f"/1.0/instances/{one.name}/state"])
        try:
            return _network_of(str(json.loads(output)["pid"]).encode())
        except (ValueError, KeyError, TypeError) as error:
            raise Failed(f"{self._client[-1]} does not report the process of {one.name}: {output[:80]!r}") from error


def _proxy(listen: str, connect: str) -> dict[str, str]:
    return {"type": "proxy", "listen": f"tcp:0.0.0.0:{listen}", "connect": f"tcp:127.0.0.1:{connect}"}


def lxd(sandbox: Sandbox, work: Work) -> System:
    return Lxd(sandbox, work, "LXD_DIR", "lxd", "lxc", ("lxd",))


def incus(sandbox: Sandbox, work: Work) -> System:
    return Lxd(sandbox, work, "INCUS_DIR", "incusd", "incus", ("incus", "admin"))


# --- plain LXC and systemd-nspawn: a snapshot, and rules by hand ------------------------------------------------------


class _ByHand:
    def __init__(self, sandbox: Sandbox, work: Work) -> None:
        self._sandbox, self._work = sandbox, work

    def begin(self) -> None:
        _batch(
            self._sandbox,
            f"link add {_BRIDGE} type bridge",
            f"address add {_GATEWAY}/16 dev {_BRIDGE}",
            f"link set {_BRIDGE} up",
        )

    def _snapshot(self, target: Path) -> None:
        self._sandbox.run(["btrfs", "subvolume", "snapshot", self._sandbox.directory / "pattern", target])

    def _drop(self, target: Path) -> None:
        self._sandbox.run(["btrfs", "subvolume", "delete", target])

    def _forward(self, change: str, one: One) -> None:
        """Add or remove the port forwarding of a container. change: -A or -D."""
        to = f"{change} PREROUTING -d {PEER_SIDE} -p tcp --dport"
        rules = [f"{to} {one.first} -j DNAT --to-destination {one.address}:22"]
        if one.last > one.first:
            rules.append(f"{to} {one.first + 1}:{one.last} -j DNAT --to-destination {one.address}")
        text = "\n".join(("*nat", *rules, "COMMIT", ""))
        self._sandbox.run(["iptables-restore", "--noflush", "--wait"], input=text.encode())


class Lxc(_ByHand):
    def create(self, one: One) -> None:
        files = self._sandbox.directory / "lxc" / one.name
        files.mkdir(parents=True)
        self._snapshot(files / "rootfs")
        (files / "config").write_text(self._config(one, files))
        words = ("lxc-start", "--name", one.name, "--lxcpath", files.parent, "--daemon")
        self._sandbox.run([*words, "--logfile", files / "log", "--logpriority", "ERROR"], _CREATE)
        self._forward("-A", one)

    def delete(self, one: One) -> None:
        self._forward("-D", one)
        path = self._sandbox.directory / "lxc"
        self._sandbox.run(["lxc-destroy", "--name", one.name, "--lxcpath", path, "--force"], _CREATE)

    def within(self, one: One) -> list[str]:
        words = ("lxc-info", "--name", one.name, "--lxcpath", self._sandbox.directory / "lxc")
        return _network_of(self._sandbox.run([*words, "--pid", "--no-humanize"]))

    def _config(self, one: One, files: Path) -> str:
        unified = (CGROUPS / "cgroup.controllers").exists()
        limit = "lxc.cgroup2.memory.max" if unified else "lxc.cgroup.memory.limit_in_bytes"
        lines = {
            "lxc.uts.name": one.name,
            "lxc.rootfs.path": f"btrfs:{files / 'rootfs'}",
            "lxc.init.cmd": FIRST_PROCESS,
            "lxc.mount.auto": "proc:mixed sys:mixed",
            "lxc.apparmor.profile": "unconfined",
            "lxc.net.0.type": "veth",
            "lxc.net.0.link": _BRIDGE,
            "lxc.net.0.flags": "up",
            "lxc.net.0.ipv4.address": f"{one.address}/16",
            "lxc.net.0.ipv4.gateway": _GATEWAY,
            limit: str(self._work.memory),
        }
        return "".join(f"{name} = {value}\n" for name, value in lines.items())


class Nspawn(_ByHand):
    """systemd-nspawn without the machine manager, which needs D-Bus; so its control group is created here, too."""

    def create(self, one: One) -> None:
        root, port = self._sandbox.directory / f"{one.name}.root", f"v{one.first}"
        self._snapshot(root)
        self._sandbox.run(["ip", "netns", "add", one.name])
        outer = f"link add {port} type veth peer name host0 netns {one.name}"
        _batch(self._sandbox, outer, f"link set {port} master {_BRIDGE}", f"link set {port} up")
        address = f"address add {one.address}/16 dev host0"
        up = ("link set lo up", "link set host0 up", f"route add default via {_GATEWAY}")
        _batch(self._sandbox, address, *up, network=one.name)
        self._forward("-A", one)
        self._sandbox.start(one.name, self._process(one, root))

    def delete(self, one: One) -> None:
        self._sandbox.stop(one.name)
        self._forward("-D", one)
        self._sandbox.run(["ip", "netns", "delete", one.name])
        self._drop(self._sandbox.directory / f"{one.name}.root")

    def within(self, one: One) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{one.name}", "--"]

    def _process(self, one: One, root: Path) -> list[str]:
        group = f"{self._sandbox.directory.name}/{one.name}"
        words = ["sh", "-c", _JOIN, str(CGROUPS), group, str(self._work.memory)]
        words += [NSPAWN, "--quiet", "--settings=no", "--register=no", "--keep-unit", "--console=pipe"]
        words += ["--link-journal=no", "--resolv-conf=off", "--timezone=off", f"--machine={one.name}"]
        return [*words, f"--network-namespace-path=/run/netns/{one.name}", f"--directory={root}", FIRST_PROCESS]


def _batch(sandbox: Sandbox, *lines: str, network: str = "") -> None:
    words = ["ip", *(["-netns", network] if network else []), "-batch", "-"]
    sandbox.run(words, input="".join(f"{line}\n" for line in lines).encode())


def _network_of(pid: bytes) -> list[str]:
    return ["nsenter", "--target", pid.decode().strip(), "--net", "--"]
