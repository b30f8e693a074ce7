"""What is due in the rows of a testbed: leases that end, history that is deleted, lost nodes, mail.

One process repeats it each minute: the agent of a single machine, or the hub of a testbed that has one.
"""

from __future__ import annotations

from collections.abc import Callable

from slicemgr.config import Config
from slicemgr.service.leases import leases
from slicemgr.service.nodes import losses, retention
from slicemgr.service.outbound import mail
from slicemgr.service.projects import invitations
from slicemgr.store import Store

Work = Callable[[Store, Config], object]
INTERVAL = 60.0  # seconds

# The name of a thread, and what is done in it. A mail server that does not answer delays the end of no lease.
WORK: tuple[tuple[str, Work], ...] = (
    ("leases", leases.expire),
    ("leases", retention.forget),
    ("losses", losses.act),
    ("mail", invitations.notify),
    ("mail", mail.deliver),
)
