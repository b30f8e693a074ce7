"""What is due in the rows of a testbed: leases that end, history that is deleted, lost nodes, mail.

One process repeats it: the agent of a single machine, or the hub of a testbed that has one.
"""

from __future__ import annotations

from collections.abc import Callable

from slicemgr.config import Config
from slicemgr.service.leases import leases
from slicemgr.service.nodes import losses, retention
from slicemgr.service.outbound import mail
from slicemgr.service.projects import invitations
from slicemgr.service.slices import spares
from slicemgr.store import Store

Work = Callable[[Store, Config], object]

# The seconds between two runs, the name of a thread, and what is done in it. A mail server that does not answer delays
# the end of no lease.
WORK: tuple[tuple[float, str, Work], ...] = (
    (60.0, "leases", leases.expire),
    (60.0, "leases", retention.forget),
    (60.0, "losses", losses.act),
    (60.0, "mail", invitations.notify),
    (60.0, "mail", mail.deliver),
    (5.0, "spares", spares.fill),
)
