"""Damage in a Redis server: records that changed, and indexes that lack some.

The keys of a run hold all that is known of it, so the indexes are rebuilt from them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from surehold.core.records import Record
from surehold.errors import UsageError
from surehold.storage.base import Inspection
from surehold.storage.redis.connections import ServerConnections
from surehold.storage.redis.indexes import Indexes
from surehold.storage.redis.keys import KeyNames, member_of
from surehold.storage.redis.rows import record_at, rewrite_values
from surehold.storage.redis.scripts import EXPECTED, REWRITE
from surehold.storage.shared import (
    Salvage,
    check_head,
    checked_run,
    first_head,
    inspect_missing,
    moment,
    rebuilt_head,
    run_missing,
    to_text,
)

_PAGE = 512


def known_runs(db: ServerConnections, keys: KeyNames) -> list[str]:
    """The ids of all runs that have keys, listed or not, by ordinal."""
    heads = db.scan(keys.of_all(b"head"))
    ordinals = db.ask_all([("HGET", head, "ordinal") for head in heads])
    found = sorted(zip((int(one or 0) for one in ordinals), heads, strict=True))
    return [keys.run_of(head, b"head") for _, head in found]


def lost_runs(db: ServerConnections, keys: KeyNames, *, together: bool) -> list[str]:
    """The ids of runs that have records, or are listed, and have no head.

    Unless indexes change *together* with runs, a list may have some that were deleted.
    """
    there = {key.removesuffix(b"meta") for key in db.scan(keys.of_all(b"meta"))}
    if together:
        listed = db.ask("ZRANGE", keys.index + b"runs", 0, -1)
        there |= {keys.run(to_text(run)) for run in listed}
    there -= {key.removesuffix(b"head") for key in db.scan(keys.of_all(b"head"))}
    return sorted(keys.run_of(key, b"") for key in there)


def check_indexes(db: ServerConnections, keys: KeyNames, indexes: Indexes) -> list[str]:
    """Describe runs and records that the indexes lack, and entries without a record."""
    indexes.settle()
    runs = known_runs(db, keys)
    problems = [
        f"the indexes lack {count} entries of run {run!r}"
        for run in runs
        if (count := _lacking(db, indexes, run))
    ]
    listed = {to_text(run) for run in db.ask("ZRANGE", keys.index + b"runs", 0, -1)}
    problems += [
        f"run {run!r} is listed and is not there" for run in sorted(listed.difference(runs))
    ]
    stale = sum(_stale(db, keys, keys.index + name) for name in (b"c", b"n"))
    if stale:
        problems.append(f"the indexes have {stale} entries without a record")
    return problems


def rebuild_indexes(db: ServerConnections, keys: KeyNames, indexes: Indexes) -> list[str]:
    """Make all indexes anew from the runs; returns what was wrong with them.

    An append that comes meanwhile enters itself.
    """
    problems = check_indexes(db, keys, indexes)
    if not problems:
        return []
    kept = {keys.index + name for name in (b"ordinals", b"announced", b"format")}
    db.ask_all([("UNLINK", key) for key in db.scan(keys.index + b"*") if key not in kept])
    runs = known_runs(db, keys)
    for run in runs:
        indexes.reindex(run, 0)
    ordinals = db.ask_all([("HGET", keys.run(run) + b"head", "ordinal") for run in runs])
    highest = max((int(one or 0) for one in ordinals), default=0)
    counter = keys.index + b"ordinals"
    if int(db.ask("GET", counter) or 0) < highest:
        db.store([("SET", counter, highest)])
    return [*problems, f"the indexes of {len(runs)} runs were rebuilt"]


def inspect_run(
    db: ServerConnections, keys: KeyNames, run_id: str, *, together: bool
) -> Inspection | None:
    """Tell which records of a run are whole."""
    run = keys.run(run_id)
    seq, digest = db.ask("HMGET", run + b"head", "seq", "digest")
    if seq is None and run_id not in lost_runs(db, keys, together=together):
        return None
    names, metas = db.ask_all([("HKEYS", run + b"headers"), ("HGETALL", run + b"meta")])
    known = dict(metas)
    seqs = sorted({*map(int, names), *map(int, known)})
    salvage = Salvage(run_id)
    salvage.hidden = {int(at) for at, meta in known.items() if meta.split(b" ", 3)[2] == b"1"}
    for start in range(0, len(seqs), _PAGE):
        page = seqs[start : start + _PAGE]
        rows, bodies = db.ask_all(
            [("HMGET", run + b"headers", *page), ("HMGET", run + b"bodies", *page)]
        )
        for at, row, body in zip(page, rows, bodies, strict=True):
            salvage.add(partial(record_at, run_id, at, row, body))
            if b"%d" % at not in known:
                salvage.problems.append(f"record {at} of run {run_id!r} is in no list")
    newest = salvage.records[-1].header if salvage.records else None
    if seq is None and newest is None:
        return inspect_missing(run_id, run_missing(run_id).message)
    if seq is None and newest is not None:
        seq, digest = b"%d" % newest.seq, newest.digest.encode()
        told = f"run {run_id!r} has {len(salvage.records)} records and no head"
        salvage.problems.append(told)
    salvage.ends_at(int(seq), digest.decode())
    return salvage.inspection(int(seq))


def rewrite_run(
    db: ServerConnections,
    indexes: Indexes,
    run_id: str,
    records: Sequence[Record],
    hidden: Collection[int],
    head: int,
) -> str:
    """Make a run just these records; the rest moves to the key whose name is returned."""
    opened = checked_run(run_id, records)
    new = None
    if opened:
        new = rebuilt_head(first_head(opened[0].header, 0), opened, hidden)
    values = rewrite_values(head, moment(), new, opened, hidden)
    ((done, where, changes),) = db.store([indexes.call(REWRITE, run_id, *values)])
    if done < 0:
        raise UsageError(f"there is no run {run_id!r} to repair", run_id=run_id)
    if not done:
        check_head(run_id, head, int(where))
    indexes.change([(run_id, changes)])
    return to_text(where)


def _lacking(db: ServerConnections, indexes: Indexes, run_id: str) -> int:
    """Count the entries of a run that its own lists and the indexes lack."""
    wrong, expected = db.ask(*indexes.call(EXPECTED, run_id))
    found = db.ask_all([("ZSCORE", key, member) for _, key, _, member in expected])
    return int(wrong) + found.count(None)


def _stale(db: ServerConnections, keys: KeyNames, index: bytes) -> int:
    """Count the members of an index that have no record."""
    count, cursor = 0, 0
    while True:
        cursor, page = db.ask("ZSCAN", index, cursor, "COUNT", _PAGE)
        wanted = [member_of(member) for member, _ in page]
        calls = [("HEXISTS", keys.run(run) + b"meta", seq) for seq, run in wanted]
        count += sum(not found for found in db.ask_all(calls))
        if not int(cursor):
            return count
