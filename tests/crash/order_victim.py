"""A run whose steps write rows in transactions of the user's own database, to be killed."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg

import surehold

SHOP: dict[str, str] = {}
TELL: list[Callable[..., None]] = []
"""Tells the parent of each call that begins."""


def connect() -> Any:
    if SHOP["schema"]:
        return psycopg.connect(SHOP["address"], options=f"-c search_path={SHOP['schema']}")
    return sqlite3.connect(SHOP["address"], timeout=60)


@surehold.step(transaction=connect)
def order(connection: Any, name: str, number: int) -> int:
    TELL[0]("ordering", number)
    mark = "%s" if SHOP["schema"] else "?"
    insert = f"INSERT INTO orders(run, number, pid) VALUES ({mark}, {mark}, {mark}) RETURNING id"
    row: tuple[int] = connection.execute(insert, (name, number, os.getpid())).fetchone()
    return row[0]


@surehold.workflow
def orders(name: str, steps: int) -> list[int]:
    return [order(name, number) for number in range(steps)]


def execute(
    tell: Callable[..., None], run_id: str, storage: str, address: str, schema: str, steps: int
) -> None:
    SHOP.update(address=address, schema=schema)
    TELL[:] = [tell]
    tell("ended", orders.run(run_id, steps, run_id=run_id, storage=storage).value)
