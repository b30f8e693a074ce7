"""Errors as application/problem+json (RFC 9457). Unexpected errors are logged, and reported without details."""

from __future__ import annotations

import json
import logging
import secrets
from typing import Any

from flask import Flask, Response, current_app
from werkzeug.exceptions import HTTPException

from slicemgr.errors import Busy, SlicemgrError
from slicemgr.policy.quota import OverQuota
from slicemgr.service.slices.specs import InvalidSpec

log = logging.getLogger(__name__)

PAGE = "slicemgr.error_page"  # in `app.extensions`: makes a page of a problem, or None where JSON is wanted
_CODES = {400: "invalid", 404: "not_found", 405: "invalid", 413: "invalid", 415: "invalid"}


def install(app: Flask) -> None:
    app.register_error_handler(SlicemgrError, _expected)
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(Exception, _unexpected)


def _problem(status: int, title: str, code: str, detail: str, **more: Any) -> Response:
    body = {"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail, **more}
    page: Response | None = current_app.extensions[PAGE](body) if PAGE in current_app.extensions else None
    return page or Response(json.dumps(body) + "\n", status, mimetype="application/problem+json")


def _expected(error: SlicemgrError) -> Response:
    several = error.errors if isinstance(error, InvalidSpec | OverQuota) else (error,)
    errors = [{"field": one.field, "message": one.message, "hint": one.hint} for one in several if one.field]
    title = error.code.wire.replace("_", " ").capitalize()
    more = {"hint": error.hint, "field": error.field, "errors": errors}
    response = _problem(error.code.status, title, error.code.wire, error.message, **more)
    if error.code.status == 401 and response.is_json:
        response.headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, Busy):
        response.headers["Retry-After"] = str(error.retry_after)
    return response


def _http(error: HTTPException) -> Response:
    status = error.code or 500
    response = _problem(status, error.name, _CODES.get(status, "failed"), error.description or error.name)
    if status == 405:
        response.headers["Allow"] = ", ".join(getattr(error, "valid_methods", None) or ())
    return response


def _unexpected(error: Exception) -> Response:
    number = secrets.token_hex(4)
    log.error("unexpected error %s", number, exc_info=error)
    return _problem(
        500,
        "Internal error",
        "failed",
        f"unexpected error {number}",
        hint="report the number to an admin, the log of the service contains it",
    )
