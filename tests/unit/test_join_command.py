"""`slicemgr join` over real sockets: what a host writes, and what a server gets that is not the testbed."""

from __future__ import annotations

import dataclasses
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import pytest
from bare_service import ADMIN, Service
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flask import Flask, request
from werkzeug.serving import make_server

from slicemgr.certificates import requests
from slicemgr.certificates.authority import Authority
from slicemgr.config import HubConfig
from slicemgr.errors import Failed, Refused, SlicemgrError
from slicemgr.hub import reports, signer
from slicemgr.link import join as link
from slicemgr.model import NodeState
from slicemgr.service.nodes import joining, membership
from slicemgr.service.views import nodes as node_views
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow
from slicemgr.web import create_app

HOST = "127.0.0.1"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as made:
        yield made


@pytest.fixture
def authority(service: Service) -> Authority:
    return signer.prepare(service.store, service.config.authority_dir)


def added(service: Service) -> membership.Added:
    return membership.add(service.store, {"name": "node7", "site": "tuebingen"}, ADMIN)


def node_state(service: Service) -> str:
    with service.store.read() as c:
        return str(node_views.nodes(c, service.config.network, "node7")[0]["state"])


def code(action: Callable[[], object]) -> str:
    """The code of the error; "": none."""
    try:
        action()
    except SlicemgrError as error:
        return error.code.wire
    return ""


@contextmanager
def served(app: Flask, chain: tuple[Path, Path] | None = None) -> Iterator[str]:
    """The URL of the application. chain: certificate and key; None: http."""
    context = None
    if chain is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*chain)
    server = make_server(HOST, 0, app, threaded=True, ssl_context=context)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"{'http' if chain is None else 'https'}://{HOST}:{server.port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def chain(authority: Authority, folder: Path, host: str = HOST) -> tuple[Path, Path]:
    folder.mkdir()
    key = requests.new_key()
    made = authority.server([host], key.public_key(), utcnow())
    (folder / "key.pem").write_bytes(requests.key_pem(key))
    (folder / "certificate.pem").write_text(made.certificate)
    return folder / "certificate.pem", folder / "key.pem"


@contextmanager
def signing(service: Service, authority: Authority) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=signer.run, args=(service.store, authority, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_join_over_tls(service: Service, authority: Authority, tmp_path: Path) -> None:
    made, folder = added(service), tmp_path / "membership"
    with ExitStack() as stack:
        url = stack.enter_context(served(create_app(service.config, service.store), chain(authority, tmp_path / "tls")))
        stack.enter_context(signing(service, authority))
        joined = link.join(url, f"{made.token}#{made.authority}", folder)
        assert (joined.node, joined.site) == ("node7", "tuebingen") and node_state(service) == "joined"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert sorted(one.name for one in folder.iterdir()) == [
            "authority.pem",
            "centre.json",
            "certificate.pem",
            "key.pem",
        ]
        assert {stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()} == {0o600}
        key = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        issued, root = (folder / "certificate.pem").read_text(), (folder / "authority.pem").read_text()
        assert requests.check_issued(issued, root, key) == joined.identity
        assert code(lambda: link.join(url, f"{made.token}#{made.authority}", folder)) == "conflict"
        with pytest.raises(Refused, match="not valid"):
            link.join(url, f"{made.token}#{made.authority}", tmp_path / "second-host")
        assert not (tmp_path / "second-host").exists() and not list(tmp_path.glob(".join-*"))


def spied(service: Service) -> tuple[Flask, list[bytes]]:
    """The application, and the bodies of the join requests that it receives."""
    app, received = create_app(service.config, service.store), []

    @app.before_request
    def spy() -> None:
        if request.path.endswith("/join"):
            received.append(request.get_data(cache=True))

    return app, received


@pytest.mark.parametrize("server", ["own", "foreign", "other name"])
def test_the_token_goes_to_the_testbed_alone(
    service: Service, authority: Authority, tmp_path: Path, server: str
) -> None:
    """A server between node and testbed passes the authority on, but has no certificate of it for this name."""
    made = added(service)
    app, received = spied(service)
    issuer = Authority.create(tmp_path / "foreign", utcnow()) if server == "foreign" else authority
    host = "testbed.example" if server == "other name" else HOST
    with served(app, chain(issuer, tmp_path / "tls", host)) as url, signing(service, authority):
        failed = code(lambda: link.join(url, f"{made.token}#{made.authority}", tmp_path / "membership"))
    assert bool(received) == (tmp_path / "membership").exists() == (failed == "") == (server == "own")


def test_another_authority_is_refused(service: Service, authority: Authority, tmp_path: Path) -> None:
    made = added(service)
    app, received = spied(service)
    with served(app, chain(authority, tmp_path / "tls")) as url, signing(service, authority):
        other = f"{made.token}#{'0' * 64}"
        with pytest.raises(Failed, match="not the one that the token names"):
            link.join(url, other, tmp_path / "membership")
        assert not received and not (tmp_path / "membership").exists()
        link.join(url, f"{made.token}#{made.authority}", tmp_path / "membership")  # the control


def test_without_a_signer_nothing_stays(service: Service, authority: Authority, tmp_path: Path) -> None:
    made = added(service)
    with served(create_app(service.config, service.store)) as url, pytest.raises(Failed, match="did not issue"):
        link.join(url, f"{made.token}#{made.authority}", tmp_path / "membership", patience=0)
    assert not list(tmp_path.glob("*join*")) and not (tmp_path / "membership").exists()


@pytest.mark.parametrize("withdrawing", [True, False])
def test_a_failed_join_is_undone_at_the_testbed(
    service: Service, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, withdrawing: bool
) -> None:
    """The host cannot store its certificate. The control is one that does not tell the testbed."""
    made, folder = added(service), tmp_path / "file" / "membership"
    line = f"{made.token}#{made.authority}"
    (tmp_path / "file").touch()
    app = create_app(service.config, service.store)
    with served(app, chain(authority, tmp_path / "tls")) as url, signing(service, authority):
        with monkeypatch.context() as patch:
            if not withdrawing:
                patch.setattr(link, "_withdrawn_on_failure", lambda *_: nullcontext())
            with pytest.raises(OSError):
                link.join(url, line, folder)
        assert node_state(service) == ("added" if withdrawing else "joined")
        again = code(lambda: link.join(url, line, tmp_path / "membership"))
    assert again == ("" if withdrawing else "denied")
    assert node_state(service) == "joined"


def test_a_node_that_connected_cannot_be_withdrawn(service: Service, authority: Authority) -> None:
    made, request = added(service), requests.new_request(requests.new_key())
    joining.join(service.store, made.token, request, "")
    other = requests.new_request(requests.new_key())
    assert code(lambda: joining.withdraw(service.store, made.token, other, "")) == "denied"
    signer.sign(service.store, authority)
    with service.store.write() as c:
        c.execute(t.nodes.update().values(state=NodeState.ACTIVE))
    assert code(lambda: joining.withdraw(service.store, made.token, request, "")) == "denied"
    with service.store.write() as c:
        c.execute(t.nodes.update().where(t.nodes.c.name == "node7").values(state=NodeState.JOINED))
    assert joining.withdraw(service.store, made.token, request, "") == "node7"
    assert reports.members(service.store) == set()


def test_a_host_with_slivers_or_nodes_does_not_join(service: Service, authority: Authority) -> None:
    node = service.config.node.name
    membership.refuse_own(service.store, node)
    service.create()
    with pytest.raises(Refused, match="of its own"):
        membership.refuse_own(service.store, node)
    membership.refuse_own(service.store, "another")
    added(service)
    with pytest.raises(Refused, match="centre of 1 nodes"):
        membership.refuse_own(service.store, "another")


@contextmanager
def broker(issuer: Authority, folder: Path, *, runs: bool) -> Iterator[HubConfig]:
    """The setting of a broker with a certificate of the issuer. Only TLS matters here, so a web server will do."""
    with ExitStack() as stack:
        url = stack.enter_context(served(Flask("broker"), chain(issuer, folder)))
        if not runs:
            stack.close()
        yield HubConfig(broker=url.removeprefix("https://"))


@pytest.mark.parametrize("which", ["own", "foreign", "stopped"])
def test_the_broker_must_answer(service: Service, authority: Authority, tmp_path: Path, which: str) -> None:
    """It is asked before the token is sent."""
    made, folder = added(service), tmp_path / "membership"
    issuer = Authority.create(tmp_path / "foreign", utcnow()) if which == "foreign" else authority
    with ExitStack() as stack:
        hub = stack.enter_context(broker(issuer, tmp_path / "broker", runs=which != "stopped"))
        app = create_app(dataclasses.replace(service.config, hub=hub), service.store)
        url = stack.enter_context(served(app, chain(authority, tmp_path / "tls")))
        stack.enter_context(signing(service, authority))
        failed = code(lambda: link.join(url, f"{made.token}#{made.authority}", folder))
    assert (failed == "") == folder.exists() == (which == "own")
    assert node_state(service) == ("joined" if which == "own" else "added")


@pytest.mark.parametrize(
    ("url", "token", "field"),
    [
        ("http://testbed.example", "", "URL"),
        ("ftp://testbed.example", "", "URL"),
        ("https://me@testbed.example", "", "URL"),
        ("testbed.example", "", "URL"),
        ("https://testbed.example", "x", "TOKEN"),
        ("https://testbed.example", "x" * 43, "TOKEN"),
        ("https://testbed.example", f"{'x' * 43}#{'0' * 63}", "TOKEN"),
        ("https://testbed.example", f"{'x' * 43}#{'0' * 64}\n", "TOKEN"),
    ],
)
def test_bad_lines(tmp_path: Path, url: str, token: str, field: str) -> None:
    with pytest.raises(Refused) as caught:
        link.check(url, token or f"{'x' * 43}#{'0' * 64}", tmp_path / "none")
    assert caught.value.field == field
