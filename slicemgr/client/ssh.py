"""ssh into a sliver, accepting only the host key that the service recorded."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from slicemgr import ssh_banner
from slicemgr.errors import Code, Failed, Refused

if TYPE_CHECKING:
    from slicemgr import wire

PUBLIC_KEYS = ("id_ed25519.pub", "id_ecdsa.pub", "id_rsa.pub")  # the default keys of a user
_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]+={0,2}")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]*")


def public_keys(identity: str | None) -> list[str]:
    """The public keys of the user: that of the identity, otherwise those in ~/.ssh. The service may have others."""
    files = [Path(f"{identity}.pub")] if identity else [Path.home() / ".ssh" / name for name in PUBLIC_KEYS]
    return [file.read_text() for file in files if file.is_file()]


def own_identities(identity: str | None) -> list[str]:
    """Options of ssh for the private keys of `public_keys`, because ssh does not use HOME to find them."""
    if identity:
        return []
    files = [Path.home() / ".ssh" / name.removesuffix(".pub") for name in PUBLIC_KEYS]
    return [word for file in files if file.is_file() for word in ("-i", str(file))]


def greets(sliver: wire.Sliver, timeout: float = 2.0) -> bool:
    """Whether an ssh server answers at the port of the sliver, and its host key is recorded. timeout: seconds."""
    return bool(sliver["ssh"].get("host_key")) and answers(sliver, timeout)


def answers(sliver: wire.Sliver, timeout: float = 2.0) -> bool:
    """Whether any ssh server answers at the port of the sliver. timeout: seconds."""
    return ssh_banner.answers(sliver["ssh"]["host"], sliver["ssh"]["port"], timeout)


def known_hosts(target: str, sliver: wire.Sliver) -> Path:
    """A file that contains only the recorded key; one file per port, so that their number is limited."""
    key = sliver["ssh"].get("host_key")
    if not key:
        raise Refused(Code.CONFLICT, f"{target} has no host key yet", hint="wait until it runs: `slicectl wait`")
    line = _KEY.match(key)
    if line is None or not _HOST.fullmatch(sliver["ssh"]["host"]):
        raise Failed("the service sent something that is not a host and its ed25519 key")
    directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slicemgr" / "known_hosts"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / f"{sliver['ssh']['host']}-{sliver['ssh']['port']}"  # slices of two testbeds may share a name
    fresh = directory / f".{os.getpid()}.{threading.get_ident()}"
    fresh.touch(mode=0o600)
    fresh.write_text(f"[{sliver['ssh']['host']}]:{sliver['ssh']['port']} {line[0]}\n")
    fresh.replace(path)
    return path


def verified(known_hosts: Path) -> dict[str, str]:
    """Options of ssh, which accepts only the key in that file and ignores the known_hosts of the user."""
    return {
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": '"' + str(known_hosts).replace("%", "%%") + '"',
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlgorithms": "ssh-ed25519",
        "CheckHostIP": "no",
        "VerifyHostKeyDNS": "no",
        "ControlPath": "none",  # a shared connection may lead to the previous owner of the port, unverified
        "UpdateHostKeys": "no",
        "LogLevel": "ERROR",
    }


def ssh_words(sliver: wire.Sliver, known_hosts: Path, identity: str | None, login: str) -> list[str]:
    """The command line of ssh, with the options of `verified`."""
    words = ["ssh", "-p", str(sliver["ssh"]["port"])]
    for name, value in verified(known_hosts).items():
        words += ["-o", f"{name}={value}"]
    if identity:
        words += ["-i", identity, "-o", "IdentitiesOnly=yes"]
    return [*words, "--", f"{login}@{sliver['ssh']['host']}"]
