"""LangGraph's long-term memory in Surehold's journals.

```python
graph = builder.compile(checkpointer=saver, store=SureholdStore("sqlite:///threads.db"))
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import langgraph.store.base
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from surehold.engine.managers import CheckpointManager
from surehold.errors import UsageError
from surehold.integrations.langgraph.namespaces import Kept, Namespace, Namespaces
from surehold.integrations.langgraph.types import register_all
from surehold.integrations.managed import Managed
from surehold.storage.base import Storage

_check_namespace = getattr(langgraph.store.base, "validate_op_namespace", lambda op: None)
"""Refuses labels that LangGraph's stores refuse; earlier releases have no such function."""
_WORTH = 0.05
"""The part of its time that an item must have lost for a read to refresh it."""


class SureholdStore(BaseStore, Managed):
    """A LangGraph `BaseStore` on any Surehold storage; blocking and awaited.

    *storage* is a `Storage`, an address, a registered name, a `CheckpointManager` (for encryption,
    hooks or retention), or None for the default address. A namespace is a run, and its history
    holds the earlier values of its items. All puts of a batch into one namespace are one commit.
    *ttl* are LangGraph's settings for items that end; ended items are not found, and `sweep_ttl`
    removes those of namespaces that nothing is written to.

    Items are searched by namespace and filter. A search by meaning is a `UsageError`.

    >>> store = SureholdStore("memory://")
    >>> store.put(("users", "ann"), "diet", {"likes": "kelp"})
    >>> store.get(("users", "ann"), "diet").value
    {'likes': 'kelp'}
    """

    supports_ttl = True

    def __init__(
        self,
        storage: CheckpointManager | Storage | str | None = None,
        *,
        name: str = "langgraph-store",
        ttl: TTLConfig | None = None,
    ) -> None:
        register_all()
        self.ttl_config = ttl
        self._manage(storage)
        self._namespaces = Namespaces(self.manager.face, name, "a namespace of a store")

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out these operations: all reads first, then all puts."""
        ops = list(ops)
        for op in ops:
            _check_namespace(op)
            if isinstance(op, SearchOp) and op.query:
                raise UsageError(
                    "SureholdStore searches by namespace and filter, not by meaning",
                    hint="leave query= out, or use a store with vectors beside this one",
                )
        results = [self._result(op) for op in ops]
        puts: dict[Namespace, dict[str, PutOp]] = {}
        for op in ops:
            if isinstance(op, PutOp):
                puts.setdefault(tuple(op.namespace), {})[op.key] = op
        for namespace, changes in puts.items():
            self._put(namespace, changes)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """See `batch`."""
        return await self._call(self.batch, list(ops))

    def sweep_ttl(self) -> int:
        """Remove the items that have ended; returns their number."""
        return sum(self._namespaces.sweep(namespace) for namespace in [*self._namespaces.all()])

    def _result(self, op: Op) -> Result:
        if isinstance(op, GetOp):
            namespace = tuple(op.namespace)
            found = self._read(namespace, op.refresh_ttl, lambda key, _: key == op.key)
            return next((Item(**_facts(namespace, *one)) for one in found.items()), None)
        if isinstance(op, SearchOp):
            return self._search(op)
        if isinstance(op, ListNamespacesOp):
            return self._list(op)
        return None

    def _read(
        self, namespace: Namespace, refresh: bool, wanted: Callable[[str, Any], bool]
    ) -> dict[str, tuple[Kept, Any]]:
        """The wanted items of a namespace with their values; their time begins anew."""
        kept = self._namespaces.items(namespace)
        found = {
            key: (item, value) for key, item in kept.items() if wanted(key, value := item.read())
        }
        if refresh:
            self._refresh(namespace, kept, found)
        return found

    def _refresh(
        self, namespace: Namespace, known: Mapping[str, Kept], keys: Iterable[str]
    ) -> None:
        due = [key for key in keys if _is_due(known[key])]

        def edit(there: Mapping[str, Kept]) -> tuple[dict[str, Kept], tuple[str, ...]]:
            return {key: there[key].refreshed() for key in due if key in there}, ()

        if due:
            self._namespaces.change(namespace, edit, "refresh")

    def _search(self, op: SearchOp) -> list[SearchItem]:
        def found() -> Iterable[SearchItem]:
            for namespace in sorted(self._namespaces.all(tuple(op.namespace_prefix))):
                items = self._read(namespace, False, lambda _, value: _fits(value, op.filter))
                for key, one in items.items():
                    yield SearchItem(**_facts(namespace, key, one))

        results = [*islice(found(), op.offset, op.offset + op.limit)]
        if op.refresh_ttl:
            for namespace in {one.namespace for one in results}:
                keys = [one.key for one in results if one.namespace == namespace]
                known = self._namespaces.items(namespace)
                self._refresh(namespace, known, [key for key in keys if key in known])
        return results

    def _list(self, op: ListNamespacesOp) -> list[Namespace]:
        found = {
            namespace[: op.max_depth]
            for namespace in self._namespaces.all()
            if all(_matches(one, namespace) for one in op.match_conditions or ())
            and self._namespaces.items(namespace)
        }
        return sorted(found)[op.offset : op.offset + op.limit]

    def _put(self, namespace: Namespace, changes: Mapping[str, PutOp]) -> None:
        def edit(there: Mapping[str, Kept]) -> tuple[dict[str, Kept], list[str]]:
            new: dict[str, Kept] = {}
            for key, op in changes.items():
                if op.value is not None:
                    before, minutes = there.get(key), op.ttl
                    seconds = None if minutes is None else minutes * 60
                    new[key] = Kept.of(op.value, before.created if before else None, seconds)
            return new, [key for key in changes if key not in new]

        self._namespaces.change(namespace, edit, "put")


def _facts(namespace: Namespace, key: str, found: tuple[Kept, Any]) -> dict[str, Any]:
    item, value = found
    return {
        "namespace": namespace,
        "key": key,
        "value": value,
        "created_at": datetime.fromtimestamp(item.created, UTC),
        "updated_at": datetime.fromtimestamp(item.updated, UTC),
    }


def _is_due(item: Kept) -> bool:
    """True if a refresh gives the item noticeably more time."""
    if item.ttl is None or item.until is None:
        return False
    return (item.refreshed().until or 0) - item.until > item.ttl * _WORTH


_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda value, wanted: bool(value == wanted),
    "$ne": lambda value, wanted: bool(value != wanted),
    "$gt": lambda value, wanted: value is not None and bool(value > wanted),
    "$gte": lambda value, wanted: value is not None and bool(value >= wanted),
    "$lt": lambda value, wanted: value is not None and bool(value < wanted),
    "$lte": lambda value, wanted: value is not None and bool(value <= wanted),
}


def _fits(value: Any, wanted: Any) -> bool:
    """True if *value* has what a filter wants, by equality or operators."""
    if not isinstance(wanted, Mapping):
        return wanted is None or bool(value == wanted)
    if any(str(key).startswith("$") for key in wanted):
        for name in wanted:
            if name not in _COMPARED:
                raise UsageError(f"a filter has no operator {name!r}", hint=", ".join(_COMPARED))
        return all(_COMPARED[name](value, other) for name, other in wanted.items())
    return isinstance(value, Mapping) and all(
        _has(value.get(key), other) for key, other in wanted.items()
    )


def _has(value: Any, wanted: Any) -> bool:
    return _fits(value, wanted) if isinstance(wanted, Mapping) else bool(value == wanted)


def _matches(condition: MatchCondition, namespace: Namespace) -> bool:
    path: Any = condition.path
    if len(path) > len(namespace):
        return False
    part = namespace[: len(path)]
    if condition.match_type == "suffix":
        part = namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", one) for wanted, one in zip(path, part, strict=True))
