"""One log line for each request: method, path, user, client address, status and duration.

The query is left out, and so are headers.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from flask import Flask, Response, g, has_request_context, request
from gunicorn.glogging import Logger

from slicemgr import logs
from slicemgr.config import Config

log = logging.getLogger("slicemgr.access")

HEADER = "X-Request-ID"
_ID = re.compile(r"[A-Za-z0-9-]{8,64}")
_KEY = "slicemgr.about"  # in the environment of a request


def install(app: Flask, config: Config) -> None:
    """Give each request an id, which the response and every log line about it contain.

    A trusted proxy may have set it.
    """

    def begin() -> None:
        given = request.headers.get(HEADER, "") if config.web.proxies else ""
        g.request_id = given if _ID.fullmatch(given) else secrets.token_hex(8)

    def end(response: Response) -> Response:
        request.environ[_KEY] = _about()
        response.headers[HEADER] = g.request_id
        return response

    app.before_request_funcs.setdefault(None, []).insert(0, begin)
    app.after_request(end)
    logs.about = _about


def _about() -> Mapping[str, str]:
    """Facts about the current request, if there is one."""
    if not has_request_context():
        return {}
    principal = g.get("principal")
    return {"request": g.get("request_id", ""), "user": principal.user if principal is not None else ""}


class AccessLog(Logger):  # type: ignore[misc]
    """gunicorn's log as part of the log of the process."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        for one in (self.error_log, self.access_log):
            one.handlers.clear()
            one.propagate = True

    def access(self, resp: Any, req: Any, environ: dict[str, Any], request_time: timedelta) -> None:
        if self.cfg.accesslog is None:
            return
        fields = {
            "method": environ["REQUEST_METHOD"],
            "path": _printable(environ.get("PATH_INFO", "")),
            "status": int(str(resp.status).split()[0]),
            "bytes": getattr(resp, "sent", 0) or 0,
            "seconds": round(request_time.total_seconds(), 4),
            "address": environ.get("REMOTE_ADDR", ""),
            **environ.get(_KEY, {}),
        }
        log.info("%(method)s %(path)s %(status)s", fields, extra={key: one for key, one in fields.items() if one != ""})


def _printable(path: str) -> str:
    """The path without characters that could start another log line."""
    return "".join(one if one.isprintable() else f"%{ord(one):02X}" for one in path)
