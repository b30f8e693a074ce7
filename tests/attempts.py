"""What a hostile node tries, and how it shows that it succeeded."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import amqp
import sqlalchemy as sa
from bare_service import ADMIN, FACTS
from broker_server import HOST
from hostile_node import Hostile
from raw_messages import HARMFUL, RawMessage

from slicemgr.certificates import image_tokens, requests
from slicemgr.errors import Refused
from slicemgr.hub import signer, turns
from slicemgr.model import ImageState, OperationState, Phase
from slicemgr.policy import broker as policy
from slicemgr.service.nodes import image_files, joining, membership, renewal
from slicemgr.store import pending
from slicemgr.store import tables as t
from slicemgr.store.updates import SliverSampled, SliverUsed, Update, utcnow

KEY = "ssh-ed25519 " + "A" * 60
DAY = timedelta(days=1)
_BEATS = 600
_EVENTS = 700


@dataclass(frozen=True)
class Attempt:
    """act: raises AMQPError, OSError or Refused if it is refused. succeeded: whether it had its effect."""

    what: str
    act: Callable[[Hostile], object]
    succeeded: Callable[[Hostile], bool] = lambda _: True


def _on(act: Callable[[amqp.Channel, Hostile], object]) -> Callable[[Hostile], None]:
    def attempt(h: Hostile) -> None:
        with h.channel() as channel:
            act(channel, h)

    return attempt


def theirs(h: Hostile) -> str:
    return policy.orders(h.other)


def _more_than_allowed(h: Hostile) -> None:
    with h.connected() as one, h.connected() as two:
        for connection in (one, two):
            for number in range(1, policy.limits()["max-channels"]):
                connection.channel(number)


def _three_connections(h: Hostile) -> None:
    with h.connected(), h.connected(), h.connected() as last:
        last.channel()


AT_THE_BROKER = (
    Attempt("get another's orders", _on(lambda ch, h: ch.basic_get(theirs(h), no_ack=True))),
    Attempt("get another's reports", _on(lambda ch, h: ch.basic_get(policy.reports(h.other), no_ack=True))),
    Attempt("consume another's orders", _on(lambda ch, h: ch.basic_consume(theirs(h), callback=print))),
    Attempt("purge another's orders", _on(lambda ch, h: ch.queue_purge(theirs(h)))),
    Attempt("declare a queue", _on(lambda ch, h: ch.queue_declare("made", auto_delete=True))),
    Attempt("declare an exchange", _on(lambda ch, h: ch.exchange_declare("made", "fanout", auto_delete=True))),
    Attempt(
        "bind its queue to another's reports",
        _on(lambda ch, h: ch.queue_bind(policy.orders(h.mine), policy.reports(h.other))),
    ),
    Attempt("report as another", lambda h: h.publish("x", policy.reports(h.other))),
    Attempt("order another by the default exchange", lambda h: h.publish("x", "", theirs(h))),
    Attempt("order itself", lambda h: h.publish("x", "", policy.orders(h.mine))),
    Attempt(
        "order another by CC and BCC",
        lambda h: h.publish(
            "x", "", policy.reports(h.mine), application_headers={"CC": [theirs(h)], "BCC": [policy.reports(h.other)]}
        ),
    ),
    Attempt("name another as the sender", lambda h: h.publish("x", user_id=h.other)),
    Attempt("publish to an exchange of the broker", lambda h: h.publish("x", "amq.topic", "x")),
    Attempt("open more channels", _more_than_allowed),
    Attempt("open more connections", _three_connections),
    Attempt("delete another's exchange", _on(lambda ch, h: ch.exchange_delete(policy.reports(h.other)))),
    Attempt("delete another's queue", _on(lambda ch, h: ch.queue_delete(theirs(h)))),
)


# --- reports -----------------------------------------------------------------------------------------


def _changes(made: Callable[[str, str, str], Update]) -> tuple[Callable[[Hostile], None], Callable[[Hostile], bool]]:
    """A report about a sliver of another node. made: from the sliver, its operation and a snapshot of it."""

    def state(h: Hostile) -> list[Any]:
        sliver, operation, snapshot = h.memory["of"]
        s, o, p, x = t.slivers.c, t.operations.c, t.operation_parts.c, t.operation_steps.c
        m, n = t.operation_slivers.c, t.sliver_snapshots.c
        with h.store.read() as c:
            return [
                c.execute(sa.select(s.phase, s.error, s.host_key, s.usage_charged).where(s.id == sliver)).all(),
                c.execute(sa.select(o.state, o.error, o.result).where(o.id == operation)).all(),
                c.execute(sa.select(p.state, p.started_at).where(p.operation == operation)).all(),
                c.execute(sa.select(x.name).where(x.operation == operation)).all(),
                c.execute(sa.select(m.state).where(m.operation == operation)).all(),
                c.execute(sa.select(n.made_at, n.size).where(n.snapshot == snapshot)).all(),
            ]

    def act(h: Hostile) -> None:
        sliver, operation = h.slice("honest")
        snapshot = secrets.token_hex(8)
        with h.store.write() as c:
            slice = sliver.rpartition("-")[0]
            row = {"id": snapshot, "slice": slice, "name": snapshot, "user": "admin", "created_at": utcnow()}
            c.execute(t.snapshots.insert().values(row))
            c.execute(t.sliver_snapshots.insert().values(snapshot=snapshot, sliver=sliver))
        h.memory["of"] = sliver, operation, snapshot
        h.memory["before"] = state(h)
        h.report(h.updates(made(sliver, operation, snapshot)))

    return act, lambda h: state(h) != h.memory["before"]


def _image(made: Callable[[str], Update]) -> tuple[Callable[[Hostile], None], Callable[[Hostile], bool]]:
    i = t.images.c

    def act(h: Hostile) -> None:
        h.memory["image"] = image = secrets.token_hex(32)
        h.service.add_image(image, image[:12])
        h.report(h.updates(made(image)))

    def changed(h: Hostile) -> bool:
        with h.store.read() as c:
            found = c.execute(sa.select(i.state, i.arch).where(i.sha256 == h.memory["image"])).first()
        return found is None or tuple(found) != ("ready", "x86_64")

    return act, changed


def _of_its_own(column: sa.Column[Any], made: Callable[[str, str], Update]) -> Callable[[Hostile], Any]:
    """Report about its own sliver and operation, and read the column of that."""

    def act(h: Hostile) -> None:
        sliver, operation = h.slice("hostile")
        h.memory["own"] = sliver if column.table is t.slivers else operation
        h.report(h.updates(made(sliver, operation)))

    return act


def _read(h: Hostile, column: sa.Column[Any]) -> Any:
    return h.scalar(sa.select(column).where(column.table.c.id == h.memory["own"]))


def _own(
    column: sa.Column[Any], made: Callable[[str, str], Update], wrong: Callable[[Any], bool], what: str
) -> Attempt:
    return Attempt(what, _of_its_own(column, made), lambda h: (found := _read(h, column)) is not None and wrong(found))


def _event(h: Hostile, detail: str) -> Update:
    h.memory["detail"] = detail = f"{detail} {secrets.token_hex(8)}"
    return pending.EventSeen("agent", "repair", detail=detail)


def _replay(h: Hostile) -> None:
    one = h.updates(_event(h, "once"))
    h.report(one, one)


def _replay_an_old_incarnation(h: Hostile) -> None:
    old = h.updates(_event(h, "old"))
    h.report(old, h.updates(pending.EventSeen("agent", "repair")), old)


def _gap(h: Hostile) -> None:
    h.report(h.updates(pending.EventSeen("agent", "repair"), mirror=1 << 51))
    h.report(h.updates(_event(h, "gap"), mirror=1 << 51, after=7, first=9))
    with h.store.write() as c:
        c.execute(t.links.update().where(t.links.c.identity == h.mine).values(mirror=1))


def _replay_a_beat(h: Hostile) -> None:
    first = h.beat(address="192.0.2.201")
    h.report(first, h.beat(address="192.0.2.202"), first)
    h.memory["address"] = h.scalar(sa.select(t.nodes.c.address).where(t.nodes.c.name == "hostile"))


def _events(h: Hostile) -> None:
    h.memory["flood"] = word = secrets.token_hex(8)
    for first in range(0, _EVENTS, 100):
        h.report(h.updates(*(pending.EventSeen("agent", "repair", detail=f"{word} {first + n}") for n in range(100))))


def _flood(h: Hostile) -> None:
    """Many beats at once, and nothing that comes back is acknowledged."""
    l = t.links.c
    handled = sa.select(l.sequence).where(l.identity == h.mine)
    first = int(h.scalar(handled))
    with h.connected(confirm=False) as connection:
        connection.channel(1).basic_consume(policy.orders(h.mine), callback=lambda _: None)
        sender, began = connection.channel(2), time.monotonic()
        for _ in range(_BEATS):
            sender.basic_publish(amqp.Message(h.beat()), policy.reports(h.mine))
        h.memory["more"] = False
        while not h.memory["more"] and (allowed := 20 + turns.MOST + turns.RATE * (time.monotonic() - began)) < _BEATS:
            h.memory["more"] = int(h.scalar(handled)) - first > allowed
            time.sleep(0.5)
    h.settle()


def _hour(h: Hostile, node: str) -> None:
    """Report that a sliver used a thousand processors for an hour."""
    sliver, _ = h.slice(node)
    h.memory["serial"] = h.scalar(sa.select(t.slivers.c.serial).where(t.slivers.c.id == sliver))
    used = {"seconds": 3600.0, "running": 3600.0, "cpu": 3_600_000.0}
    h.report(h.updates(SliverSampled(sliver, int(time.time()) // 3600 * 3600, used)))


def _charged(h: Hostile) -> float:
    k = t.samples.c
    return float(h.scalar(sa.select(sa.func.max(k.cpu)).where(k.sliver == h.memory["serial"])) or 0)


def _facts(h: Hostile) -> None:
    h.report(h.beat(facts={**FACTS, "kinds": [], "load": "x"}))
    h.memory["facts"] = h.scalar(sa.select(t.nodes.c.facts).where(t.nodes.c.name == "hostile"))
    h.report(h.beat(facts=FACTS))


def _deep(depth: int) -> dict[str, Any]:
    return {"x": _deep(depth - 1)} if depth else {}


def _ended(operation: str, **fields: Any) -> Update:
    return pending.OperationEnded(operation, OperationState.DONE, **fields)


_DONE = OperationState.DONE
_PAST_MEMORY = FACTS["memory"] + 1  # type: ignore[operator]
_TWICE = lambda h: h.detail(h.memory["detail"]) == 2  # noqa: E731

IN_REPORTS = (
    Attempt("the phase of another's sliver", *_changes(lambda s, o, n: pending.SliverSeen(s, Phase.FAILED, "x", KEY))),
    Attempt("a step of another's operation", *_changes(lambda s, o, n: pending.StepSeen(o, "", "x", _DONE))),
    Attempt("the start of another's operation", *_changes(lambda s, o, n: pending.OperationStarted(o))),
    Attempt("the outcome of another's sliver", *_changes(lambda s, o, n: pending.SliverDone(o, s, _DONE))),
    Attempt("the end of another's operation", *_changes(lambda s, o, n: _ended(o))),
    Attempt("another's snapshot is made", *_changes(lambda s, o, n: pending.SnapshotMade(s, n, 1))),
    Attempt("another's snapshot is gone", *_changes(lambda s, o, n: pending.SnapshotGone(n))),
    Attempt("another's sliver is gone", *_changes(lambda s, o, n: pending.SliverGone(s))),
    Attempt("the usage of another's sliver", *_changes(lambda s, o, n: SliverUsed(s, 1, 1, 1, 1))),
    Attempt("the hours of another's sliver", lambda h: _hour(h, "honest"), lambda h: _charged(h) > 0),
    Attempt("more processors than it has", lambda h: _hour(h, "hostile"), lambda h: _charged(h) == 3_600_000.0),
    Attempt("the findings of an image", *_image(lambda i: pending.ImageSeen(i, ImageState.READY, arch="i686"))),
    Attempt("an image of the testbed is gone", *_image(lambda i: pending.ImageGone(i))),
    Attempt(
        "an event of a user",
        lambda h: h.report(h.updates(pending.EventSeen("root", "role", detail="x"))),
        lambda h: h.events(user="root", action="role") > 0,
    ),
    _own(t.slivers.c.usage_charged, lambda s, o: SliverUsed(s, 1, 1, 1 << 50, 1), lambda n: n >= _PAST_MEMORY, "usage"),
    _own(t.slivers.c.usage_at, lambda s, o: SliverUsed(s, 1 << 40, 1), lambda n: n > time.time() + 60, "usage later"),
    _own(
        t.operations.c.finished_at,
        lambda s, o: _ended(o, at=utcnow() + 9 * DAY),
        lambda at: at > utcnow() + DAY,
        "an end in the future",
    ),
    _own(t.operations.c.result, lambda s, o: _ended(o, result=_deep(40)), lambda found: True, "a deep result"),
    Attempt("a report again", _replay, _TWICE),
    Attempt("a report of an old incarnation again", _replay_an_old_incarnation, _TWICE),
    Attempt("a report after a gap", _gap, lambda h: h.detail(h.memory["detail"]) > 0),
    Attempt("a beat again", _replay_a_beat, lambda h: bool(h.memory["address"] == "192.0.2.201")),
    Attempt(
        "a report that is too large",
        lambda h: h.report(h.updates(_event(h, "large " + "x" * (2 << 20)))),
        lambda h: h.detail("large xxx") > 0,
    ),
    Attempt("many events", _events, lambda h: h.detail(h.memory["flood"]) == _EVENTS),
    Attempt("facts in another form", _facts, lambda h: h.memory["facts"].get("kinds") == []),
    Attempt("more of the hub's time than its share", _flood, lambda h: bool(h.memory["more"])),
)


def _raw(h: Hostile, properties: bytes) -> None:
    with h.channel() as channel:
        channel.basic_publish(RawMessage("{}", properties), policy.reports(h.mine), confirm_timeout=60)


# What ends a hub that is not prepared for it.
HARMFUL_MESSAGES: dict[str, Callable[[Hostile], None]] = {
    "a routing key that is no UTF-8": lambda h: h.publish("{}", key=b"\xff"),  # type: ignore[arg-type]
    **{what: (lambda h, raw=raw: _raw(h, raw)) for what, raw in HARMFUL.items()},  # type: ignore[misc]
    "deep JSON": lambda h: h.publish("[" * 500_000),
    "no JSON": lambda h: h.publish(b"\xff\xfe\x00"),
    "a number that no floating point holds": lambda h: h.publish(h.beat(agent_age=10**400)),
}


# --- at the service ----------------------------------------------------------------------------------


def _renew(h: Hostile) -> None:
    k, request = t.certificates.c, requests.new_request(h.key)
    with h.store.write() as c:
        old = {"issued_at": utcnow() - 80 * DAY, "expires_at": utcnow() + 10 * DAY}
        c.execute(t.certificates.update().where(k.identity == h.other).values(old))
    h.memory["request"] = request
    renewal.renew(h.store, h.other, request, HOST)
    signer.renew(h.store, h.broker.authority)


def _renewed(h: Hostile) -> bool:
    k = t.certificates.c
    with h.store.read() as c:
        found = list(c.scalars(sa.select(k.certificate).where(k.identity == h.other)))
    return any(requests.load(one).public_key() == h.key.public_key() for one in found)


def _fetch(h: Hostile, identity: str) -> None:
    image = secrets.token_hex(32)
    h.service.add_image(image, image[:12])
    token = image_tokens.sign(h.key, identity, image, utcnow())
    h.memory["granted"] = None
    h.memory["granted"] = image_files.judge(h.store, token, image, utcnow())


def _fetched(h: Hostile) -> bool:
    return h.memory["granted"] is not None


def _join_twice(h: Hostile) -> None:
    made = membership.add(h.store, {"name": f"n{secrets.token_hex(4)}", "site": ""}, ADMIN)
    for _ in range(2):
        h.memory["request"] = request = requests.new_request(requests.new_key())
        joining.join(h.store, made.token, request, HOST)


def _joined_twice(h: Hostile) -> bool:
    j = t.joins.c
    return bool(h.scalar(sa.select(sa.func.count()).where(j.request == h.memory["request"])))


AT_THE_SERVICE = (
    Attempt("renew the certificate of another", _renew, _renewed),
    Attempt("fetch an image that no sliver of it needs", lambda h: _fetch(h, h.mine), _fetched),
    Attempt("fetch an image as another", lambda h: _fetch(h, h.other), _fetched),
    Attempt("join twice with one token", _join_twice, _joined_twice),
)
EXPECTED = (amqp.AMQPError, OSError, Refused)
