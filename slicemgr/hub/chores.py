"""What the hub does beside its work, while it is the leader: what is due in the rows of the testbed."""

from __future__ import annotations

from functools import partial

from slicemgr.agent.chores.runner import Chore, Runner, repeated
from slicemgr.config import Config
from slicemgr.service import due
from slicemgr.store import Store


def chores(config: Config, store: Store) -> list[Chore]:
    work = [(thread, function.__name__, partial(function, store, config)) for thread, function in due.WORK]
    return repeated(work, due.INTERVAL)


def runner(config: Config, store: Store) -> Runner:
    """A context in which they are done."""
    return Runner(chores(config, store))
