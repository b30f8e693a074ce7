"""The client below `/client`, public: `pip install` of the URL gives slicectl and the Python client of this version.

`make setup` and the commands of docs/how-to/install.md build this wheel and keep it with the installation.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from flask import Flask, Response, abort, current_app, request, send_from_directory, url_for

from slicemgr import __version__
from slicemgr.web.pages import shell
from slicemgr.web.state import state

FOLDER = Path(sys.prefix) / "share" / "slicemgr"
WHEEL = f"slicemgr-{__version__}-py3-none-any.whl"

blueprint = shell.blueprint("client", is_open=True)


def install(app: Flask) -> None:
    """WHEELS: the folder with the wheel."""
    app.config.setdefault("WHEELS", FOLDER)
    app.register_blueprint(blueprint)
    app.context_processor(lambda: {"install_client": command, "service_url": service_url})


@blueprint.route("/client/<name>")
def wheel(name: str) -> Response:
    """The wheel. pip reads project and version from the name, so there is no other."""
    if name != WHEEL:
        abort(404)
    response = send_from_directory(current_app.config["WHEELS"], WHEEL, mimetype="application/octet-stream")
    response.cache_control.no_cache = True
    return response


def service_url() -> str:
    """The URL of the service, without a slash at the end."""
    return state().config.web.url or request.host_url.rstrip("/")


def command() -> str:
    """The command that installs the client of this service; empty if the installation has no wheel."""
    if not Path(current_app.config["WHEELS"], WHEEL).is_file():
        return ""
    return f"pip install {shlex.quote(service_url() + url_for('client.wheel', name=WHEEL))}"
