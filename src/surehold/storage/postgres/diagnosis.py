"""Facts about a PostgreSQL server, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from surehold.storage.base import Fact
from surehold.storage.postgres.schema import VERSION, missing_indexes, version_of
from surehold.storage.postgres.statement import is_direct
from surehold.storage.shared import measure

_FULL = 0.9
"""The part of all connections in use from which on it is a problem."""

_LOSSY = {
    ("fsync", "off"): (
        "a power cut can lose commits and damage the database",
        "fsync = on in postgresql.conf, then restart the server",
    ),
    ("full_page_writes", "off"): (
        "a power cut can damage pages, unless the file system never tears one",
        "full_page_writes = on in postgresql.conf, then reload",
    ),
    ("synchronous_commit", "off"): (
        "a save returns before it is on disk: a crash loses the newest ones",
        "ALTER ROLE {role} SET synchronous_commit = on",
    ),
}


def diagnose(db: psycopg.Connection, schema: str) -> list[Fact]:
    """Version, latency, durability, clock, schema and rights of this connection."""
    role, version = _one(db, "SELECT current_user, current_setting('server_version')")
    return [
        Fact("server", f"PostgreSQL {version}"),
        *measure(lambda: float(_one(db, "SELECT extract(epoch FROM clock_timestamp())")[0])),
        *_durability(db, role),
        *_connection(db),
        *_schema(db, schema),
        *_rights(db, schema, role),
    ]


def _durability(db: psycopg.Connection, role: str) -> list[Fact]:
    facts = []
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        value = str(_one(db, "SELECT current_setting(%s)", name)[0])
        problem, hint = _LOSSY.get((name, value), ("", ""))
        facts.append(Fact(name, value, problem, hint.format(role=role)))
    names = ("data_checksums", "synchronous_standby_names")
    sums, standbys = (str(_one(db, "SELECT current_setting(%s)", name)[0]) for name in names)
    facts.append(Fact("data_checksums", sums))
    facts.append(Fact("synchronous standbys", standbys or "none"))
    if _one(db, "SELECT pg_is_in_recovery()")[0]:
        facts.append(
            Fact(
                "role of the server",
                "standby",
                "it is read-only",
                "connect to the primary, or add target_session_attrs=read-write to the address",
            )
        )
    return facts


def _connection(db: psycopg.Connection) -> list[Fact]:
    used, most = _one(
        db,
        "SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),"
        " current_setting('max_connections')::int",
    )
    crowded = used >= most * _FULL
    facts = [
        Fact(
            "connections",
            f"{used} of {most}",
            "almost all are in use" if crowded else "",
            "lower pool= of the address, or put a pooler in between" if crowded else "",
        )
    ]
    local = not db.info.host or db.info.host.startswith("/") or db.info.hostaddr in _LOOPBACK
    if db.pgconn.ssl_in_use:
        facts.append(Fact("encryption", "TLS"))
    else:
        facts.append(
            Fact(
                "encryption",
                "none",
                "" if local else "runs cross the network in the clear",
                "" if local else "add sslmode=verify-full to the address",
            )
        )
    direct = is_direct(db)
    facts.append(Fact("watching", "by notifications" if direct else "by polling: a pooler"))
    return facts


_LOOPBACK = ("127.0.0.1", "::1")


def _schema(db: psycopg.Connection, schema: str) -> list[Fact]:
    lacking = missing_indexes(db, schema)
    return [
        Fact("schema", f"{schema}, format {version_of(db, schema)} of {VERSION}"),
        Fact(
            "indexes",
            f"missing: {', '.join(lacking)}" if lacking else "complete",
            "listings and saves read whole tables" if lacking else "",
            "surehold repair -s URL creates them" if lacking else "",
        ),
    ]


def _rights(db: psycopg.Connection, schema: str, role: str) -> list[Fact]:
    """The rights that this role lacks, each with the statement that grants it."""
    lacking = [str(row[0]) for row in db.execute(_LACKING, {"schema": schema}).fetchall()]
    name = sql.Identifier(schema).as_string(None)
    grants = {
        "tables": f"SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {name}",
        "sequences": f"USAGE ON ALL SEQUENCES IN SCHEMA {name}",
        "functions": f"EXECUTE ON ALL FUNCTIONS IN SCHEMA {name}",
    }
    to = sql.Identifier(role).as_string(None)
    return [
        Fact(
            "rights",
            role,
            f"it lacks rights on {', '.join(lacking)}" if lacking else "",
            "; ".join(f"GRANT {grants[one]} TO {to}" for one in lacking),
        )
    ]


_LACKING = """
SELECT DISTINCT CASE c.relkind WHEN 'r' THEN 'tables' ELSE 'sequences' END
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'S') AND NOT CASE c.relkind
    WHEN 'S' THEN has_sequence_privilege(c.oid, 'USAGE')
    ELSE has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
        AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE') END
UNION SELECT 'functions' FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = %(schema)s AND NOT has_function_privilege(p.oid, 'EXECUTE')
ORDER BY 1 DESC"""


def _one(db: psycopg.Connection, statement: str, *values: object) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = db.execute(statement, values or None).fetchone()
    assert row is not None
    return row
