"""Send one message to an SMTP server, and report the outcome."""

from __future__ import annotations

import hashlib
import smtplib
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate
from pathlib import Path

from slicemgr.config import MailConfig

_PORTS = {"starttls": 587, "tls": 465, "none": 25}


@dataclass(frozen=True, slots=True)
class Letter:
    """key: identifies the message, also for a server or mail client that receives it twice."""

    key: str
    recipient: str
    subject: str
    body: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """The server refused the message permanently."""

    why: str


@dataclass(frozen=True, slots=True)
class NotNow:
    """The message was not sent; a retry may succeed."""

    why: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The server received the message but did not confirm it."""

    why: str


Outcome = Refusal | NotNow | Unknown | None  # None: the server accepted it


class Server:
    """Thread-safe; each message uses a new connection."""

    def __init__(self, settings: MailConfig) -> None:
        self._settings = settings

    def send(self, letter: Letter, before: Callable[[], None]) -> Outcome:
        """Send a message. before: called right before the text goes to the server; from then on the outcome may be
        Unknown.
        """
        if not letter.recipient.isascii():
            return Refusal(f"{letter.recipient!r} is not a valid address for every mail server")
        try:
            connection = self._connect()
        except smtplib.SMTPAuthenticationError as error:
            return NotNow(f"the server does not accept mail.user and its password: {_answer(error)}")
        except (OSError, smtplib.SMTPException) as error:
            return NotNow(f"{self._settings.server}: {error}")
        try:
            return self._hand_over(connection, letter, before)
        finally:
            with suppress(OSError, smtplib.SMTPException):
                connection.quit()

    def _connect(self) -> smtplib.SMTP:
        """Raises OSError or SMTPException. The password is sent over encrypted connections only."""
        settings = self._settings
        port = settings.port or _PORTS[settings.security]
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        timeout = settings.timeout.total_seconds()
        connection: smtplib.SMTP
        if settings.security == "tls":
            connection = smtplib.SMTP_SSL(settings.server, port, timeout=timeout, context=context)
        else:
            connection = smtplib.SMTP(settings.server, port, timeout=timeout)
        try:
            if settings.security == "starttls":
                connection.starttls(context=context)
            if settings.user:
                connection.login(settings.user, Path(settings.password_file).read_text().strip())
        except BaseException:
            connection.close()
            raise
        return connection

    def _hand_over(self, connection: smtplib.SMTP, letter: Letter, before: Callable[[], None]) -> Outcome:
        try:
            connection.ehlo_or_helo_if_needed()
            for code, answer in (connection.mail(self._settings.sender), connection.rcpt(letter.recipient)):
                if code not in (250, 251):
                    return _judge(code, answer.decode(errors="replace"))
        except (OSError, smtplib.SMTPException) as error:
            return NotNow(f"{self._settings.server}: {error}")
        before()
        try:
            code, answer = connection.data(self._message(letter).as_bytes())
        except smtplib.SMTPResponseException as error:
            return _judge(error.smtp_code, _answer(error))
        except (OSError, smtplib.SMTPException) as error:
            return Unknown(f"it is unknown whether it was sent: {self._settings.server}: {error}")
        return None if code == 250 else _judge(code, answer.decode(errors="replace"))

    def _message(self, letter: Letter) -> EmailMessage:
        message = EmailMessage()
        message["From"] = self._settings.sender
        message["To"] = letter.recipient
        message["Subject"] = f"[slicemgr] {letter.subject}"
        message["Date"] = formatdate()
        domain = self._settings.sender.rpartition("@")[2]
        message["Message-ID"] = f"<{hashlib.sha256(letter.key.encode()).hexdigest()[:32]}@{domain}>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(letter.body)
        return message


def _judge(code: int, answer: str) -> Refusal | NotNow:
    detail = f"the server answered {code} {answer}"
    return Refusal(detail) if code >= 500 else NotNow(detail)


def _answer(error: smtplib.SMTPResponseException) -> str:
    text = error.smtp_error
    return text.decode(errors="replace") if isinstance(text, bytes) else text
