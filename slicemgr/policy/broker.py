"""The rights of nodes at the message broker, and its settings (RabbitMQ 3.10). Pure.

Each node has a queue for orders to it, `to.IDENTITY`, and an exchange with a queue for its reports, `from.IDENTITY`. It
reads the former and publishes to the latter; it declares, binds and deletes nothing. The queue of a report names its
sender, whatever the message contains. One topic exchange for all would not do: the broker compares the routing key with
the rights of the sender, but not the further keys in the headers CC and BCC.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slicemgr.policy import broker_settings

VHOST = "slicemgr"
HUB = "hub"  # the name in the certificate of the hub; that of a node begins with `node-`
LARGEST_MESSAGE = 4 << 20  # bytes
_QUEUE_BYTES = 32 << 20
_QUEUE_LENGTH = 10_000
_UNACKNOWLEDGED = 180  # seconds; a full queue counts only messages that were not delivered
_CONNECTIONS, _CHANNELS = 2, 8  # of a node: the second is for a reconnect while the first is not given up yet
_NOTHING = "^$"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rights:
    """Regular expressions of names that a user may configure, write and read (as of RabbitMQ)."""

    configure: str
    write: str
    read: str

    def body(self) -> Json:
        return {"configure": self.configure, "write": self.write, "read": self.read}


@dataclass(frozen=True, slots=True)
class Call:
    """A request to the broker's management API that may be repeated. path: below `/api`."""

    method: str
    path: str
    body: Json | None = None


def orders(identity: str) -> str:
    """The queue with what a node has to do."""
    return f"to.{identity}"


def reports(identity: str) -> str:
    """The exchange and the queue for what a node reports."""
    return f"from.{identity}"


def sender(queue: str) -> str:
    """The identity of the node whose reports are in a queue. ValueError for another queue."""
    if not queue.startswith("from."):
        raise ValueError(queue)
    return queue.removeprefix("from.")


def rights(identity: str) -> Rights:
    return Rights(_NOTHING, f"^{re.escape(reports(identity))}$", f"^{re.escape(orders(identity))}$")


def limits() -> Mapping[str, int]:
    return {"max-connections": _CONNECTIONS, "max-channels": _CHANNELS}


def queue_arguments() -> Mapping[str, Any]:
    """A full queue refuses messages, and the sender keeps them: nothing is dropped without a sign."""
    return {"x-max-length": _QUEUE_LENGTH, "x-max-length-bytes": _QUEUE_BYTES, "x-overflow": "reject-publish"}


def admit(*identities: str) -> Sequence[Call]:
    """What gives nodes their queues and then their rights, in two requests for all of them.

    A node that can log in before its queue is bound loses its first report, although the broker confirms it.
    """
    durable = {"vhost": VHOST, "durable": True, "auto_delete": False}
    queues = [queue for one in identities for queue in (orders(one), reports(one))]
    exchange = {**durable, "type": "fanout", "internal": False, "arguments": {}}
    binding = {"vhost": VHOST, "destination_type": "queue", "routing_key": "", "arguments": {}}
    user = {  # no password: it logs in by its certificate alone
        "password_hash": "",
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": "",
        "limits": dict(limits()),
    }
    places = {
        "queues": [{**durable, "name": one, "arguments": dict(queue_arguments())} for one in queues],
        "exchanges": [{**exchange, "name": reports(one)} for one in identities],
        "bindings": [{**binding, "source": reports(one), "destination": reports(one)} for one in identities],
    }
    logins = {
        "users": [{**user, "name": one} for one in identities],
        "permissions": [{"user": one, "vhost": VHOST, **rights(one).body()} for one in identities],
    }
    return Call("POST", "/definitions", places), Call("POST", "/definitions", logins)


def expel(identity: str) -> Sequence[Call]:
    """What takes everything from a node that was removed; first the right to connect."""
    to, back = orders(identity), reports(identity)
    return (
        Call("DELETE", f"/users/{identity}"),
        Call("DELETE", f"/connections/username/{identity}"),
        Call("DELETE", f"/exchanges/{VHOST}/{back}"),
        *(Call("DELETE", f"/queues/{VHOST}/{one}") for one in (to, back)),
    )


def definitions(version: str, password_hash: str) -> Json:
    """What the broker loads at its start: the virtual host and the hub, and no guest.

    password_hash: of the hub for the management API, on the loopback interface; AMQP accepts certificates only.
    """
    every = Rights(".*", ".*", ".*").body()
    hub = {"name": HUB, "password_hash": password_hash, "hashing_algorithm": "rabbit_password_hashing_sha256"}
    return {
        "rabbitmq_version": version,
        "vhosts": [{"name": VHOST}],
        "users": [{**hub, "tags": ["administrator"], "limits": {}}],
        "permissions": [{"user": HUB, "vhost": VHOST, **every}],
    }


def configuration(
    address: str, port: int, management: int, certificates: Mapping[str, str], definitions_file: str
) -> str:
    """The text of rabbitmq.conf: TLS with client certificates, and no other way in.

    address: on which nodes connect. management: the port of the management API, on the loopback interface.
    certificates: the paths of `cacertfile`, `certfile` and `keyfile`.
    """
    lines = [
        "listeners.tcp = none",
        f"listeners.ssl.1 = {address}:{port}",
        *(f"ssl_options.{name} = {path}" for name, path in certificates.items()),
        "ssl_options.verify = verify_peer",
        "ssl_options.fail_if_no_peer_cert = true",
        "ssl_options.depth = 1",
        "ssl_options.versions.1 = tlsv1.3",
        "ssl_options.versions.2 = tlsv1.2",
        "ssl_cert_login_from = common_name",
        "auth_mechanisms.1 = EXTERNAL",
        f"max_message_size = {LARGEST_MESSAGE}",
        f"channel_max = {_CHANNELS}",
        f"consumer_timeout = {_UNACKNOWLEDGED * 1000}",
        "management.tcp.ip = 127.0.0.1",
        f"management.tcp.port = {management}",
        f"load_definitions = {definitions_file}",
        *broker_settings.lines(),
    ]
    return "\n".join(lines) + "\n"


def environment(configuration_file: str, plugins_file: str) -> str:
    """The text of rabbitmq-env.conf, a shell script. Erlang's own ports, which nodes do not need, are on loopback only.

    The node name has the host to which these ports are bound: the name of the machine is often another address.
    """
    lines = [
        "export RABBITMQ_NODENAME=slicemgr@localhost",
        f"export RABBITMQ_CONFIG_FILE={shlex.quote(configuration_file)}",
        f"export RABBITMQ_ENABLED_PLUGINS_FILE={shlex.quote(plugins_file)}",
        "export ERL_EPMD_ADDRESS=127.0.0.1",
        'export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="$RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS'
        ' -kernel inet_dist_use_interface {127,0,0,1}"',
    ]
    return "\n".join(lines) + "\n"


PLUGINS = "[rabbitmq_auth_mechanism_ssl,rabbitmq_management].\n"
