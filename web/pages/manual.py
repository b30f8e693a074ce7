"""The documents below `/docs`, public: files that `make docs` built into the package.

Their theme has inline scripts. The policy of each page allows these by their hashes and no others.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from pathlib import Path

from flask import Flask, Response, current_app, request, send_from_directory
from werkzeug.security import safe_join

from slicemgr.config import PACKAGE
from slicemgr.web.pages import shell

FOLDER = PACKAGE / "manual"
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)  # of a page; those with attributes are files or data
_POLICY = (
    "default-src 'none'; script-src 'self' {hashes}; worker-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_WORKER_POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'; frame-ancestors 'none'"

blueprint = shell.blueprint("manual", shell.Entry("manual.show", "Help", "help", 95), is_open=True)


def install(app: Flask) -> None:
    """MANUAL: where the built documents are."""
    app.config.setdefault("MANUAL", FOLDER)
    app.register_blueprint(blueprint)


@blueprint.route("/docs/", defaults={"name": ""})
@blueprint.route("/docs/<path:name>")
def show(name: str) -> Response:
    """A page, by its folder, or a file of one."""
    folder = Path(current_app.config["MANUAL"])
    if not (folder / "index.html").is_file():
        return shell.show("manual_missing.html", 404)
    inside = safe_join(str(folder), name)
    if inside is not None and Path(inside).is_dir() and not request.path.endswith("/"):
        return Response(status=308, headers={"Location": f"{request.path}/"})
    found = f"{name}index.html" if not name or name.endswith("/") else name
    response = send_from_directory(folder, found)
    response.cache_control.no_cache = True
    if response.mimetype == "text/html":
        page = folder / found
        response.headers["Content-Security-Policy"] = policy(page, page.stat().st_mtime_ns)
    elif response.mimetype in ("text/javascript", "application/javascript"):
        response.headers["Content-Security-Policy"] = _WORKER_POLICY
    return response


@functools.lru_cache(512)
def policy(page: Path, _changed: int) -> str:
    """The Content-Security-Policy of a built page; `_changed`, its time of change, renews the cache."""
    scripts = {
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        for script in _SCRIPT.findall(page.read_text())
    }
    return _POLICY.format(hashes=" ".join(f"'sha256-{one}'" for one in sorted(scripts)))
