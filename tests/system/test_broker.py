"""A hostile node at a real broker: it has a valid certificate, and tries what only others may do.

Every attempt runs with the rights of a node, where it is refused, and with rights to everything, where it succeeds.
"""

from __future__ import annotations

import contextlib
import re
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import amqp
import pytest
from amqp.exceptions import AMQPError, MessageNacked
from broker_server import HOST, MANAGEMENT, PORT, Broker

from slicemgr.certificates.authority import Authority
from slicemgr.hub import broker_files
from slicemgr.hub.alarms import Alarms
from slicemgr.hub.management import Management
from slicemgr.ipc import broker_state
from slicemgr.ipc.broker_state import BrokerState
from slicemgr.policy import broker as policy
from slicemgr.policy.broker import VHOST, Rights

pytestmark = pytest.mark.long
MINE, OTHER = "node-aaaaaaaaaaaaaaaa", "node-bbbbbbbbbbbbbbbb"
EVERYTHING = Rights(".*", ".*", ".*")
BY_CERTIFICATE = {"login_method": "EXTERNAL"}
WAIT = 60.0  # seconds; for a machine with much load


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    authority = Authority.create(tmp_path_factory.mktemp("authority") / "testbed", datetime.now(UTC))
    with Broker(authority) as made:
        yield made


@pytest.fixture
def broker(running: Broker) -> Iterator[Broker]:
    """With two nodes, and without anything else."""
    for identity in (MINE, OTHER):
        apply(running, policy.expel(identity))
        apply(running, policy.admit(identity))
    for kind in ("queues", "exchanges"):
        for one in running.call("GET", f"/{kind}/{VHOST}")[1]:
            if one["name"].startswith(("made", "amq.gen")):
                running.call("DELETE", f"/{kind}/{VHOST}/{one['name']}")
    yield running


def apply(broker: Broker, calls: Any) -> None:
    for one in calls:
        status, answer = broker.call(one.method, one.path, one.body)
        assert status < 300 or (one.method == "DELETE" and status == 404), (one, status, answer)


def allow(broker: Broker, identity: str, rights: Rights) -> None:
    assert broker.call("PUT", f"/permissions/{VHOST}/{identity}", rights.body())[0] < 300


def eventually(check: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT
    while not check():
        assert time.monotonic() < end, what
        time.sleep(0.1)


@contextlib.contextmanager
def connected(
    broker: Broker, name: str, vhost: str = VHOST, login: Mapping[str, str] = BY_CERTIFICATE, **options: Any
) -> Iterator[amqp.Connection]:
    """A connection with the certificate of `name`; options replace those of TLS."""
    tls = {**broker.credentials(name), "cert_reqs": ssl.CERT_REQUIRED, "server_hostname": HOST, **options}
    made = amqp.Connection(
        f"{HOST}:{PORT}", ssl=tls, virtual_host=vhost, **login, confirm_publish=True,
        connect_timeout=WAIT, read_timeout=WAIT, write_timeout=WAIT,
    )  # fmt: skip
    try:
        with broker.inside():
            made.connect()
        yield made
    finally:
        with contextlib.suppress(Exception):
            made.collect()


def publish(channel: amqp.Channel, exchange: str, key: str = "", body: str = "x", **properties: Any) -> None:
    channel.basic_publish(amqp.Message(body, **properties), exchange, key, confirm_timeout=WAIT)


def waiting(broker: Broker, queue: str) -> list[str]:
    """The bodies of all messages in a queue, as the hub reads them."""
    with connected(broker, policy.HUB) as connection:
        channel = connection.channel()
        found = []
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            found.append(message.body)
        return found


def fill(broker: Broker) -> None:
    """An order and a report of the other node, which are nobody else's business."""
    with connected(broker, policy.HUB) as hub, connected(broker, OTHER) as node:
        publish(hub.channel(), "", policy.orders(OTHER), "an order")
        publish(node.channel(), policy.reports(OTHER), body="a report")


Attempt = Callable[[amqp.Channel], object]


def read(queue: str) -> Attempt:
    def attempt(channel: amqp.Channel) -> None:
        assert channel.basic_get(queue, no_ack=True) is not None

    return attempt


ATTEMPTS: dict[str, Attempt] = {
    "read another's orders": read(policy.orders(OTHER)),
    "read another's reports": read(policy.reports(OTHER)),
    "consume another's orders": lambda ch: ch.basic_consume(policy.orders(OTHER), callback=print),
    "purge another's orders": lambda ch: ch.queue_purge(policy.orders(OTHER)),
    "delete another's queue": lambda ch: ch.queue_delete(policy.orders(OTHER)),
    "delete its own queue": lambda ch: ch.queue_delete(policy.orders(MINE)),
    "delete its own exchange": lambda ch: ch.exchange_delete(policy.reports(MINE)),
    "declare a queue": lambda ch: ch.queue_declare("made", durable=True, auto_delete=False),
    "declare a queue that the broker names": lambda ch: ch.queue_declare("", auto_delete=False),
    "declare an exchange": lambda ch: ch.exchange_declare("made", "fanout", durable=True, auto_delete=False),
    "bind its orders to another's reports": lambda ch: ch.queue_bind(policy.orders(MINE), policy.reports(OTHER)),
    "unbind its reports": lambda ch: ch.queue_unbind(policy.reports(MINE), policy.reports(MINE)),
    "report as another": lambda ch: publish(ch, policy.reports(OTHER)),
    "order another": lambda ch: publish(ch, "", policy.orders(OTHER)),
    "put a report into another's queue": lambda ch: publish(ch, "", policy.reports(OTHER)),
    "publish to an exchange of the broker": lambda ch: publish(ch, "amq.topic", "x"),
}


@pytest.mark.parametrize("what", ATTEMPTS)
def test_only_what_is_its_own(broker: Broker, what: str) -> None:
    fill(broker)
    with connected(broker, MINE) as connection, pytest.raises(AMQPError, match=r"403|ACCESS_REFUSED"):
        ATTEMPTS[what](connection.channel())
    assert waiting(broker, policy.orders(OTHER)) == ["an order"]
    assert waiting(broker, policy.reports(OTHER)) == ["a report"]
    fill(broker)
    allow(broker, MINE, EVERYTHING)
    with connected(broker, MINE) as connection:  # the control
        ATTEMPTS[what](connection.channel())


def test_a_node_does_its_work(broker: Broker) -> None:
    """With the rights that refuse all of the above, it reports and gets its orders."""
    with connected(broker, MINE) as connection:
        publish(connection.channel(), policy.reports(MINE), body="alive")
        with connected(broker, policy.HUB) as hub:
            publish(hub.channel(), "", policy.orders(MINE), "go")
        message = connection.channel().basic_get(policy.orders(MINE), no_ack=True)
        assert message is not None and message.body == "go"
    assert waiting(broker, policy.reports(MINE)) == ["alive"]


def test_keys_in_headers_reach_nobody_else(broker: Broker) -> None:
    """CC and BCC name further keys. With one topic exchange for all and rights by key, they reach another's queue."""
    copies = {"application_headers": {"CC": [policy.reports(OTHER), f"{OTHER}.beat"], "BCC": [policy.orders(OTHER)]}}
    with connected(broker, MINE) as connection:
        publish(connection.channel(), policy.reports(MINE), f"{OTHER}.beat", "forged", **copies)
    assert waiting(broker, policy.reports(MINE)) == ["forged"], "it is its own report"
    assert waiting(broker, policy.reports(OTHER)) == waiting(broker, policy.orders(OTHER)) == []
    with connected(broker, policy.HUB) as hub:  # the control
        channel = hub.channel()
        channel.exchange_declare("made", "topic", durable=True, auto_delete=False)
        for identity in (MINE, OTHER):
            channel.queue_bind(policy.reports(identity), "made", f"{identity}.#")
    allow(broker, MINE, Rights("^$", "^made$", "^$"))
    topic = {"exchange": "made", "write": f"^{MINE}\\..*", "read": "^$"}
    assert broker.call("PUT", f"/topic-permissions/{VHOST}/{MINE}", topic)[0] < 300
    with connected(broker, MINE) as connection:
        with pytest.raises(AMQPError, match=r"403|ACCESS_REFUSED"):
            publish(connection.channel(), "made", f"{OTHER}.beat", "forged")
        publish(connection.channel(), "made", f"{MINE}.beat", "forged", **copies)
    assert waiting(broker, policy.reports(OTHER)) == ["forged"]


def test_a_forged_user_id(broker: Broker) -> None:
    with connected(broker, MINE) as connection:
        with pytest.raises(AMQPError, match=r"406|PRECONDITION"):
            publish(connection.channel(), policy.reports(MINE), user_id=OTHER)
        publish(connection.channel(), policy.reports(MINE), user_id=MINE)  # the control


def test_messages_and_channels_are_bounded(broker: Broker) -> None:
    with connected(broker, MINE) as connection:
        publish(connection.channel(), policy.reports(MINE), body="x" * policy.LARGEST_MESSAGE)  # the control
        with pytest.raises((AMQPError, OSError)):
            publish(connection.channel(), policy.reports(MINE), body="x" * (policy.LARGEST_MESSAGE + 1))
    with connected(broker, MINE) as connection, pytest.raises((AMQPError, OSError)):
        for number in range(1, 2 + policy.limits()["max-channels"]):
            connection.channel(number)


def test_a_flood_ends_at_its_own_queue(broker: Broker) -> None:
    """The sender notices that the queue is full, and the other node's reports still arrive."""
    most, body = policy.queue_arguments()["x-max-length-bytes"], "x" * policy.LARGEST_MESSAGE
    with connected(broker, MINE) as connection, connected(broker, OTHER) as other:
        channel = connection.channel()
        with pytest.raises(MessageNacked):
            for _ in range(2 + most // len(body)):
                publish(channel, policy.reports(MINE), body=body)
        publish(other.channel(), policy.reports(OTHER), body="alive")
    assert waiting(broker, policy.reports(OTHER)) == ["alive"]


def test_connections_are_bounded(broker: Broker) -> None:
    most = policy.limits()["max-connections"]
    with contextlib.ExitStack() as stack:
        for _ in range(most):
            stack.enter_context(connected(broker, MINE))
        with pytest.raises((AMQPError, OSError)):
            stack.enter_context(connected(broker, MINE))
        stack.enter_context(connected(broker, OTHER))  # the limit is that of one node


def refused(broker: Broker, name: str, **options: Any) -> bool:
    try:
        with connected(broker, name, **options) as connection:
            connection.channel()
    except (AMQPError, OSError):
        return True
    return False


def test_only_certificates_of_the_testbed(broker: Broker, tmp_path: Path) -> None:
    foreign = Broker(Authority.create(tmp_path / "foreign", datetime.now(UTC)))  # not started: issues certificates
    other = {name: path for name, path in foreign.credentials(MINE).items() if name != "ca_certs"}
    assert refused(broker, MINE, **other), "another authority's certificate with the same name"
    assert refused(broker, MINE, certfile=None, keyfile=None), "no certificate"
    assert refused(broker, "node-cccccccccccccccc"), "a certificate of the testbed without a user at the broker"
    assert refused(broker, MINE, vhost="/")
    assert not refused(broker, MINE), "the control"
    foreign.__exit__(None, None, None)


def test_a_removed_node_is_out_at_once(broker: Broker) -> None:
    with connected(broker, MINE) as connection:
        publish(connection.channel(), policy.reports(MINE))
        eventually(lambda: any(one["user"] == MINE for one in broker.call("GET", "/connections")[1]), "listed")
        apply(broker, policy.expel(MINE))
        with pytest.raises((AMQPError, OSError)):
            for _ in range(100):
                publish(connection.channel(), policy.reports(MINE))
                time.sleep(0.1)
    assert refused(broker, MINE)
    names = {one["name"] for one in broker.call("GET", f"/queues/{VHOST}")[1]}
    assert names == {policy.orders(OTHER), policy.reports(OTHER)}


@pytest.mark.parametrize(
    ("command", "lack"),
    [
        (("set_vm_memory_high_watermark", "0.0001"), r"\d+ of \d+ MiB of memory are used"),
        (("set_disk_free_limit", "1000000000000000"), r"\d+ MiB of disk are free, and \d+ are needed"),
    ],
)
def test_a_broker_that_lacks_something_says_so(tmp_path: Path, command: tuple[str, str], lack: str) -> None:
    """It stops reading what nodes send. Then their silence says nothing about them."""
    with Broker(Authority.create(tmp_path / "testbed", datetime.now(UTC))) as made:
        seen = tmp_path / "broker.json"
        alarms = Alarms(Management(HOST, MANAGEMENT, made.password), seen)

        def looked() -> BrokerState | None:
            with made.inside():
                alarms.look()
            return broker_state.read(seen)

        eventually(lambda: looked() is not None, "it knows its state")
        assert not alarms.raised
        made.control(*command)
        eventually(lambda: looked() is not None and bool(alarms.raised), "the alarm")
        assert re.fullmatch(lack, alarms.raised[0])


def test_the_settings_of_an_earlier_version_are_found_and_updated(tmp_path: Path) -> None:
    with Broker(Authority.create(tmp_path / "testbed", datetime.now(UTC))) as made:
        api, folder = Management(HOST, MANAGEMENT, made.password), made.folder / "broker"

        def state() -> BrokerState:
            """Once the broker knows it."""
            found = []

            def known() -> bool:
                with made.inside():
                    found.append(api.state())
                return found[-1] is not None

            eventually(known, "its state")
            assert found[-1] is not None
            return found[-1]

        assert state().outdated == (), "the file of this version"
        file = folder / "rabbitmq.conf"
        text = file.read_text().replace("management.rates_mode = none\n", "")
        file.write_text(text.replace("high_watermark.relative = 0.4", "high_watermark.absolute = 1GB"))
        made.stop()
        made.start()
        old = state()
        assert len(old.outdated) == 2 and old.folder == str(folder)
        assert broker_files.update(Path(old.folder)).added
        made.stop()
        made.start()
        assert state().outdated == ()


def test_no_other_way_in(broker: Broker) -> None:
    """No password at the port of the nodes, not even that of the hub; no guest; no port without TLS."""
    password = {"login_method": "PLAIN", "userid": policy.HUB, "password": broker.password}
    assert refused(broker, MINE, login=password) and not refused(broker, MINE), "with the control"
    users = {one["name"]: one["tags"] for one in broker.call("GET", "/users")[1]}
    assert set(users) == {policy.HUB, MINE, OTHER} and not users[MINE]
    listeners = {(one["protocol"], one["port"]) for one in broker.call("GET", "/overview")[1]["listeners"]}
    assert listeners == {("amqp/ssl", PORT), ("clustering", 25672), ("http", MANAGEMENT)}


def test_nothing_but_amqp_is_reachable_from_elsewhere(broker: Broker) -> None:
    """The ports of Erlang accept commands from whoever has its cookie; here AMQP is on loopback too."""
    with broker.inside():
        listed = subprocess.run(["ss", "-Htln"], capture_output=True, text=True, check=True).stdout
    places = [line.split()[3].rpartition(":") for line in listed.splitlines()]
    assert {port for _, _, port in places} == {"4369", "25672", str(PORT), str(MANAGEMENT)}
    assert all(ip_address(host.strip("[]")).is_loopback for host, _, _ in places), listed
