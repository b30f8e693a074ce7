"""The service with a real database, one announced node and one ready image, without an agent.

The database is a file in a temporary folder, or, within `databases_on`, one of a PostgreSQL server.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from postgres_server import Server

import slicemgr.store
from slicemgr.config import Config, NetworkConfig, NodeConfig, StoreConfig
from slicemgr.model import GIB, ImageState, OperationState, Phase
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication
from slicemgr.service.slices import consoles, slices, spares
from slicemgr.store import Store, pending, schema, tables
from slicemgr.store.updates import utcnow

if TYPE_CHECKING:
    from flask import Flask

ADMIN = Principal("admin", True)
PATIENT = StoreConfig(lock_timeout=timedelta(minutes=5))  # for tests of the winner of a lock, not of its time
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
    """Settings with all state below `folder`; sections replace whole tables."""
    node = NodeConfig(state_dir=folder / "state", run_dir=folder / "run", pool=folder / "pool")
    config = dataclasses.replace(Config(node=node), **sections)
    if _databases is None or config.store.url:
        return config
    return dataclasses.replace(config, store=dataclasses.replace(config.store, url=_databases.url(folder)))


_OWNER = "slicemgr"  # as in production: owns its database, without further rights
_TEMPLATE = "slicemgr_template"


class Databases:
    """The databases that the tests of a module create on a PostgreSQL server; they are dropped at the end."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._made: set[str] = set()

    def url(self, folder: Path) -> str:
        """The URL of the database for the settings of a folder."""
        return self.server.url(f"t{hashlib.sha1(str(folder).encode()).hexdigest()[:16]}", _OWNER)

    def make(self, url: str, template: str = _TEMPLATE) -> None:
        """Create a database of the present schema, or with template0 without tables, unless it exists."""
        self._ensure_template()
        name = url.partition("@/")[2].partition("?")[0]
        if name not in self._made:
            self._made.add(name)
            # Copying the files costs half of what writing them by the log does.
            self.server.sql(f"CREATE DATABASE {name} OWNER {_OWNER} TEMPLATE {template} STRATEGY FILE_COPY")

    def _ensure_template(self) -> None:
        """Create the template database, migrated once for the whole session."""
        if not self.server.sql(f"SELECT 1 FROM pg_roles WHERE rolname = '{_OWNER}'"):
            self.server.sql(f"CREATE ROLE {_OWNER} LOGIN PASSWORD '{self.server.password}'")
            self.server.sql(f"CREATE DATABASE {_TEMPLATE} OWNER {_OWNER}")
            schema.upgrade(self.server.url(_TEMPLATE, _OWNER))

    def drop(self) -> None:
        for name in self._made:
            self.server.sql(f"DROP DATABASE {name} WITH (FORCE)")


_databases: Databases | None = None


@contextmanager
def databases_on(server: Server) -> Iterator[Databases]:
    """Within the context, every `config_in` has its own database on the server."""
    global _databases
    before, made = _databases, Databases(server)
    _databases = made
    try:
        yield made
    finally:
        _databases = before
        made.drop()


def empty_database(config: Config) -> None:
    """Create what an administrator creates before `slicemgr init`: on PostgreSQL, a database without tables."""
    if _databases is not None:
        _databases.make(config.store_url, "template0")


def store_table(config: Config) -> str:
    """The table of the store in the settings file of a `config`."""
    return f'[store]\nurl = "{config.store.url}"\n' if config.store.url else ""


@functools.cache
def _template() -> bytes:
    """The content of a new SQLite database, migrated once for the whole session."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "template.db"
        schema.upgrade(f"sqlite:///{path}")
        return path.read_bytes()


def fresh_database(config: Config) -> Path:
    """Create the database of `config` with the present schema unless it exists. Returns the path of SQLite's file."""
    path = config.node.state_dir / "db" / "slicemgr.db"
    if _databases is not None:
        _databases.make(config.store_url)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_bytes(_template())
    return path


def settings(folder: Path, **network: Any) -> Config:
    """Settings below `folder` with other pools of addresses or ports."""
    return config_in(folder, network=dataclasses.replace(NetworkConfig(), **network))


def request(name: str = "exp", **fields: Any) -> dict[str, Any]:
    """The JSON of a valid request, changed by `fields`."""
    return {"name": name, "type": "lxc", "image": IMAGE, "ssh_keys": [KEY], **fields}


@contextmanager
def service(config: Config, **facts: Any) -> Iterator[Store]:
    """The open store of a service whose node also reports `facts`."""
    with Service(config, {**FACTS, **facts}) as made:
        yield made.store


class Service:
    """A context manager. `facts` None: no agent has announced its node."""

    def __init__(self, place: Path | Config, facts: Mapping[str, Any] | None = FACTS, **sections: Any) -> None:
        self.config = place if isinstance(place, Config) else config_in(place, **sections)
        self._make_directories()
        self.database = fresh_database(self.config)
        self.store = slicemgr.store.open(self.config)
        if facts is not None:
            with self.store.write() as c:
                pending.record(c, [pending.NodeSeen("node1", "192.0.2.1", facts)], "node1")
        self.add_image(SHA, IMAGE)
        self._held = ExitStack()

    @functools.cached_property
    def app(self) -> Flask:
        """An application over the store: see `kept_apps`."""
        from kept_apps import application  # imports what most tests with a store do not need

        return self._held.enter_context(application(self.config, self.store))

    def _make_directories(self) -> None:
        for directory in (self.config.uploads_dir, self.config.experiments_dir, self.config.node.run_dir):
            directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._held.close()
        self.store.close()

    def add_image(
        self, sha256: str, name: str, state: ImageState = ImageState.READY, boot: Mapping[str, Any] = BOOT
    ) -> None:
        row = {"sha256": sha256, "name": name, "format": "qcow2", "virtual_size": 1, "file_size": 1, "arch": "x86_64"}
        with self.store.write() as c:
            c.execute(tables.images.insert().values(**row, boot=boot, os="Debian 12", state=state, created_at=utcnow()))

    def request(self, name: str = "exp", **fields: Any) -> dict[str, Any]:
        return request(name, **fields)

    def create(self, name: str = "exp", **fields: Any) -> str:
        """Create a slice through the service. Returns the ID of the operation."""
        return slices.create(self.store, self.config, slices.Draft(self.request(name, **fields)), ADMIN).operation

    def fill(self) -> None:
        """Insert rows into every table."""
        self.token()
        operation = self.create(count=2)
        sliver = self.rows()[0].sliver.id
        self.record(pending.StepSeen(operation, sliver, "root", OperationState.RUNNING))
        with self.store.write() as c:
            now = utcnow()
            c.execute(tables.clock.insert().values(id=1, seen_at=now))
            mine = {"user": schema.ADMIN, "created_at": now}
            c.execute(tables.members.insert().values(**mine, project="default", role="pi"))
            c.execute(tables.quotas.insert().values(project="default", level="quota", slices=3))
            c.execute(tables.ssh_keys.insert().values(**mine, id="1", line="ssh-ed25519 AAAA"))
            ends = {**mine, "hash": "h", "expires_at": now}
            c.execute(tables.sessions.insert().values(**ends, id="1", used_at=now))
            c.execute(tables.invitations.insert().values(**ends, invited_by=schema.ADMIN))
            c.execute(tables.sign_in_links.insert().values(**ends))
            invited = {"project": "default", "invitee": "somebody", "role": "member", "invited_by": schema.ADMIN}
            c.execute(tables.project_invitations.insert().values(**invited, id="1", created_at=now, expires_at=now))
            c.execute(tables.identities.insert().values(**mine, issuer="https://login.example", subject="1"))
            c.execute(tables.lease_rules.insert().values(project="default", window=3600))
            letter = {"key": "k", "user": schema.ADMIN, "recipient": "me@example.org", "subject": "s", "body": "b"}
            c.execute(tables.mails.insert().values(**letter, state="waiting", created_at=now, next_at=now))
            asked = {**mine, "id": "1", "project": "default", "name": "exp", "body": {}, "reason": "more"}
            c.execute(tables.requests.insert().values(**asked, state="waiting"))
            row = {**mine, "key": "1", "request": "r", "status": 202, "body": "{}", "sealed": False}
            c.execute(tables.answers.insert().values(row))
            slice = sliver.rpartition("-")[0]
            c.execute(tables.snapshots.insert().values(**mine, id="1", slice=slice, name="before"))
            c.execute(tables.sliver_snapshots.insert().values(snapshot="1", sliver=sliver, made_at=now, size=7))
        consoles.ask(self.store, "exp", 0, ADMIN)
        with self.store.write() as c:
            measured = {"node": "node1", "resolution": 0, "at": 1}
            c.execute(tables.node_samples.insert().values(**measured))
            c.execute(tables.samples.insert().values(**measured, sliver=1))
            c.execute(tables.accounts.insert().values(project="default", month="2026-11"))
            kept = {"began_at": now, "ended_at": now, "user": schema.ADMIN, "version": "1", "failed": 0, "rows": []}
            c.execute(tables.audits.insert().values(node="node1", **kept))
            c.execute(tables.incarnations.insert().values(number=1, backup_at=now, began_at=now, ended_at=now))
            c.execute(tables.host_reports.insert().values(node="node1", incarnation=1, at=now, found={}))
            c.execute(tables.unclaimed.insert().values(node="node1", sliver="x", state="stopped", snapshots=[]))
            added = {
                "name": "node2",
                "address": "",
                "facts": {},
                "site": "tuebingen",
                "state": "added",
                "identity": "node-a",
            }
            c.execute(tables.nodes.insert().values(**added))
            c.execute(tables.joins.insert().values(**ends, node="node2"))
            linked = {"identity": "node-a", "incarnation": "1", "sequence": 1, "version": "1", "beat_at": now}
            c.execute(tables.links.insert().values(**linked))
            c.execute(tables.dials.insert().values(secret="s", node="node2", purpose="query", created_at=now))
            c.execute(tables.mirror.insert().values(id=1, incarnation=1))
            c.execute(tables.outbox.insert().values(kind="sliver-gone", key="", body={"sliver": "x"}))
            c.execute(tables.authorities.insert().values(fingerprint="f", certificate="c", created_at=now))
            issued = {"serial": "1", "identity": "node-a", "certificate": "c", "issued_at": now, "expires_at": now}
            c.execute(tables.certificates.insert().values(**issued))
            on_node = {"image": SHA, "node": "node1", "state": "ready", "updated_at": now}
            c.execute(tables.image_nodes.insert().values(on_node))
            c.execute(tables.kernel_configs.insert().values(image=SHA, config="CONFIG_X=y\n", size=11))
            c.execute(tables.renewals.insert().values(identity="node-a", request="r", created_at=now))
            row = {"name": "Scale", "kind": "scale", "summary": "It scales.", "published_by": schema.ADMIN}
            c.execute(tables.experiments.insert().values(**row, id="1", published_at=now, size=1, sha256=SHA, files=[]))
            spares.add(c, self.config, "node1", spares.kinds(c, self.config)[0], now)

    def add_spare(self, *, ready: bool = True) -> str:
        """Have the node's spares that the settings want, of which the agent has reported the first. Its id."""
        spares.fill(self.store, self.config)
        sliver = next(row.sliver.id for row in self.rows() if row.sliver.spare and row.phase is not Phase.RUNNING)
        if ready:
            self.record(pending.SliverSeen(sliver, Phase.RUNNING, host_key=KEY))
            self.end_operations()
        return sliver

    def end_operations(self) -> None:
        """End all operations as the agent of the node does."""
        with self.store.read() as c:
            ended = [
                pending.OperationEnded(one.id, OperationState.DONE) for one in pending.pending_operations(c, "node1")
            ]
        self.record(*ended)

    def change(self) -> None:
        """Change a row that no answer depends on."""
        with self.store.write() as c:
            c.execute(tables.users.update().values(known_browsers=tables.users.c.known_browsers + 1))

    def rows(self) -> list[pending.SliverRow]:
        with self.store.read() as c:
            return pending.slivers(c, "node1")

    def record(self, *updates: pending.Update, node: str = "node1") -> None:
        with self.store.write() as c:
            pending.record(c, updates, node)

    def count(self, table: str) -> int:
        with self.store.read() as c:
            return int(c.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one())

    def dump(self) -> dict[str, list[Any]]:
        """All rows of all tables, for comparison."""
        with self.store.read() as c:
            return {name: list(c.execute(table.select()).all()) for name, table in tables.metadata.tables.items()}

    def content(self) -> dict[str, list[Any]]:
        """All rows of all tables as the driver reads them, which takes a tenth of the time of `dump`."""
        with self.store.read() as c:
            cursor = c.connection.cursor()
            found: dict[str, list[Any]] = {}
            for name in tables.metadata.tables:
                cursor.execute(f"SELECT * FROM {name}")
                found[name] = list(cursor.fetchall())
            cursor.close()
        return found

    def token(self) -> str:
        """The token of the local admin."""
        authentication.ensure_local_admin(self.store, self.config.node.run_dir / "client.json", "http://127.0.0.1:1")
        return str(json.loads((self.config.node.run_dir / "client.json").read_text())["token"])
