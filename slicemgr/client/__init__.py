"""The REST client that slicectl uses and a script or notebook can import.

    from slicemgr.client import Client
    with Client.local() as testbed, testbed.slices.create("exp", image="debian-12") as exp:
        exp.wait_ssh()
        print(exp.ssh("uname -a"))

Answers are the JSON of the API: times are RFC 3339 text in UTC, sizes are in bytes. Every method raises `Refused`
(nothing happened) or `Failed` (something may have happened) with the code, hint and field of the service, and a note
for each further field. Code UNAVAILABLE means that the service cannot be reached. A client is not thread-safe.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from slicemgr.client.account import Account
from slicemgr.client.audits import Audits
from slicemgr.client.connection import Connection
from slicemgr.client.deprecated import OldMethods
from slicemgr.client.events import Events
from slicemgr.client.experiments import Experiments
from slicemgr.client.images import Images
from slicemgr.client.invitations import Invitations
from slicemgr.client.keys import Keys
from slicemgr.client.leases import Leases
from slicemgr.client.nodes import Nodes
from slicemgr.client.operations import Operations
from slicemgr.client.projects import Projects
from slicemgr.client.requests import Requests
from slicemgr.client.samples import Samples
from slicemgr.client.sessions import Sessions
from slicemgr.client.settings import Settings, chosen_project, find_settings, settings_files
from slicemgr.client.slices import Slices
from slicemgr.client.snapshots import Snapshots
from slicemgr.client.tokens import Tokens
from slicemgr.client.users import Users

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Client", "Settings", "find_settings", "settings_files"]


class Client(OldMethods):
    """The resources of one service, over one connection that stays open between calls.

    url: such as http://127.0.0.1:8480. token: of the caller. timeout: seconds for connecting and for each answer.
    source: the origin of the token, for the error that it is invalid. project: the project whose slices the methods
    use; None: all projects of the user.
    """

    def __init__(
        self, url: str, token: str, timeout: float = 30.0, *, source: str = "", project: str | None = None
    ) -> None:
        self._use(Connection(url, token, timeout, source=source, project=project))

    def _use(self, connection: Connection) -> None:
        self.connection = connection
        self.account = Account(connection)
        self.audits = Audits(connection)
        self.events = Events(connection)
        self.experiments = Experiments(connection)
        self.images = Images(connection)
        self.invitations = Invitations(connection)
        self.keys = Keys(connection)
        self.leases = Leases(connection)
        self.nodes = Nodes(connection)
        self.operations = Operations(connection)
        self.projects = Projects(connection)
        self.requests = Requests(connection)
        self.samples = Samples(connection)
        self.sessions = Sessions(connection)
        self.slices = Slices(connection)
        self.snapshots = Snapshots(connection)
        self.tokens = Tokens(connection)
        self.users = Users(connection)

    @classmethod
    def local(cls, timeout: float = 30.0) -> Self:
        """A client for the service that `find_settings` finds."""
        found = find_settings()
        made = cls(found.url, found.token, timeout, source=found.source, project=chosen_project())
        made.identity = found.identity
        return made

    def of_project(self, project: str) -> Self:
        """The same client for the slices of one project, over the same connection."""
        other = copy.copy(self)
        other._use(self.connection.of_project(project))
        return other

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.connection.close()

    @property
    def url(self) -> str:
        return self.connection.url

    @property
    def port(self) -> int:
        return self.connection.port

    @property
    def source(self) -> str:
        return self.connection.source

    @property
    def timeout(self) -> float:
        """Seconds for connecting and for each answer."""
        return self.connection.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self.connection.timeout = seconds

    @property
    def project(self) -> str | None:
        """The project whose slices the methods use; None: all projects of the user."""
        return self.connection.project

    @project.setter
    def project(self, name: str | None) -> None:
        self.connection.project = name

    @property
    def identity(self) -> str | None:
        """The private key for ssh into slivers; None: the default of ssh."""
        return self.connection.identity

    @identity.setter
    def identity(self, file: str | None) -> None:
        self.connection.identity = file
