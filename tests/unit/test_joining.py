"""Hosts that join: tokens of one use, certificates, and what a host or a server that lies gets."""

from __future__ import annotations

import base64
import secrets
import stat
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, FACTS, SHA, Service
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from slicemgr.agent import startup
from slicemgr.certificates import requests
from slicemgr.certificates.authority import Authority
from slicemgr.errors import Code, Failed, Refused, SlicemgrError
from slicemgr.hub import signer
from slicemgr.model import NodeState, OperationState
from slicemgr.policy.access import Principal
from slicemgr.service.nodes import images, joining, membership, nodes
from slicemgr.service.views import nodes as node_views
from slicemgr.store import pending
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

HOST = "127.0.0.1"
pytestmark = pytest.mark.usefixtures("each_store")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as made:
        yield made


@pytest.fixture
def authority(service: Service) -> Authority:
    return signer.prepare(service.store, service.config.authority_dir)


def added(service: Service, name: str = "node7", **fields: str) -> membership.Added:
    return membership.add(service.store, {"name": name, **fields}, ADMIN)


def shown(service: Service, name: str = "node7") -> dict[str, Any]:
    with service.store.read() as c:
        return node_views.nodes(c, service.config.network, name)[0]


def code(action: Callable[[], object]) -> str:
    """The code of the error; "": none."""
    try:
        action()
    except SlicemgrError as error:
        return error.code.wire
    return ""


def csr(name: str = "", key: Any = None) -> str:
    """A certificate request. name: the common name that it asks for."""
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else []
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(subject))
    wanted = x509.BasicConstraints(ca=True, path_length=None)
    made = builder.add_extension(wanted, critical=True).sign(key or requests.new_key(), hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


def test_no_token_looks_like_an_option(service: Service, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter(["-r" + "x" * 41, "y" * 43])
    monkeypatch.setattr(secrets, "token_urlsafe", lambda _: next(made))
    assert added(service).token == "y" * 43


def test_a_token_is_shown_once_and_stored_as_a_hash(service: Service, authority: Authority) -> None:
    made = added(service, site="tuebingen")
    assert made.authority == authority.fingerprint and made.expires_at - utcnow() <= timedelta(hours=1)
    assert made.token not in str(service.dump())
    node = shown(service)
    assert (node["site"], node["state"], node["agent_seen_at"]) == ("tuebingen", "added", None)


def test_one_token_one_host(service: Service, authority: Authority) -> None:
    made, first, other = added(service), csr(), csr()
    assert joining.join(service.store, made.token, first, HOST).certificate == "", "the signer has yet to answer"
    assert code(lambda: joining.join(service.store, made.token, other, HOST)) == "denied"
    assert signer.sign(service.store, authority) == 1 and signer.sign(service.store, authority) == 0
    certificate = joining.join(service.store, made.token, first, HOST).certificate
    assert requests.load(certificate).public_key() == requests.public_key(first)
    assert code(lambda: joining.join(service.store, made.token, other, HOST)) == "denied"
    assert shown(service)["state"] == "joined"
    assert code(lambda: added(service)) == "conflict", "a host that has joined is not replaced by another"


def test_tokens_end(service: Service, authority: Authority) -> None:
    first, second = added(service), added(service)
    assert code(lambda: joining.join(service.store, first.token, csr(), HOST)) == "denied", "replaced by the second"
    for token in ("", "x" * 43, second.token[:-1], second.authority):
        assert code(partial(joining.join, service.store, token, csr(), HOST)) == "denied"
    joining.join(service.store, second.token, csr(), HOST)
    with service.store.write() as c:
        c.execute(t.joins.update().values(expires_at=utcnow()))
    assert signer.sign(service.store, authority) == 0, "what was asked for in time is not signed after it"
    assert code(lambda: joining.join(service.store, second.token, csr(), HOST)) == "denied"
    with service.store.write() as c:
        c.execute(t.joins.update().values(expires_at=utcnow() + timedelta(minutes=1)))
    assert signer.sign(service.store, authority) == 1, "the control: it was the time that ended it"


@pytest.mark.parametrize("name", ["hub", "node-another", ""])
def test_the_authority_chooses_the_name(service: Service, authority: Authority, name: str) -> None:
    """A request for the name of another process, and for a certificate that could issue others."""
    made = added(service)
    request = csr(name)
    joining.join(service.store, made.token, request, HOST)
    signer.sign(service.store, authority)
    found = joining.join(service.store, made.token, request, HOST)
    certificate = requests.load(found.certificate)
    assert requests.common_name(certificate) == found.identity
    assert found.identity.startswith("node-") and found.identity != name
    extensions = certificate.extensions
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def bad_requests() -> Iterator[object]:
    yield from (None, 7, "", "x", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n")
    yield csr() + "x" * requests.LONGEST
    yield csr(key=rsa.generate_private_key(65537, 2048))
    yield csr(key=ec.generate_private_key(ec.SECP384R1()))
    parsed = x509.load_pem_x509_csr(csr().encode()).public_bytes(serialization.Encoding.DER)
    forged = base64.encodebytes(parsed[:-1] + bytes([parsed[-1] ^ 1])).decode()  # another signature
    yield f"-----BEGIN CERTIFICATE REQUEST-----\n{forged}-----END CERTIFICATE REQUEST-----\n"


def test_bad_requests_change_nothing(service: Service, authority: Authority) -> None:
    made = added(service)
    before = service.dump()
    for one in bad_requests():
        assert code(partial(joining.join, service.store, made.token, one, HOST)) == "invalid"
    assert service.dump() == before
    joining.join(service.store, made.token, csr(), HOST)
    assert signer.sign(service.store, authority) == 1, "the control: the token was still good"


def test_the_signer_checks_again(service: Service, authority: Authority) -> None:
    """A web process that was taken over writes what it wants into the rows."""
    added(service)
    with service.store.write() as c:
        c.execute(t.joins.update().values(request=csr(key=rsa.generate_private_key(65537, 2048))))
    assert signer.sign(service.store, authority) == 0
    assert service.count("certificates") == 0


def test_the_authority_is_one(service: Service, authority: Authority, tmp_path: Path) -> None:
    folder = service.config.authority_dir
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()} == {0o600}
    assert signer.prepare(service.store, folder).fingerprint == authority.fingerprint
    with pytest.raises(Refused):
        signer.prepare(service.store, tmp_path / "empty")
    Authority.create(tmp_path / "other", utcnow())
    with pytest.raises(Failed, match="not the one in the database"):
        signer.prepare(service.store, tmp_path / "other")


def test_no_authority_no_nodes(service: Service) -> None:
    with pytest.raises(Refused, match="slicemgr signer"):
        added(service)
    assert service.count("nodes") == 1


@pytest.mark.parametrize("fields", [{}, {"name": "A"}, {"name": 7}, {"name": "a" * 41}, {"name": "n", "site": "a/b"}])
def test_bad_names(service: Service, authority: Authority, fields: dict[str, object]) -> None:
    with pytest.raises(Refused) as caught:
        membership.add(service.store, fields, ADMIN)
    assert caught.value.code is Code.INVALID and caught.value.field == ("site" if "site" in fields else "name")


def test_admins_alone(service: Service, authority: Authority) -> None:
    alice, before = Principal("alice", False), service.dump()
    for action in (
        lambda: membership.add(service.store, {"name": "n"}, alice),
        lambda: membership.drain(service.store, "node1", alice),
        lambda: membership.remove(service.store, "node1", alice),
        lambda: membership.rename(service.store, "node1", "n", alice),
    ):
        assert code(action) == "denied"
    assert service.dump() == before


def test_a_node_that_has_not_joined_gets_nothing(service: Service, authority: Authority) -> None:
    added(service, "a-first")  # before node1 by name
    service.create()
    assert [row.sliver.slice_name for row in service.rows()] == ["exp"]  # the slivers of node1
    with pytest.raises(Refused, match="a-first"):
        service.create("two", node="a-first")
    with pytest.raises(Refused, match="no agent of node a-first has reported yet"):
        nodes.request(service.store, service.config, "a-first", "doctor", ADMIN, {})


def test_a_drained_node_gets_no_new_slivers(service: Service) -> None:
    service.create()
    membership.drain(service.store, "node1", ADMIN)
    assert shown(service, "node1")["drained"]
    for fields in ({}, {"node": "node1"}):
        with pytest.raises(Refused, match="drained"):
            service.create("two", **fields)
    service.record(pending.NodeSeen("node1", "192.0.2.1"))
    assert shown(service, "node1")["drained"], "a report of its agent changes nothing about it"
    membership.drain(service.store, "node1", ADMIN, drained=False)
    service.create("two")


def test_an_agent_does_not_take_the_row_of_a_node_that_joins(service: Service, authority: Authority) -> None:
    added(service)
    before = shown(service)
    service.record(pending.NodeSeen("node7", "192.0.2.9", {"cpus": 64}))
    assert shown(service) == before
    with service.store.read() as c:
        assert pending.joins_with_certificate(c, "node7") and not pending.joins_with_certificate(c, "node1")
    assert "joins_with_certificate" in Path(startup.__file__).read_text(), "asked at the start of the agent"


def test_rename(service: Service, authority: Authority) -> None:
    """Every row that names the node gets the new name; the identity, and so the certificate, stay."""
    added(service)
    service.create()
    with service.store.write() as c:
        identity = c.scalar(sa.select(t.nodes.c.identity).where(t.nodes.c.name == "node7"))
        for table in (t.slivers, t.ports, t.operations):
            c.execute(table.update().values(node="node7"))
        c.execute(t.nodes.update().where(t.nodes.c.name == "node7").values(state=NodeState.ACTIVE, facts=FACTS))
        c.execute(t.nodes.delete().where(t.nodes.c.name == "node1"))
    assert membership.rename(service.store, "node7", "node8", ADMIN) == "node8"
    with service.store.read() as c:
        assert c.execute(sa.select(t.nodes.c.name, t.nodes.c.identity)).all() == [("node8", identity)]
        for table in (t.slivers, t.ports, t.operations, t.joins):
            assert set(c.scalars(sa.select(table.c.node))) == {"node8"}, table.name
    assert code(lambda: membership.rename(service.store, "node7", "node9", ADMIN)) == "not_found"
    service.record(pending.NodeSeen("node1", "192.0.2.1"))
    assert code(lambda: membership.rename(service.store, "node8", "node1", ADMIN)) == "conflict"
    assert code(lambda: membership.rename(service.store, "node1", "node2", ADMIN)) == "conflict", "of node.name"


def test_remove(service: Service, authority: Authority) -> None:
    made, request = added(service), csr()
    joining.join(service.store, made.token, request, HOST)
    signer.sign(service.store, authority)
    membership.remove(service.store, "node7", ADMIN)
    with service.store.read() as c:
        assert c.scalar(sa.select(t.certificates.c.revoked_at)) is not None
    assert service.count("joins") == 0 and service.count("nodes") == 1
    assert code(lambda: joining.join(service.store, made.token, request, HOST)) == "denied"
    assert added(service).node == "node7", "the name is free again, with another identity"
    with service.store.read() as c:
        assert c.scalar(sa.select(t.nodes.c.identity).where(t.nodes.c.name == "node7")) != c.scalar(
            sa.select(t.certificates.c.identity)
        )


def test_a_node_in_use_is_not_removed(service: Service) -> None:
    with pytest.raises(Refused, match="is running"):
        membership.remove(service.store, "node1", ADMIN)
    operation = service.create()
    with service.store.write() as c:
        c.execute(t.nodes.update().values(agent_seen_at=utcnow() - timedelta(hours=1)))
    with pytest.raises(Refused, match="has a sliver"):
        membership.remove(service.store, "node1", ADMIN)
    service.record(pending.SliverGone(service.rows()[0].sliver.id))
    with pytest.raises(Refused, match="not ended"):
        membership.remove(service.store, "node1", ADMIN)
    service.record(pending.OperationEnded(operation, OperationState.DONE))
    membership.remove(service.store, "node1", ADMIN)
    assert service.count("nodes") == 0


def test_the_image_of_a_drained_node_can_be_deleted(service: Service) -> None:
    membership.drain(service.store, "node1", ADMIN)
    assert images.delete(service.store, service.config, SHA, ADMIN)
