"""An audit of a node: slivers of each type, the probe inside them, the requests to the API, and the resulting rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from slicemgr import wire
from slicemgr.audit import checks, machine, rest, shared
from slicemgr.audit import site as place
from slicemgr.audit.checks import Check, Target
from slicemgr.audit.row import Row, inapplicable
from slicemgr.audit.sliver import Inside, Values
from slicemgr.bench.frame import slivers
from slicemgr.client import Client
from slicemgr.client.ssh import answers
from slicemgr.drivers.libvirt import capabilities
from slicemgr.errors import Failed, SlicemgrError

Say = Callable[[str], None]


class Audit:
    """images: by type; these types are audited. token: of the client, for the process that cleans up.

    init: of the containers, minimal or systemd.
    """

    def __init__(
        self,
        client: Client,
        node: str,
        images: Mapping[str, str],
        key: slivers.Key,
        token: str,
        say: Say,
        *,
        init: str = "minimal",
    ) -> None:
        self._client = client
        self._node = node
        self._images = images
        self._key = key
        self._token = token
        self._say = say
        self._init = init
        self._stop = threading.Event()

    def run(self, patience: float = 300.0, *, with_rest: bool = True) -> list[Row]:
        """Run the audit and return all rows.

        patience: seconds for each operation of the agent in the REST audit. with_rest: request the REST routes, too.
        Raises SlicemgrError if the audit itself failed; all of its objects are deleted in any case.
        """
        place.check_admin(self._client)
        place.clean(self._client, place.PREFIX, self._say)
        tag, found = place.new_tag(), self._checked()
        with (
            place.watched(self._client, self._token, tag),
            place.projects(self._client, tag, self._say) as projects,
        ):
            for sliver_type, image in self._images.items():
                self._say(f"making {sliver_type} slivers of {image}")
                with self.site(projects, tag, sliver_type, image) as site:
                    found += self._audited(site)
        if not with_rest:
            return [*found, inapplicable("REST routes", "rest", "the audit ran with --no-rest")]
        self._say("asking every REST route as a member of another project")
        return found + [one.line() for one in rest.probe(self._client.url, self._token, patience)]

    def _checked(self) -> list[Row]:
        """The checks of the node itself: a failed check means that a protection is not available."""
        self._say("checking the node")
        result = self._ended(self._client.nodes.doctor(self._node)).get("checks", [])
        bad = [one for one in result if one["ok"] is False]
        seen = ", ".join(f"{one['name']}: {one['detail']}" for one in bad) or f"all {len(result)}"
        return [Row("slicectl doctor", "node", "no check fails", seen, bool(result) and not bad)]

    @contextmanager
    def site(self, projects: tuple[str, str], tag: str, sliver_type: str, image: str) -> Iterator[shared.Site]:
        """Create running slivers of a type that contain the probe; delete them at the end. Raises SlicemgrError."""
        key, init = self._key.line, self._init if sliver_type == "lxc" else ""
        own, others = place.make(self._client, projects, tag, sliver_type, image, self._node, key, init, self._stop)
        try:
            patience = slivers.patience(self._client.nodes.get(self._node), sliver_type)
            inside = [self._inside(f"{tag}-{sliver_type}", one, patience) for one in (*own, *others)]
            site = shared.Site(
                sliver_type,
                attacker=inside[0],
                mate=inside[1],
                neighbour=inside[2],
                tables=self._tables,
                service_port=self._client.port,
                paused=lambda: place.paused(self._client, projects[1], f"{tag}-{sliver_type}"),
            )
            yield site
        finally:
            place.remove(self._client, projects, tag, sliver_type)

    def _inside(self, name: str, sliver: wire.Sliver, patience: float) -> Inside:
        slivers.await_banner(name, lambda: answers(sliver, 5), patience, self._stop, pause=0.1)
        inside = Inside(f"{name}/{sliver['index']}", sliver, slivers.login(name, sliver, self._key.file))
        inside.bring()
        return inside

    def _audited(self, site: shared.Site) -> list[Row]:
        asked = machine.CHECKS if site.type == "kvm" else checks.INSIDE
        found = [*shared.rows(site), *self.inside(site, asked, self.target(site))]
        if site.type == "kvm":
            found += [inapplicable(row, site.type, reason) for row, reason in machine.INAPPLICABLE.items()]
        return found

    def inside(self, site: shared.Site, asked: Sequence[Check], target: Target) -> list[Row]:
        """The rows of the checks of a sliver. Checks with equal arguments share a call; its failure fails only them."""
        found: list[Row] = []
        known: dict[tuple[str, ...], Values | SlicemgrError] = {}
        for check in asked:
            words = tuple(map(str, check.words(target)))
            self._say(f"{site.type}: {check.row}")
            if words not in known:
                known[words] = self._probed(site.attacker, words, check.timeout)
            values = known[words]
            if isinstance(values, SlicemgrError):
                found.append(Row(check.row, site.type, check.expected, values.message, False))
            else:
                found.append(checks.judged(check, site.type, values, target))
        return found

    @staticmethod
    def _probed(inside: Inside, words: Sequence[str], timeout: float) -> Values | SlicemgrError:
        try:
            return inside.probe(words, timeout)
        except Failed as error:
            return error

    def target(self, site: shared.Site) -> Target:
        """The limits of the attacker's sliver."""
        limits, tables = site.attacker.shown["limits"], self._tables()
        return Target(
            name=site.attacker.name.rpartition("/")[0],
            memory=int(limits["memory"] or 0),
            disk=int(limits["disk"] or 0),
            pids=int(limits["pids"] or 0),
            cpu=float(limits["cpu"] or 0),
            terminals=int(tables["terminals"]),
            cgroup=str(tables["cgroup"]),
            init=self._init,
            capabilities=capabilities.bounding_set(),
        )

    def _tables(self) -> Mapping[str, Any]:
        tables: Mapping[str, Any] = self._ended(self._client.nodes.kernel_tables(self._node)).get("tables", {})
        return tables

    def _ended(self, operation: wire.Operation) -> Mapping[str, Any]:
        ended = self._client.operations.wait(operation["id"], 120)
        return slivers.succeeded(ended)["result"] or {}


def report(rows: Sequence[Row], began: datetime) -> dict[str, object]:
    """The report of an audit, which is stored and printed as JSON."""
    return {
        "began_at": began.astimezone(UTC).isoformat(timespec="seconds"),
        "rows": [one.shown() for one in rows],
    }
