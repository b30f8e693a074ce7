"""The service over a real database in a temporary folder: one announced node and one ready image, no agent."""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import slicemgr.store
from slicemgr.config import Config, NetworkConfig, NodeConfig
from slicemgr.model import GIB, ImageState, SliceSpec
from slicemgr.policy.access import Principal
from slicemgr.service import people, slices, specs
from slicemgr.store import Store, schema, tables, work
from slicemgr.store.updates import utcnow

ADMIN = Principal("admin", True)
IMAGE = "debian-12"
SHA = "ab" * 32
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDZL+rD/vRwJyc8ynlZ34fozFD0H1+ae81XD1/BIyS4U me@host"
BOOT = {
    "bios": True,
    "uefi": True,
    "kernel": "/boot/vmlinuz-6.1",
    "initrd": "/boot/initrd.img-6.1",
    "root": "root=UUID=1",
}
FACTS = {
    "cpus": 4,
    "memory": 8 * GIB,
    "disk_total": 64 * GIB,
    "kinds": {"lxc": True, "kvm": False},
    "io_weight": False,
    "net_rate": False,
    "net_rate_missing": ["sch_tbf", "ifb"],
}


def config_in(folder: Path, **sections: Any) -> Config:
    """Settings whose state is all below `folder`; sections replace whole tables."""
    node = NodeConfig(state_dir=folder / "state", run_dir=folder / "run", pool=folder / "pool")
    return dataclasses.replace(Config(node=node), **sections)


@functools.cache
def _template() -> bytes:
    """A fresh database, migrated once for the whole session."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "template.db"
        schema.upgrade(f"sqlite:///{path}")
        return path.read_bytes()


def fresh_database(config: Config) -> Path:
    """A database at its present schema where `config` wants it, empty if there was none."""
    path = config.node.state_dir / "db" / "slicemgr.db"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_bytes(_template())
    return path


def settings(folder: Path, **network: Any) -> Config:
    """Settings below `folder` with other pools of addresses or ports."""
    return config_in(folder, network=dataclasses.replace(NetworkConfig(), **network))


def request(name: str = "exp", **fields: Any) -> dict[str, Any]:
    """The JSON of a request that is fine, changed by `fields`."""
    return {"name": name, "type": "lxc", "image": IMAGE, "ssh_keys": [KEY], **fields}


@contextmanager
def service(config: Config, **facts: Any) -> Iterator[Store]:
    """The open store of a service whose node says `facts` besides."""
    with Service(config, {**FACTS, **facts}) as made:
        yield made.store


class Service:
    """Use as a context manager. `facts` None: no agent has announced its node."""

    def __init__(self, place: Path | Config, facts: Mapping[str, Any] | None = FACTS, **sections: Any) -> None:
        self.config = place if isinstance(place, Config) else config_in(place, **sections)
        for directory in (self.config.uploads_dir, self.config.node.run_dir):
            directory.mkdir(parents=True, exist_ok=True)
        self.database = fresh_database(self.config)
        self.store = slicemgr.store.open(self.config)
        if facts is not None:
            with self.store.write() as c:
                work.record(c, [work.NodeSeen("node1", "192.0.2.1", facts)])
        self.add_image(SHA, IMAGE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.store.close()

    def add_image(
        self, sha256: str, name: str, state: ImageState = ImageState.READY, boot: Mapping[str, Any] = BOOT
    ) -> None:
        row = {"sha256": sha256, "name": name, "format": "qcow2", "virtual_size": 1, "file_size": 1, "arch": "x86_64"}
        with self.store.write() as c:
            c.execute(tables.images.insert().values(**row, boot=boot, os="Debian 12", state=state, created_at=utcnow()))

    def request(self, name: str = "exp", **fields: Any) -> dict[str, Any]:
        return request(name, **fields)

    def spec(self, name: str = "exp", **fields: Any) -> SliceSpec:
        return specs.slice_spec(self.request(name, **fields), self.config)

    def create(self, name: str = "exp", **fields: Any) -> str:
        """A slice through the service; the operation's id."""
        return slices.create(self.store, self.config, self.spec(name, **fields), ADMIN)

    def rows(self) -> list[work.SliverRow]:
        with self.store.read() as c:
            return work.slivers(c, "node1")

    def record(self, *updates: work.Update) -> None:
        with self.store.write() as c:
            work.record(c, updates)

    def count(self, table: str) -> int:
        with self.store.read() as c:
            return int(c.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one())

    def dump(self) -> dict[str, list[Any]]:
        """All rows of all tables: two dumps are equal if nothing happened in between."""
        with self.store.read() as c:
            return {name: list(c.execute(table.select()).all()) for name, table in tables.metadata.tables.items()}

    def token(self) -> str:
        """The local admin's token."""
        people.ensure_local_admin(self.store, self.config.node.run_dir / "client.json", "http://127.0.0.1:1")
        return str(json.loads((self.config.node.run_dir / "client.json").read_text())["token"])
