"""A service without an agent: real settings, a real SQLite file, a node that says what it has, an image, an admin."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from slicemgr import store as stores
from slicemgr.config import Config, NetworkConfig, NodeConfig, StoreConfig
from slicemgr.model import GIB, ImageState
from slicemgr.policy.access import Principal
from slicemgr.store import Store, schema, updates, work
from slicemgr.store import tables as t

ADMIN = Principal("admin", True)
SHA256 = "ab" * 32
FACTS = {"cpus": 4, "memory": 8 * GIB, "disk_total": 64 * GIB, "kinds": {"lxc": True, "kvm": False}, "io_weight": False}


@functools.cache
def public_key() -> str:
    key = Ed25519PrivateKey.generate().public_key()
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() + " me@here"


def settings(directory: Path, **network: Any) -> Config:
    return Config(
        node=NodeConfig(state_dir=directory / "state", run_dir=directory / "run", pool=directory / "pool"),
        store=StoreConfig(lock_timeout=timedelta(seconds=20)),
        network=dataclasses.replace(NetworkConfig(), **network),
    )


@contextmanager
def service(config: Config, **facts: Any) -> Iterator[Store]:
    """The open store, with node1 and the image `debian`."""
    config.uploads_dir.mkdir(parents=True, exist_ok=True)
    config.node.run_dir.mkdir(parents=True, exist_ok=True)
    schema.upgrade(config.store_url)
    with stores.open(config) as store:
        with store.write() as c:
            work.record(c, [updates.NodeSeen("node1", "127.0.0.1", {**FACTS, **facts})])
            c.execute(
                t.images.insert().values(
                    sha256=SHA256,
                    name="debian",
                    format="qcow2",
                    virtual_size=GIB,
                    file_size=1000,
                    state=ImageState.READY,
                    created_at=datetime.now(UTC),
                )
            )
        yield store


def request(name: str = "exp", **more: Any) -> dict[str, Any]:
    """The JSON of a good request, changed by `more`."""
    return {"name": name, "type": "lxc", "image": "debian", "ssh_keys": [public_key()], **more}
