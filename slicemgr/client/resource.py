"""The base class of the client's resources."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slicemgr.client.connection import Connection


class Resource:
    """Methods of one kind of object in the REST API, over the connection of a client."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
