"""Open connections to the service when it asks for them: for consoles, screens and questions to the agent."""

from __future__ import annotations

import http.client
import logging
import socket
import threading
from contextlib import ExitStack
from urllib.parse import urlsplit

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from slicemgr.certificates import dial_tokens, member
from slicemgr.certificates.member import AUTHORITY, KEY, Member
from slicemgr.config import Config
from slicemgr.errors import Failed, SlicemgrError
from slicemgr.ipc import console_socket, tunnel, websocket
from slicemgr.ipc.console_socket import Order
from slicemgr.ipc.websocket import Channel
from slicemgr.link import centre
from slicemgr.model import Dial, DialPurpose

log = logging.getLogger(__name__)

MOST = 80  # connections of one node
_TIMEOUT = 10.0  # seconds to connect; the service waits little longer


class Dials:
    """The connections of this host, each with a thread."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._room = threading.BoundedSemaphore(MOST)

    def open(self, dial: Dial) -> None:
        """Begin to open a connection. Returns at once."""
        if not self._room.acquire(blocking=False):
            log.warning("%d connections to the service are open: no further one", MOST)
            return
        threading.Thread(target=self._serve, args=(dial,), name="dial", daemon=True).start()

    def _serve(self, dial: Dial) -> None:
        try:
            serve(self._config, dial)
        except (SlicemgrError, OSError, ValueError, http.client.HTTPException, websocket.Rejected) as error:
            log.warning("no connection to the service for a %s: %s", dial.purpose, error or type(error).__name__)
        finally:
            self._room.release()


def serve(config: Config, dial: Dial) -> None:
    """Connect the service and the agent of this host until one of them ends it.

    Raises SlicemgrError, OSError, ValueError, HTTPException or Rejected if the service cannot be reached or refuses.
    """
    joined = member.find(config.membership_dir)
    if joined is None:
        raise Failed("this host has not joined a testbed")
    with ExitStack() as stack:
        channel = stack.enter_context(_connect(joined, dial))
        try:
            stream = stack.enter_context(_agent(config, dial))
        except SlicemgrError as error:
            channel.send(tunnel.frame(console_socket.error_packet(error)))
            channel.close()
            channel.drain(_TIMEOUT)
            return
        tunnel.splice(channel, stream)


def _connect(joined: Member, dial: Dial) -> Channel:
    context = centre.trust((joined.folder / AUTHORITY).read_text())
    key = serialization.load_pem_private_key((joined.folder / KEY).read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # as `slicemgr join` made it
    token = dial_tokens.sign(key, joined.identity, dial.secret)
    parts = urlsplit(joined.url)
    with ExitStack() as undo:
        connection = centre.connection(joined.url, context, _TIMEOUT)
        undo.callback(connection.close)
        connection.connect()
        target = parts.path.rstrip("/") + tunnel.PATH
        channel = websocket.connect(connection.sock, parts.netloc, target, token, tunnel.PROTOCOL)
        undo.pop_all()
    return channel


def _agent(config: Config, dial: Dial) -> socket.socket:
    if dial.purpose is DialPurpose.QUERY:
        return console_socket.request(config.question_socket, b"{}")
    order = Order(dial.user, dial.sliver, dial.purpose is DialPurpose.SCREEN)
    return console_socket.request(config.console_socket, console_socket.order_packet(order))
