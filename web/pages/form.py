"""Forms: what was typed is kept, what is wrong is said at its field, and a second click answers like the first."""

from __future__ import annotations

import functools
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from flask import Response, current_app, g, request, session

from slicemgr.errors import Code, Refused
from slicemgr.policy.quota import OverQuota
from slicemgr.service.specs import InvalidSpec
from slicemgr.web.pages import shell

FIELD = "once"  # the one-time key of a form
_AT_A_FIELD = (Code.INVALID, Code.CONFLICT, Code.QUOTA, Code.UNAUTHENTICATED, Code.TOO_MANY)
_NEEDS_SUBJECT = ("is ", "has ", "must ", "cannot ", "ended ")
_KEPT, _PATIENCE = 10_000, 30.0  # answers, and seconds that a second click waits for the first


class Form:
    """The fields of a form as typed, and their errors. `errors[""]` are those of no field."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self.values: dict[str, Any] = dict(values or {})
        self.errors: dict[str, list[str]] = {}
        self.once = secrets.token_urlsafe(12)

    @classmethod
    def sent(cls) -> Form:
        """What the browser sent, without spaces around it and without what was left empty."""
        values = {name: value.strip() for name, value in request.form.items() if name not in ("csrf_token", FIELD)}
        return cls({name: value for name, value in values.items() if value})

    def __getitem__(self, name: str) -> Any:
        return self.values.get(name, "")

    def error(self, name: str) -> str:
        return " ".join(self.errors.get(name, ()))

    def blame(self, error: Refused, aliases: Mapping[str, str] | None = None, known: tuple[str, ...] = ()) -> None:
        """Put an error at its field; aliases: the form's name of a field. known: the form's fields, () for all."""
        for one in error.errors if isinstance(error, InvalidSpec | OverQuota) else (error,):
            field = (aliases or {}).get(one.field, one.field)
            self.errors.setdefault(field if not known or field in known else "", []).append(sentence(one))

    def take(self, error: Refused, aliases: Mapping[str, str] | None = None, known: tuple[str, ...] = ()) -> int:
        """`blame` for a page with several forms; the status to answer with. Raises what is not about the input."""
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
        """The page once more with the error where it belongs; raises what is not about the input."""
        if error.code not in _AT_A_FIELD:
            raise error
        self.blame(error, aliases, known)
        response = shell.show(template, error.code.status, form=self, **values)
        if retry := getattr(error, "retry_after", None):
            response.headers["Retry-After"] = str(retry)
        return response


def sentence(error: Refused) -> str:
    """An error as a person reads it beside the field."""
    message = f"this {error.message}" if error.message.startswith(_NEEDS_SUBJECT) else error.message
    hint = "" if "slicectl" in error.hint else error.hint
    text = f"{message}: {hint}" if hint else message
    return text[:1].upper() + text[1:] + "."


class _Answers:
    """The answers to forms that were sent, by user and one-time key; in memory, for the one web process there is."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._answers: OrderedDict[tuple[str, str, str], tuple[str, list[Any]] | None] = OrderedDict()

    def first(self, key: tuple[str, str, str]) -> tuple[str, list[Any]] | None:
        """None: it is the first, and shall call `keep` or `forget`. Else where the first was sent, and its messages."""
        with self._changed:
            self._changed.wait_for(lambda: self._answers.get(key, True) is not None, _PATIENCE)
            if (found := self._answers.get(key)) is not None:
                return found
            self._answers[key] = None
            while len(self._answers) > _KEPT:
                self._answers.popitem(last=False)
            return None

    def keep(self, key: tuple[str, str, str], answer: tuple[str, list[Any]]) -> None:
        with self._changed:
            self._answers[key] = answer
            self._changed.notify_all()

    def forget(self, key: tuple[str, str, str]) -> None:
        with self._changed:
            self._answers.pop(key, None)
            self._changed.notify_all()


def once(view: Callable[..., Response]) -> Callable[..., Response]:
    """A view of a form: when the same form comes again after it was taken, the answer is the first one's."""

    @functools.wraps(view)
    def answer(*args: Any, **values: Any) -> Response:
        given = request.form.get(FIELD, "")
        if not given:
            return view(*args, **values)
        answers: _Answers = current_app.extensions.setdefault("slicemgr.answers", _Answers())
        by = g.get("principal")
        key = (by.user if by else "", request.path, given[:64])
        if (found := answers.first(key)) is not None:
            target, messages = found
            session["_flashes"] = messages
            return Response(status=303, headers={"Location": target})
        taken = False
        try:
            response = view(*args, **values)
            if taken := response.status_code == 303:
                answers.keep(key, (response.headers["Location"], list(session.get("_flashes", ()))))
            return response
        finally:
            if not taken:
                answers.forget(key)

    return answer
