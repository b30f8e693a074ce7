"""Mail to a real SMTP server in this process: sent once, retried as long as it is safe, failures reported."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.message import Message
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword
from bare_service import Service
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from slicemgr.config import MailConfig
from slicemgr.service.leases import leases
from slicemgr.service.leases.clock import Uptime
from slicemgr.service.nodes import retention
from slicemgr.service.outbound import mail
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

pytestmark = [
    pytest.mark.usefixtures("each_store"),
    pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS"),
]

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
PASSWORD = "an SMTP password"


class Box:
    """The received mail. answer: to the text of a mail. hang_up: close the connection after the text."""

    def __init__(self) -> None:
        self.letters: list[Message] = []
        self.recipient_answer = "250 OK"
        self.answer = "250 OK"
        self.hang_up = False
        self.encrypted: list[bool] = []

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: list[str]) -> str:
        if self.recipient_answer.startswith("250"):
            envelope.rcpt_tos.append(address)
        return self.recipient_answer

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.letters.append(message_from_bytes(envelope.content))
        self.encrypted.append(server.transport.get_extra_info("ssl_object") is not None)
        if self.hang_up:
            server.transport.close()
        return self.answer


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Key and certificate of 127.0.0.1, trusted only by clients that name it."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - DAY).not_valid_after(now + DAY)
    made = made.add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), False)
    path = tmp_path / "smtp.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return path


class AnyPort(Controller):
    """Takes a free port, and finds it by its own first connection."""

    def _trigger_server(self) -> None:
        assert isinstance(self.server, asyncio.Server)
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()  # type: ignore[no-untyped-call]


@contextmanager
def server(box: Box, **more: Any) -> Iterator[int]:
    """Its port."""
    controller = AnyPort(box, hostname="127.0.0.1", port=0, **more)
    controller.start()
    try:
        yield controller.port
    finally:
        controller.stop()


@pytest.fixture
def box() -> Box:
    return Box()


@contextmanager
def telling(folder: Path, port: int, **mail_settings: Any) -> Iterator[Service]:
    settings = {"server": "127.0.0.1", "port": port, "security": "none", "sender": "testbed@example.org"}
    with Service(folder / "service", mail=MailConfig(**{**settings, **mail_settings})) as made:
        with made.store.write() as c:
            c.execute(t.users.update().values(email="admin@example.org"))
        yield made


@pytest.fixture
def service(tmp_path: Path, box: Box) -> Iterator[Service]:
    with server(box) as port, telling(tmp_path, port) as made:
        yield made


def queue(service: Service, key: str = "k", subject: str = "a subject") -> None:
    with service.store.write() as c:
        mail.queue(c, service.config, key, mail.About("admin", "exp", "default"), subject, "A body.\n", utcnow())


def deliver(service: Service, later: timedelta = timedelta(0)) -> int:
    return mail.deliver(service.store, service.config, utcnow() + later)


def state(service: Service) -> tuple[str, int, str]:
    with service.store.read() as c:
        row = c.execute(sa.select(t.mails.c.state, t.mails.c.tries, t.mails.c.error)).one()
        return row.state, row.tries, row.error


def events(service: Service) -> list[str]:
    with service.store.read() as c:
        return list(c.scalars(sa.select(t.events.c.action).order_by(t.events.c.id)))


def test_a_lease_that_ends_is_told_by_mail_each_time_once(service: Service, box: Box) -> None:
    service.create(lease="7d")
    began = utcnow()
    for passed in (timedelta(0), 4 * DAY, 4 * DAY + MINUTE, 7 * DAY, 11 * DAY, 11 * DAY + MINUTE):
        leases.expire(service.store, service.config, began + passed, Uptime("boot", passed.total_seconds()))
        with service.store.write() as c:
            c.execute(t.operations.update().values(state="done"))
        deliver(service, 12 * DAY)
        deliver(service, 12 * DAY)
    subjects = [str(one["Subject"]) for one in box.letters]
    assert [one.split(": ")[-1].split(" ")[0] for one in subjects] == ["the", "stopped", "deleted"]
    assert all(one["To"] == "admin@example.org" and one["From"] == "testbed@example.org" for one in box.letters)
    first = str(box.letters[0].get_payload())
    assert "slicectl renew exp" in first and "the lease ends at" in first
    assert len({one["Message-ID"] for one in box.letters}) == 3


def test_the_same_is_queued_once(service: Service, box: Box) -> None:
    queue(service)
    queue(service)
    assert (deliver(service), deliver(service)) == (1, 0)
    queue(service)
    assert deliver(service) == 0
    assert len(box.letters) == 1


def test_nothing_goes_to_who_has_no_address_or_is_disabled(service: Service, box: Box) -> None:
    for change in ({"email": ""}, {"email": "a@example.org", "enabled": False}):
        with service.store.write() as c:
            c.execute(t.users.update().values(change))
        queue(service)
        assert deliver(service) == 0
    assert service.count("mails") == 0


@pytest.mark.parametrize("where", ["recipient_answer", "answer"])
def test_not_now_is_tried_again_later_and_later(service: Service, box: Box, where: str) -> None:
    setattr(box, where, "451 greylisted")
    queue(service)
    assert deliver(service) == 0
    assert state(service)[:2] == ("waiting", 1) and "greylisted" in state(service)[2]
    deliver(service)
    assert state(service)[1] == 1, "not at once"
    deliver(service, 2 * MINUTE)
    deliver(service, 3 * MINUTE)
    assert state(service)[1] == 2, "after a longer wait"
    setattr(box, where, "250 OK")
    assert deliver(service, 10 * MINUTE) == 1
    assert state(service)[0] == "sent"
    assert events(service).count("mail delayed") == 1


@pytest.mark.parametrize("where", ["recipient_answer", "answer"])
def test_a_refusal_is_final_and_an_event(service: Service, box: Box, where: str) -> None:
    setattr(box, where, "550 no such mailbox")
    queue(service)
    assert deliver(service) == 0
    assert state(service)[0] == "failed" and "no such mailbox" in state(service)[2]
    assert deliver(service, DAY) == 0
    assert events(service) == ["mail failed"]


def test_what_may_have_been_taken_is_not_sent_again(service: Service, box: Box) -> None:
    box.hang_up = True
    queue(service)
    assert deliver(service) == 0
    box.hang_up = False
    assert deliver(service, DAY) == 0
    assert len(box.letters) == 1
    assert state(service)[0] == "failed" and "it is unknown" in state(service)[2]


def test_an_agent_that_dies_while_sending_does_not_send_again(service: Service, box: Box) -> None:
    queue(service)
    with service.store.write() as c:
        c.execute(t.mails.update().values(state=mail.SENDING))
    assert deliver(service) == 0
    assert (box.letters, state(service)[0], events(service)) == ([], "failed", ["mail failed"])


def test_a_server_that_is_away_is_waited_for_but_not_for_ever(tmp_path: Path, box: Box) -> None:
    with server(box) as port:
        pass
    with telling(tmp_path, port) as service:
        queue(service)
        assert deliver(service) == 0
        assert state(service)[0] == "waiting"
        deliver(service, 3 * DAY)
        assert state(service)[0] == "failed"
        assert events(service) == ["mail delayed", "mail failed"]


def test_letters_are_forgotten_when_events_are(service: Service, box: Box) -> None:
    leases.expire(service.store, service.config)
    queue(service)
    deliver(service)
    queue(service, "waits")
    retention.forget(service.store, service.config, utcnow() + 364 * DAY)
    assert service.count("mails") == 2
    retention.forget(service.store, service.config, utcnow() + 366 * DAY)
    assert service.count("mails") == 1, "what waits still"


def test_without_a_server_nothing_is_queued(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        queue(service)
        assert (deliver(service), service.count("mails")) == (0, 0)


def authenticator(*_: Any) -> Callable[..., AuthResult]:
    def check(server: Any, session: Any, envelope: Any, mechanism: str, data: LoginPassword) -> AuthResult:
        return AuthResult(success=(data.login, data.password) == (b"me", PASSWORD.encode()), handled=False)

    return check


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_encrypted_and_with_a_password_from_a_file(tmp_path: Path, box: Box, certificate: Path, security: str) -> None:
    secret = tmp_path / "password"
    secret.write_text(f"{PASSWORD}\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    how: dict[str, Any] = {"tls_context": context, "require_starttls": True}
    if security == "tls":
        how = {"ssl_context": context, "auth_require_tls": False}
    how |= {"authenticator": authenticator(), "auth_required": True}
    settings = {"security": security, "user": "me", "password_file": str(secret), "ca_file": str(certificate)}
    with server(box, **how) as port, telling(tmp_path, port, **settings) as service:
        queue(service)
        assert deliver(service) == 1
        assert box.encrypted == [True]
        queue(service, "other")
        secret.write_text("wrong")
        assert deliver(service) == 0
        with service.store.read() as c:
            told = c.scalars(sa.select(t.mails.c.error).where(t.mails.c.key == "other")).all()
    assert "does not accept mail.user and its password" in told[0]
    assert len(box.letters) == 1


def test_a_server_that_nobody_vouches_for_gets_nothing(tmp_path: Path, box: Box, certificate: Path) -> None:
    """The control is the test above: the same server, believed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with server(box, tls_context=context) as port, telling(tmp_path, port, security="starttls") as service:
        queue(service)
        assert deliver(service) == 0
        assert box.letters == []
        assert "certificate" in state(service)[2]


def test_a_server_without_starttls_gets_nothing(tmp_path: Path, box: Box) -> None:
    with server(box) as port, telling(tmp_path, port, security="starttls") as service:
        queue(service)
        assert deliver(service) == 0
        assert box.letters == []
