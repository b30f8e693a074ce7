"""The objects of the REST audit: two accounts and four projects, which the audit creates and deletes.

Accounts cannot be deleted, so the two are created once and disabled when they are not in use. The names of the
projects have a mark by which the leftovers of a killed run are found.
"""

from __future__ import annotations

import io
import json
import re
import secrets
import struct
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from slicemgr import wire
from slicemgr.audit import leftovers
from slicemgr.audit.http_probe import HttpProbe
from slicemgr.client import Client
from slicemgr.errors import Code, Failed, Refused

ATTACKER, VICTIM = "slicectl-audit-attacker", "slicectl-audit-victim"
_PROJECT = re.compile(r"rest-audit-[0-9a-f]{8}-(own|looked-at|changed|outside|new)")
_WORD = re.compile(r"audit-[0-9a-f]{12}")
_NOWHERE = "slicectl-audit.invalid"  # a reserved name without a mail server (RFC 2606)
_LEASE = "4h"
_WITH_IDS = ("operations", "requests", "keys", "tokens", "sessions", "invitations", "me/invitations", "experiments")
_BEYOND = 100  # slivers, more than the quota of a temporary project


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    password: str
    token: str
    client: Client


@dataclass
class Canaries:
    """Unique words that occur only in objects of the victim, with a description of the object of each."""

    words: dict[str, str] = field(default_factory=dict)

    def new(self, what: str) -> str:
        return self.add(f"audit-{secrets.token_hex(6)}", what)

    def add(self, word: str, what: str) -> str:
        self.words[word] = what
        return word

    def within(self, text: str, but: str) -> list[str]:
        """The victim's objects whose words occur in `text`, without the words of the request itself (`but`)."""
        return [what for word, what in self.words.items() if word in text and word not in but]


@dataclass(frozen=True, slots=True)
class Things:
    """A project of the victim with one object of each kind. objects: by the kinds of `rest_routes`."""

    project: str
    objects: Mapping[str, str]
    image: str
    type: str


class World:
    """A context manager. admin: a client of an admin. patience: seconds for an operation of the agent."""

    def __init__(self, admin: Client, url: str, patience: float = 300.0) -> None:
        self.admin, self.url, self.patience = admin, url, patience
        self.tag = secrets.token_hex(4)
        self.canaries = Canaries()
        self.experiment = ""

    def __enter__(self) -> World:
        clean(self.admin, self.patience)
        try:
            self._make()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        for name in ("attacker", "victim"):
            if (account := getattr(self, name, None)) is not None:
                account.client.close()
        clean(self.admin, self.patience)

    def _make(self) -> None:
        self.attacker, self.victim = (_account(self.admin, self.url, one) for one in (ATTACKER, VICTIM))
        who = {"full_name": self.canaries.new("name"), "email": f"{self.canaries.new('mail address')}@{_NOWHERE}"}
        self.admin.users.change(VICTIM, **who)
        self.canaries.add(VICTIM, "user name")
        self._project("own", ATTACKER)
        self._project("outside", None)
        self.admin.projects.invite(self.named("outside"), VICTIM)
        self.node = self.admin.nodes.list()[0]["name"]
        self.experiment = self._experiment()
        self.looked_at, self.changed = (self._things(role) for role in ("looked-at", "changed"))

    def named(self, role: str) -> str:
        return f"rest-audit-{self.tag}-{role}"

    def _project(self, role: str, pi: str | None) -> str:
        quota: dict[str, object] = {"slices": 3, "slivers": 3}
        words: dict[str, object] = {"description": self.canaries.new(f"description of project {role}")}
        if role == "own":
            words = {}
        else:
            self.canaries.add(self.named(role), "name of a project")
        if pi is not None:
            words["pi"] = pi
        return self.admin.projects.create(self.named(role), quota=quota, ceiling=quota, **words)["name"]

    def _things(self, role: str) -> Things:
        """Create the objects of a project and wait for their operations."""
        new, client, project = self.canaries.new, self.victim.client, self._project(role, VICTIM)
        (key,) = client.keys.add(public_key(new("comment of a key")))
        before = {one["id"] for one in client.sessions.list()}
        HttpProbe(self.url).sign_in(VICTIM, self.victim.password, new("browser of a session"))
        (session,) = [one["id"] for one in client.sessions.list() if one["id"] not in before]
        image, sliver_type = _base(self.admin)
        slice_name = new("name of a slice")
        wanted: wire.SliceRequest = {"name": slice_name, "project": project, "type": sliver_type, "image": image}
        wanted |= {"ports": 2, "lease": _LEASE}
        made = client.slices.submit(wanted)
        self._wait(made["operation"])
        name = made["slice"]["name"]
        asked = client.slices.submit(
            {**wanted, "name": new("name of a request"), "count": _BEYOND, "reason": new("reason of a request")}
        )
        snapshot = self._snapshot(client, project, name)
        invited = client.projects.invite(project, f"{new('invited address')}@{_NOWHERE}")
        (mine,) = [one for one in client.invitations.list() if one["project"] == self.named("outside")]
        objects = {
            "projects": project,
            "slices": name,
            "snapshots": snapshot,
            "images": self._image(project),
            "operations": str(made["operation"]["id"]),
            "requests": asked["request"]["id"],
            "users": VICTIM,
            "members": VICTIM,
            "keys": key["id"],
            "tokens": client.tokens.create(new("label of a token"), expires=_LEASE)["id"],
            "sessions": session,
            "invitations": invited["id"],
            "me/invitations": mine["id"],
            "experiments": self.experiment,
            "files": "report.html",
            "action": "stop",
            "nodes": self.node,
        }
        for kind_of, id_ in objects.items():
            if kind_of in _WITH_IDS:
                self.canaries.add(id_, f"id of {kind_of}")
        return Things(project, objects, image, sliver_type)

    def _snapshot(self, client: Client, project: str, name: str) -> str:
        snapshot = self.canaries.new("name of a snapshot")
        self._wait(client.of_project(project).snapshots.create(name, snapshot))
        return snapshot

    def _image(self, project: str) -> str:
        data, name, client = disk(), self.canaries.new("name of an image"), self.victim.client.of_project(project)
        made = client.images.upload(io.BytesIO(data), len(data), name=name, format="raw")
        self._wait(made["operation"])
        return name

    def _experiment(self) -> str:
        """Publish an experiment that only admins can see."""
        name = self.canaries.new("name of a hidden experiment")
        run = {"experiment": "audit", "outcome": f"hidden {name}"}
        files = {"report.html": f"<!doctype html><title>{name}</title>", "run.json": json.dumps(run)}
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w") as tar:
            for one, text in files.items():
                member = tarfile.TarInfo(one)
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text.encode()))
        size = target.tell()
        target.seek(0)
        return self.admin.experiments.publish(target, size, name=name, public=False)["id"]

    def _wait(self, operation: wire.Operation) -> None:
        ended = self.admin.operations.wait(operation["id"], self.patience)
        if ended["state"] != "done":
            raise Failed(f"{ended['kind']} for the audit failed: {ended['error']}", hint=ended["hint"] or "")

    def settle(self, things: Things) -> None:
        """Wait until no operation of the project is queued or running."""
        for state in ("queued", "running"):  # in this order, so that an operation that begins meanwhile is not missed
            for one in self.admin.operations.list(limit=None, state=state, project=things.project):
                self.admin.operations.wait(one["id"], self.patience)

    # the victim's view

    def view(self, things: Things) -> dict[str, Any]:
        """All that the victim sees of the objects and of its account, without values that change by themselves."""
        project = things.project
        client = self.victim.client.of_project(project)
        parts: dict[str, Callable[[], object]] = {
            "slices": client.slices.list,
            "snapshots": lambda: client.snapshots.list(things.objects["slices"]),
            "project": lambda: client.projects.get(project),
            "leases": lambda: client.leases.get(project),
            "images": lambda: client.images.list(project=project),
            "requests": lambda: client.requests.list(project=project),
            "me": client.account.get,
            "keys": client.keys.list,
            "tokens": client.tokens.list,
            "sessions": client.sessions.list,
            "invitations": client.invitations.list,
            "experiment": lambda: self.admin.experiments.get(self.experiment),
        }
        found = {name: _part(look) for name, look in parts.items()}
        kept: dict[str, Any] = _without(found, ("used_at", "used_from", "usage", "used", "notice", "size", "version"))
        return kept


def disk() -> bytes:
    """A disk image with a partition table and random boot code, and nothing else; different each time."""
    size, sector = 1 << 20, 512
    entry = struct.pack("<B3xB3xII", 0x80, 0x83, 1, size // sector - 1)
    first = secrets.token_bytes(440) + bytes(6) + entry + bytes(48) + b"\x55\xaa"
    return first + bytes(size - sector)


def public_key(comment: str) -> str:
    made = ed25519.Ed25519PrivateKey.generate().public_key()
    form = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return f"{made.public_bytes(*form).decode()} {comment}"


def _part(look: Callable[[], object]) -> object:
    """The result of a query, or the code of its refusal, because the object may have been deleted."""
    try:
        return look()
    except Refused as error:
        return error.code.wire


def _without(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [_without(one, names) for one in value]
    if isinstance(value, dict):
        return {name: _without(one, names) for name, one in value.items() if name not in names}
    return value


def _base(admin: Client) -> tuple[str, str]:
    """The smallest public image, and the type of slice that a node can create from it, preferably lxc.

    Raises Refused if there is none.
    """
    images = [one for one in admin.images.list() if one.get("project") is None and one["state"] == "ready"]
    types: set[str] = set()
    for node in admin.nodes.list():
        offered = node["facts"].get("kinds")
        types |= {one for one, there in offered.items() if there} if isinstance(offered, dict) else set()
    found = [one for one in images if one["arch" if "lxc" in types else "boot"]]
    if not found or not types:
        raise Refused(Code.CONFLICT, "the audit needs an image for all and a node", hint="`slicectl image import`")
    return min(found, key=lambda one: one["virtual_size"])["name"], "lxc" if "lxc" in types else "kvm"


def _account(admin: Client, url: str, name: str) -> Account:
    """The account with a new password and token; it is created if it does not exist, else enabled."""
    try:
        admin.users.change(name, enabled=True)
        link = admin.users.invite_again(name)
    except Refused as error:
        if error.code is not Code.NOT_FOUND:
            raise
        link = admin.users.invite(name)
    password = secrets.token_urlsafe(24)
    with Client(url, "") as stranger:
        stranger.account.accept_invitation(link["invitation"]["token"], password)
        token = stranger.account.login(name, password, label="audit", expires=_LEASE)["token"]
    return Account(name, password, token, Client(url, token))


# deletion


def clean(admin: Client, patience: float = 300.0) -> list[str]:
    """Delete the objects of audits, also of killed ones. Returns the names of the projects.

    The accounts remain, disabled, without keys, tokens, sessions and memberships. Raises Failed if a deletion fails.
    """
    projects = leftovers.clean(admin, _is_project, patience, image=_is_word)
    for one in admin.experiments.list(kind="audit"):
        if _is_word(one["name"]):
            admin.experiments.delete(one["id"])
    known = {one["name"] for one in admin.users.list()}
    for name in (ATTACKER, VICTIM):
        if name in known:
            _disable(admin, name)
    return projects


def _is_project(name: str) -> bool:
    return _PROJECT.fullmatch(name) is not None


def _is_word(name: str) -> bool:
    """Whether a name is one of an audit, also the name of an image that a vulnerability has made public."""
    return _WORD.fullmatch(name) is not None


def _disable(admin: Client, name: str) -> None:
    for key in admin.keys.list(name):
        admin.keys.remove(key["id"], name)
    for token in admin.tokens.list(name):
        admin.tokens.revoke(token["id"])
    for session in admin.sessions.list(name):
        admin.sessions.revoke(session["id"])
    admin.users.change(name, enabled=False, admin=False, full_name="", email="")
