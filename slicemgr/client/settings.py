"""The URL of the service and the token of a client, from environment variables or files."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from slicemgr.errors import Code, Refused, invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

START_HINT = "start it with `slicemgr up`, or set SLICEMGR_URL and SLICEMGR_TOKEN for a remote service"
SIGN_IN_HINT = (
    "sign in with `slicectl login URL` or set SLICEMGR_URL and SLICEMGR_TOKEN; on a node, start `slicemgr up`"
)


class Settings(NamedTuple):
    """The URL of the service, the token, and the file or variable that they come from."""

    url: str
    token: str
    source: str
    identity: str | None = None  # private key for `slicectl ssh`; its `.pub` is the default key of `create`


_project: ContextVar[str | None] = ContextVar("project", default=None)


def choose_project(name: str) -> Callable[[], None]:
    """Set the project of clients that `Client.local` creates. Call the result to restore the previous one."""
    token = _project.set(name)
    return lambda: _project.reset(token)


def chosen_project() -> str | None:
    """The project of `choose_project`, otherwise of SLICEMGR_PROJECT."""
    return _project.get() or os.environ.get("SLICEMGR_PROJECT") or None


def user_file() -> Path:
    """The file of `slicectl login`. Raises Refused if there is no home directory."""
    try:
        return Path.home() / ".config/slicemgr/client.json"
    except RuntimeError as error:
        raise invalid("HOME", "is not known", "set it") from error


def write_settings(file: Path, url: str, token: str) -> None:
    """Write settings to a file that only the user can read; an existing identity is kept."""
    kept: dict[str, object] = {}
    with contextlib.suppress(OSError, ValueError):
        before = json.loads(file.read_text())
        kept = {"identity": before["identity"]} if isinstance(before, dict) and "identity" in before else {}
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(json.dumps({"url": url, "token": token, **kept}, indent=2) + "\n")
    fresh.replace(file)


def settings_files() -> list[Path]:
    """The files with `{"url": …, "token": …}` by precedence: of the user, of the installation, of the node."""
    files = [Path(sys.prefix) / "etc/slicemgr/client.json", Path("/run/slicemgr/client.json")]
    with contextlib.suppress(RuntimeError):  # no home directory
        files.insert(0, Path.home() / ".config/slicemgr/client.json")
    return files


def find_settings(environ: Mapping[str, str] | None = None, files: Sequence[Path] | None = None) -> Settings:
    """The URL and token from SLICEMGR_URL and SLICEMGR_TOKEN or SLICEMGR_TOKEN_FILE, otherwise from a file.

    A token from a file is never sent to the URL of a variable. Raises Refused: UNAVAILABLE if there is no URL,
    DENIED if this user may not read the only file, INVALID if its content is invalid.
    """
    environ = os.environ if environ is None else environ
    token, source = _token_of_environment(environ)
    if url := environ.get("SLICEMGR_URL", ""):
        if not token:
            raise invalid("SLICEMGR_TOKEN", "is not set, but SLICEMGR_URL is", "set it or SLICEMGR_TOKEN_FILE")
        return Settings(url, token, source)
    locked: Path | None = None
    for file in settings_files() if files is None else files:
        try:
            text = file.read_text()
        except PermissionError:
            locked = locked or file
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise invalid(str(file), f"cannot be read: {error}") from error
        else:
            found = _parse_settings(text, file)
            return found._replace(token=token, source=source) if token else found
    if locked is not None:
        raise Refused(Code.DENIED, f"you cannot read {locked}", hint="run as root, or ask the admin for a token")
    raise Refused(Code.UNAVAILABLE, "the address of the service is not configured", hint=SIGN_IN_HINT)


def read_settings(file: Path, field: str) -> Settings:
    """The settings of another service in a file. field: the option that names it. Raises Refused if unreadable."""
    try:
        return _parse_settings(file.read_text(), file)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        hint = "such as a copy of the other node's /run/slicemgr/client.json"
        raise invalid(field, f"{file} cannot be read: {why}", hint) from error


def _token_of_environment(environ: Mapping[str, str]) -> tuple[str, str]:
    if token := environ.get("SLICEMGR_TOKEN", "").strip():
        return token, "SLICEMGR_TOKEN"
    if name := environ.get("SLICEMGR_TOKEN_FILE", ""):
        try:
            return Path(name).read_text().strip(), name
        except (OSError, UnicodeDecodeError) as error:
            raise invalid("SLICEMGR_TOKEN_FILE", f"{name} cannot be read: {error}") from error
    return "", ""


def _parse_settings(text: str, file: Path) -> Settings:
    try:
        raw = json.loads(text)
        url, token = raw["url"], raw["token"]
    except (ValueError, KeyError, TypeError) as error:
        raise invalid(str(file), "does not contain the address of the service", '{"url": "…", "token": "…"}') from error
    identity = raw.get("identity")
    return Settings(str(url), str(token), str(file), None if identity is None else str(identity))
