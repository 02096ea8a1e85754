"""Conditions of a query, the same in every dialect but for their places."""

from __future__ import annotations

from typing import Any

from surehold.storage.base import RecordQuery, RunQuery
from surehold.storage.rows.keys import micros


def conditions_of_runs(query: RunQuery, place: str) -> tuple[list[str], dict[str, Any]]:
    """The conditions on a run ``u``, and their values.

    *place* is the place of a value, with ``{}`` for its name.
    """
    wanted = {
        "run_id": ("u.run_id =", query.run_id),
        "name": ("u.name =", query.name),
        "status": ("u.status =", query.status),
        "not_status": ("u.status <>", query.not_status),
    }
    return _conditions(wanted, place)


def conditions_of_times(query: RecordQuery, place: str) -> tuple[list[str], dict[str, Any]]:
    """The conditions on the time of a record ``r``, as those of `conditions_of_runs`."""
    wanted = {
        "since": ("r.at >=", None if query.since is None else micros(query.since)),
        "until": ("r.at <=", None if query.until is None else micros(query.until)),
    }
    return _conditions(wanted, place)


def _conditions(wanted: dict[str, tuple[str, Any]], place: str) -> tuple[list[str], dict[str, Any]]:
    values = {name: value for name, (_, value) in wanted.items() if value is not None}
    return [f"{wanted[name][0]} {place.format(name)}" for name in values], values
