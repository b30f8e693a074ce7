"""slicectl ssh: becomes ssh, which then verifies the host key that the service recorded."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slicemgr.cli.shared import become, project_option, slice_names
from slicemgr.errors import Code, Failed, Refused

if TYPE_CHECKING:
    from slicemgr import wire

_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]+={0,2}")
_ASLEEP = {"stopped": "start", "paused": "resume"}
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]*")


@click.command(context_settings={"allow_interspersed_args": False})
@project_option
@click.option("-i", "--identity", metavar="FILE", help="Private key to log in with.")
@click.option("-l", "--login", default="root", show_default=True, help="User inside.")
@click.argument("target", metavar="NAME[/N]", shell_complete=slice_names)
@click.argument("command", metavar="[-- COMMAND]", nargs=-1, type=click.UNPROCESSED)
def ssh(identity: str | None, login: str, target: str, command: tuple[str, ...]) -> None:
    """Log into sliver N (0) of slice NAME, or run COMMAND there; exit status and output are the command's."""
    from slicemgr.client import Client
    from slicemgr.client_settings import find_settings

    if command and command[0].startswith("-") and command[0] != "--":
        raise click.UsageError(f"{command[0]} after NAME: options come before NAME, the command after --")
    with Client.local() as client:
        sliver = find_sliver(client.slice(target.partition("/")[0]), target)
    identity = identity or find_settings().identity
    command = command[1:] if command[:1] == ("--",) else command
    words = [*ssh_words(sliver, known_hosts(target, sliver), identity, login), *command]
    become(words, "apt-get install openssh-client")


def find_sliver(slice: wire.Slice, target: str) -> wire.Sliver:
    """The sliver that `NAME/N` means. Refused if there is no such one."""
    _, slash, index = target.partition("/")
    wanted = index if slash else "0"
    for sliver in slice["slivers"]:
        if str(sliver["index"]) == wanted:
            if sliver["state"] in _ASLEEP:
                hint = f"`slicectl {_ASLEEP[sliver['state']]} {slice['name']}`"
                raise Refused(Code.CONFLICT, f"{slice['name']}/{wanted} is {sliver['state']}", hint=hint)
            return sliver
    raise Refused(Code.NOT_FOUND, f"slice {slice['name']} has no sliver {wanted!r}", hint="`slicectl show` lists them")


def known_hosts(target: str, sliver: wire.Sliver) -> Path:
    """A file with the recorded key and no other; one for each port, so that they do not pile up."""
    key = sliver["ssh"].get("host_key")
    if not key:
        raise Refused(Code.CONFLICT, f"{target} has no host key yet", hint="wait until it runs: `slicectl wait`")
    line = _KEY.match(key)
    if line is None or not _HOST.fullmatch(sliver["ssh"]["host"]):
        raise Failed("the service sent something that is not a host and its ed25519 key")
    directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slicemgr" / "known_hosts"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / f"{sliver['ssh']['host']}-{sliver['ssh']['port']}"  # slices of two testbeds may share a name
    fresh = directory / f".{os.getpid()}"
    fresh.touch(mode=0o600)
    fresh.write_text(f"[{sliver['ssh']['host']}]:{sliver['ssh']['port']} {line[0]}\n")
    fresh.replace(path)
    return path


def ssh_words(sliver: wire.Sliver, known_hosts: Path, identity: str | None, login: str) -> list[str]:
    """The command line: only the recorded key counts, whatever the user's own known_hosts says."""
    options = {
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": '"' + str(known_hosts).replace("%", "%%") + '"',
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlgorithms": "ssh-ed25519",
        "CheckHostIP": "no",
        "VerifyHostKeyDNS": "no",
        "ControlPath": "none",  # a connection left from who had the port before would not be verified
        "UpdateHostKeys": "no",
        "LogLevel": "ERROR",
    }
    words = ["ssh", "-p", str(sliver["ssh"]["port"])]
    for name, value in options.items():
        words += ["-o", f"{name}={value}"]
    if identity:
        words += ["-i", identity, "-o", "IdentitiesOnly=yes"]
    return [*words, "--", f"{login}@{sliver['ssh']['host']}"]
