"""The identity of a sliver: its name, address, keys and ids, written as files into its snapshot of a base."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from slicemgr.drivers.guest import authorized_keys as login_keys
from slicemgr.drivers.guest.rootfs import Root

INIT_DIRECTORY = ".slicemgr"  # mount point of the init, which is not part of the image

_HOST_KEY = "etc/ssh/ssh_host_ed25519_key"
_HOST_KEY_NAME = re.compile(r"ssh_host_.*key(\.pub)?")


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity that is written into a root. search: domains that complete short names; may be empty.

    keys_put: ssh keys that slicemgr wrote before; None: none yet, and the image's keys are removed. peers: host names
    and addresses of the slivers of the slice, with or without this one.
    """

    hostname: str
    address: str
    gateway: str
    dns: tuple[str, ...]
    authorized_keys: tuple[str, ...]
    host_key_private: bytes
    host_key_public: str
    search: tuple[str, ...] = ()
    keys_put: tuple[str, ...] | None = None
    peers: tuple[tuple[str, str], ...] = ()


def new_host_key() -> tuple[bytes, str]:
    """A new ed25519 key: the private key in OpenSSH's format, and the public key as one line."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private, public.decode("ascii")


def fingerprint(public_line: str) -> str:
    """`SHA256:…` of a public key line, as ssh prints it. Raises ValueError if the line is not a key."""
    words = public_line.split()
    if len(words) < 2:
        raise ValueError("a public key line has at least two words")
    try:
        blob = base64.b64decode(words[1], validate=True)
    except binascii.Error as error:
        raise ValueError(f"not a public key: {error}") from error
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode("ascii")
    return f"SHA256:{digest.rstrip('=')}"


def machine_id(host_key_public: str) -> str:
    """32 hexadecimal digits derived from the host key, so that no two slivers share a machine id."""
    return hashlib.sha256(b"machine-id " + host_key_public.strip().encode()).hexdigest()[:32]


def hosts_file(identity: Identity) -> str:
    """The text of /etc/hosts."""
    names = [f"{identity.hostname}.{domain}" for domain in identity.search[:1]] + [identity.hostname]
    own = f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n{identity.address}\t{' '.join(names)}\n"
    return own + peer_lines(identity)


def peer_lines(identity: Identity) -> str:
    """The lines of /etc/hosts for the other slivers of the slice."""
    others = ((name, address) for name, address in identity.peers if name != identity.hostname)
    return "".join(f"{address}\t{name}\n" for name, address in others)


def resolv_conf(identity: Identity) -> str:
    """The text of /etc/resolv.conf."""
    search = [f"search {' '.join(identity.search)}"] if identity.search else []
    return "".join(f"{line}\n" for line in [*search, *(f"nameserver {one}" for one in identity.dns)])


def write_identity(root: Root, identity: Identity) -> None:
    """Write the sliver's identity into its root. A second call with the same identity changes nothing.

    Raises Failed, with the path, if the image contains something that prevents it.
    """
    write_names(root, identity)
    root.write("etc/resolv.conf", resolv_conf(identity).encode())
    root.own_directory(INIT_DIRECTORY, 0o755)
    _write_machine_id(root, machine_id(identity.host_key_public))
    _write_host_key(root, identity)
    login_keys.write(root, identity.authorized_keys, identity.keys_put)


def write_names(root: Root, identity: Identity) -> None:
    """Write what names the sliver and its peers. Raises Failed as `write_identity`."""
    root.write("etc/hostname", f"{identity.hostname}\n".encode())
    root.write("etc/hosts", hosts_file(identity).encode())


def _write_machine_id(root: Root, number: str) -> None:
    root.write("etc/machine-id", f"{number}\n".encode(), mode=0o444)
    if root.exists("var/lib/dbus"):
        root.write("var/lib/dbus/machine-id", f"{number}\n".encode(), mode=0o444)


def _write_host_key(root: Root, identity: Identity) -> None:
    """Write the sliver's one host key and remove the image's keys, which other snapshots of the image share."""
    root.write(_HOST_KEY, identity.host_key_private, mode=0o600)
    root.write(f"{_HOST_KEY}.pub", f"{identity.host_key_public.strip()}\n".encode())
    ours = _HOST_KEY.rpartition("/")[2]
    for name in root.names("etc/ssh"):
        if _HOST_KEY_NAME.fullmatch(name) and name not in (ours, f"{ours}.pub"):
            root.remove(f"etc/ssh/{name}")
