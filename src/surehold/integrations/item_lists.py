"""Growing lists of other frameworks, stored as deltas.

Each list is a scope of a run: a conversation, a transcript, a stream of events. Any number of
processes may change one: each change is of the newest list, and is made again if another came
first.
"""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from surehold.core.records import Door, Header
from surehold.core.state import Lineage, Place, State
from surehold.core.values import Items, Lazy, Nature, decode, encode, remember
from surehold.engine.commit import Face, delete, perform, save_draft
from surehold.engine.journal import CheckpointDraft, Loaded
from surehold.errors import ConflictError, NotFoundError, UsageError
from surehold.storage.base import RecordQuery

ITEMS = "items"
_TRIES = 200
_LONGEST_PAUSE = 0.05
_REMEMBERED = 256
_LOCKS: WeakKeyDictionary[Face, RLock] = WeakKeyDictionary()
"""Two threads of a process that begin the same list would both find none."""
_split = msgspec.json.Decoder(list[msgspec.Raw]).decode


class ItemList(msgspec.Struct, frozen=True):
    """A list as it was stored, and small values beside it."""

    header: Header | None
    """The checkpoint; None for a list that was never written."""
    texts: list[bytes]
    """The texts of the items, and perhaps of some that were added later."""
    count: int
    rest: Mapping[str, bytes]

    def values(self, first: int = 0) -> list[Any]:
        """The items from number *first* on."""
        return [decode(text) for text in self.texts[max(0, first) : self.count]]

    def value(self, key: str) -> Any:
        """A value beside the list; None without one."""
        text = self.rest.get(key)
        return None if text is None else decode(text)


NOTHING = ItemList(None, [], 0, {})


class ListChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a list: it keeps its first *kept* items (None: all), others follow."""

    added: Sequence[Any] = ()
    kept: int | None = None
    dropped: int = 0
    """Items that go from the beginning; the list is stored anew."""
    rest: Mapping[str, Any] = {}
    """Values beside the list that are new or other ones; a `Lazy` one is text already."""
    gone: Collection[str] = ()
    """The names of values beside the list that are removed."""
    what: str = ""
    """The name of the change, which `surehold log` shows."""
    tags: tuple[str, ...] = ()
    """Tags of the checkpoint."""


class ItemLists:
    """The lists of one kind in a storage. Blocking; callable from any thread."""

    def __init__(self, face: Face, what: str) -> None:
        self._face = face
        self._what = what
        """What a list is, for errors: "a session"."""
        self._lock = _LOCKS.setdefault(face, RLock())
        self._known: OrderedDict[tuple[str, str], ItemList] = OrderedDict()

    def read(self, run_id: str, scope: str = "") -> ItemList:
        """The list as it is now; an empty one without a header if there is none."""
        with self._lock:
            header = self._face.reader.newest_of(run_id, scope)
            if header is None:
                self._known.pop((run_id, scope), None)
                return NOTHING
            known = self._known.get((run_id, scope))
            if known is None or known.header is None or known.header.digest != header.digest:
                known = self._list_of(self._face.reader.load(header))
                self._remember(known)
            return known

    def at(self, run_id: str, checkpoint_id: str) -> ItemList:
        """The list as it was at a checkpoint."""
        with self._lock:
            known = self._known.get((run_id, ""))
            if known is not None and known.header is not None and known.header.id == checkpoint_id:
                return known
            header = self._face.reader.resolve(checkpoint_id, run_id=run_id)
            return self._list_of(self._face.reader.load(header))

    def _list_of(self, loaded: Loaded) -> ItemList:
        texts = dict(loaded.texts)
        items = texts.pop(ITEMS, None)
        if items is None or loaded.header.frame == "note":
            raise UsageError(
                f"run {loaded.header.run_id!r} is not {self._what}",
                hint="give another id, or another storage",
                run_id=loaded.header.run_id,
            )
        split = [bytes(one) for one in _split(items)]
        return ItemList(loaded.header, split, len(split), texts)

    def _remember(self, known: ItemList) -> None:
        assert known.header is not None
        key = known.header.run_id, known.header.scope
        remember(self._known, key, known, most=_REMEMBERED)

    def change(
        self,
        run_id: str,
        name: str,
        edit: Callable[[ItemList], ListChange | None],
        scope: str = "",
    ) -> ItemList:
        """Change the list as *edit* says, which may be asked again; None: no change."""
        with self._lock:
            known = self._known.get((run_id, scope)) or self.read(run_id, scope)
            for tried in range(_TRIES):
                change = edit(known)
                if change is None:
                    newest = self.read(run_id, scope)
                    if newest is known:
                        return known
                    known = newest  # it was decided on an older list
                    continue
                try:
                    return self._save(run_id, name, scope, known, change)
                except ConflictError:
                    self._known.pop((run_id, scope), None)
                    if tried:
                        time.sleep(random.uniform(0, _LONGEST_PAUSE))
                    known = self.read(run_id, scope)
            raise ConflictError(
                f"{self._what} {run_id!r} was changed by others {_TRIES} times meanwhile",
                hint="try again",
                run_id=run_id,
            )

    def _save(
        self, run_id: str, name: str, scope: str, known: ItemList, change: ListChange
    ) -> ItemList:
        kept = known.count if change.kept is None else min(known.count, change.kept)
        texts = known.texts
        if kept != len(texts) or change.dropped:
            texts = texts[change.dropped : kept]  # it is another list from here on
        texts = texts if known.header is not None else [*texts]
        rest = {key: text for key, text in known.rest.items() if key not in change.gone}
        for key, value in change.rest.items():
            rest[key] = value.text if isinstance(value, Lazy) else encode(value)
        added = [encode(item) for item in change.added]
        texts += added
        count = len(texts)
        step = known.header.step + 1 if known.header is not None else 1
        place = Place(
            run_id=run_id,
            name=name,
            scope=scope,
            step=step,
            node=change.what or None,
            status="completed",
            tags=change.tags,
        )
        values: dict[str, Any] = {key: Lazy(text) for key, text in rest.items()}
        values = {ITEMS: Items(texts, count), **values}
        draft = CheckpointDraft(
            form="",
            place=place,
            values=values,
            natures=dict.fromkeys(values, Nature.TAGGED),
            lineage=Lineage(known.header.id if known.header is not None else None),
            door=Door("thread"),
            force_keyframe=bool(change.dropped),
        )
        shown = None
        if self._face.hooks is not None:
            whole = {key: value.text for key, value in values.items()}
            shown = State.restore(whole, place, datetime.now(UTC), None)
        is_new = known.header is None and not scope
        saving = save_draft(self._face, draft, shown, force=True, new_run=is_new)
        try:
            header = perform(self._face, saving)
        except BaseException:
            self._known.pop((run_id, scope), None)
            raise
        made = ItemList(header, texts, count, rest)
        if header is None or shown is not None:  # it was only warned of, or a hook changed it
            self._known.pop((run_id, scope), None)
        else:
            self._remember(made)
        return made

    def forget(self, run_id: str, scope: str | None = None) -> None:
        """Remove a list, or with None for its scope the run with all its lists."""
        face = self._face
        with self._lock:
            if scope is not None:
                self.hide(
                    run_id, list(face.storage.headers(RecordQuery(run_id=run_id, scope=scope)))
                )
                return
            for key in [*self._known]:
                if key[0] == run_id:
                    del self._known[key]
            with suppress(NotFoundError):
                delete.delete_run(face, run_id)

    def hide(self, run_id: str, found: Sequence[Header]) -> None:
        """Remove these checkpoints of a run."""
        face = self._face
        with self._lock:
            for header in found:
                self._known.pop((run_id, header.scope), None)
            if found:
                seqs = [header.seq for header in found]
                perform(face, delete.hide(face, run_id, found[0].name, seqs))

    def scopes(self, run_id: str) -> list[str]:
        """The scopes of a run that hold lists, but for the scope of the run itself."""
        headers = self._face.storage.headers(RecordQuery(run_id=run_id))
        return sorted({header.scope for header in headers if header.scope})
