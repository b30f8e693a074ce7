"""Tables over the test client: their order by URL, and the list of nodes."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
import sqlalchemy as sa
from browsers import Browser
from tenants import BOB, Tenants, ask

from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow


@pytest.fixture
def bob(tenants: Tenants) -> Browser:
    return Browser(tenants, "bob")


def rows(text: str) -> list[str]:
    """The first links in the rows of a table."""
    return re.findall(r'<th scope="row">(?:<a [^>]*>)?([^<]+)', text)


def orders(text: str) -> dict[str, str]:
    """The columns that sort a table, with `aria-sort`."""
    found = re.findall(r'<th scope="col" aria-sort="(\w+)"[^>]*><a href="[^"]*sort=-?(\w+)">', text)
    return {column: order for order, column in found}


# order


def test_slices_in_each_order(tenants: Tenants, bob: Browser) -> None:
    """Each column has a link that reverses it; None comes last in both orders."""
    for name in ("zeta", "alpha"):
        ask(tenants, BOB, name, lease="1d" if name == "zeta" else "3d")
    with tenants.store.write() as c:
        c.execute(t.slices.update().where(t.slices.c.name == "exp").values(expires_at=utcnow() + timedelta(days=2)))
    usual = bob.get("/slices").text
    assert rows(usual) == ["alpha", "exp", "zeta"]
    assert orders(usual) == dict.fromkeys(orders(usual), "none") | {"name": "ascending"}
    assert list(orders(usual)) == ["name", "state", "type", "image", "owner", "lease"]
    for sort, expected in (
        ("-name", ["zeta", "exp", "alpha"]),
        ("lease", ["zeta", "exp", "alpha"]),
        ("-lease", ["alpha", "exp", "zeta"]),
        ("nothing", ["alpha", "exp", "zeta"]),
        ("__class__", ["alpha", "exp", "zeta"]),
    ):
        assert rows(bob.get(f"/slices?sort={sort}").text) == expected, sort
    page = bob.get("/slices?q=zeta&sort=lease").text
    assert orders(page)["lease"] == "ascending" and rows(page) == ["zeta"]
    for odd in ("type=lxc&endpoint=x", "type=lxc&_scheme=javascript&_external=1", "type=lxc&x=%22%3E%3Cu%3E"):
        page_ = bob.get(f"/slices?{odd}").text
        links = re.findall(r'aria-sort="\w+"[^>]*><a href="([^"]*)"', page_)
        assert links and all(one.startswith("/slices?") for one in links) and "<u>" not in page_
    assert 'href="/slices?q=zeta&amp;sort=-lease"' in page and 'name="sort" value="lease"' in page


def test_a_query_chooses_nothing_but_the_query_of_the_links(bob: Browser) -> None:
    """Flask's url_for would take such names as its own arguments."""
    page = bob.get("/slices?_scheme=javascript&_external=1&_anchor=x&endpoint=y").text
    links = re.findall(r'aria-sort="\w+"[^>]*><a href="([^"]*)">', page)
    assert links and all(one.startswith("/slices?_anchor=x&amp;") for one in links)


def links(text: str) -> list[str]:
    """The first links in the rows of a table."""
    return re.findall(r'<th scope="row"><a href="([^"?]*)', text)


def test_operations_in_each_order(tenants: Tenants, bob: Browser) -> None:
    """The newest first, unless another order is chosen; the part that updates itself keeps it."""
    now = utcnow()
    with tenants.store.write() as c:
        o = t.operations.c
        for number, id_ in enumerate(c.scalars(sa.select(o.id).order_by(o.created_at)).all()):
            times = {"started_at": now, "finished_at": now + timedelta(seconds=9 * number) if number else None}
            c.execute(t.operations.update().where(o.id == id_).values(**times, created_at=now + timedelta(number)))
    usual = links(bob.get("/operations").text)
    assert len(usual) > 1 and orders(bob.get("/operations").text)["requested"] == "descending"
    assert links(bob.get("/operations?sort=requested").text) == usual[::-1]
    assert links(bob.get("/operations?sort=-duration").text) == usual, "those that have not ended come last"
    assert links(bob.get("/operations?sort=duration").text) == [*usual[-2::-1], usual[-1]]
    page = bob.get("/operations?sort=operation&state=done").text
    assert orders(page)["operation"] == "ascending" and 'name="sort" value="operation"' in page
    (path,) = re.findall(r'hx-get="(/operations\?[^"]+seen=[0-9a-f]+)"', page)
    assert "sort=operation" in path and bob.part(path.replace("&amp;", "&")).status_code == 204


def test_the_log_in_each_order(tenants: Tenants) -> None:
    """The order is that of all events, not of the shown page; events without a value come last."""
    root = Browser(tenants, "root")
    with tenants.store.write() as c:
        c.execute(t.events.delete())
        names = ["zoe", *["mia"] * 120, "abe"]
        for number, user in enumerate(names):
            about = {"slice": "exp" if number == 60 else "", "project": "", "detail": "", "address": ""}
            c.execute(t.events.insert().values(at=utcnow(), user=user, action="many", **about))

    def users(path: str) -> list[str]:
        return re.findall(r'data-label="User">([^<]*)', root.get(path).text)

    assert users("/log")[0] == "abe" and users("/log?sort=at")[0] == "zoe"
    assert users("/log?sort=user")[:2] == ["abe", "mia"] and users("/log?sort=-user")[:2] == ["zoe", "mia"]
    assert users("/log?sort=user&page=2")[-1] == "zoe" and len(users("/log?sort=user&page=2")) == 22
    for down in ("", "-"):
        assert 'data-label="Slice">exp<' in root.get(f"/log?sort={down}slice").text.split("<tr>")[2]
    page = root.get("/log?action=many&sort=user").text
    assert orders(page)["user"] == "ascending" and 'name="sort" value="user"' in page
    assert 'href="/log?page=2&amp;sort=user&amp;action=many"' in page and "before=" not in page
    assert "sort=" not in root.get("/log?sort=detail").text.split("<tbody>")[1], "a column that does not sort"
    for odd in ("sort=user&page=-3", "sort=user&page=x", "sort=user&page=99999999999999999999"):
        assert root.get(f"/log?{odd}").status_code == 200


@pytest.mark.parametrize(
    ("path", "usual"), [("/requests", "waiting"), ("/quotas", "name"), ("/experiments", "published")]
)
def test_the_columns_of_the_other_lists_sort(tenants: Tenants, path: str, usual: str) -> None:
    """Each linked column answers in both directions and is marked."""
    root = Browser(tenants, "root")
    columns = list(orders(root.get(path).text))
    assert len(columns) >= 4
    for column in columns:
        for sort, order in ((column, "ascending"), (f"-{column}", "descending")):
            text = root.get(f"{path}?sort={sort}").text
            assert orders(text)[column] == order and rows(text)


def test_the_part_that_updates_itself_keeps_the_order(tenants: Tenants, bob: Browser) -> None:
    """Unchanged, it is not sent again."""
    ask(tenants, BOB, "zeta")
    page = bob.get("/slices?sort=-name").text
    (path,) = re.findall(r'hx-get="([^"]+seen=[0-9a-f]+)"', page)
    path = path.replace("&amp;", "&")
    assert "sort=-name" in path and bob.part(path).status_code == 204
    again = bob.part(path.split("&seen")[0]).text
    assert rows(again) == ["zeta", "exp"] and "seen=" not in re.sub(r'hx-get="[^"]*"', "", again)


@pytest.mark.parametrize("path", ["/images", "/people", "/all-slices", "/nodes"])
def test_other_tables(tenants: Tenants, path: str) -> None:
    """Every column that they offer, in both directions, is a page with that order."""
    with tenants.store.write() as c:
        one = c.execute(sa.select(t.nodes)).first()
        assert one is not None
        c.execute(t.nodes.insert().values({**one._mapping, "name": "node2", "address": "192.0.2.99"}))
    root = Browser(tenants, "root")
    columns = orders(root.get(path).text)
    assert len(columns) > 3
    for column in columns:
        for sort, order in ((column, "ascending"), (f"-{column}", "descending")):
            page = root.get(f"{path}?sort={sort}")
            assert page.status_code == 200 and orders(page.text)[column] == order
    names = rows(root.get(path).text)
    assert names == sorted(names) and rows(root.get(f"{path}?sort=-name").text) == names[::-1]


# nodes


def test_members_see_what_the_command_lists(tenants: Tenants, bob: Browser) -> None:
    """The same numbers as `slicectl node list`, without the pages of admins."""
    (node,) = tenants.client("bob").get("/api/v1/nodes").get_json()["nodes"]
    page = bob.get("/nodes").text
    assert rows(page) == [node["name"]] and 'href="/nodes"' in page and "/nodes/node1" not in page
    assert node["address"] in page and f'data-label="Slivers">{node["used"]["slivers"]}<' in page
    assert f'data-label="CPU cores">{node["capacity"]["cpus"]}<' in page
    assert f"{node['used']['ports']} <small>of {node['capacity']['ports']}<" in page
    assert bob.get("/nodes/node1").status_code == 403
    assert Browser(tenants, "root").get("/nodes").headers["Location"] == "/nodes/node1"
