"""What the hub does beside its work, while it is the leader: what is due in the rows, and what it asks the broker."""

from __future__ import annotations

from slicemgr.agent.chores.runner import Chore, First, Runner, repeated
from slicemgr.config import Config
from slicemgr.hub.alarms import Alarms
from slicemgr.hub.members import Members
from slicemgr.service import due
from slicemgr.store import Store

_ASK = 5.0  # seconds between two questions; much less than the time after which a node is silent
_LONGEST = 60.0  # seconds between two attempts


def chores(config: Config, store: Store) -> list[Chore]:
    return repeated(due.WORK, store, config)


def runner(config: Config, store: Store) -> Runner:
    """A context in which they are done."""
    return Runner(chores(config, store))


def asking(members: Members, alarms: Alarms) -> Runner:
    """A context in which the management API is asked, in threads of their own, since its answers may take long."""
    work = (
        ("members", members.compare, "the rights of nodes at the broker are not compared"),
        ("alarms", alarms.look, "it is not known whether the broker takes messages"),
    )
    return Runner(
        [
            Chore(thread=thread, run=run, interval=_ASK, failure=failure, first=First.AT_ONCE, longest=_LONGEST)
            for thread, run, failure in work
        ]
    )
