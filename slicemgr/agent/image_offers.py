"""Give the web process of this machine the disk images that nodes fetch. Only root can open them.

The agent judges the token of the node itself: the web process alone gets no image.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from slicemgr import names
from slicemgr.config import Config
from slicemgr.errors import Code, Failed, SlicemgrError
from slicemgr.ipc import image_socket, unix_socket

log = logging.getLogger(__name__)

_FORMAT = re.compile("qcow2|raw|base")


class ImageOffers:
    """A context manager: serves `config.image_socket` until its end, with one thread.

    judge: the format and the size in bytes of the file of an image, given the token, the sha256, and whether the stream
    of its base is wanted; raises Refused.
    """

    def __init__(self, config: Config, judge: Callable[[str, str, bool], tuple[str, int]]) -> None:
        self._config, self._judge = config, judge
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        self._listener = image_socket.listen(self._config.image_socket, self._config.web.user)
        self._thread = threading.Thread(target=self._accept, name="image offers", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._config.image_socket.unlink(missing_ok=True)
        with suppress(OSError):  # the thread has ended
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes it
        self._thread.join()

    def _accept(self) -> None:
        for stream in unix_socket.connections(self._listener, self._stopping, "a request for an image"):
            with stream, suppress(OSError):  # the web process has ended
                self._serve(stream)

    def _serve(self, stream: socket.socket) -> None:
        try:
            token, sha256, base = image_socket.question(stream)
            format, size = self._judge(token, sha256, base)
            descriptor = self._open(sha256, format, size)
        except SlicemgrError as error:
            log.info("an image was refused: %s", error)
            image_socket.refuse(stream, error)
            return
        try:
            image_socket.give(stream, descriptor)
        finally:
            os.close(descriptor)

    def _open(self, sha256: str, format: str, size: int) -> int:
        assert _FORMAT.fullmatch(format)  # of the row
        try:
            path = names.image_file(self._config.images_dir, sha256, format)
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise Failed("the file of the image was lost", hint="import it again", code=Code.UNAVAILABLE) from error
        held = os.fstat(descriptor)
        if not stat.S_ISREG(held.st_mode) or held.st_size != size:
            os.close(descriptor)
            raise Failed("the file of the image has another size", hint="import it again", code=Code.UNAVAILABLE)
        return descriptor
