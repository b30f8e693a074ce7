"""JSON of responses, by orjson: json takes several times as long for the hundreds of kilobytes of a list."""

from __future__ import annotations

from typing import Any

import orjson
from flask import Response
from flask.json.provider import DefaultJSONProvider
from werkzeug.sansio.response import Response as AnyResponse

_OPTIONS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_PASSTHROUGH_DATETIME  # times as Flask writes them


class JsonAnswers(DefaultJSONProvider):
    """Flask's encoder still serves templates, and the values that orjson refuses."""

    sort_keys = False

    def response(self, *args: Any, **kwargs: Any) -> AnyResponse:
        try:
            text = orjson.dumps(self._prepare_response_obj(args, kwargs), self.default, _OPTIONS)
        except orjson.JSONEncodeError:  # such as numbers of more than 64 bits
            return super().response(*args, **kwargs)
        return Response(text, mimetype=self.mimetype)
