"""States of older versions, brought up to date as they are loaded.

What is stored is never changed; a state is upgraded each time it is read, until it is saved again.

>>> states = Migrations()
>>> states.register("order", 1, 2, lambda state: {"total": state["sum"]})
>>> states.register("order", 2, 3, lambda state: state | {"currency": "EUR"})
>>> states.upgrade("order", 1, {"sum": 5})
({'total': 5, 'currency': 'EUR'}, 3)
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from surehold.errors import SchemaError, UsageError

Migration: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Takes the values of a state and returns those of a later version. It may change what it gets."""

_Steps: TypeAlias = dict[int, dict[int, Migration]]


class Migrations:
    """Migrations of states, by name and version."""

    def __init__(self) -> None:
        self.by_name: dict[str, _Steps] = {}

    def register(self, name: str, from_version: int, to_version: int, fn: Migration) -> None:
        """Let *fn* bring states of *name* from one version to a later one.

        Of several ways to a version the one with the fewest migrations is taken, so there may be
        only one of that length: a second is a `UsageError`, and leaves everything as it was.
        """
        _check_version(from_version)
        if _check_version(to_version) <= from_version:
            raise UsageError(
                f"a migration of {name!r} goes from version {from_version} to {to_version}",
                hint="to_version must be the larger one",
            )
        if not callable(fn):
            raise UsageError(f"a migration must be a function, not {type(fn).__name__}")
        known = self.by_name.get(name, {})
        if to_version in known.get(from_version, {}):
            raise UsageError(
                f"{name!r} already has a migration from version {from_version} to {to_version}",
                hint=f"it is {_called(known[from_version][to_version])}; register each once",
            )
        steps = {start: dict(ways) for start, ways in known.items()}
        steps.setdefault(from_version, {})[to_version] = fn
        for start in steps:
            _check_unambiguous(name, start, steps)
        self.by_name[name] = steps

    def latest(self, name: str) -> int:
        """The newest version of *name* that a migration leads to; 0 if there is none."""
        ways = self.by_name.get(name)
        return max(version for way in ways.values() for version in way) if ways else 0

    def upgrade(
        self, name: str, version: int, state: Mapping[str, Any], *, to: int | None = None
    ) -> tuple[dict[str, Any], int]:
        """Bring the values of *state* from *version* to *to*, by default the latest.

        Migrations get a copy, so *state* itself never changes.
        A version that is newer than *to*, or from which nothing leads there, is a `SchemaError`
        with `.name`, `.version` and `.known`; so is a migration that fails.
        """
        target = self.latest(name) if to is None else _check_version(to)
        if _check_version(version) > target:
            raise SchemaError(
                f"the state of {name!r} has version {version}; this code knows up to {target}",
                hint="it was saved by newer code: update this one",
                name=name,
                version=version,
                known=target,
            )
        steps = self.by_name.get(name, {})
        path = _shortest(version, steps).get(target)
        if path is None:
            raise SchemaError(
                f"no migration leads from version {version} of {name!r} to version {target}",
                hint=f"migrations.register({name!r}, {version}, {target}, fn)",
                name=name,
                version=version,
                known=target,
            )
        # A frozen state comes out of a deep copy as ordinary containers, free to be changed.
        values = copy.deepcopy(dict(state)) if len(path) > 1 else dict(state)
        for start, end in itertools.pairwise(path):
            values = _apply(name, start, end, steps[start][end], values)
        return values, target


migrations = Migrations()
"""The registry that states are upgraded with unless another is given."""


def _apply(
    name: str, start: int, end: int, fn: Migration, values: dict[str, Any]
) -> dict[str, Any]:
    what = f"the migration {_called(fn)} of {name!r} from version {start} to {end}"
    facts: dict[str, Any] = {"name": name, "version": start, "known": end}
    try:
        result: object = fn(values)
    except Exception as error:
        raise SchemaError(f"{what} failed: {error!r}", **facts) from error
    if not isinstance(result, Mapping):
        raise SchemaError(
            f"{what} returned {type(result).__name__}",
            hint="return the values as a dict",
            **facts,
        )
    return dict(result)


def _shortest(start: int, steps: _Steps) -> dict[int, list[int]]:
    """The versions on the shortest path to each version reachable from *start*."""
    paths = {start: [start]}
    queue = [start]
    for version in queue:
        for following in steps.get(version, {}):
            if following not in paths:
                paths[following] = [*paths[version], following]
                queue.append(following)
    return paths


def _check_unambiguous(name: str, start: int, steps: _Steps) -> None:
    paths = _shortest(start, steps)
    for version, path in paths.items():
        for following in steps.get(version, {}):
            other = [*path, following]
            if len(other) == len(paths[following]) and other != paths[following]:
                ways = " and ".join(
                    "-".join(map(str, way)) for way in sorted([other, paths[following]])
                )
                raise UsageError(
                    f"two chains of migrations of {name!r}, from version {start} to {following},"
                    f" are equally short: {ways}",
                    hint=f"register one from {start} to {following} first, or only one of them",
                )


def _check_version(version: object) -> int:
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise UsageError(f"a version is a whole number from 0 on, not {version!r}")
    return version


def _called(fn: object) -> str:
    return str(getattr(fn, "__qualname__", repr(fn)))
