"""The mail to the admins when the broker takes no more messages: from then on no node can report."""

from __future__ import annotations

from collections.abc import Sequence

from slicemgr.config import Config
from slicemgr.service.outbound import mail
from slicemgr.store import Store
from slicemgr.store.updates import utcnow


def report(store: Store, config: Config, lacks: Sequence[str]) -> None:
    """Queue the mail. lacks: what the broker has too little of, in words. At most one mail an hour."""
    if not config.mail.server:
        return
    now = utcnow()
    lines = [
        f"The broker takes no messages: {', '.join(lacks)}.",
        "Slivers continue to run. No node can report, and new slices wait until the broker takes messages again.",
        "`slicectl doctor` on the machine of the service shows the state of the broker.",
    ]
    with store.write() as c:
        key = f"broker alarm {now:%Y-%m-%dT%H}"
        mail.queue_to_admins(c, config, key, "the broker takes no messages", "\n\n".join(lines) + "\n", now)
