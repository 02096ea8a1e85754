"""Runs in a PostgreSQL schema, shared by any number of processes and machines.

An append is one call of a function that the schema holds, so it is one round trip and its
decision and its commit are one step. Needs the extra `postgres`.
"""

from __future__ import annotations

from surehold.storage.postgres.storage import PostgresStorage as PostgresStorage
