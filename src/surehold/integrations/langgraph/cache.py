"""LangGraph's cache of node results in Surehold's journals.

```python
graph = builder.compile(cache=SureholdCache("sqlite:///threads.db"))
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.cache.base import BaseCache, FullKey
from langgraph.cache.base import Namespace as CacheNamespace
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from surehold.engine.managers import CheckpointManager
from surehold.integrations.langgraph.namespaces import Kept, Namespaces
from surehold.integrations.langgraph.types import Sealed, register_all
from surehold.integrations.managed import Managed
from surehold.storage.base import Storage


class SureholdCache(BaseCache[Any], Managed):
    """A LangGraph `BaseCache` on any Surehold storage; blocking and awaited.

    *storage* is a `Storage`, an address, a registered name, a `CheckpointManager`, or None for the
    default address. Results come back as the types they were; nothing stored is executed. What has
    ended goes when its namespace is written to; `clear` removes all. A *serde* of your own is used.
    """

    def __init__(
        self,
        storage: CheckpointManager | Storage | str | None = None,
        *,
        name: str = "langgraph-cache",
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde)
        register_all()
        self._manage(storage)
        self._namespaces = Namespaces(self.manager.face, name, "a namespace of a cache")

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """The cached values of these keys, without those that have ended."""
        found: dict[FullKey, Any] = {}
        for namespace in {namespace for namespace, _ in keys}:
            items = self._namespaces.items(namespace)
            for full in keys:
                if full[0] == namespace and full[1] in items:
                    found[full] = self._opened(items[full[1]].read())
        return found

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """See `get`."""
        return await self._call(self.get, keys)

    def set(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        """Keep these values for so many seconds each, or until they are cleared."""
        made: dict[CacheNamespace, dict[str, Kept]] = {}
        for (namespace, key), (value, ttl) in pairs.items():
            made.setdefault(namespace, {})[key] = Kept.of(self._closed(value), None, ttl)
        for namespace, items in made.items():
            self._namespaces.change(namespace, lambda _, items=items: (items, ()), "set")  # type: ignore[misc]

    async def aset(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        """See `set`."""
        await self._call(self.set, pairs)

    def clear(self, namespaces: Sequence[CacheNamespace] | None = None) -> None:
        """Remove all values of these namespaces, or of all."""
        for namespace in list(self._namespaces.all()) if namespaces is None else namespaces:
            self._namespaces.forget(namespace)

    async def aclear(self, namespaces: Sequence[CacheNamespace] | None = None) -> None:
        """See `clear`."""
        await self._call(self.clear, namespaces)

    def _closed(self, value: Any) -> Any:
        if type(self.serde) is JsonPlusSerializer:
            return value
        return Sealed(*self.serde.dumps_typed(value))

    def _opened(self, value: Any) -> Any:
        if type(value) is Sealed:
            return self.serde.loads_typed((value.kind, value.data))
        return value
