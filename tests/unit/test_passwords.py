"""Requests that wait for a password check are limited, so that threads remain for other requests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from argon2 import PasswordHasher

from slicemgr.errors import Code, Refused
from slicemgr.service.accounts import passwords
from slicemgr.service.accounts.passwords import Passwords

PASSWORD = "correct horse battery"


@pytest.mark.usefixtures("full_hashes")
def test_a_hash_costs_what_rfc_9106_asks_where_memory_is_short() -> None:
    """Three passes over 64 MiB in four lanes; one that was cheaper is no more than accepted and renewed."""
    made = Passwords(1)
    hashed = made.hash(PASSWORD, "bob")
    assert hashed.startswith("$argon2id$v=19$m=65536,t=3,p=4$")
    assert made.matches(hashed, PASSWORD) and not made.matches(hashed, f"{PASSWORD}!")
    cheap = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)
    assert made.matches(cheap, PASSWORD)
    assert (made.stale(cheap), made.stale(hashed)) == (True, False)


def test_who_would_wait_behind_many_is_refused_at_once() -> None:
    made = Passwords(1)
    hashed = made.hash(PASSWORD, "bob")
    with ThreadPoolExecutor(passwords._WAITING) as pool:
        with ExitStack() as stack:
            stack.enter_context(made._turn())
            waiting = [pool.submit(made.matches, hashed, PASSWORD) for _ in range(passwords._WAITING)]
            while made._room._value:
                assert not any(one.done() for one in waiting)
            with pytest.raises(Refused) as caught:
                made.matches(hashed, PASSWORD)
            assert caught.value.code is Code.UNAVAILABLE
            assert not any(one.done() for one in waiting), "they wait on, and it was not their end that was told"
        assert all(one.result() for one in waiting)
    assert made.matches(hashed, PASSWORD), "room is given back"
