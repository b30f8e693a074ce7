"""Two projects without access to each other, and users, each with a token.

`lab` has the PI alice and the members bob and dave; `rival` has carol. The objects under test belong to bob: the slice
`exp`, a pending request, a key, a token, a session. root is an admin. lab has invited `gwen`, who has no account, and
the project of the node has invited bob.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import published
import sqlalchemy as sa
from bare_service import BOOT, KEY, PATIENT, Service, config_in
from flask import Flask
from flask.testing import FlaskClient

from slicemgr.config import Config, MailConfig
from slicemgr.model import ImageState, OperationState, Phase, Role, Scope
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication, sessions, ssh_keys, tokens
from slicemgr.service.accounts.passwords import Passwords
from slicemgr.service.projects import invitations, members, projects
from slicemgr.service.slices import slices, snapshots
from slicemgr.store import pending
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow
from slicemgr.web import state_of

ROOT = Principal("root", True)
ALICE = Principal("alice", False, {"lab": Role.PI, "hollow": Role.PI})
BOB = Principal("bob", False, {"lab": Role.MEMBER, "hollow": Role.MEMBER}, address="192.0.2.7")
DAVE = Principal("dave", False, {"lab": Role.MEMBER, "hollow": Role.MEMBER})
CAROL = Principal("carol", False, {"rival": Role.PI})
EVERYBODY = (ROOT, ALICE, BOB, DAVE, CAROL)
PASSWORD = "correct horse battery"
MANUAL = Path(__file__).parent / "manual"  # documents of two pages, independent of the build of the real ones
LAB_IMAGE, LAB_SHA = "lab-image", "cd" * 32
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8x2dEw0kB0yJ3Ck8t8S1m2S2cYyN3wN0o0o0o0o0o0 other"


@functools.cache
def password_hash() -> str:
    return Passwords(1).hash(PASSWORD, "nobody")


@functools.cache
def _seeded() -> tuple[bytes, dict[str, str]]:
    """The database with all users, made once for the whole session, and the tokens and IDs of its objects."""
    with tempfile.TemporaryDirectory() as folder, Service(Path(folder)) as service:
        found = _seed(service)
        with service.store.read() as c:
            c.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        service.store.close()
        return service.database.read_bytes(), found


def _seed(service: Service) -> dict[str, str]:
    store, config, now = service.store, service.config, utcnow()
    with store.write() as c:
        rows = [{"name": one.user, "admin": one.admin} for one in EVERYBODY]
        rows += [{"name": "erin", "admin": False}, {"name": "frank", "admin": False}]
        c.execute(t.users.insert(), [{**row, "created_at": now, "password": password_hash()} for row in rows])
    quota = {"slices": 3, "slivers": 8, "ports": 200}
    for name, pi in (("lab", "alice"), ("hollow", "alice"), ("rival", "carol")):
        projects.create(store, config, {"name": name, "pi": pi, "quota": quota, "ceiling": {"slices": 4}}, ROOT)
    for name, user in (("lab", "bob"), ("lab", "dave"), ("hollow", "bob"), ("hollow", "dave")):
        members.set_member(store, config, name, user, "member", ROOT)
    with store.write() as c:
        c.execute(t.projects.update().values(created_at=now - timedelta(days=1)))  # tests change times of later rows
        image = {"sha256": LAB_SHA, "name": LAB_IMAGE, "format": "qcow2", "virtual_size": 1, "file_size": 0}
        image |= {"arch": "x86_64", "boot": BOOT, "os": "Debian 12", "state": ImageState.READY, "project": "lab"}
        c.execute(t.images.insert().values(**image, created_at=now))
        c.execute(t.kernel_configs.insert().values(image=LAB_SHA, config="CONFIG_X=y\n", size=11))
    found = {"operation": ask(service, BOB, "exp").operation}
    found["request"] = ask(service, BOB, "large", "a large experiment", count=9, memory="64M", ports=2).request
    _snapshot(service)
    found["invitation"] = invitations.create(store, config, "lab", "gwen", "member", ALICE)
    found["invited"] = invitations.create(store, config, "default", "bob", "member", ROOT)
    found["key"] = ssh_keys.add(store, KEY, BOB)[0]
    found["session"] = sessions.start(store, config, BOB, "Firefox").id
    found["token"] = tokens.create(store, _token(), BOB)[1]
    for one in EVERYBODY:
        found[one.user] = tokens.create(store, _token(), one)[0]
    found["reader"] = tokens.create(store, _token(Scope.READ), BOB)[0]
    found["revoked"], revoked, _ = tokens.create(store, _token(), BOB)
    tokens.revoke(store, revoked, BOB)
    found["expired"], expired, _ = tokens.create(store, _token(), BOB)
    found["disabled"] = tokens.create(store, _token(), Principal("frank", False))[0]
    with store.write() as c:
        kept = {"began_at": now, "ended_at": now, "user": "root", "version": "1", "failed": 0, "rows": AUDIT["rows"]}
        c.execute(t.audits.insert().values(node="node1", **kept))
        found["experiment"] = "ab12" * 4
        c.execute(t.experiments.insert().values(**published.row(found["experiment"])))
        k, u = t.tokens, t.users
        c.execute(k.update().where(k.c.id == expired).values(expires_at=now - timedelta(seconds=1)))
        c.execute(u.update().where(u.c.name == "frank").values(enabled=False))
    return found


AUDIT = {
    "began_at": "2026-01-31T12:00:00+00:00",
    "rows": [{"row": "seccomp", "kind": "lxc", "expected": "a filter", "seen": "2", "verdict": "pass"}],
}


def _snapshot(service: Service) -> None:
    """Insert a snapshot of bob's slice, as the agent does."""
    at = snapshots.SliceReference("exp", BOB)
    slivers = [row.sliver.id for row in service.rows()]
    service.record(*(pending.SliverSeen(one, Phase.RUNNING, host_key="ssh-ed25519 AAAA") for one in slivers))
    operation = snapshots.create(service.store, service.config, at, "before")
    with service.store.read() as c:
        (id_,) = c.scalars(sa.select(t.snapshots.c.id))
    service.record(*(pending.SnapshotMade(one, id_, 5) for one in slivers))
    service.record(pending.OperationEnded(operation, OperationState.DONE))


def _token(scope: Scope = Scope.WRITE) -> tokens.Wanted:
    return tokens.Wanted("test", scope, timedelta(days=1))


def ask(service: Service, by: Principal, name: str, why: str = "", **fields: Any) -> slices.Created:
    """Request a slice of the user's first project through the service, as the REST API does."""
    body = service.request(name, **{"project": next(iter(by.roles), "default"), **fields})
    return slices.create(service.store, service.config, slices.Draft(body, why), by)


class Tenants(Service):
    """`found`: the tokens of users by name, and the IDs of bob's objects."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        _, self.found = _seeded()
        config: Config = config_in(folder, **sections)
        self._write_seed(config)
        super().__init__(config, facts=None)

    def _write_seed(self, config: Config) -> None:
        content, _ = _seeded()
        path = config.node.state_dir / "db" / "slicemgr.db"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        published.write(config.experiments_dir / self.found["experiment"])

    def restore(self) -> None:
        """Restore the initial state, and that of the application without creating it again.

        Creating an application takes longer than the requests of most tests. A test that changes its routes or settings
        creates its own Tenants.
        """
        self.store.close()
        for directory in (self.config.node.state_dir, self.config.node.run_dir):
            shutil.rmtree(directory)
        self._write_seed(self.config)
        self._make_directories()
        self.app.extensions["slicemgr"] = state_of(self.config, self.store)

    def add_image(self, *args: Any, **more: Any) -> None:
        """Insert an image unless the seed has it."""
        with self.store.read() as c:
            there = c.scalar(sa.select(sa.exists().where(t.images.c.sha256 == args[0])))
        if not there:
            super().add_image(*args, **more)

    @functools.cached_property
    def app(self) -> Flask:
        app = super().app
        app.config["MANUAL"] = MANUAL
        return app

    def client(self, who: str | None = None) -> FlaskClient:
        """A client. who: a user in `found`; None: without a token."""
        made = self.app.test_client()
        if who is not None:
            made.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {self.found[who]}"
        return made

    def principal(self, who: str) -> Principal:
        return authentication.authenticate(self.store, self.found[who])

    def events(self) -> list[tuple[str, str, str]]:
        """All events as (user, action, detail), oldest first."""
        e = t.events.c
        with self.store.read() as c:
            return [tuple(row) for row in c.execute(sa.select(e.user, e.action, e.detail).order_by(e.id))]


@contextmanager
def with_mail(folder: Path) -> Iterator[Tenants]:
    """A testbed that sends mail; bob has an address."""
    server = MailConfig(server="mail.example.org", sender="testbed@example.org")
    with Tenants(folder, store=PATIENT, mail=server) as made:
        with made.store.write() as c:
            c.execute(t.users.update().where(t.users.c.name == "bob").values(email="bob@example.org"))
        yield made
