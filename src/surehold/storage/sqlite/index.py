"""Listings in SQL, each sorted as asked for; a page costs what it holds."""

from __future__ import annotations

from typing import Any

from surehold.storage.base import RecordQuery
from surehold.storage.rows import HIDDEN, NOTE, Listing, conditions_of_times, query_keys
from surehold.storage.shared import COMMON_KIND


def listing(query: RecordQuery, run: int | None) -> Listing:
    """The listing of what *query* wants, and perhaps more; *run* is its run's key.

    Its rows are still to be compared with the query.
    """
    keys = query_keys(query, run)
    if run is not None and query.tag is None and query.kind in (None, COMMON_KIND):
        if query.notes or query.scope is None:
            return _of_run(query, run, keys)
        if query.scope == "":
            return _of_run_itself(query, run, keys)
    values = _values(keys)
    if not keys:
        wanted = _conditions(query, 0, 0, values)
        rows = f"SELECT r.ord, {_ROW} FROM records r CROSS JOIN runs u ON u.pk = r.run"
        return Listing(
            f"{rows} WHERE r.ord < :bound AND {wanted} ORDER BY r.ord DESC LIMIT :size", values
        )
    wanted = _conditions(query, 1, len(keys), values)
    if run is not None:
        wanted += " AND r.run = :run"
        values["run"] = run
    arms = (
        f"SELECT m.ord, {_ROW} FROM marks m CROSS JOIN records r ON r.ord = m.ord"
        f" CROSS JOIN runs u ON u.pk = r.run"
        f" WHERE m.key = :key0 AND m.note = {note} AND m.ord < :bound AND {wanted}"
        for note in ((0, NOTE) if query.notes else (0,))
    )
    return Listing(f"{' UNION ALL '.join(arms)} ORDER BY 1 DESC LIMIT :size", values)


_ROW = "r.seq, r.digest, u.run_id, CAST(r.header AS BLOB)"
_RUN = "FROM runs u CROSS JOIN records r ON r.run = u.pk WHERE u.pk = :run AND r.seq <"


def _of_run(query: RecordQuery, run: int, keys: list[bytes]) -> Listing:
    """All records of a run, so that a missing one is noticed."""
    values = _values(keys) | {"run": run}
    wanted = _conditions(query, 0, len(keys), values)
    sql = (
        "SELECT r.seq, r.seq, CAST(r.digest AS BLOB), u.run_id,"
        f" CASE WHEN {wanted} THEN CAST(r.header AS BLOB) END"
        f" {_RUN} :bound ORDER BY r.seq DESC LIMIT :size"
    )
    return Listing(sql, values, by_seq=True, whole=True)


def _of_run_itself(query: RecordQuery, run: int, keys: list[bytes]) -> Listing:
    """The checkpoints in scope "", newest first, even if notes follow the newest."""
    values = _values(keys) | {"run": run}
    wanted = _conditions(query, 0, len(keys), values)
    sql = (
        f"SELECT r.seq, {_ROW} {_RUN} min(:bound, u.latest + 1) AND r.state = 0 AND {wanted}"
        " ORDER BY r.seq DESC LIMIT :size"
    )
    return Listing(sql, values, by_seq=True)


def _values(keys: list[bytes]) -> dict[str, Any]:
    return {f"key{n}": key for n, key in enumerate(keys)}


def _conditions(query: RecordQuery, first: int, last: int, values: dict[str, Any]) -> str:
    """The conditions of a row, with marks for the keys from *first* to *last*."""
    conditions, times = conditions_of_times(query, ":{}")
    values |= times
    conditions.append(f"r.state & {HIDDEN if query.notes else HIDDEN | NOTE} = 0")
    conditions += (
        "EXISTS (SELECT 1 FROM marks x WHERE"
        f" x.key = :key{n} AND x.note = (r.state & {NOTE}) AND x.ord = r.ord)"
        for n in range(first, last)
    )
    return " AND ".join(conditions)
