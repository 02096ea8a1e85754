"""Changes of runs as PostgreSQL notifies of them, on a connection of its own."""

from __future__ import annotations

import threading
import time
from uuid import uuid4

import psycopg
from psycopg import sql

from surehold.storage.notifications import ChangeListener
from surehold.storage.postgres.connections import Connections
from surehold.storage.postgres.queries import Queries
from surehold.storage.postgres.statement import is_direct
from surehold.storage.shared import to_text

_SLICE = 0.5
_ANNOUNCE_EVERY = 20.0
_ANNOUNCED_FOR = 60


class PostgresListener(ChangeListener):
    """Listens on *channel*; appends notify while the table `watchers` has somebody."""

    def __init__(self, db: Connections, queries: Queries, channel: str) -> None:
        super().__init__()
        self._db = db
        self._queries = queries
        self._channel = sql.Identifier(channel)

    def listen(self, stop: threading.Event) -> bool:
        with self._db.connect() as db:
            if not is_direct(db):
                return False
            me = uuid4()
            try:
                self._announce(db, me)
                db.execute(sql.SQL("LISTEN {}").format(self._channel))
                self.is_live = True
                self.tell(None)
                self._hear(db, me, stop)
            finally:
                if not db.closed:
                    db.execute(self._queries.leave, (me,))
        return True

    def _hear(self, db: psycopg.Connection, me: object, stop: threading.Event) -> None:
        announced = time.monotonic()
        while not stop.is_set():
            for one in db.notifies(timeout=_SLICE):
                self.tell(to_text(bytes.fromhex(one.payload)) if one.payload else None)
                if stop.is_set():
                    return
            if time.monotonic() - announced > _ANNOUNCE_EVERY:
                announced = time.monotonic()
                self._announce(db, me)

    def _announce(self, db: psycopg.Connection, me: object) -> None:
        db.execute(self._queries.announce, (me, _ANNOUNCED_FOR))
