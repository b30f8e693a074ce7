"""The tables. Unique constraints, not code, guarantee that no resource is allocated twice.

Times are stored as UTC. Sizes are bytes. Facts about a slice in an operation or an event are copied, because both
outlive the slice.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}

metadata = sa.MetaData(naming_convention=_CONVENTION)


class UtcTime(TypeDecorator[datetime]):
    """A timezone-aware datetime, stored as UTC in databases without time zones."""

    impl = sa.DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


def _text(name: str, **options: Any) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, **options)


def _number(name: str, **options: Any) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, **options)


def _empty(name: str) -> sa.Column[str]:
    """Text that is "" until it is known."""
    return _text(name, server_default=sa.text("''"))


# The version that wrote the database: reported if its schema is newer than this version's.
about = sa.Table(
    "about",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    _text("value"),
)

users = sa.Table(
    "users",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("admin", sa.Boolean, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
    _empty("full_name"),
    _empty("email"),
    sa.Column("enabled", sa.Boolean, nullable=False, server_default=sa.true()),
    _empty("password"),  # argon2id with its parameters and salt; "": no sign-in with a password
    _number("known_browsers", server_default=sa.text("0")),  # incremented to forget all known browsers
    _empty("default_project"),  # for objects without a project; "": none, unless the user has only one
    # Whether an admin entered the address or an issuer verified it. An address that the user entered proves nothing.
    sa.Column("email_confirmed", sa.Boolean, nullable=False, server_default=sa.false()),
)

# Only the sha256 of a token is kept; a token is 256 random bits, so no salt is needed. The same goes for sessions
# and invitations. id: what people call it by; it opens nothing.
tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("hash", sa.Text, primary_key=True),
    _text("user", index=True),
    _text("label"),
    sa.Column("created_at", UtcTime, nullable=False),
    _empty("id"),
    _text("scope", server_default=sa.text("'write'")),
    sa.Column("expires_at", UtcTime),
    sa.Column("used_at", UtcTime),
    _empty("used_from"),
    sa.ForeignKeyConstraint(["user"], ["users.name"], ondelete="CASCADE"),
    sa.Index("ix_tokens_id", "id", unique=True),
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("hash", sa.Text, primary_key=True),
    _text("id", unique=True),
    _text("user", index=True),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("expires_at", UtcTime, nullable=False),
    sa.Column("used_at", UtcTime, nullable=False),
    _empty("address"),
    _empty("agent"),
    sa.ForeignKeyConstraint(["user"], ["users.name"], ondelete="CASCADE"),
)

# At most one link for each user: a new one makes the old one void.
invitations = sa.Table(
    "invitations",
    metadata,
    sa.Column("user", sa.Text, primary_key=True),
    _text("hash", unique=True),
    _text("invited_by"),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("expires_at", UtcTime, nullable=False),
    sa.ForeignKeyConstraint(["user"], ["users.name"], ondelete="CASCADE"),
)

# As invitations: at most one link for each user.
sign_in_links = sa.Table(
    "sign_in_links",
    metadata,
    sa.Column("user", sa.Text, primary_key=True),
    _text("hash", unique=True),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("expires_at", UtcTime, nullable=False),
    sa.ForeignKeyConstraint(["user"], ["users.name"], ondelete="CASCADE"),
)

# The identity of a user at an OpenID Connect issuer, by the issuer's unchanging name.
identities = sa.Table(
    "identities",
    metadata,
    sa.Column("issuer", sa.Text, primary_key=True),
    sa.Column("subject", sa.Text, primary_key=True),
    _text("user"),
    _empty("email"),  # as last verified
    sa.Column("made", sa.Boolean, nullable=False, server_default=sa.false()),  # whether the issuer created the account
    sa.Column("admin", sa.Boolean, nullable=False, server_default=sa.false()),  # whether by a claim of the issuer
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("used_at", UtcTime),
    sa.UniqueConstraint("user", "issuer"),
    sa.ForeignKeyConstraint(["user"], ["users.name"], ondelete="CASCADE"),
)

ssh_keys = sa.Table(
    "ssh_keys",
    metadata,
    sa.Column("user", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    _text("line"),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.ForeignKeyConstraint(["user"], ["users.name"], ondelete="CASCADE"),
)

# One row for each console or screen that may be opened now: only the sha256 of the token is stored, and it works
# once.
consoles = sa.Table(
    "consoles",
    metadata,
    sa.Column("hash", sa.Text, primary_key=True),
    _text("user"),
    _text("sliver", index=True),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("expires_at", UtcTime, nullable=False),
    _empty("credential"),  # the id of the token or session that requested it: the console ends with it
    sa.Column("screen", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.ForeignKeyConstraint(["user"], ["users.name"], ondelete="CASCADE"),
    sa.ForeignKeyConstraint(["sliver"], ["slivers.id"], ondelete="CASCADE"),
)

projects = sa.Table(
    "projects",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("created_at", UtcTime, nullable=False),
    _empty("description"),
)

members = sa.Table(
    "members",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("user", sa.Text, primary_key=True, index=True),
    _text("role"),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.ForeignKeyConstraint(["project"], ["projects.name"], ondelete="CASCADE"),
    sa.ForeignKeyConstraint(["user"], ["users.name"], ondelete="CASCADE"),
)

# invitee: a user name or a mail address in lower case, whether there is such an account or not. A declined invitation
# stays until it expires, so that the sender cannot distinguish it from an unread one. notified_at: when the agent
# last searched for an account to notify.
project_invitations = sa.Table(
    "project_invitations",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    _text("project"),
    _text("invitee", index=True),
    _text("role"),
    _text("invited_by"),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("expires_at", UtcTime, nullable=False),
    sa.Column("declined", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("notified_at", UtcTime),
    sa.Column("link", sa.Text, index=True, unique=True),  # hash of the secret of a link that creates an account
    sa.UniqueConstraint("project", "invitee"),
    sa.ForeignKeyConstraint(["project"], ["projects.name"], ondelete="CASCADE"),
)

# level: `quota` (granted at once) or `ceiling` (what a PI may grant). No row, or NULL in it: not limited.
quotas = sa.Table(
    "quotas",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("level", sa.Text, primary_key=True),
    sa.Column("slices", sa.BigInteger),
    sa.Column("slivers", sa.BigInteger),
    sa.Column("vcpus", sa.Float),
    sa.Column("memory", sa.BigInteger),
    sa.Column("memory_guarantee", sa.BigInteger),
    sa.Column("disk", sa.BigInteger),
    sa.Column("ports", sa.BigInteger),
    sa.Column("lease", sa.BigInteger),  # seconds
    sa.ForeignKeyConstraint(["project"], ["projects.name"], ondelete="CASCADE"),
)

# Slices requested beyond the quota. body: the JSON of the request, as it was sent.
requests = sa.Table(
    "requests",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    _text("project"),
    _text("user", index=True),
    _text("name"),
    sa.Column("body", sa.JSON, nullable=False),
    _text("reason"),
    _empty("exceeds"),
    _text("state", index=True),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("decided_at", UtcTime),
    _empty("decided_by"),
    _empty("answer"),
    _empty("operation"),
    sa.Column("granted", sa.JSON(none_as_null=True)),
    sa.Column("unread", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("slice", sa.Text),  # to resize; NULL: the request is for a new slice
    sa.ForeignKeyConstraint(["project"], ["projects.name"], ondelete="CASCADE"),
    sa.ForeignKeyConstraint(["user"], ["users.name"], ondelete="CASCADE"),
    sa.Index(
        "ix_requests_waiting",
        "project",
        "name",
        unique=True,
        sqlite_where=sa.text("state = 'waiting'"),
        postgresql_where=sa.text("state = 'waiting'"),
    ),
)

# Answers to requests with an Idempotency-Key, stored with their effect. request: its sha256. sealed: the body
# contains a secret and is encrypted with a key that only the caller has.
answers = sa.Table(
    "answers",
    metadata,
    sa.Column("user", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    _text("request"),
    _number("status"),
    _text("body"),
    sa.Column("sealed", sa.Boolean, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False, index=True),
    sa.ForeignKeyConstraint(["user"], ["users.name"], ondelete="CASCADE"),
)

# next_*: the start of the next search, so that freed resources are not reused at once. identity: the name in its
# certificates and at the broker, which never changes; NULL: its agent uses the database itself. drained: it gets no
# new slivers. silent_since: the last report of a node that has not reported for 30 seconds. lost: nor for 5 minutes.
nodes = sa.Table(
    "nodes",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    _text("address"),
    sa.Column("agent_seen_at", UtcTime),
    sa.Column("facts", sa.JSON, nullable=False),
    _number("next_address", server_default="0"),
    _number("next_port", server_default="0"),
    _number("next_uid", server_default="0"),
    _empty("site"),
    _text("state", server_default=sa.text("'active'")),
    sa.Column("identity", sa.Text),
    sa.Column("drained", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("silent_since", UtcTime),
    sa.Column("lost", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Index("ix_nodes_identity", "identity", unique=True),
)

# What the slivers of a node have been allocated, and what the node has as it announced (NULL: it did not), so that
# nodes can be compared without a sum over all slivers. See store.allocations.
allocations = sa.Table(
    "allocations",
    metadata,
    sa.Column("node", sa.Text, primary_key=True),
    *(_number(name, server_default="0") for name in ("slivers", "memory", "memory_guarantee", "disk", "ports")),
    *(sa.Column(name, sa.BigInteger) for name in ("memory_total", "disk_total", "ports_total")),
    sa.ForeignKeyConstraint(["node"], ["nodes.name"], ondelete="CASCADE"),
)

# At most one join token for each node, valid once: the first certificate request that comes with it (PEM) is stored,
# and no other is accepted. serial: of the certificate issued for it; "": not yet.
joins = sa.Table(
    "joins",
    metadata,
    sa.Column("node", sa.Text, primary_key=True),
    _text("hash", unique=True),
    _text("user"),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("expires_at", UtcTime, nullable=False),
    _empty("request"),
    _empty("address"),
    _empty("serial"),
    sa.ForeignKeyConstraint(["node"], ["nodes.name"], ondelete="CASCADE"),
)

# The connection of a node to the centre. incarnation: of its link, chosen at each start; sequence: of its last beat.
# mirror: the incarnation of its database, 0: it has none; applied: the last of its updates that this database has;
# applied_after: the last that it knew to be applied when it sent these. resync_at: since when it is to get all its
# rows again; None: it has them.
links = sa.Table(
    "links",
    metadata,
    sa.Column("identity", sa.Text, primary_key=True),
    _text("incarnation"),
    _number("sequence"),
    _text("version"),
    sa.Column("beat_at", UtcTime, nullable=False),
    _number("mirror", server_default="0"),
    _number("applied", server_default="0"),
    _number("applied_after", server_default="0"),
    sa.Column("resync_at", UtcTime),
)

# Connections that the service asks nodes to open, until the hub has sent the orders. user, sliver: of a console.
dials = sa.Table(
    "dials",
    metadata,
    sa.Column("secret", sa.Text, primary_key=True),
    _text("node"),
    _text("purpose"),
    _empty("user"),
    _empty("sliver"),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.ForeignKeyConstraint(["node"], ["nodes.name"], ondelete="CASCADE"),
)

# One row in the database of a node that has joined a testbed. incarnation: increases when the database is made or
# restored. revision: of the rows that the centre sent; received: the number of its last message about them;
# acknowledged: the last update from the outbox that the centre has.
mirror = sa.Table(
    "mirror",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    _number("incarnation"),
    _empty("revision"),
    _number("received", server_default="0"),
    _number("acknowledged", server_default="0"),
)

# Updates of the agent of such a node that the centre does not have yet. key: a later update with the same key replaces
# an earlier one; "": none does.
outbox = sa.Table(
    "outbox",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    _text("kind"),
    _text("key", index=True),
    sa.Column("body", sa.JSON, nullable=False),
    sqlite_autoincrement=True,
)

# The certificates of the testbed's authority and those that it issued to nodes (PEM). An identity outlives its node.
authorities = sa.Table(
    "authorities",
    metadata,
    sa.Column("fingerprint", sa.Text, primary_key=True),
    _text("certificate"),
    sa.Column("created_at", UtcTime, nullable=False),
)

certificates = sa.Table(
    "certificates",
    metadata,
    sa.Column("serial", sa.Text, primary_key=True),
    _text("identity", index=True),
    _text("certificate"),
    sa.Column("issued_at", UtcTime, nullable=False),
    sa.Column("expires_at", UtcTime, nullable=False),
    sa.Column("revoked_at", UtcTime),
)

# Requests of nodes for a new certificate, until the signer has answered them.
renewals = sa.Table(
    "renewals",
    metadata,
    sa.Column("identity", sa.Text, primary_key=True),
    _text("request"),
    sa.Column("created_at", UtcTime, nullable=False),
)

images = sa.Table(
    "images",
    metadata,
    sa.Column("sha256", sa.Text, primary_key=True),
    _text("name", unique=True),
    _text("format"),
    _number("virtual_size"),
    _number("file_size"),
    _number("base_size", server_default="0"),  # bytes of its files in the pool
    _empty("arch"),
    _empty("os"),
    sa.Column("boot", sa.JSON, nullable=False, server_default=sa.text("'{}'")),
    sa.Column("systemd", sa.Boolean),  # whether its files have systemd; NULL: not known
    _empty("stream_sha256"),  # of the file with the stream of its base; "": there is none
    _number("stream_size", server_default="0"),  # of that file, in bytes
    _number("stream_version", server_default="0"),  # of the extraction
    _text("state"),
    sa.Column("project", sa.Text, sa.ForeignKey("projects.name", ondelete="RESTRICT")),
    sa.Column("created_at", UtcTime, nullable=False),
)

# The configuration of the kernel in an image, printable text; "": its files have none; no row: not known. size: bytes.
kernel_configs = sa.Table(
    "kernel_configs",
    metadata,
    sa.Column("image", sa.Text, primary_key=True),
    _text("config"),
    _number("size"),
    sa.ForeignKeyConstraint(["image"], ["images.sha256"], ondelete="CASCADE"),
)

# What each node has of an image; no row: nothing. base_size: bytes of its files in the pool of the node. disk, base:
# the states of the disk image and of the base; "": it has none. stream: whether the base comes from a stream, or is
# sent as one, whose file the node has.
image_nodes = sa.Table(
    "image_nodes",
    metadata,
    sa.Column("image", sa.Text, primary_key=True),
    sa.Column("node", sa.Text, primary_key=True, index=True),
    _text("state"),
    _empty("error"),
    _number("base_size", server_default="0"),
    _empty("disk"),
    _empty("base"),
    sa.Column("stream", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("updated_at", UtcTime, nullable=False),
    sa.ForeignKeyConstraint(["image"], ["images.sha256"], ondelete="CASCADE"),
    sa.ForeignKeyConstraint(["node"], ["nodes.name"], ondelete="CASCADE"),
)

# A slice's id is its tag. lease_ended_at: when the end of the lease was enforced; the grace period starts then.
# ssh_keys: the keys for its slivers; named_keys: those of them that are not from its owner's account. on_loss: what
# happens to its slivers on a lost node, see model.OnLoss.
slices = sa.Table(
    "slices",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    _text("name"),
    _text("project"),
    _text("owner"),
    _text("kind", key="type"),  # the column keeps its name for agents of earlier versions that still run
    _text("image", index=True),
    _number("count"),
    sa.Column("ssh_keys", sa.JSON, nullable=False),
    _text("boot", server_default=sa.text("'loader'")),
    _text("machine", server_default=sa.text("'standard'")),
    _text("init", server_default=sa.text("'minimal'")),
    _empty("user_data"),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("expires_at", UtcTime, nullable=False, index=True),
    sa.Column("lease_ended_at", UtcTime, index=True),
    sa.Column("renewed_at", UtcTime),
    sa.Column("reminded", sa.BigInteger),  # seconds before the end of the last reminder of this lease
    _empty("lease_notice"),
    sa.Column("named_keys", sa.JSON, nullable=False, server_default=sa.text("'[]'")),
    _text("on_loss", server_default=sa.text("'keep'")),
    sa.Column("warm", sa.Boolean, nullable=False, server_default=sa.false()),  # whether it began with a spare
    sa.ForeignKeyConstraint(["project"], ["projects.name"], ondelete="RESTRICT"),
    sa.ForeignKeyConstraint(["owner"], ["users.name"], ondelete="RESTRICT"),
    sa.ForeignKeyConstraint(["image"], ["images.sha256"], ondelete="RESTRICT"),
    sa.UniqueConstraint("project", "name"),
    sa.Index("ix_slices_name_project", "name", "project"),  # the order of lists
)

slivers = sa.Table(
    "slivers",
    metadata,
    sa.Column("serial", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    _text("id", unique=True),
    sa.Column("slice", sa.Text),  # NULL: a spare, see there
    _number("idx"),
    _text("node"),
    _text("desired"),
    _text("phase"),
    _empty("error"),
    _number("generation", server_default="0"),
    _text("address"),
    _number("uid_first"),
    _number("port_first"),
    _number("port_count"),
    _number("memory"),
    _number("disk"),
    _number("pids"),
    sa.Column("cpu", sa.Float, nullable=False),
    _number("cpu_shares"),
    _number("memory_guarantee", server_default="0"),
    _number("memory_weight", server_default="100"),
    _number("memory_started", server_default="0"),  # with which a virtual machine started last; 0: unknown
    sa.Column("memory_max", sa.BigInteger),  # up to which a running virtual machine can get more; NULL: no more
    sa.Column("memory_soft", sa.BigInteger),
    sa.Column("io_weight", sa.BigInteger),
    sa.Column("io_rate", sa.BigInteger),
    sa.Column("io_ops", sa.BigInteger),
    sa.Column("net_in", sa.BigInteger),
    sa.Column("net_out", sa.BigInteger),
    _empty("host_key"),
    _empty("acceleration"),
    _empty("booted"),
    _empty("keys_missing"),  # why a running sliver does not have the SSH keys of its slice yet
    sa.Column("usage_working", sa.BigInteger),
    sa.Column("usage_charged", sa.BigInteger),
    sa.Column("usage_disk", sa.BigInteger),
    sa.Column("guest_memory", sa.BigInteger),
    sa.Column("usage_at", sa.BigInteger),  # time of the sample, seconds since 1970
    _number("oom_kills", server_default="0"),
    sa.Column("oom_at", UtcTime),
    sa.Column("oom_event_at", UtcTime),  # of the last event about it
    sa.Column("updated_at", UtcTime, nullable=False),
    _empty("origin"),  # the origin of its root: SLIVER/SNAPSHOT; "": the image
    _number("inherited", server_default="0"),  # of a clone: bytes of its initial content, part of its disk limit
    _number("epoch", server_default="0"),  # the number of earlier roots
    sa.ForeignKeyConstraint(["slice"], ["slices.id"], ondelete="CASCADE"),
    sa.ForeignKeyConstraint(["node"], ["nodes.name"], ondelete="RESTRICT"),
    sa.UniqueConstraint("slice", "idx"),
    sa.UniqueConstraint("node", "address"),
    sa.UniqueConstraint("node", "uid_first"),
    sqlite_autoincrement=True,  # a serial is never reused, not even after a delete
)

# Slivers that run and belong to no slice yet, with what others have in the row of their slice. A create that takes one
# deletes this row. image: sha256; a spare does not keep its image from being deleted.
spares = sa.Table(
    "spares",
    metadata,
    sa.Column("sliver", sa.Text, primary_key=True),
    _text("type"),
    _text("image"),
    _text("boot"),
    _text("machine"),
    _text("init"),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.ForeignKeyConstraint(["sliver"], ["slivers.id"], ondelete="CASCADE"),
)

# A snapshot covers a whole slice. A row for each of its slivers; made_at NULL: the agent has yet to create it.
snapshots = sa.Table(
    "snapshots",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    _text("slice"),
    _text("name"),
    _text("user"),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.ForeignKeyConstraint(["slice"], ["slices.id"], ondelete="CASCADE"),
    sa.UniqueConstraint("slice", "name"),
)

sliver_snapshots = sa.Table(
    "sliver_snapshots",
    metadata,
    sa.Column("snapshot", sa.Text, primary_key=True),
    sa.Column("sliver", sa.Text, primary_key=True, index=True),
    sa.Column("made_at", UtcTime),
    _number("size", server_default="0"),
    _empty("detail"),
    sa.ForeignKeyConstraint(["snapshot"], ["snapshots.id"], ondelete="CASCADE"),
    sa.ForeignKeyConstraint(["sliver"], ["slivers.id"], ondelete="CASCADE"),
)

# One row for each allocated port: blocks of different sizes cannot overlap.
ports = sa.Table(
    "ports",
    metadata,
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("port", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("sliver", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False, index=True),
    sa.ForeignKeyConstraint(["sliver"], ["slivers.serial"], ondelete="CASCADE"),
    sqlite_with_rowid=False,
)

# node: the first of its parts. An operation ends with its last part.
operations = sa.Table(
    "operations",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    _text("kind"),
    _text("state", index=True),
    _text("node"),
    _empty("slice_id"),
    _empty("slice_name"),
    _empty("image"),
    _empty("image_name"),
    _text("user"),
    sa.Column("params", sa.JSON, nullable=False),
    _empty("error"),
    _empty("hint"),
    sa.Column("result", sa.JSON(none_as_null=True)),
    _number("version", server_default="0"),
    sa.Column("created_at", UtcTime, nullable=False, index=True),
    sa.Column("started_at", UtcTime),
    sa.Column("finished_at", UtcTime, index=True),
    _empty("project"),
    sa.Index("ix_operations_slice_name", "slice_name"),
    sa.Index("ix_operations_project", "project"),
)

# What each node has to do for an operation, with the outcome there.
operation_parts = sa.Table(
    "operation_parts",
    metadata,
    sa.Column("operation", sa.Text, primary_key=True),
    sa.Column("node", sa.Text, primary_key=True),
    _text("state"),
    _empty("error"),
    _empty("hint"),
    sa.Column("result", sa.JSON(none_as_null=True)),
    sa.Column("started_at", UtcTime),
    sa.Column("finished_at", UtcTime),
    sa.ForeignKeyConstraint(["operation"], ["operations.id"], ondelete="CASCADE"),
    sa.Index("ix_operation_parts_state", "state", "node"),
    sqlite_with_rowid=False,
)

# The slivers of an operation, and the state of each: progress bars count them.
operation_slivers = sa.Table(
    "operation_slivers",
    metadata,
    sa.Column("operation", sa.Text, primary_key=True),
    sa.Column("sliver", sa.Text, primary_key=True),
    _text("state"),
    _empty("node"),
    sa.ForeignKeyConstraint(["operation"], ["operations.id"], ondelete="CASCADE"),
    sqlite_with_rowid=False,
)

operation_steps = sa.Table(
    "operation_steps",
    metadata,
    sa.Column("operation", sa.Text, primary_key=True),
    sa.Column("sliver", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    _text("state"),
    _empty("detail"),
    sa.Column("percent", sa.Integer),
    sa.Column("started_at", UtcTime, nullable=False),
    sa.Column("finished_at", UtcTime),
    sa.ForeignKeyConstraint(["operation"], ["operations.id"], ondelete="CASCADE"),
    sqlite_with_rowid=False,
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("at", UtcTime, nullable=False, index=True),
    _text("user"),
    _empty("project"),
    _empty("slice"),
    _text("action"),
    _empty("detail"),
    _empty("address"),  # the client; "": the node itself
    sa.Index("ix_events_slice", "slice"),
    sa.Index("ix_events_project", "project"),
    sqlite_autoincrement=True,
)

# The lease policy of a project; NULL: as the node. The longest lease is part of the quota. Durations are seconds.
lease_rules = sa.Table(
    "lease_rules",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("default", sa.BigInteger),
    sa.Column("window", sa.BigInteger),
    sa.Column("reminders", sa.JSON(none_as_null=True)),
    sa.Column("exempt", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.ForeignKeyConstraint(["project"], ["projects.name"], ondelete="CASCADE"),
)

# Outgoing mail. key: its cause, so that nothing is sent twice. recipient: copied, because it outlives the account.
mails = sa.Table(
    "mails",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    _text("user"),
    _text("recipient"),
    _empty("slice"),
    _empty("project"),
    _text("subject"),
    _text("body"),
    _text("state", index=True),
    _number("tries", server_default="0"),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("next_at", UtcTime, nullable=False),
    _empty("error"),
)

# One row. seen_at: the time by elapsed time. doubt: seconds by which the node's clock is ahead of
# that, 0 if they agree (see policy.leases). uptime: of the start `boot` of the machine, at the last update.
clock = sa.Table(
    "clock",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("seen_at", UtcTime, nullable=False),
    _number("doubt", server_default="0"),
    _empty("boot"),
    sa.Column("uptime", sa.Float, nullable=False, server_default=sa.text("0")),
)


def _some(name: str) -> sa.Column[int]:
    """A number that may be unknown."""
    return sa.Column(name, sa.BigInteger)


def _amount(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Float, nullable=False, server_default=sa.text("0"))


# Measurements: a cache that may be dropped. resolution: seconds in a row, 0: as measured. at: end of
# its span, seconds since 1970. seconds: its length; running: the part of it in which the sliver ran. Kernel
# counters (cpu, net, io) are stored as increments within the span, so rows can be summed and counters may restart.
# sliver: its serial; no foreign key, because rows of a deleted sliver remain until their retention ends.
samples = sa.Table(
    "samples",
    metadata,
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("resolution", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("sliver", sa.BigInteger, primary_key=True, autoincrement=False),
    *(_amount("seconds"), _amount("running")),
    *(_some("charged"), _some("working"), _some("guest"), _some("swap"), _some("charged_peak")),
    *(_some("disk"), _some("referenced"), _some("pids"), _some("connections")),
    *(_amount("cpu"), _amount("cpu_peak")),
    *(_number(name, server_default="0") for name in ("net_in", "net_out", "net_in_packets", "net_out_packets")),
    *(_number(name, server_default="0") for name in ("io_read", "io_written", "io_reads", "io_writes")),
    *(_number(name, server_default="0") for name in ("reclaimed", "reread", "pressure")),
    sqlite_with_rowid=False,
)

# The same of a node, one row for each sample; its times are also those of the slivers' rows.
node_samples = sa.Table(
    "node_samples",
    metadata,
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("resolution", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", sa.BigInteger, primary_key=True, autoincrement=False),
    _amount("seconds"),
    *(_some("memory"), _some("memory_total"), _some("swap"), _some("swap_total"), _some("memory_peak")),
    *(_some("disk"), _some("disk_total"), _some("pids"), _some("connections")),
    *(_amount("cpu"), _amount("cpu_peak"), _amount("load")),
    *(_number(name, server_default="0") for name in ("net_in", "net_out", "net_in_packets", "net_out_packets")),
    *(_number(name, server_default="0") for name in ("io_read", "io_written", "io_reads", "io_writes")),
    *(_number(name, server_default="0") for name in ("reclaimed", "reread", "pressure")),
    *(_number("lxc", server_default="0"), _number("kvm", server_default="0")),
    *(_amount("sample_seconds"), _amount("sample_cpu")),
    sqlite_with_rowid=False,
)

# The resource use of a project in a month (`2026-11`, UTC), summed as it is measured. Hours, GiB × hours, bytes.
accounts = sa.Table(
    "accounts",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("month", sa.Text, primary_key=True),
    *(_amount("sliver_hours"), _amount("cpu_hours"), _amount("memory_gib_hours"), _amount("disk_gib_hours")),
    *(_number(name, server_default="0") for name in ("net_in", "net_out", "io_read", "io_written")),
    sqlite_with_rowid=False,
)

# The last audit of each node. rows: [{"row", "kind", "expected", "seen", "verdict"}]; failed: how many of them fail.
audits = sa.Table(
    "audits",
    metadata,
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("began_at", UtcTime, nullable=False),
    sa.Column("ended_at", UtcTime, nullable=False),
    _text("user"),
    _text("version"),
    _number("failed"),
    sa.Column("rows", sa.JSON, nullable=False),
)

# Reports of experiments for the testbed's people. sha256: of the archive that they came in. The files themselves lie in
# a folder named by the id; files: [{"name", "size"}]. public: visible to all users, otherwise to admins.
experiments = sa.Table(
    "experiments",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    _text("name"),
    _text("kind"),
    _empty("node"),
    _text("summary"),
    _empty("note"),
    sa.Column("public", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("started_at", UtcTime),
    sa.Column("published_at", UtcTime, nullable=False, index=True),
    _text("published_by"),
    _number("size"),
    _text("sha256", unique=True),
    sa.Column("files", sa.JSON, nullable=False),
)

# Each restore of a backup begins a new incarnation of the database. ended_at NULL: on hold, see store.incarnation.
incarnations = sa.Table(
    "incarnations",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("backup_at", UtcTime, nullable=False),
    sa.Column("began_at", UtcTime, nullable=False),
    sa.Column("ended_at", UtcTime),
)

# How a node differs from the rows, reported by its agent during a hold. found: see model.Difference.
host_reports = sa.Table(
    "host_reports",
    metadata,
    sa.Column("node", sa.Text, primary_key=True),
    _number("incarnation"),
    sa.Column("at", UtcTime, nullable=False),
    sa.Column("found", sa.JSON, nullable=False),
)

# Slivers that exist on a node without a row during a hold. record: see slicemgr.sliver_record; NULL: unreadable.
# released: an admin has released it, and the agent is to remove it. detail: why that failed.
unclaimed = sa.Table(
    "unclaimed",
    metadata,
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("sliver", sa.Text, primary_key=True),
    _text("state"),
    sa.Column("record", sa.JSON(none_as_null=True)),
    sa.Column("snapshots", sa.JSON, nullable=False),
    sa.Column("released", sa.Boolean, nullable=False, server_default=sa.false()),
    _empty("detail"),
)
