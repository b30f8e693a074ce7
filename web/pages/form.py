"""Forms: keep the input, show errors at their fields, and answer a repeated submission like the first one."""

from __future__ import annotations

import functools
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from flask import Response, has_request_context, request, session

from slicemgr.errors import Code, Refused
from slicemgr.policy.quota import OverQuota
from slicemgr.service import idempotency
from slicemgr.service.idempotency import Answer, Asked
from slicemgr.service.slices.specs import InvalidSpec
from slicemgr.web.pages import kept_form, shell
from slicemgr.web.state import principal, state

FIELD = "once"  # the one-time key of a form
_AT_A_FIELD = (Code.INVALID, Code.CONFLICT, Code.QUOTA, Code.UNAUTHENTICATED, Code.TOO_MANY)
_NEEDS_SUBJECT = ("is ", "has ", "was ", "does ", "must ", "cannot ", "ended ")


class Form:
    """The fields of a form as typed, and their errors. `errors[""]` belong to no field.

    Fields that were kept while the user signed in again replace the given `values`.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self.values: dict[str, Any] = dict(values or {})
        for name, given in (kept_form.read() if has_request_context() else {}).items():
            self.values[name] = given[:64] if isinstance(self.values.get(name), list) else given[-1].strip()
        self.errors: dict[str, list[str]] = {}
        self.once = secrets.token_urlsafe(12)
        self._focused = False

    @classmethod
    def sent(cls) -> Form:
        """The submitted fields, without surrounding spaces and without empty fields."""
        values = {name: value.strip() for name, value in request.form.items() if name not in ("csrf_token", FIELD)}
        return cls({name: value for name, value in values.items() if value})

    def __getitem__(self, name: str) -> Any:
        return self.values.get(name, "")

    def error(self, name: str) -> str:
        return " ".join(self.errors.get(name, ()))

    @property
    def general(self) -> bool:
        """Whether all errors belong to no field."""
        return set(self.errors) == {""}

    def focuses(self, name: str) -> bool:
        """Whether this field is focused: the first invalid one in the order in which the page asks."""
        if self._focused or not self.errors.get(name):
            return False
        self._focused = True
        return True

    def blame(self, error: Refused, aliases: Mapping[str, str] | None = None, known: tuple[str, ...] = ()) -> None:
        """Put an error at its field; aliases: the form's names of fields. known: the form's fields, () for all."""
        for one in error.errors if isinstance(error, InvalidSpec | OverQuota) else (error,):
            field = (aliases or {}).get(one.field, one.field)
            self.errors.setdefault(field if not known or field in known else "", []).append(sentence(one))

    def take(self, error: Refused, aliases: Mapping[str, str] | None = None, known: tuple[str, ...] = ()) -> int:
        """`blame` for a page with several forms; the status of the response. Raises errors that do not concern the
        input.
        """
        if error.code not in _AT_A_FIELD:
            raise error
        self.blame(error, aliases, known)
        return error.code.status

    def again(
        self,
        error: Refused,
        template: str,
        *,
        aliases: Mapping[str, str] | None = None,
        known: tuple[str, ...] = (),
        **values: Any,
    ) -> Response:
        """The page with the error at its field; raises errors that do not concern the input."""
        if error.code not in _AT_A_FIELD:
            raise error
        self.blame(error, aliases, known)
        response = shell.show(template, error.code.status, form=self, **values)
        if retry := getattr(error, "retry_after", None):
            response.headers["Retry-After"] = str(retry)
        return response


def sentence(error: Refused) -> str:
    """An error as a sentence for its field."""
    message = f"this {error.message}" if error.message.startswith(_NEEDS_SUBJECT) else error.message
    hint = "" if "slicectl" in error.hint else error.hint
    text = f"{message}: {hint}" if hint else message
    return text[:1].upper() + text[1:] + "."


def once(view: Callable[..., Response]) -> Callable[..., Response]:
    """A view of a form: a second submission of the same form gets the response of the first one.

    As with `Idempotency-Key`, the response is stored with the effect of the form, in the same transaction.
    """

    @functools.wraps(view)
    def answer(*args: Any, **values: Any) -> Response:
        given = request.form.get(FIELD, "")
        if not given:
            return view(*args, **values)
        key = "form " + hashlib.sha256(f"{request.path}\0{given[:64]}".encode()).hexdigest()
        shown: list[Response] = []

        def do() -> Answer:
            response = view(*args, **values)
            shown.append(response)
            if response.status_code != 303:  # the form was refused, and may be sent again
                return Answer(Code.INVALID.status, "")
            return Answer(303, json.dumps([response.headers["Location"], session.get("_flashes", [])]))

        found = idempotency.once(state().store, Asked(principal().user, key, request.path, b"", ""), do)
        if shown:
            return shown[0]
        target, messages = json.loads(found.body)
        session["_flashes"] = messages
        return Response(status=303, headers={"Location": target})

    return answer
