"""The sha256 of each block of an image, so that a node can check what another one sends before it passes it on."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import BinaryIO

from slicemgr.policy import image_blocks

_KEPT = 32  # images whose hashes are kept in memory
_lock = threading.Lock()
_kept: OrderedDict[str, tuple[int, list[str]]] = OrderedDict()


def of(sha256: str, file: BinaryIO) -> list[str]:
    """The hashes of the blocks of an open file. sha256: of the file. It reads all of it the first time.

    Only one file is read at a time.
    """
    with _lock:
        size = file.seek(0, 2)
        found = _kept.get(sha256)
        if found is None or found[0] != size:
            file.seek(0)
            hashes = []
            while chunk := file.read(image_blocks.SIZE):
                hashes.append(hashlib.sha256(chunk).hexdigest())
            found = _kept[sha256] = (size, hashes)
        _kept.move_to_end(sha256)
        if len(_kept) > _KEPT:
            _kept.popitem(last=False)
        return found[1]
