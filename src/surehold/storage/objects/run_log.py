"""The log of a run: objects under numbered names, each created once.

Names count down, so that a listing begins with the newest, and one request finds the head. A
change is committed when its object is created; whoever comes second collides, reads on, and
decides again. Taking a lease is such a change, so a stale writer collides with it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from surehold.core.records import Range, Record, medium_name, merge_ranges, ranges_of
from surehold.core.values import remember
from surehold.errors import CorruptError, StorageUnavailableError
from surehold.storage.base import restless
from surehold.storage.objects.bucket import Bucket
from surehold.storage.objects.log_view import LogView, entry_key, now, pos_of
from surehold.storage.objects.run_names import RunNames, RunTip
from surehold.storage.objects.segments import (
    DecodedObject,
    LogEntry,
    LogRow,
    PackRef,
    decode,
    encode,
    header_of,
    index_size,
    row_of,
)
from surehold.storage.shared import Head, run_info

TRUST = 900.0
"""Seconds after which a view has to be confirmed by a listing before it is written to.

Positions whose objects were deleted are free again, so a writer must not believe a view that is
older than the shortest time, `packs.GRACE`, after which objects of the log are deleted.
"""
_AHEAD = 8
_TRIES = 100
_LOCKS = 64
_MOST_BYTES = 64 << 20
_VIEW_BYTES = 2000
_FEW_RUNS = 16
_TIPS = 10_000
_FIRST_BYTES = 1 << 16


class LogChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a run to be committed, and what its head is then."""

    head: Head | None
    newest: LogRow | None
    records: Sequence[Record] = ()
    hidden: Sequence[int] = ()
    erased: Sequence[Range] = ()
    epoch: int | None = None
    resets: bool = False
    """True if the run begins anew, without its earlier records."""
    packs: Sequence[PackRef] = ()
    """With `resets`, the objects that hold all records."""
    hides: Sequence[Range] = ()
    """With `resets`, all hidden seqs."""


class RunLogs:
    """The logs of all runs in a bucket, and bounded memory of what they hold."""

    def __init__(self, bucket: Bucket, index: RunNames) -> None:
        self.bucket = bucket
        self._index = index
        self._locks = [threading.RLock() for _ in range(_LOCKS)]
        self._views: OrderedDict[str, LogView] = OrderedDict()
        self._tips: OrderedDict[str, RunTip] = OrderedDict()
        self._weights: dict[str, int] = {}
        self._weight = 0
        self._memory = threading.Lock()

    @contextmanager
    def lock(self, run_id: str) -> Iterator[None]:
        """Let one thread at a time look at and change the view of a run."""
        with self._locks[hash(run_id) % _LOCKS]:
            yield

    def view(self, run_id: str, *, fresh: bool = True) -> LogView:
        """The run as it is now or, unless *fresh*, as it was when it was last looked at."""
        self.bucket.check_open()
        name = medium_name(run_id)
        with self._memory:
            view = self._views.get(name)
        if view is not None and not fresh and now() - view.confirmed < TRUST:
            return view
        if view is not None and self._follow(view):
            return view
        view = self._load(name, run_id, view)
        self._keep(view)
        return view

    def commit(self, view: LogView, change: LogChange) -> bool:
        """Make *change* the next of the log; False if another came first, or may have.

        *view* then has to be taken anew, and so has the decision.
        """
        rested = view.head if is_at_rest(view) else None
        if rested is not None:
            self._index.stir(rested.ordinal, view.name)
        pos, at = view.pos + 1, max(time.time_ns(), view.at + 1)
        rows = [row_of(record, pos, at) for record in change.records]
        bodies = {record.header.seq: record.body for record in change.records}
        newest = change.newest
        if newest is not None and newest.pos == 0:
            newest = next(row for row in rows if row.seq == newest.seq)
        entry = LogEntry(
            view.run_id,
            pos,
            at,
            os.urandom(8),
            view.epoch if change.epoch is None else change.epoch,
            pos if change.resets else view.base,
            change.head,
            newest,
            rows,
            list(change.hides) if change.resets else ranges_of(sorted(change.hidden)),
            merge_ranges(change.erased),
            list(change.packs),
            [] if not change.resets else [*view.bases, *([view.base] if view.base else [])],
        )
        stored = self.write(view, entry, bodies)
        if stored and rested is not None:
            # Whoever ended the run may have put its facts there meanwhile.
            self._index.stir(rested.ordinal, view.name)
        return stored

    def write(self, view: LogView, entry: LogEntry, bodies: Mapping[int, bytes]) -> bool:
        """Create the object of an entry, and follow it; False as in `commit`."""
        data, index = encode(entry, bodies)
        key = entry_key(view.name, entry.pos)
        began = now()
        if not (self.bucket.create(key, data) or self.bucket.get(key) == data):
            return False
        if now() - view.confirmed > TRUST:
            # A process that was suspended meanwhile may have filled a name that was deleted.
            self.forget(view.name)
            return False
        view.apply(entry, bodies, len(data), index)
        view.confirmed = began
        self._keep(view)
        return True

    def change(
        self, run_id: str, plan: Callable[[LogView, bool], LogChange | None], *, fresh: bool = True
    ) -> LogView:
        """Commit the change that *plan* returns for the run; None commits nothing.

        *plan* is called again whenever another change came first. Its second argument is True
        for a current view. If *plan* returns None for an older view, it is called again with a
        current one.
        """
        with self.lock(run_id):
            for _ in range(_TRIES):
                view = self.view(run_id, fresh=fresh)
                change = plan(view, fresh)
                if change is None and fresh:
                    return view
                if change is not None and self.commit(view, change):
                    return view
                fresh = True
        raise StorageUnavailableError(
            f"run {run_id!r} changed {_TRIES} times meanwhile", run_id=run_id
        )

    def forget(self, name: str) -> None:
        """Drop what is remembered of a run."""
        with self._memory:
            self._drop(name)

    def remembered(self, run_id: str) -> int:
        """The position up to which a run is remembered; 0 if it is not."""
        with self._memory:
            view = self._views.get(medium_name(run_id))
        return 0 if view is None else view.pos

    def last_whole(self, name: str) -> RunTip | None:
        """The facts in the newest readable entry of a log whose newest is damaged."""
        for one in self.bucket.each(f"log/{name}"):
            try:
                data = self.bucket.get(one.key)
                if data:
                    return tip_of(decode(data).entry)
            except CorruptError:
                continue
        return None

    def newest_pos(self, name: str) -> int:
        """The newest position of a run's log, whatever is in it; 0 without a log."""
        page = self.bucket.page(f"log/{name}")
        return pos_of(page[0].key) if page else 0

    def tips(self, names: Sequence[str], *, few: bool = False) -> dict[str, RunTip | None]:
        """The facts in the newest log entries of these runs; None for a damaged one.

        A run without a log is left out. If they are a *few* of all runs, their logs are listed one
        by one, else those of all runs.
        """
        places = (
            dict(zip(names, self.bucket.together(self.newest_pos, names), strict=True))
            if few or len(names) <= _FEW_RUNS
            else self.all_places()
        )
        wanted = [(name, places[name]) for name in names if places.get(name)]
        found = self.bucket.together(lambda one: self._tip(*one), wanted)
        return {name: tip for (name, _), tip in zip(wanted, found, strict=True)}

    def _tip(self, name: str, pos: int) -> RunTip | None:
        with self._memory:
            known = self._tips.get(name)
            view = self._views.get(name)
        if known is not None and known.pos == pos:
            return known
        if view is not None and view.pos == pos:
            return tip_of(view)
        data = self.bucket.get_range(entry_key(name, pos), 0, _FIRST_BYTES)
        try:
            if data is not None and len(data) < (index := index_size(data)):
                data = self.bucket.get_range(entry_key(name, pos), 0, index)
            if data is None:
                return None
            tip = tip_of(decode(data).entry)
        except CorruptError:
            return None
        with self._memory:
            remember(self._tips, name, tip, most=_TIPS)
        return tip

    def all_places(self) -> dict[str, int]:
        """The newest positions of all logs: a page shows many short ones, skips long ones."""
        places: dict[str, int] = {}
        after: str | None = None
        while True:
            page = self.bucket.page("log", after)
            for one in page:
                _, name, _ = one.key.split("/")
                places.setdefault(name, pos_of(one.key))
            if not self.bucket.is_full(page):
                return places
            after = f"log/{page[-1].key.split('/')[1]}/~"

    def _follow(self, view: LogView) -> bool:
        """Read on from where the view is; False if it has to be loaded anew."""
        if now() - view.confirmed > TRUST:
            return False
        for _ in range(_AHEAD):
            began = now()
            key = entry_key(view.name, view.pos + 1)
            data = self.bucket.get(key)
            if data is None:
                view.confirmed = began
                return True
            if not self._take_in(view, key, data):
                return False
            view.confirmed = began
        return False

    def _load(self, name: str, run_id: str, old: LogView | None) -> LogView:
        for _ in range(_TRIES):
            view = LogView(name, run_id)
            view.confirmed = now()
            listed = self.bucket.page(f"log/{name}")
            if not listed:
                return view
            newest = pos_of(listed[0].key)
            tip_data = self.bucket.get(listed[0].key)
            if not tip_data:
                continue  # it was replaced meanwhile
            tip = self._decode(run_id, listed[0].key, tip_data).entry
            known = {newest: tip_data}
            if old is not None and tip.base <= old.pos <= newest:
                old.confirmed = view.confirmed
                view = old
                first = old.pos + 1
            else:
                first = tip.base or 1
            places = [pos for pos in range(first, newest) if pos not in known]
            parts = self.bucket.together(self.bucket.get, [entry_key(name, p) for p in places])
            known.update({p: data for p, data in zip(places, parts, strict=True) if data})
            missing = [pos for pos in places if pos not in known]
            if missing:
                if self._is_superseded(name, newest):
                    old = None
                    continue
                raise CorruptError(
                    f"a part of run {run_id!r} is missing: {entry_key(name, missing[0])}",
                    hint="restore the object, or run: surehold repair",
                    run_id=run_id,
                )
            if all(
                self._take_in(view, entry_key(name, pos), known[pos])
                for pos in range(first, newest + 1)
            ):
                return view
            old = None
        raise restless(run_id, _TRIES)

    def _is_superseded(self, name: str, newest: int) -> bool:
        return self.newest_pos(name) != newest

    def _take_in(self, view: LogView, key: str, data: bytes) -> bool:
        if not data:
            return False
        segment = self._decode(view.run_id, key, data)
        entry = segment.entry
        if len(segment.bodies) < len(entry.rows):
            raise self._damaged(view.run_id, key, "is cut short")
        view.apply(entry, segment.bodies, len(data), segment.index)
        return True

    def _decode(self, run_id: str, key: str, data: bytes) -> DecodedObject:
        try:
            segment = decode(data)
        except CorruptError as error:
            raise self._damaged(run_id, key, f"is damaged: {error.message}") from error
        entry = segment.entry
        if entry.run_id != run_id or entry_key(medium_name(run_id), entry.pos) != key:
            raise self._damaged(run_id, key, "is that of another place")
        return segment

    def _damaged(self, run_id: str, key: str, what: str) -> CorruptError:
        return CorruptError(
            f"the object {key} of run {run_id!r} {what}",
            hint="run: surehold repair",
            run_id=run_id,
            path=key,
        )

    def _keep(self, view: LogView) -> None:
        with self._memory:
            self._drop(view.name)
            self._views[view.name] = view
            self._weights[view.name] = view.weight + _VIEW_BYTES
            self._weight += view.weight + _VIEW_BYTES
            while self._weight > _MOST_BYTES and len(self._views) > 1:
                self._drop(next(iter(self._views)))

    def _drop(self, name: str) -> None:
        self._views.pop(name, None)
        self._weight -= self._weights.pop(name, 0)


def tip_of(newest: LogEntry | LogView) -> RunTip:
    """The facts of a run after its newest change; a `CorruptError` if unreadable."""
    header = None if newest.newest is None else header_of(newest.run_id, newest.newest)
    info = None if newest.head is None else run_info(newest.head, header)
    return RunTip(newest.run_id, newest.pos, newest.at, info)


def is_at_rest(view: LogView) -> bool:
    """True if a run is not running, so that the index of runs may hold its facts."""
    return view.head is not None and view.head.status != "running"
