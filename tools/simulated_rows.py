"""The rows of a large testbed, written in bulk into an empty database on PostgreSQL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.types.json import Json

from slicemgr import names
from slicemgr.model import GIB, MIB
from slicemgr.policy.allocate import UID_FIRST

IMAGE, SHA = "debian-12", "ab" * 32
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDZL+rD/vRwJyc8ynlZ34fozFD0H1+ae81XD1/BIyS4U"
TOGETHER = 10  # slivers of a slice, each on a node of its own
_PER_PROJECT = 100  # slices
_FIRST_ADDRESS = 0x0A4D0001  # 10.77.0.1
_MEMORY, _DISK = 32 * MIB, 64 * MIB

# The size of the facts of a real node: they travel in beats, and placement reads them.
FACTS: dict[str, Any] = {
    "slicemgr": "0",
    "kernel": "6.1.0-28-amd64",
    "cpus": 64,
    "memory": 512 * GIB,
    "memory_available": 400 * GIB,
    "cgroup": 2,
    "io_weight": True,
    "net_rate": True,
    "net_rate_missing": [],
    "machine": "x86_64",
    "addresses": "10.77.0.0/16",
    "ports_first": 10000,
    "ports_last": 59999,
    "start_wait": {"lxc": 60.0, "kvm": 300.0},
    "boot_id": "0f5e4b8e-7c6a-4b7e-9f62-1f8f6f8e3c11",
    "cpu_model": "AMD EPYC 7543 32-Core Processor",
    "swap_total": 0,
    "swap_free": 0,
    "load": 1.0,
    "pids": 4000,
    "pids_max": 4194304,
    "disk_total": 4096 * GIB,
    "disk_used": 1024 * GIB,
    "disk_free": 3072 * GIB,
    "metadata_used": GIB,
    "metadata_free": 10 * GIB,
    "filesystem": "btrfs",
    "quota": "simple",
    "libvirt_lxc": "9.0.0",
    "libvirt_kvm": "9.0.0",
    "acceleration": "kvm",
    "acceleration_reason": "/dev/kvm",
    "uefi": True,
    "kinds": {"lxc": True, "kvm": True},
    "kinds_reason": {},
    "inits": {"minimal": True, "systemd": True},
    "inits_reason": "",
}


def identity(number: int) -> str:
    return f"node-{number:016x}"


def name(number: int) -> str:
    return f"n{number:04}"


def fill(url: str, nodes: int, slivers: int, ports: int) -> None:
    """Insert nodes with certificates, and slices over them. url: of the superuser. ports: of each sliver."""
    now = datetime.now(UTC).replace(tzinfo=None)
    slices = slivers // TOGETHER
    projects = max(1, -(-slices // _PER_PROJECT))
    with psycopg.connect(url) as connection:
        connection.execute("SET session_replication_role = replica")  # foreign keys hold by construction
        connection.execute("SET maintenance_work_mem = '512MB'")
        indexes = [again for table in ("slivers", "ports") for again in _without_indexes(connection, table)]
        _nodes(connection, nodes, now)
        _copy(connection, "users", ("name", "admin", "created_at"), ((f"u{n:05}", False, now) for n in range(projects)))
        _copy(connection, "projects", ("name", "created_at"), ((f"p{n:05}", now) for n in range(projects)))
        members = ((f"p{n:05}", f"u{n:05}", "pi", now) for n in range(projects))
        _copy(connection, "members", ("project", "user", "role", "created_at"), members)
        image = (SHA, IMAGE, "qcow2", 1, 1, "x86_64", "Debian 12", "{}", "ready", now)
        columns = ("sha256", "name", "format", "virtual_size", "file_size", "arch", "os", "boot", "state", "created_at")
        _copy(connection, "images", columns, [image])
        _slices(connection, nodes, slices, ports, now)
        for again in indexes:
            connection.execute(again)
        connection.execute(  # as allocations leave them: the next ones follow the last
            "UPDATE nodes SET next_address = given, next_uid = given, next_port = given * %s "
            "FROM (SELECT node, count(*) AS given FROM slivers GROUP BY 1) AS of WHERE node = name",
            (ports,),
        )
        connection.execute(
            "INSERT INTO allocations (node, slivers, memory, disk, ports, memory_total, disk_total, ports_total) "
            "SELECT nodes.name, count(serial), coalesce(sum(memory), 0), coalesce(sum(disk), 0), "
            "coalesce(sum(port_count), 0), %s, %s, 50000 FROM nodes LEFT JOIN slivers ON node = nodes.name GROUP BY 1",
            (FACTS["memory"], FACTS["disk_total"]),
        )
        connection.commit()
        connection.autocommit = True
        connection.execute("VACUUM ANALYZE")


def _without_indexes(connection: psycopg.Connection[Any], table: str) -> list[bytes]:
    """Drop the indexes of an empty table. Returns the statements that make them again, which is faster afterwards."""
    connection.execute(f"TRUNCATE {table} CASCADE".encode())  # the rows that follow in this transaction need no log
    constraints = connection.execute(
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE conrelid = %s::regclass AND contype IN ('u', 'p') AND NOT EXISTS "
        "(SELECT FROM pg_constraint AS other WHERE other.contype = 'f' AND other.conindid = pg_constraint.conindid)",
        (table,),
    ).fetchall()
    again = [f"ALTER TABLE {table} ADD CONSTRAINT {name} {text}" for name, text in constraints]
    for name, _ in constraints:
        connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}".encode())
    rest = connection.execute(
        "SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index "
        "WHERE indrelid = %s::regclass AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)",
        (table,),
    ).fetchall()
    for name, _ in rest:
        connection.execute(f"DROP INDEX {name}".encode())
    return [one.encode() for one in (*again, *(text for _, text in rest))]


def _nodes(connection: psycopg.Connection[Any], count: int, now: datetime) -> None:
    numbers = range(count)
    columns: tuple[str, ...] = ("name", "address", "facts", "site", "state", "identity", "agent_seen_at")
    rows = ((name(n), "192.0.2.1", Json(FACTS), f"s{n % 20:02}", "active", identity(n), now) for n in numbers)
    _copy(connection, "nodes", columns, rows)
    until = now + timedelta(days=90)
    columns = ("serial", "identity", "certificate", "issued_at", "expires_at")
    _copy(connection, "certificates", columns, ((str(n), identity(n), "", now, until) for n in numbers))


def _slices(connection: psycopg.Connection[Any], nodes: int, count: int, ports: int, now: datetime) -> None:
    """Slice after slice on the next nodes, so that all nodes have the same number of slivers."""
    tags = itertools.islice(itertools.product(names.ALPHABET, repeat=names.TAG_LENGTH), count)
    ids = ["".join(one) for one in tags]
    columns: tuple[str, ...] = (
        "id",
        "name",
        "project",
        "owner",
        "kind",
        "image",
        "count",
        "ssh_keys",
        "created_at",
        "expires_at",
    )
    until = now + timedelta(days=30)
    rows = (
        (
            *(id_, f"exp-{n:06}", f"p{n // _PER_PROJECT:05}", f"u{n // _PER_PROJECT:05}", "lxc", SHA, TOGETHER),
            *(f'["{KEY}"]', now, until),
        )
        for n, id_ in enumerate(ids)
    )
    _copy(connection, "slices", columns, rows)
    columns = ("serial", "id", "slice", "idx", "node", "desired", "phase", "address", "uid_first", "port_first")
    columns += ("port_count", "memory", "disk", "pids", "cpu", "cpu_shares", "updated_at")
    _copy(connection, "slivers", columns, _slivers(ids, nodes, ports, now))
    connection.execute("SELECT setval(pg_get_serial_sequence('slivers', 'serial'), %s)", (count * TOGETHER + 1,))
    connection.execute(
        "INSERT INTO ports (node, port, sliver) "
        "SELECT node, generate_series(port_first, port_first + port_count - 1), serial FROM slivers"
    )


def _slivers(ids: list[str], nodes: int, ports: int, now: datetime) -> Iterator[tuple[Any, ...]]:
    serial = 0
    for id_ in ids:
        for index in range(TOGETHER):
            place, there = serial % nodes, serial // nodes
            serial += 1
            address = _FIRST_ADDRESS + there
            dotted = ".".join(str(address >> shift & 255) for shift in (24, 16, 8, 0))
            yield (
                *(serial, f"{id_}-{index}", id_, index, name(place), "running", "running", dotted),
                *(UID_FIRST + (there << 16), 10000 + there * ports, ports, _MEMORY, _DISK, 100, 1.0, 1024, now),
            )


def _copy(connection: psycopg.Connection[Any], table: str, columns: tuple[str, ...], rows: Any) -> None:
    named = ", ".join(f'"{one}"' for one in columns)
    with connection.cursor().copy(f"COPY {table} ({named}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
