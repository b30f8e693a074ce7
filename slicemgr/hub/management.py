"""The management API of the broker, on the loopback interface of its machine."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from slicemgr.errors import Code, Failed, Refused
from slicemgr.ipc import broker_state
from slicemgr.ipc.broker_state import BrokerState
from slicemgr.policy import broker, broker_settings
from slicemgr.policy.broker import Call

_TIMEOUT = 60.0  # seconds for one request: the broker may have much to do


class Management:
    """password: of the hub. Safe to use from several threads."""

    def __init__(self, host: str, port: int, password: str) -> None:
        self._host, self._port = host, port
        self._secret = base64.b64encode(f"{broker.HUB}:{password}".encode()).decode()

    def apply(self, calls: Iterable[Call]) -> None:
        """Send each request. Failed if one is refused; what a DELETE does not find counts as deleted."""
        for call in calls:
            status, _ = self._send(call.method, call.path, call.body)
            if status >= 300 and not (call.method == "DELETE" and status == 404):
                raise Failed(f"the broker refused {call.method} {call.path} with status {status}")

    def users(self) -> set[str]:
        hint = "`slicemgr broker-files` writes the password"
        return {one["name"] for one in self._get("/users", "does not list its users", hint)}

    def queues(self) -> set[str]:
        """The names of the queues of nodes."""
        found = self._get(f"/queues/{broker.VHOST}?columns=name", "does not list its queues")
        return {one["name"] for one in found}

    def state(self) -> BrokerState | None:
        """Its memory, disk, alarms and settings; None: it has just started, and does not know them."""
        columns = "mem_alarm,mem_used,mem_limit,disk_free_alarm,disk_free,disk_free_limit,config_files"
        found = self._get(f"/nodes?columns={columns}", "does not tell its alarms")
        one = dict(found[0])  # empty lists take the place of objects until it knows them
        if "mem_limit" not in one or "disk_free_limit" not in one:
            return None
        rates = self._get("/overview?columns=rates_mode", "does not tell its settings")["rates_mode"]
        files = [Path(name) for name in one.get("config_files", ())]
        alarms = {broker_state.MEMORY: one["mem_alarm"], broker_state.DISK: one["disk_free_alarm"]}
        return BrokerState(
            memory=one["mem_used"],
            memory_limit=one["mem_limit"],
            disk_free=one["disk_free"],
            disk_limit=one["disk_free_limit"],
            alarms=tuple(name for name, raised in alarms.items() if raised),
            outdated=tuple(broker_settings.outdated(rates, one["mem_limit"])),
            folder=next((str(file.parent) for file in files if file.name == broker_settings.FILE), ""),
        )

    def connected(self, user: str) -> bool:
        """Whether a client has logged in as `user`. Failed if the broker does not answer."""
        status, found = self._send("GET", "/connections", None)
        return status == 200 and user in {one.get("user") for one in found}

    def _get(self, path: str, failure: str, hint: str = "") -> Any:
        """failure: what the broker does otherwise, for the error."""
        status, found = self._send("GET", path, None)
        if status != 200:
            raise Failed(f"the broker {failure}: status {status}", hint=hint)
        return found

    def _send(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Basic {self._secret}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body)
        try:
            with closing(http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT)) as connection:
                connection.request(method, f"/api{path}", data, headers)
                response = connection.getresponse()
                content = response.read()
        except (OSError, http.client.HTTPException) as error:
            message = f"the management API of the broker does not answer: {error}"
            raise Failed(message, hint="is the broker running?", code=Code.UNAVAILABLE) from error
        try:
            return response.status, json.loads(content) if content else None
        except ValueError as error:
            raise Failed("the management API of the broker answered without JSON") from error


def password(path: Path) -> str:
    """Refused(CONFLICT) if the file cannot be read."""
    try:
        return path.read_text().strip()
    except OSError as error:
        hint = "`slicemgr broker-files` writes it"
        raise Refused(Code.CONFLICT, f"{path} cannot be read: {error.strerror}", hint=hint) from error
