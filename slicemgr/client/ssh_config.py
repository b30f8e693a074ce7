"""Entries of ssh's configuration and an inventory for Ansible, both with the recorded host keys alone.

Names from the service are checked before they are printed: neither format has a quoting that covers everything.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from slicemgr.client.ssh import known_hosts, verified
from slicemgr.errors import Failed, invalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slicemgr import wire

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


class Host(NamedTuple):
    """A sliver for ssh. options: names and values of ssh's configuration; None: its host key is not recorded."""

    slice: str  # PROJECT/NAME
    names: tuple[str, ...]
    address: str
    port: int
    options: Mapping[str, str] | None


def hosts(slices: Iterable[wire.Slice], identity: str | None) -> list[Host]:
    """The slivers of the slices; writes a file with the host key of each. identity: the private key to log in with.

    A sliver is called NAME-N if only one of the slices has that name, and PROJECT.NAME-N. Raises Failed for names or
    keys that cannot be ones.
    """
    slices = list(slices)
    for name in (one[field] for one in slices for field in ("project", "name")):
        if not _NAME.fullmatch(name):
            raise Failed(f"the service sent {name!r}, which is not a name")
    often = Counter(one["name"] for one in slices)
    login = {} if identity is None else {"IdentityFile": _quoted(identity), "IdentitiesOnly": "yes"}
    return [
        Host(
            f"{slice['project']}/{slice['name']}",
            _names(slice, int(sliver["index"]), short=often[slice["name"]] == 1),
            sliver["ssh"]["host"],
            int(sliver["ssh"]["port"]),
            {**verified(known_hosts(slice["name"], sliver)), **login} if sliver["ssh"].get("host_key") else None,
        )
        for slice in slices
        for sliver in slice["slivers"]
    ]


def as_ssh_config(found: Iterable[Host], login: str) -> str:
    """Entries of ssh_config(5); a comment for each sliver without a host key. login: the user inside the slivers."""
    return "\n".join(_entry(host, login) for host in found)


def as_inventory(found: Iterable[Host], login: str) -> dict[str, Any]:
    """An inventory of Ansible with a group for each slice. Slivers without a host key are left out."""
    groups: dict[str, dict[str, Any]] = {}
    by_slice: dict[str, str] = {}
    for host in found:
        if host.options is None:
            continue
        group = by_slice.setdefault(host.slice, _group(host.slice, taken=groups))
        groups.setdefault(group, {"hosts": {}})["hosts"][host.names[0]] = {
            "ansible_host": host.address,
            "ansible_port": host.port,
            "ansible_user": login,
            # All options of ssh, so that Ansible adds no shared connection, whose host key is not verified again.
            "ansible_ssh_args": " ".join(
                f"-o {shlex.quote(f'{name}={value}')}" for name, value in host.options.items()
            ),
        }
    return {"all": {"children": groups}}


def _names(slice: wire.Slice, index: int, *, short: bool) -> tuple[str, ...]:
    full = f"{slice['project']}.{slice['name']}-{index}"
    return (f"{slice['name']}-{index}", full) if short else (full,)


def _entry(host: Host, login: str) -> str:
    if host.options is None:
        return f"# {host.names[0]} has no host key yet\n"
    lines = {"HostName": host.address, "Port": str(host.port), "User": login, **host.options}
    return f"Host {' '.join(host.names)}\n" + "".join(f"    {name} {value}\n" for name, value in lines.items())


def _group(slice: str, taken: Iterable[str]) -> str:
    """A name that Ansible accepts: `lab_exp`."""
    name = re.sub(r"[^a-z0-9]", "_", slice)
    used = set(taken)
    return next(one for one in (name, *(f"{name}_{n}" for n in range(2, len(used) + 3))) if one not in used)


def _quoted(path: str) -> str:
    """A path for ssh's configuration, in which % begins a token and quotes cannot be escaped."""
    if '"' in path or not path.isprintable():
        raise invalid("--identity", f"{path!r} cannot be written to a configuration of ssh", "use another path")
    return '"' + path.replace("%", "%%") + '"'
