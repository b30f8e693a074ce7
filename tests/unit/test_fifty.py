"""Fifty concurrent requests: exactly the quota is granted, and no resource is allocated twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, PATIENT, Service, request
from flask import Flask
from flask.testing import FlaskClient

from slicemgr.service.accounts import authentication as people
from slicemgr.service.projects import projects
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

pytestmark = pytest.mark.usefixtures("both_stores")

API = "/api/v1"
PEOPLE = [f"user-{number:02}" for number in range(50)]
SLICES = 20  # of the project; each has two slivers of three ports
QUOTA = {"slices": SLICES, "slivers": 200, "ports": 2000, "memory": "64G", "disk": "64G", "vcpus": 200}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, store=PATIENT) as made:
        now = utcnow()
        projects.create(made.store, made.config, {"name": "lab", "quota": QUOTA, "ceiling": QUOTA}, ADMIN)
        with made.store.write() as c:
            c.execute(t.users.insert(), [{"name": one, "admin": False, "created_at": now} for one in PEOPLE])
            role = {"project": "lab", "role": "member", "created_at": now}
            c.execute(t.members.insert(), [{**role, "user": one} for one in PEOPLE])
            tokens = [{"hash": people.digest(one), "user": one, "id": one} for one in PEOPLE]
            c.execute(t.tokens.insert(), [{**one, "label": "x", "created_at": now} for one in tokens])
        yield made


@pytest.fixture
def app(service: Service) -> Flask:
    return service.app


def client_of(app: Flask, user: str) -> FlaskClient:
    made = app.test_client()
    made.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {user}"
    return made


def all_at_once(job: Any, people: list[str] = PEOPLE) -> list[Any]:
    """No thread begins before all have started."""
    barrier = threading.Barrier(len(people))

    def one(user: str) -> Any:
        barrier.wait()
        return job(user)

    with ThreadPoolExecutor(len(people)) as pool:
        return list(pool.map(one, people))


def wanted(user: str, **more: Any) -> dict[str, Any]:
    return request(user, count=2, ports=3, memory="16M", disk="16M", **more)


def check(service: Service, slices: int) -> None:
    """Check the number of slices, that each is complete, and that no address, port, ID range or name is used twice."""
    rows = service.dump()
    assert len(rows["slices"]) == slices and len(rows["slivers"]) == 2 * slices
    assert set(Counter(one.slice for one in rows["slivers"]).values()) <= {2}
    for column in ("address", "uid_first", "port_first"):
        assert len({getattr(one, column) for one in rows["slivers"]}) == 2 * slices
    assert len({(one.node, one.port) for one in rows["ports"]}) == len(rows["ports"]) == 2 * 3 * slices
    assert {one.slice_name for one in rows["operations"]} == {one.name for one in rows["slices"]}
    with service.store.read() as c:
        used = projects.used(c, "lab")
    assert (used.slices, used.slivers, used.ports) == (slices, 2 * slices, 6 * slices)


def test_exactly_the_quota_is_granted(app: Flask, service: Service) -> None:
    answers = all_at_once(lambda user: client_of(app, user).post(f"{API}/slices", json=wanted(user)))
    assert Counter(one.status_code for one in answers) == {202: SLICES, 403: len(PEOPLE) - SLICES}
    assert {one.get_json(force=True)["code"] for one in answers if one.status_code == 403} == {"quota"}
    check(service, SLICES)
    owners = {one.owner for one in service.dump()["slices"]}
    granted = {user for user, one in zip(PEOPLE, answers, strict=True) if one.status_code == 202}
    assert owners == granted, "who was told so has one"


def test_who_says_why_waits_instead(app: Flask, service: Service) -> None:
    """Every wish is a slice or a request, none is both or lost."""
    answers = all_at_once(lambda user: client_of(app, user).post(f"{API}/slices", json=wanted(user, reason="paper")))
    assert {one.status_code for one in answers} == {202}
    assert sum("slice" in one.get_json() for one in answers) == SLICES
    check(service, SLICES)
    rows = service.dump()
    assert {one.user for one in rows["requests"]} | {one.owner for one in rows["slices"]} == set(PEOPLE)
    assert len(rows["requests"]) == len(PEOPLE) - SLICES


def test_one_name_is_one_persons(app: Flask, service: Service) -> None:
    answers = all_at_once(lambda user: client_of(app, user).post(f"{API}/slices", json=wanted("same")))
    assert Counter(one.status_code for one in answers) == {202: 1, 409: len(PEOPLE) - 1}
    check(service, 1)


def test_what_is_deleted_meanwhile_is_granted_once(app: Flask, service: Service) -> None:
    """Half of them delete (and their slices go), half ask: never more than the quota, and all that was freed is had."""
    old, new = PEOPLE[:SLICES], PEOPLE[SLICES : 2 * SLICES]
    for user in old:
        assert client_of(app, user).post(f"{API}/slices", json=wanted(user)).status_code == 202

    def job(user: str) -> int:
        if user in new:
            return int(client_of(app, user).post(f"{API}/slices", json=wanted(user)).status_code)
        status = int(client_of(app, user).delete(f"{API}/slices/{user}").status_code)
        with service.store.write() as c:  # the agent's work after the last object is deleted
            c.execute(t.slices.delete().where(t.slices.c.name == user))
        return status

    statuses = all_at_once(job, old + new)
    assert statuses[:SLICES] == [202] * SLICES
    granted = statuses[SLICES:].count(202)
    with service.store.read() as c:
        assert projects.used(c, "lab").slices == granted <= SLICES
    for user in new:
        client_of(app, user).post(f"{API}/slices", json=wanted(user))
    check_left(service, new)


def check_left(service: Service, users: list[str]) -> None:
    assert {one.name for one in service.dump()["slices"]} == set(users)


def test_a_quota_that_is_looked_at_too_early_would_be_overrun(service: Service) -> None:
    """The control: the same rows, but read in one transaction and written in the next."""
    barrier = threading.Barrier(10)

    def careless(number: int) -> None:
        with service.store.read() as c:
            free = projects.used(c, "lab").slices < 5
        barrier.wait()
        if free:
            service.create(f"careless-{number}", project="lab", ports=1, memory="16M", disk="16M")

    with service.store.write() as c:
        c.execute(sa.update(t.quotas).values(slices=None))
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(careless, range(10)))
    with service.store.read() as c:
        assert projects.used(c, "lab").slices > 5
