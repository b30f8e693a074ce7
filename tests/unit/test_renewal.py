"""Certificates of nodes are renewed for the key that they are of, and for no other."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, Service
from cryptography.hazmat.primitives.asymmetric import ec
from test_join_command import served, signing

from slicemgr.certificates import requests
from slicemgr.certificates.authority import Authority
from slicemgr.certificates.private_files import write_private
from slicemgr.config import CENTRE, HubConfig
from slicemgr.errors import Refused
from slicemgr.hub import signer
from slicemgr.link import join as link
from slicemgr.link import renewal as host
from slicemgr.service.nodes import joining, membership, renewal
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow
from slicemgr.web import create_app

HOST = "127.0.0.1"
LATER = timedelta(days=70)
pytestmark = pytest.mark.usefixtures("each_store")


class Member:
    """A node with its key, and what it asks."""

    def __init__(self, service: Service, authority: Authority, name: str) -> None:
        self.service, self.authority = service, authority
        self.key = requests.new_key()
        request, made = requests.new_request(self.key), membership.add(service.store, {"name": name}, ADMIN)
        joining.join(service.store, made.token, request, HOST)
        signer.sign(service.store, authority)
        found = joining.join(service.store, made.token, request, HOST)
        self.identity, self.certificate = found.identity, found.certificate

    def asks(self, key: ec.EllipticCurvePrivateKey | None = None) -> str:
        return renewal.renew(self.service.store, self.identity, requests.new_request(key or self.key), HOST)

    def ages(self, by: timedelta = LATER) -> None:
        """As if that much of the life of its certificate were over."""
        k = t.certificates.c
        with self.service.store.write() as c:
            for serial, issued, expires in c.execute(sa.select(k.serial, k.issued_at, k.expires_at)).all():
                values = {"issued_at": issued - by, "expires_at": expires - by}
                c.execute(t.certificates.update().where(k.serial == serial).values(values))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "service") as made:
        yield made


@pytest.fixture
def authority(service: Service) -> Authority:
    return signer.prepare(service.store, service.config.authority_dir)


@pytest.fixture
def member(service: Service, authority: Authority) -> Member:
    return Member(service, authority, "node7")


def denied(action: Callable[[], object]) -> bool:
    try:
        action()
    except Refused as error:
        return error.code.wire == "denied"
    return False


def renewals(member: Member) -> int:
    return signer.renew(member.service.store, member.authority)


def test_an_old_certificate_is_renewed_once(member: Member) -> None:
    assert member.asks() == member.certificate and renewals(member) == 0, "it is not due"
    member.ages()
    assert member.asks() == member.asks() == "" and renewals(member) == 1
    found = member.asks()
    assert found != member.certificate and renewals(member) == 0
    assert requests.check_issued(found, member.authority.certificate, member.key) == member.identity
    assert member.service.count("renewals") == 0 and member.service.count("certificates") == 2


def test_nobody_else_gets_one(service: Service, authority: Authority, member: Member) -> None:
    other = Member(service, authority, "node8")
    member.ages()
    assert denied(lambda: member.asks(requests.new_key())) and denied(lambda: member.asks(other.key))
    member.identity += "x"
    assert denied(member.asks)
    member.identity = member.identity[:-1]
    assert service.count("renewals") == 0
    assert member.asks() == "", "the control"


@pytest.mark.parametrize("end", ["removed", "expired"])
def test_who_left_gets_none(member: Member, end: str) -> None:
    member.ages()
    member.asks()
    if end == "removed":
        membership.remove(member.service.store, "node7", ADMIN)
    else:
        member.ages(timedelta(days=21))
    assert denied(member.asks)
    assert renewals(member) == 0 and member.service.count("certificates") == 1


def forged(member: Member, authority: Authority) -> str:
    """A certificate of the node's name with a key of the attacker, in the rows; returns a request for that key."""
    key = requests.new_key()
    made = authority.node(member.identity, key.public_key(), utcnow())
    with member.service.store.write() as c:
        c.execute(t.certificates.update().values(certificate=made.certificate))
    return requests.new_request(key)


def test_the_signer_does_not_trust_the_rows(member: Member, tmp_path: Path) -> None:
    """A web process that was taken over writes a certificate of its own authority, and a request for its key."""
    member.ages()
    request = forged(member, Authority.create(tmp_path / "foreign", utcnow()))
    with member.service.store.write() as c:
        c.execute(t.renewals.insert().values(identity=member.identity, request=request, created_at=utcnow()))
    assert renewals(member) == 0 and member.service.count("renewals") == 0
    request = forged(member, member.authority)
    with member.service.store.write() as c:
        c.execute(t.renewals.insert().values(identity=member.identity, request=request, created_at=utcnow()))
    assert renewals(member) == 1, "the control: a certificate of the real authority"


def test_a_host_renews_by_itself(service: Service, authority: Authority, member: Member, tmp_path: Path) -> None:
    folder = tmp_path / "membership"
    folder.mkdir()
    write_private(folder / link.KEY, requests.key_pem(member.key))
    write_private(folder / link.AUTHORITY, authority.certificate.encode())
    write_private(folder / link.CERTIFICATE, member.certificate.encode())
    assert not host.is_due(folder, utcnow()) and not host.is_due(folder, utcnow() + timedelta(days=58))
    assert host.is_due(folder, utcnow() + timedelta(days=61))
    config = dataclasses.replace(service.config, hub=HubConfig(broker="testbed.example:5671"))
    with served(create_app(config, service.store)) as url, signing(service, authority):
        write_private(folder / CENTRE, json.dumps({"url": url}).encode())
        host.renew(folder)
        assert (folder / link.CERTIFICATE).read_text() == member.certificate, "it is not due at the centre"
        member.ages()
        host.renew(folder)
    found = (folder / link.CERTIFICATE).read_text()
    assert found != member.certificate
    assert requests.check_issued(found, authority.certificate, member.key) == member.identity
    assert sorted(one.name for one in folder.iterdir()) == sorted([link.KEY, link.AUTHORITY, link.CERTIFICATE, CENTRE])
