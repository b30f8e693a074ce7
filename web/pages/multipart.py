"""A form with a file that is too large for memory: its fields are read first, the file as it arrives.

werkzeug's own form parser would write the whole file to disk before the user is authenticated.
"""

from __future__ import annotations

from collections.abc import Iterator

from flask import request
from werkzeug.datastructures import ImmutableMultiDict
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.sansio.multipart import Data, Epilogue, Event, Field, File, MultipartDecoder, NeedData

from slicemgr.errors import Refused, invalid

_CHUNK = 1 << 18
_MOST_PARTS = 20
_MOST_FIELDS = 64 << 10  # bytes of all fields together


class FileForm:
    """The request's body.

    `open` reads up to the beginning of the file; `request.form` then has the preceding fields.
    """

    def __init__(self) -> None:
        boundary = request.mimetype_params.get("boundary", "")
        self._decoder = MultipartDecoder(boundary.encode("latin-1"), _MOST_FIELDS + _CHUNK, max_parts=_MOST_PARTS)
        self._events = self._read() if request.mimetype == "multipart/form-data" and boundary else iter(())
        self._is_multipart = bool(boundary)
        self.name = ""  # of the file, as sent by the browser

    def open(self) -> None:
        """Read the fields. Raises Refused(INVALID) for a malformed form."""
        if not self._is_multipart:
            return
        request.max_content_length = (request.content_length or 0) + 1  # the limit of files applies
        fields: list[tuple[str, str]] = []
        taken, current, text = 0, "", bytearray()
        try:
            for event in self._events:
                if isinstance(event, File):
                    self.name = event.filename
                    break
                if isinstance(event, Field):
                    current, text = event.name, bytearray()
                elif isinstance(event, Data):
                    text += event.data
                    taken += len(event.data)
                    if taken > _MOST_FIELDS:
                        raise RequestEntityTooLarge
                    if not event.more_data:
                        fields.append((current, text.decode(errors="replace")))
        except ValueError as error:
            raise _broken() from error
        request.form = ImmutableMultiDict(fields)

    def file(self) -> Iterator[bytes]:
        """The file's content. Raises Refused(INVALID) if the body ends before the form."""
        try:
            for event in self._events:
                if not isinstance(event, Data):
                    break
                yield event.data
                if not event.more_data:
                    break
            for event in self._events:  # the rest is ignored, but must be complete
                if isinstance(event, Epilogue):
                    return
        except ValueError as error:
            raise _broken() from error
        if self.name:
            raise _broken()

    def _read(self) -> Iterator[Event]:
        while True:
            event = self._decoder.next_event()
            if not isinstance(event, NeedData):
                yield event
                if isinstance(event, Epilogue):
                    return
                continue
            chunk = request.stream.read(_CHUNK)
            self._decoder.receive_data(chunk or None)


def _broken() -> Refused:
    return invalid("file", "was interrupted", "send it again, the incomplete upload was discarded")
