"""Checkpoints of other frameworks, found in a journal and read back as text."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from threading import Lock
from typing import TypeVar

import msgspec

from surehold.core.records import Header, Record
from surehold.core.values import Items, Rebuilt, remember
from surehold.engine.commit import Face
from surehold.engine.journal import read_body
from surehold.errors import CorruptError, NotFoundError
from surehold.integrations.branching import LATE, SortKey, Top, in_order
from surehold.storage.base import RecordQuery

T = TypeVar("T")
PAGE = 16
"""Checkpoints of a listing that are read at once."""
_SCOPES = 64
"""Scopes whose checkpoint, saved or read last, is kept as text."""
_LIGHT = 1 << 16
"""Those before it are kept as well while they hold no more than so many bytes of their own."""


class Found(msgspec.Struct, frozen=True):
    """A checkpoint as text. What was just saved may not be joined yet."""

    header: Header
    texts: Mapping[str, bytes | Items]
    beside: bytes

    def size_beside(self, newer: Found) -> int:
        """The bytes it needs in addition to a newer one, with which it may share lists."""
        return len(self.beside) + sum(
            _own_size(text, newer.texts.get(key)) for key, text in self.texts.items()
        )


def _own_size(text: bytes | Items, newer: bytes | Items | None) -> int:
    if isinstance(text, bytes):
        return len(text)
    shared = isinstance(newer, Items) and newer.texts is text.texts
    return 0 if shared else sum(map(len, text.after(0)))


class Reading:
    """Reads the checkpoints of one storage, in the order that *sort_key* gives them."""

    def __init__(self, face: Face, sort_key: SortKey) -> None:
        self._face = face
        self._storage = face.storage
        self._reader = face.reader
        self._sort_key = sort_key
        self._lock = Lock()
        self._recent: OrderedDict[tuple[str, str], list[Found]] = OrderedDict()

    def remember(self, header: Header, texts: Mapping[str, bytes | Items], beside: bytes) -> None:
        """Keep what was just saved or read: it is asked for next, more often than not."""
        key = (header.run_id, header.scope)
        with self._lock:
            found = Found(header, texts, beside)
            recent = [*_light(self._recent.get(key, []), found), found]
            remember(self._recent, key, recent, most=_SCOPES)

    def _remembered(self, header: Header) -> Found | None:
        with self._lock:
            known = self._recent.get((header.run_id, header.scope), ())
            return next((one for one in known if one.header.digest == header.digest), None)

    def forget(self, run_id: str) -> None:
        """A run is not what it was."""
        with self._lock:
            for key in [key for key in self._recent if key[0] == run_id]:
                del self._recent[key]

    def newest(self, run_id: str, scope: str = "") -> Header | None:
        """The checkpoint of a scope with the greatest sort key."""
        with self._lock:
            known = (run_id, scope) in self._recent
        newest = self._reader.newest_of(run_id, scope) if known else self._read(run_id, scope)
        if newest is None or LATE not in newest.tags:
            return newest
        headers = self._storage.headers(RecordQuery(run_id=run_id, scope=scope))
        return next(in_order(headers, self._sort_key), None)

    def _read(self, run_id: str, scope: str) -> Header | None:
        """The newest checkpoint of a scope, read, kept and branched from."""
        tail = self._reader.tail_of(run_id, scope, notes=False)
        if tail is None:
            return None
        loaded, header = tail.loaded, tail.loaded.header
        if LATE not in header.tags:
            top = Top(self._sort_key(header.id, header.metadata), header.id)
            self._face.journal.branch_from(tail, top)
        self.remember(header, loaded.texts, loaded.extras[-1])
        return header

    def with_id(self, run_id: str, scope: str, checkpoint_id: str) -> Header | None:
        """The checkpoint of a scope with exactly that id."""
        for found in self._storage.find(checkpoint_id):
            if (found.id, found.run_id, found.scope) == (checkpoint_id, run_id, scope):
                return found
        return None

    def load(self, header: Header) -> Found | None:
        """The checkpoint's texts; None if it was deleted meanwhile."""
        if (known := self._remembered(header)) is not None:
            return known
        try:
            loaded = self._reader.load_visible(header)
        except NotFoundError:
            return None
        found = Found(header, loaded.texts, loaded.extras[-1])
        self.remember(header, loaded.texts, found.beside)
        return found

    def load_many(self, headers: Sequence[Header]) -> dict[tuple[str, str, int], Found]:
        """Several checkpoints in this order, by run, scope and seq; nothing is read twice."""
        groups: dict[tuple[str, str], list[Header]] = {}
        for header in headers:
            groups.setdefault((header.run_id, header.scope), []).append(header)
        loaded = {
            (found.header.run_id, found.header.scope, found.header.seq): found
            for group in groups.values()
            for found in self._load_group(group)
        }
        keys = [(header.run_id, header.scope, header.seq) for header in headers]
        return {key: loaded[key] for key in keys if key in loaded}

    def _load_group(self, headers: list[Header]) -> Iterator[Found]:
        """Checkpoints of one scope."""
        known = {header.seq: self._remembered(header) for header in headers}
        yield from (one for one in known.values() if one is not None)
        headers = [header for header in headers if known[header.seq] is None]
        if len(headers) < 2:
            yield from (one for one in map(self.load, headers) if one is not None)
            return
        headers = sorted(headers, key=lambda header: header.seq)
        first = min(header.key_seq or header.seq for header in headers)
        records: dict[int, Record] = {}
        for record in self._reader.records(headers[0].run_id, first, headers[-1].seq):
            if record.header.frame != "note" and record.header.scope == headers[0].scope:
                records[record.header.seq] = record
        passing = _Passing(self._face, records)
        for header in headers:
            try:
                yield passing.at(header)
            except KeyError:
                found = self.load(header)  # says what is wrong, if it was not just deleted
                if found is not None:
                    yield found


class _Passing:
    """Rebuilds the checkpoints of one scope in turn, each from the one before."""

    def __init__(self, face: Face, records: Mapping[int, Record]) -> None:
        self._open = face.reader.sealer.open
        self._records = records
        self._made: Rebuilt | None = None
        self._at = 0

    def at(self, header: Header) -> Found:
        """The checkpoint; a `KeyError` names a record that is missing."""
        way = [self._records[header.seq]]
        while way[-1].header.frame != "key" and way[-1].header.seq != self._at:
            way.append(self._records[way[-1].header.base_seq or 0])
        if way[0].header.digest != header.digest:
            raise KeyError(header.seq)
        extra = b""
        made = self._made
        try:
            for record in reversed(way):
                body = read_body(self._open(record), record.header)
                extra = bytes(body.extra)
                if record.header.seq == self._at and made is not None:
                    continue
                if record.header.frame == "key":
                    made = Rebuilt(body.state)
                elif made is not None:
                    made.apply(body.patch)
            assert made is not None
            texts = made.texts_of_now()
        except (msgspec.MsgspecError, LookupError, ValueError, TypeError) as error:
            raise CorruptError(
                f"record {header.seq} of run {header.run_id!r} cannot be rebuilt",
                run_id=header.run_id,
                seq=header.seq,
            ) from error
        self._made, self._at = made, header.seq
        return Found(header, texts, extra)


def _light(known: list[Found], newer: Found) -> list[Found]:
    """The last of them, oldest first, as many as may be kept beside *newer*."""
    sizes = accumulate(found.size_beside(newer) for found in reversed(known[1 - PAGE :]))
    count = sum(1 for size in sizes if size <= _LIGHT)
    return known[len(known) - count :]


def joined(text: bytes | Items) -> bytes:
    """The text of a value, in one piece."""
    return text if isinstance(text, bytes) else text.text


def pages(headers: Iterable[T], size: int) -> Iterator[list[T]]:
    """The headers, or others, so many at a time."""
    waiting = iter(headers)
    while page := list(islice(waiting, size)):
        yield page
