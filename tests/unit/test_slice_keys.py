"""Whose ssh keys a slice has, through every change of people and keys; each change is an operation for the slivers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from bare_service import KEY
from tenants import ALICE, BOB, CAROL, DAVE, OTHER_KEY, ROOT, Tenants, ask

from slicemgr.policy.access import Principal
from slicemgr.service.accounts import ssh_keys, users
from slicemgr.service.projects import members
from slicemgr.service.slices import request_keys
from slicemgr.store import tables as t

THIRD = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHUPSqhMDOJ4Pvb8KpnoTE8rjv1Q4vtWo1Bt0u4e5nZt third"
NAMES = {
    request_keys.without_comment(KEY): "bobs",
    request_keys.without_comment(OTHER_KEY): "other",
    request_keys.without_comment(THIRD): "third",
}


class Lab(Tenants):
    """bob's slice `exp` named bob's own key, which is in his account, too."""

    def has(self, name: str = "exp") -> set[str]:
        """The keys that the sliver shall have, as the agent reads them."""
        found = [row.sliver.ssh_keys for row in self.rows() if row.sliver.slice_name == name]
        return {NAMES[request_keys.without_comment(line)] for line in found[0]}

    def asked(self) -> list[str]:
        """The slices with a requested operation to change their keys."""
        o = t.operations.c
        with self.store.read() as c:
            query = sa.select(o.slice_name).where(o.kind == "keys", o.node == "node1", o.state == "queued")
            return list(c.scalars(query.order_by(o.created_at)))

    def add(self, key: str, by: Principal) -> str:
        return ssh_keys.add(self.store, key, by)[0]

    def make(self, name: str, by: Principal, *named: str) -> None:
        assert ask(self, by, name, ssh_keys=list(named)).operation


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path) as made:
        yield made


def test_a_key_added_and_removed_reaches_the_slices_of_its_user_alone(lab: Lab) -> None:
    lab.make("daves", DAVE, THIRD)
    id_ = lab.add(OTHER_KEY, BOB)
    assert (lab.has(), lab.has("daves"), lab.asked()) == ({"bobs", "other"}, {"third"}, ["exp"])
    ssh_keys.remove(lab.store, id_, "bob", BOB)
    assert (lab.has(), lab.asked()) == ({"bobs"}, ["exp", "exp"])
    assert [action for _, action, _ in lab.events()][-2:] == ["keys", "key remove"]


def test_a_new_slice_has_the_accounts_keys_beside_those_it_names(lab: Lab) -> None:
    lab.make("mine", BOB, THIRD)
    assert lab.has("mine") == {"bobs", "third"}


def test_a_key_that_is_taken_away_leaves_also_where_the_request_named_it(lab: Lab) -> None:
    """A key that the account never had stays, as it may be that of a colleague."""
    lab.make("mine", BOB, THIRD, KEY)
    ssh_keys.remove(lab.store, lab.found["key"], "bob", ROOT)
    assert (lab.has(), lab.has("mine")) == (set(), {"third"})


def test_nothing_is_asked_where_nothing_changes(lab: Lab) -> None:
    lab.make("mine", BOB, OTHER_KEY)
    lab.add(OTHER_KEY, BOB)
    assert lab.asked() == ["exp"]


def test_who_leaves_the_project_takes_the_keys_along_and_brings_them_back(lab: Lab) -> None:
    lab.make("mine", BOB, THIRD)
    members.remove_member(lab.store, lab.config, "lab", "bob", ALICE)
    assert (lab.has(), lab.has("mine")) == (set(), set()), "also what only the request named"
    members.set_member(lab.store, lab.config, "lab", "bob", "member", ROOT)
    assert lab.has("mine") == {"bobs", "third"}


def test_a_slice_whose_owner_left_has_the_keys_of_the_pi(lab: Lab) -> None:
    lab.add(OTHER_KEY, ALICE)
    assert lab.has() == {"bobs"}
    members.remove_member(lab.store, lab.config, "lab", "bob", ALICE)
    assert lab.has() == {"other"}
    lab.add(THIRD, DAVE)
    members.set_member(lab.store, lab.config, "lab", "dave", "pi", ROOT)
    assert lab.has() == {"other", "third"}
    members.set_member(lab.store, lab.config, "lab", "dave", "member", ROOT)
    lab.add(KEY, ALICE)
    assert lab.has() == {"other", "bobs"}, "a PI's new key, too"


def test_a_colleagues_key_leaves_with_the_colleague(lab: Lab) -> None:
    lab.add(THIRD, DAVE)
    lab.make("shared", BOB, THIRD)
    members.remove_member(lab.store, lab.config, "lab", "dave", ALICE)
    assert lab.has("shared") == {"bobs"}


def test_a_key_that_another_member_has_too_stays(lab: Lab) -> None:
    for one in (BOB, DAVE):
        lab.add(THIRD, one)
    members.remove_member(lab.store, lab.config, "lab", "dave", ALICE)
    assert lab.has() == {"bobs", "third"}


def test_who_is_disabled_has_no_keys_anywhere(lab: Lab) -> None:
    users.change(lab.store, "bob", {"enabled": False}, ROOT)
    assert (lab.has(), lab.asked()) == (set(), ["exp"])
    users.change(lab.store, "bob", {"enabled": True}, ROOT)
    assert lab.has() == {"bobs"}


def test_a_stranger_who_adds_anothers_key_changes_nothing(lab: Lab) -> None:
    """Public keys are public: if another user adds bob's key and removes it, bob's slices do not change."""
    id_ = lab.add(KEY, CAROL)
    ssh_keys.remove(lab.store, id_, "carol", CAROL)
    users.change(lab.store, "carol", {"enabled": False}, ROOT)
    assert (lab.has(), lab.asked()) == ({"bobs"}, [])


def test_a_slice_that_goes_is_left_alone(lab: Lab) -> None:
    lab.client("bob").delete("/api/v1/slices/exp?project=lab")
    lab.add(OTHER_KEY, BOB)
    assert lab.asked() == []


def test_a_pending_excuse_goes_with_the_next_change(lab: Lab) -> None:
    with lab.store.write() as c:
        c.execute(t.slivers.update().values(keys_missing="no guest agent"))
    shown = lab.client("bob").get("/api/v1/slices/exp?project=lab").get_json()
    assert shown["slivers"][0]["keys_missing"] == "no guest agent"
    lab.add(OTHER_KEY, BOB)
    shown = lab.client("bob").get("/api/v1/slices/exp?project=lab").get_json()
    assert shown["slivers"][0]["keys_missing"] is None
