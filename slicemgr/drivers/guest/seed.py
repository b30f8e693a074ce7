"""cloud-init's NoCloud seed: what a guest learns at its first start. JSON, which is YAML, so nothing needs quoting.

Ours comes as vendor data, so that the tenant's user data is merged over it by cloud-init itself.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from slicemgr.drivers.guest.identity import Identity, machine_id
from slicemgr.drivers.guest.rootfs import Root

_CONFIG = "#cloud-config\n"
_SEED_DIR = "var/lib/cloud/seed/nocloud"
_CONTAINER_CONFIG = "network: {config: disabled}\ndatasource_list: [NoCloud, None]\n"


def files(identity: Identity, instance: str, user_data: str, mac: str | None, *, clone: bool = False) -> dict[str, str]:
    """The seed's files by name. mac: of the guest's link; None where the network is up already (a container).

    clone: the disk was another machine's, whose machine id it must not keep.
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
        "vendor-data": _CONFIG + _json(_vendor(identity, mac, clone)),
    }
    if mac is not None:
        seed["network-config"] = _json(_network(identity, mac))
        seed["keys-gone"] = _lines(_gone(identity))
    return seed


def write(root: Root, seed: Mapping[str, str]) -> None:
    """Put the seed where the cloud-init inside a container finds it; its network is none of cloud-init's business."""
    for name, text in seed.items():
        root.write(f"{_SEED_DIR}/{name}", text.encode(), mode=0o600)
    root.write("etc/cloud/cloud.cfg.d/99_slicemgr.cfg", _CONTAINER_CONFIG.encode())


def _vendor(identity: Identity, mac: str | None, clone: bool) -> dict[str, object]:
    """root logs in as on every sliver; one host key, the recorded one."""
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
        if clone:
            number = machine_id(identity.host_key_public)
            data["bootcmd"] += [["sh", "-c", f"grep -qx {number} /etc/machine-id || echo {number} >/etc/machine-id"]]
    return data


def _network(identity: Identity, mac: str) -> dict[str, object]:
    """A /32 and a gateway outside of it, on the link: nothing else is the guest's neighbour."""
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
    """For images whose cloud-init cannot say `on-link` (ENI, sysconfig): the same by hand, at every start."""
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
    """cloud-init itself takes keys at the first start only: at every start, ours change and the tenant's own stay."""
    return (
        "umask 077\nfile=~root/.ssh/authorized_keys\n"
        'mkdir -p "${file%/*}" && touch "$file"\n'
        f"printf %s {shlex.quote(_lines(identity.authorized_keys))} >/run/slicemgr-keys\n"
        f"printf %s {shlex.quote(_lines(_gone(identity)))} | cat - /run/slicemgr-keys |"
        ' grep -vxFf - "$file" >"$file.new"\n'
        'cat /run/slicemgr-keys >>"$file.new" && mv "$file.new" "$file"\n'
    )


def _gone(identity: Identity) -> tuple[str, ...]:
    """The keys that we put there once and that are not to be there."""
    return tuple(one for one in identity.keys_put or () if one not in identity.authorized_keys)


def _lines(keys: tuple[str, ...]) -> str:
    return "".join(f"{one.strip()}\n" for one in keys)


def _json(value: object) -> str:
    """One key a line: small guests read it with sed."""
    return json.dumps(value, indent=1) + "\n"
