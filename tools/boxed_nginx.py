"""nginx in a box, with the file of tools/nginx."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nodebox_box import Box
from nodebox_linux import BoxError

SHIPPED = Path(__file__).with_name("nginx") / "slicemgr.conf"
_MAIN = """\
user nobody nogroup;
worker_processes 1;
pid {place}/nginx.pid;
error_log {place}/nginx-error.log;
events {{ worker_connections 512; }}
http {{
    include /etc/nginx/mime.types;
    include {place}/site.conf;
}}
"""


def start(box: Box, place: Path, replacements: Mapping[str, str]) -> None:
    """Start nginx with the shipped file, in which the replacements are made. place: directory of the box for its files.

    Raises BoxError if a replaced text is not in the file, or if nginx does not accept the result.
    """
    text = SHIPPED.read_text()
    for old, new in {**replacements, "/var/log/nginx/slicemgr.log": f"{place}/nginx-access.log"}.items():
        if old not in text:
            raise BoxError(f"{SHIPPED} has no {old!r}")
        text = text.replace(old, new)
    box.path(place / "site.conf").write_text(text)
    box.path(place / "nginx.conf").write_text(_MAIN.format(place=place))
    checked = box.run(["nginx", "-t", "-c", f"{place}/nginx.conf"])
    if checked.returncode != 0:
        raise BoxError(f"nginx: {checked.stderr}")
    box.background("nginx", ["nginx", "-c", f"{place}/nginx.conf", "-g", "daemon off;"])
