"""The storage of Strands agents in Surehold's journals.

```python
agent = Agent(session_manager=SnapshotSessionManager("s1", storage=SureholdStorage("runs.db")))
```
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from strands.storage import Storage as StrandsStorage
from strands.storage.storage import _NamespacedStorage as NamespacedStorage
from strands.types.exceptions import StorageError

from surehold.core.records import Header, check_run_id
from surehold.engine.managers import CheckpointManager
from surehold.errors import SureholdError
from surehold.integrations.item_lists import ItemList, ItemLists, ListChange
from surehold.integrations.managed import Managed
from surehold.integrations.strands.snapshots import HISTORY, change_to, data_of
from surehold.storage.base import RecordQuery, RunInfo, RunQuery, Storage

T = TypeVar("T")

_SNAPSHOTS = "/snapshots/"
_OLDER = "immutable_history/"
_SNAPSHOT = re.compile(
    rf"(?P<run>.+){_SNAPSHOTS}(?P<older>{_OLDER})?(?P<what>snapshot_[\w-]+)\.json"
)
_LATEST = "snapshot_latest"
_ITEM = "item:"


class SureholdStorage(StrandsStorage[str, str], Managed):
    """A Strands `Storage` on any Surehold storage.

    When `write` has returned, the data is durable.

    *storage* is a `Storage`, an address, a registered name, a `CheckpointManager` (for encryption,
    hooks or retention), or None for the default address. An agent's snapshots in a session are one
    run, whose checkpoints are the snapshots: each stores what changed since the one before,
    although the SDK writes it whole. Its immutable snapshots are tagged. The other keys of a
    directory are a run, too. *namespace* keeps several applications apart.

    Bytes are read as they were written. An earlier snapshot stays in the history of its run until
    it is pruned.
    """

    def __init__(
        self,
        storage: CheckpointManager | Storage | str | None = None,
        *,
        namespace: str = "strands",
    ) -> None:
        self._name = check_run_id(namespace, "namespace")
        self._manage(storage)
        self._lists = ItemLists(self.manager.face, "a snapshot of Strands")

    def __bool__(self) -> bool:
        """True: an empty storage is one, too."""
        return True

    async def write(self, key: str, data: bytes) -> None:
        """Store *data* under *key*, in place of what was there."""
        await self._do(self._write, self._place(key), bytes(data))

    async def read(self, key: str) -> bytes | None:
        """The bytes under *key*; None if there are none."""
        return await self._do(self._read, self._place(key))

    async def delete(self, key: str) -> None:
        """Remove what is under *key*, with its earlier versions."""
        await self._do(self._delete, self._place(key))

    async def list(self, query: str = "") -> builtins.list[str]:
        """The keys that begin with *query*, sorted."""
        return await self._do(self._list, _normal(query, "prefix").removeprefix("/"))

    def namespace(self, prefix: str) -> NamespacedStorage:
        """A view of the keys under *prefix*."""
        return NamespacedStorage(self, prefix)

    async def _do(self, call: Callable[..., T], *arguments: Any) -> T:
        try:
            return await self._call(call, *arguments)
        except SureholdError as error:
            raise StorageError(str(error)) from error

    def _place(self, key: str) -> _Place:
        normal = _normal(key, "key").strip("/")
        if not normal:
            raise StorageError("Storage key must not be empty")
        found = _SNAPSHOT.fullmatch(normal)
        is_latest = found is not None and found["what"] == _LATEST
        if found is not None and is_latest != bool(found["older"]):
            name = self._name_of(found["run"])
            return _Place(f"{self._name}/{found['run']}", name, found["what"], True)
        directory, _, item = normal.rpartition("/")
        run_id = f"{self._name}-data/{directory}" if directory else f"{self._name}-data"
        return _Place(run_id, self._name_of(directory), item, False)

    def _name_of(self, directory: str) -> str:
        """The name of the runs of a directory: those of a session share one."""
        return "/".join([self._name, *directory.split("/")[:2]]).rstrip("/")

    def _write(self, place: _Place, data: bytes) -> None:
        tags = () if place.is_latest else (HISTORY, place.item)

        def edit(known: ItemList) -> ListChange:
            if place.is_snapshot:
                return change_to(data, known, place.item, tags)
            return ListChange(rest={_ITEM + place.item: data}, what="write")

        self._lists.change(place.run_id, place.name, edit)

    def _read(self, place: _Place) -> bytes | None:
        if not place.is_snapshot:
            found: bytes | None = self._lists.read(place.run_id).value(_ITEM + place.item)
            return found
        known = self._lists.read(place.run_id) if place.is_latest else None
        if known is None or known.header is None or HISTORY in known.header.tags:
            header = next(iter(self._snapshots(place)), None)
            if header is None:
                return None
            known = self._lists.at(place.run_id, header.id)
        return data_of(known)

    def _snapshots(self, place: _Place) -> builtins.list[Header]:
        """The checkpoints of this place, newest first, earlier versions included."""
        tag = None if place.is_latest else place.item
        query = RecordQuery(run_id=place.run_id, scope="", tag=tag)
        found = self.manager.storage.headers(query)
        return [one for one in found if tag is not None or HISTORY not in one.tags]

    def _delete(self, place: _Place) -> None:
        if place.is_snapshot:
            self._lists.hide(place.run_id, self._snapshots(place))
            if next(self.manager.storage.headers(RecordQuery(run_id=place.run_id)), None) is None:
                self._lists.forget(place.run_id)
            return

        def edit(known: ItemList) -> ListChange | None:
            item = _ITEM + place.item
            return ListChange(gone={item}, what="delete") if item in known.rest else None

        if not self._lists.change(place.run_id, place.name, edit).rest:
            self._lists.forget(place.run_id)

    def _list(self, prefix: str) -> builtins.list[str]:
        directories = prefix.split("/")[:-1]
        name = self._name_of(prefix) if len(directories) > 1 else None
        keys = (
            key for run in self.manager.storage.runs(RunQuery(name=name)) for key in self._keys(run)
        )
        return sorted(key for key in keys if key.startswith(prefix))

    def _keys(self, run: RunInfo) -> builtins.list[str]:
        if run.run_id.startswith(f"{self._name}/"):
            path = run.run_id.removeprefix(f"{self._name}/") + _SNAPSHOTS
            found = self.manager.storage.headers(RecordQuery(run_id=run.run_id, scope=""))
            names = {f"{_OLDER}{one.node}" if HISTORY in one.tags else one.node for one in found}
            return [f"{path}{name}.json" for name in names]
        if run.run_id.partition("/")[0] != f"{self._name}-data":
            return []
        directory = run.run_id.removeprefix(f"{self._name}-data").lstrip("/")
        items = self._lists.read(run.run_id).rest
        return ["/".join(filter(None, [directory, one.removeprefix(_ITEM)])) for one in items]


class _Place(NamedTuple):
    """The place of a key in a storage."""

    run_id: str
    name: str
    item: str
    """The name of the snapshot, or of the value beside others."""
    is_snapshot: bool

    @property
    def is_latest(self) -> bool:
        return self.item == _LATEST


def _normal(key: str, what: str) -> str:
    """*key* with single slashes, as the SDK's own storages read it."""
    if "\\" in key:
        raise StorageError(f"Invalid storage {what} {key!r}: backslashes are not allowed")
    normal = re.sub("/+", "/", key)
    if ".." in normal.split("/"):
        raise StorageError(f"Invalid storage {what} {key!r}: '..' path segments are not allowed")
    return normal
