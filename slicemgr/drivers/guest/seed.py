"""cloud-init's NoCloud seed, which configures a guest at its first start. JSON, as a subset of YAML, avoids quoting.

slicemgr's settings are vendor data, over which cloud-init merges the tenant's user data.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from slicemgr.drivers.guest.identity import Identity, machine_id, peer_lines
from slicemgr.drivers.guest.rootfs import Root

_CONFIG = "#cloud-config\n"
_SEED_DIR = "var/lib/cloud/seed/nocloud"
_PEERS, _PEERS_END = "# other slivers of the slice", "# end of the other slivers"
# At every start, the kernel may have added memory before it was set to bring that online.
_TAKE_MEMORY = (
    "cd /sys/devices/system/memory && echo online >auto_online_blocks || exit 0\n"
    "modprobe -q virtio_mem\n"
    'for state in memory*/state; do grep -q offline "$state" && echo online >"$state"; done\n'
    "exit 0\n"
)
_CONTAINER_CONFIG = "network: {config: disabled}\ndatasource_list: [NoCloud, None]\n"


def files(
    identity: Identity, instance: str, user_data: str, mac: str | None, *, clone: bool = False, grows: bool = False
) -> dict[str, str]:
    """The files of the seed by name. mac: of the guest's link; None if the network is already up (a container).

    clone: the disk comes from another machine, whose machine id is replaced. grows: whether it can get memory while it
    runs.
    """
    seed = {
        "meta-data": _json(
            {
                "instance-id": instance,
                "local-hostname": identity.hostname,
                "public-keys": list(identity.authorized_keys),
            }
        ),
        "user-data": user_data or f"{_CONFIG}{{}}\n",
        "vendor-data": _CONFIG + _json(_vendor(identity, mac, clone, grows)),
    }
    if mac is not None:
        seed["network-config"] = _json(_network(identity, mac))
        seed["keys-gone"] = _lines(_gone(identity))
    return seed


def write(root: Root, seed: Mapping[str, str]) -> None:
    """Write the seed where cloud-init inside a container finds it, and disable its network configuration."""
    for name, text in seed.items():
        root.write(f"{_SEED_DIR}/{name}", text.encode(), mode=0o600)
    root.write("etc/cloud/cloud.cfg.d/99_slicemgr.cfg", _CONTAINER_CONFIG.encode())


def _vendor(identity: Identity, mac: str | None, clone: bool, grows: bool) -> dict[str, object]:
    """The vendor data: root may log in, and the only host key is the recorded one."""
    data: dict[str, Any] = {
        "disable_root": False,
        "manage_etc_hosts": "localhost" if mac else False,
        "ssh_deletekeys": True,
        "ssh_keys": {
            "ed25519_private": identity.host_key_private.decode(),
            "ed25519_public": identity.host_key_public,
        },
    }
    if mac is not None:
        data["growpart"] = {"mode": "auto", "devices": ["/"]}
        data["bootcmd"] = [["sh", "-c", _bring_up(identity, mac)], ["sh", "-c", _set_keys(identity)]]
        if identity.peers:
            data["bootcmd"] += [["sh", "-c", _set_peers(identity)]]
        if clone:
            number = machine_id(identity.host_key_public)
            data["bootcmd"] += [["sh", "-c", f"grep -qx {number} /etc/machine-id || echo {number} >/etc/machine-id"]]
        if grows:
            data["bootcmd"] += [["sh", "-c", _TAKE_MEMORY]]
    return data


def _network(identity: Identity, mac: str) -> dict[str, object]:
    """A /32 address with an on-link gateway outside of it, so that the guest has no neighbours."""
    return {
        "version": 2,
        "ethernets": {
            "eth0": {
                "match": {"macaddress": mac},
                "set-name": "eth0",
                "dhcp4": False,
                "dhcp6": False,
                "accept-ra": False,
                "addresses": [f"{identity.address}/32"],
                "routes": [{"to": "0.0.0.0/0", "via": identity.gateway, "on-link": True}],
                "nameservers": {"addresses": list(identity.dns)},
            }
        },
    }


def _bring_up(identity: Identity, mac: str) -> str:
    """Configure the link at every start, for images whose cloud-init does not support `on-link` (ENI, sysconfig)."""
    resolver = "".join(f"nameserver {one}\n" for one in identity.dns)
    return (
        "ip -4 route show default | grep -q . && exit 0\n"
        "for path in /sys/class/net/*; do\n"
        f'  [ "$(cat $path/address)" = {shlex.quote(mac)} ] && link=${{path##*/}}\n'
        "done\n"
        f"ip link set $link up && ip addr replace {identity.address}/32 dev $link\n"
        f"ip route replace default via {identity.gateway} dev $link onlink\n"
        f"[ -s /etc/resolv.conf ] || printf %s {shlex.quote(resolver)} >/etc/resolv.conf\n"
    )


def _set_keys(identity: Identity) -> str:
    """Replace slicemgr's keys at every start and keep the tenant's; cloud-init itself adds keys only at the first."""
    return (
        "umask 077\nfile=~root/.ssh/authorized_keys\n"
        'mkdir -p "${file%/*}" && touch "$file"\n'
        f"printf %s {shlex.quote(_lines(identity.authorized_keys))} >/run/slicemgr-keys\n"
        f"printf %s {shlex.quote(_lines(_gone(identity)))} | cat - /run/slicemgr-keys |"
        ' grep -vxFf - "$file" >"$file.new"\n'
        'cat /run/slicemgr-keys >>"$file.new" && mv "$file.new" "$file"\n'
    )


def _set_peers(identity: Identity) -> str:
    """Replace slicemgr's lines of /etc/hosts at every start, so that a clone gets the addresses of its own slice."""
    text = f"{_PEERS}\n{peer_lines(identity)}{_PEERS_END}\n"
    return (
        f'file=/etc/hosts\nsed \'/^{_PEERS}$/,/^{_PEERS_END}$/d\' "$file" >"$file.new" || exit 1\n'
        f'printf %s {shlex.quote(text)} >>"$file.new" && cat "$file.new" >"$file"; rm -f "$file.new"\n'
    )


def _gone(identity: Identity) -> tuple[str, ...]:
    """The keys that slicemgr once wrote and that must no longer be present."""
    return tuple(one for one in identity.keys_put or () if one not in identity.authorized_keys)


def _lines(keys: tuple[str, ...]) -> str:
    return "".join(f"{one.strip()}\n" for one in keys)


def _json(value: object) -> str:
    """JSON with one key per line, because small guests read it with sed."""
    return json.dumps(value, indent=1) + "\n"
