"""The files with which RabbitMQ starts as the broker of a testbed, and the certificate of its hub."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from slicemgr.certificates import requests
from slicemgr.certificates.authority import Authority
from slicemgr.certificates.private_files import replace, write_private
from slicemgr.config import Config
from slicemgr.errors import Code, Refused
from slicemgr.hub import owner
from slicemgr.policy import broker, broker_settings
from slicemgr.policy.broker_settings import Update
from slicemgr.store.updates import utcnow

KEY, CERTIFICATE, AUTHORITY, PASSWORD = "key.pem", "certificate.pem", "authority.pem", "password"
ENVIRONMENT = "rabbitmq-env.conf"  # names the other files for the broker
COMPLETE = "definitions.json"  # the last file that is written
_VERSION = "3.10.8"  # the oldest broker that reads the definitions


def write(config: Config, authority: Authority, folder: Path, listen: str) -> None:
    """Write the files of the broker into a new folder, and those of the hub. Refused(CONFLICT) if one of them exists.

    listen: the address at which the broker listens. The files of the hub are of `hub.user`, if there is that user.
    """
    host, _, port = config.hub.broker.rpartition(":")
    password, management = secrets.token_urlsafe(24), int(config.hub.management.rpartition(":")[2])
    write_client(authority, config.hub_dir, broker.HUB, password)
    if owner.exists(config.hub.user):
        owner.give(config.hub_dir, config.hub.user)
    write_broker(authority, folder, [host.strip("[]")], (listen, int(port)), management, password)


def write_broker(
    authority: Authority, folder: Path, hosts: Sequence[str], listen: tuple[str, int], management: int, password: str
) -> None:
    """Write the configuration of RabbitMQ into a new folder, for its user. Refused(CONFLICT) if the folder exists.

    hosts: names and addresses at which nodes reach it. listen: its own address and port. management: port of its API.
    """
    _make(folder)
    key = requests.new_key()
    issued = authority.server(hosts, key.public_key(), utcnow())
    paths = {"cacertfile": AUTHORITY, "certfile": CERTIFICATE, "keyfile": KEY}
    certificates = {option: str(folder / file) for option, file in paths.items()}
    settings = broker.configuration(*listen, management, certificates, str(folder / COMPLETE))
    environment = broker.environment(str(folder / broker_settings.FILE), str(folder / "enabled_plugins"))
    contents = {
        KEY: requests.key_pem(key),
        CERTIFICATE: issued.certificate.encode(),
        AUTHORITY: authority.certificate.encode(),
        broker_settings.FILE: settings.encode(),
        ENVIRONMENT: environment.encode(),
        "enabled_plugins": broker.PLUGINS.encode(),
        COMPLETE: json.dumps(broker.definitions(_VERSION, _hashed(password)), indent=2).encode(),
    }
    for name, content in contents.items():
        write_private(folder / name, content)


def update(folder: Path) -> Update:
    """Give an older rabbitmq.conf the limits of this version. Owner, mode and the lines of an administrator stay.

    Refused(NOT_FOUND) if it cannot be read.
    """
    path = folder / broker_settings.FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)  # the folder belongs to the broker
        with os.fdopen(descriptor) as file:
            held, found = os.fstat(descriptor), broker_settings.updated(file.read())
    except (OSError, UnicodeDecodeError) as error:
        hint = "`slicemgr broker-files FOLDER` without --update writes new files"
        raise Refused(Code.NOT_FOUND, f"{path} cannot be read: {error}", hint=hint) from error
    if found.added:
        replace(path, found.text.encode(), held.st_uid, held.st_gid, held.st_mode & 0o7777)
    return found


def write_client(authority: Authority, folder: Path, name: str, password: str = "") -> None:
    """Write key and certificate of a client into a new folder. password: of the management API, for the hub."""
    _make(folder)
    key = requests.new_key()
    write_private(folder / KEY, requests.key_pem(key))
    write_private(folder / CERTIFICATE, authority.client(name, key.public_key(), utcnow()).certificate.encode())
    write_private(folder / AUTHORITY, authority.certificate.encode())
    if password:
        write_private(folder / PASSWORD, password.encode())


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError as error:
        raise Refused(Code.CONFLICT, f"{folder} exists", hint="move it away to make new files") from error


def _hashed(password: str) -> str:
    """As RabbitMQ stores a password: four bytes of salt, and the sha256 of salt and password."""
    salt = secrets.token_bytes(4)
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
