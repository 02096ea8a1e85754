"""Indexes over runs: kept in the step of an append, or beside it in a cluster.

On one server the scripts keep them. In a cluster the keys of a run and the indexes are on different
servers: a script returns the changes, and they are made afterwards. An append is announced before
and withdrawn when its changes are made, so that a listing can make those of a writer that died.
An index may therefore have entries too many, which readers leave out, and lacks none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import uuid4

from surehold.storage.redis.connections import Call, ServerConnections
from surehold.storage.redis.keys import KeyNames
from surehold.storage.redis.scripts import ANNOUNCE, ANNOUNCED, REINDEX, Script
from surehold.storage.shared import to_bytes, to_text

NO_END = 1 << 53
_FORGET_AFTER = 3600
"""Seconds after which an announced append is taken for one that will never be made."""


class Indexes:
    """The indexes below one prefix; *together* if on the server that has the runs."""

    def __init__(self, db: ServerConnections, keys: KeyNames, *, together: bool) -> None:
        self._db = db
        self._keys = keys
        self.together = together

    def call(self, script: Script, run_id: str, *values: Any) -> Call:
        """A call of a script for a run."""
        where = b"1" if self.together else b"0"
        return script, self._keys.run(run_id), self._keys.index, to_bytes(run_id), where, *values

    def ordinals(self, count: int) -> list[bytes]:
        """Numbers for runs that may begin; empty where the script takes its own."""
        if self.together or not count:
            return [b""] * count
        (last,) = self._db.store([("INCRBY", self._keys.index + b"ordinals", count)])
        return [b"%d" % number for number in range(last - count + 1, last + 1)]

    def announce(self, appends: Iterable[tuple[str, int]]) -> list[bytes]:
        """Tell that records from a seq on are about to be appended to runs."""
        if self.together:
            return []
        known = [b"%d:%s:%s" % (seq, _token(), to_bytes(run_id)) for run_id, seq in appends]
        if known:
            self._db.store([(ANNOUNCE, self._keys.index, b"", b"", b"", *known)])
        return known

    def change(
        self, changes: Iterable[tuple[str, Sequence[Any]]], announced: Sequence[bytes] = ()
    ) -> None:
        """Make the changes that scripts returned for runs; withdraw what was *announced*."""
        made = list(changes)
        calls = [tuple(change) for _, some in made for change in some]
        if announced:
            calls.append(("ZREM", self._keys.index + b"announced", *announced))
        self._db.store(calls)
        lists = (self._keys.index + b"runs", self._keys.index + b"open")
        moved = {run_id for run_id, some in made if any(one[1].startswith(lists) for one in some)}
        for run_id in moved:
            # Another append may have moved the run meanwhile, and its changes been made before.
            self.reindex(run_id, NO_END)

    def reindex(self, run_id: str, first: int) -> None:
        """Enter a run and its records from *first* on."""
        _, changes = self._db.ask(*self.call(REINDEX, run_id, first, NO_END))
        self._db.store([tuple(change) for change in changes])

    def settle(self) -> None:
        """Make the changes of appends that were announced and not withdrawn."""
        if self.together:
            return
        now, *rows = self._db.ask(ANNOUNCED, self._keys.index, b"", b"", b"")
        for member, at in zip(rows[::2], rows[1::2], strict=True):
            seq, _, run = member.split(b":", 2)
            self.reindex(to_text(run), int(seq))
            if int(now) - int(float(at)) > _FORGET_AFTER * 1_000_000:
                self.change([], [member])


def _token() -> bytes:
    return uuid4().hex.encode()
