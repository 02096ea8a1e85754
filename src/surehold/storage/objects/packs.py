"""Packs: a log gathered into few objects, and what is not needed deleted."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from heapq import heapify, heappop, heappush
from itertools import takewhile
from operator import attrgetter
from typing import TypeVar

import msgspec

from surehold.core.records import Range, medium_name, ranges_of
from surehold.core.values import remember
from surehold.errors import CorruptError, StorageUnavailableError
from surehold.storage.objects.bucket import Bucket
from surehold.storage.objects.log_view import LogView, entry_key, now, pos_of, ref_of
from surehold.storage.objects.run_log import RunLogs
from surehold.storage.objects.segments import (
    LogEntry,
    LogRow,
    PackRef,
    body_places,
    decode,
    decode_directory,
    encode,
    encode_pack,
    find_blocks,
    header_of,
    objects_in,
)
from surehold.storage.objects.zones import Wanted, Zone, joined, zone_of

T = TypeVar("T")

GRACE = timedelta(hours=1)
"""The age, by the store's clock, from which on objects of a log are deleted; see `TRUST`."""
LOOSE = 32
LOOSE_ROWS = 256
"""Changes, and records of them, after which a log gets a base."""
_BLOCK = 200
"""Records of a block, about."""
_FAN = 8
"""Packs of one size that are merged into a larger one."""
_MOST_PACK = 8 << 20
"""Bytes of a merged pack at most, so that no save reads and writes much more than others."""
_WHOLE = 2 << 20
_WHOLE_BYTES = 16 << 20
"""An object up to this size is read whole, where its bodies are wanted."""
_REPEATED = 1 << 20
_BASES = 256
_SWEEP = 10_000
_SWEPT = 10_000
_LOOKS = 12
"""Looks for objects to delete in the time after which they are deleted."""
_INDEX_ROWS = 200_000
_TRIES = 20

_DIRECTORIES = 256
_Place = tuple[str, int]
"""The key of an object, and the bytes in it before a block."""


class StaleView(Exception):
    """An object was deleted since the view was taken; it has to be taken anew."""


class Packs:
    """Reads older records of runs, and keeps the number of their objects small."""

    def __init__(self, bucket: Bucket, logs: RunLogs) -> None:
        self._bucket = bucket
        self._logs = logs
        self._lock = threading.Lock()
        self._indexes: OrderedDict[_Place, list[LogRow]] = OrderedDict()
        self._held = 0
        self._whole: OrderedDict[_Place, bytes] = OrderedDict()
        self._directories: OrderedDict[str, list[PackRef]] = OrderedDict()
        self._swept: OrderedDict[str, float] = OrderedDict()

    def again(self, run_id: str, work: Callable[[], T]) -> T:
        """Do *work*, and again whenever an object was deleted while it was needed."""
        for _ in range(_TRIES):
            try:
                return work()
            except StaleView:
                self._logs.forget(medium_name(run_id))
        raise StorageUnavailableError(
            f"the objects of run {run_id!r} changed during every attempt to read them",
            run_id=run_id,
        )

    def rows_up(
        self, view: LogView, first: int, last: int
    ) -> Iterator[tuple[LogRow, PackRef | None]]:
        """The rows from *first* to *last*, oldest first, with packs; None: in the view.

        The packs of a reader that wants bodies are read whole where they are small.
        """
        return self._in_order(view, first, last, whole=True)

    def rows_down(
        self, view: LogView, below: int, wanted: Wanted | None = None
    ) -> Iterator[LogRow]:
        """The rows before *below*, newest first, hidden ones included.

        With *wanted*, packs and blocks without such records are skipped.
        """
        return (row for row, _ in self._in_order(view, 1, below - 1, down=True, wanted=wanted))

    def _in_order(
        self,
        view: LogView,
        first: int,
        last: int,
        *,
        down: bool = False,
        whole: bool = False,
        wanted: Wanted | None = None,
    ) -> Iterator[tuple[LogRow, PackRef | None]]:
        sign = -1 if down else 1
        seqs = view.seqs
        near = _needed(view.packs, seqs, first, last, wanted)
        held = range(bisect_left(seqs, first), bisect_right(seqs, last))[::sign]
        queue = [(-pack.last if down else pack.first, n, -1) for n, pack in enumerate(near)]
        heapify(queue)
        opened: dict[int, list[LogRow]] = {}
        place, before = 0, -(1 << 63)
        while queue or place < len(held):
            pack: PackRef | None
            if place < len(held) and (not queue or sign * seqs[held[place]] <= queue[0][0]):
                row = view.rows[seqs[held[place]]]
                pack = view.large.get(row.pos)
                place += 1
            else:
                _, number, at = heappop(queue)
                if near[number].blocks:
                    for part in _needed(self.parts(near[number]), seqs, first, last, wanted):
                        heappush(queue, (-part.last if down else part.first, len(near), -1))
                        near.append(part)
                    continue
                if at < 0:
                    opened[number] = _between(
                        self.rows_in(near[number], whole=whole), first, last, view
                    )[::sign]
                rows = opened[number]
                if at + 1 < len(rows):
                    heappush(queue, (sign * rows[at + 1].seq, number, at + 1))
                if at < 0:
                    continue
                row, pack = rows[at], near[number]
            if sign * row.seq > before:
                yield row, pack
                before = sign * row.seq

    def rows_at(self, view: LogView, seqs: Collection[int]) -> dict[int, LogRow]:
        """The rows at these seqs, where there are any."""
        found = {seq: view.rows[seq] for seq in seqs if seq in view.rows}
        left = {seq for seq in seqs if seq not in found and not view.is_erased(seq)}
        for part in self._parts_with(view.packs, sorted(left)):
            found |= {row.seq: row for row in self.rows_in(part) if row.seq in left}
        return dict(sorted(found.items()))

    def erased_in(self, view: LogView) -> set[int]:
        """The seqs of erased records that packs still hold."""
        return {
            row.seq
            for pack in view.packs
            for part in (self.parts(pack) if _meets(pack, view.erased) else ())
            for row in (self.rows_in(part) if _meets(part, view.erased) else ())
            if view.is_erased(row.seq)
        }

    def parts(self, pack: PackRef) -> list[PackRef]:
        """The blocks of a pack; the pack itself if it has none."""
        if not pack.blocks:
            return [pack]
        with self._lock:
            known = self._directories.get(pack.key)
        if known is not None:
            return known
        data = self._bucket.get_range(pack.key, 0, pack.index)
        if not data:
            raise StaleView
        try:
            parts = decode_directory(data, pack.key)
        except CorruptError:
            parts = find_blocks(self._bucket.get(pack.key) or b"", pack.key)
        with self._lock:
            remember(self._directories, pack.key, parts, most=_DIRECTORIES)
        return parts

    def _parts_with(self, packs: Sequence[PackRef], seqs: Sequence[int]) -> Iterator[PackRef]:
        """The packs, or blocks of them, that may have records at one of *seqs*, in order."""
        for pack in packs:
            if _spans(pack, seqs):
                yield from (part for part in self.parts(pack) if _spans(part, seqs))

    def rows_in(self, part: PackRef, *, whole: bool = False) -> list[LogRow]:
        """The rows of a block or a pack without any; each is proved where it is opened."""
        place = part.key, part.start
        with self._lock:
            rows = self._indexes.get(place)
            if rows is not None:
                self._indexes.move_to_end(place)
                return rows
        whole = whole and part.size <= _WHOLE
        end = part.start + (part.size if whole else part.index)
        data = self._bucket.get_range(part.key, part.start, end)
        if not data:
            raise StaleView
        if whole:
            self._remember_whole(place, data)
        return self._remember(place, decode(data, lenient=True).entry.rows)

    def bodies(self, part: PackRef, wanted: Sequence[LogRow]) -> dict[int, bytes]:
        """The bodies of some rows of a block that follow each other: at most one request."""
        places = body_places(self.rows_in(part), part.index)
        start = places[wanted[0].seq]
        end = places[wanted[-1].seq] + wanted[-1].size
        with self._lock:
            held = self._whole.get((part.key, part.start))
        if held is not None:
            data: bytes | None = held[start:end]
        elif end > start:
            data = self._bucket.get_range(part.key, part.start + start, part.start + end)
        else:
            data = b""
        if data is None:
            raise StaleView
        return {
            row.seq: data[places[row.seq] - start : places[row.seq] - start + row.size]
            for row in wanted
        }

    def _remember(self, place: _Place, rows: list[LogRow]) -> list[LogRow]:
        with self._lock:
            if place not in self._indexes:
                self._indexes[place] = rows
                self._held += len(rows)
            while self._held > _INDEX_ROWS and len(self._indexes) > 1:
                self._held -= len(self._indexes.popitem(last=False)[1])
        return rows

    def _remember_whole(self, place: _Place, data: bytes) -> None:
        with self._lock:
            self._whole[place] = data
            while sum(map(len, self._whole.values())) > _WHOLE_BYTES and len(self._whole) > 1:
                self._whole.popitem(last=False)

    def is_due(self, view: LogView) -> bool:
        """True if the log of a run has so many changes that it should get a base."""
        return view.loose >= LOOSE or view.loose_rows >= LOOSE_ROWS

    def pack(self, view: LogView, *, erased: Collection[int] = ()) -> bool:
        """Give the log a base; False if another change came first.

        The base repeats what the newest checkpoint needs, so that a resume reads it alone. With
        *erased*, no object that the base names holds a record at one of these seqs.
        """
        if view.head is None:
            return self._write_base(view, [], [])
        packs, inline, gone = self._gathered(view, erased)
        packs, merged = self._merged(view, packs)
        before = set(view.packs)
        if not self._write_base(view, packs, inline):
            self._bucket.delete(p.key for p in packs if p not in before and _is_own(p))
            return False
        self._bucket.delete(pack.key for pack in (*gone, *merged) if _is_own(pack))
        if erased or (merged and self._is_time_to_sweep(view.name)):
            self.sweep(view)
        return True

    def _is_time_to_sweep(self, name: str) -> bool:
        """True if some objects may have become old enough since this process last looked.

        A look lists all names of the last hour, so it must not come with every few saves.
        """
        with self._lock:
            if now() - self._swept.get(name, -1e18) < GRACE.total_seconds() / _LOOKS:
                return False
            remember(self._swept, name, now(), most=_SWEPT)
            return True

    def _gathered(
        self, view: LogView, erased: Collection[int]
    ) -> tuple[list[PackRef], list[int], list[PackRef]]:
        """The packs of a new base, the seqs it holds itself, and packs that it replaces."""
        packs = [*view.packs, *(self._zoned(view, one) for one in view.large.values())]
        gone: list[PackRef] = []
        if erased:
            packs, gone = self._scrubbed(view, packs, erased)
        own = [seq for seq in view.rows if seq in view.bodies]
        based = [seq for seq in view.based_rows if seq in view.rows]
        inline = {seq for seq in own if view.rows[seq].pos > view.base}
        if based and set(view.based_rows).isdisjoint(erased):
            rows = [view.rows[seq] for seq in based]
            key, zone = entry_key(view.name, view.base), _zone_of(view, rows)
            packs.append(ref_of(key, rows, *view.based, 0, zone=zone))
        else:
            inline.update(based)
        packs.sort(key=lambda pack: pack.last)
        return packs, sorted({*inline, *self._chain(view)}), gone

    def _zoned(self, view: LogView, large: PackRef) -> PackRef:
        rows = [view.rows[seq] for seq in view.seqs if large.first <= seq <= large.last]
        return msgspec.structs.replace(large, zone=_zone_of(view, rows) if rows else None)

    def _chain(self, view: LogView) -> list[int]:
        """The seqs that the newest checkpoint needs, if few bytes and in the view."""
        if view.newest is None or view.newest.seq not in view.rows:
            return []
        header = header_of(view.run_id, view.newest)
        chain = [seq for seq in view.rows if seq >= (header.key_seq or header.seq)]
        if sum(view.rows[seq].size for seq in chain) > _REPEATED:
            return []
        for seq in chain:
            if seq not in view.bodies:  # too large to be held until now
                data = self._bucket.get(view.large[view.rows[seq].pos].key)
                if not data:
                    raise StaleView
                view.bodies |= decode(data).bodies
        return chain

    def _write_base(self, view: LogView, packs: Sequence[PackRef], inline: Sequence[int]) -> bool:
        entry = LogEntry(
            view.run_id,
            view.pos + 1,
            max(time.time_ns(), view.at + 1),
            os.urandom(8),
            view.epoch,
            view.pos + 1,
            view.head,
            view.newest,
            [view.rows[seq] for seq in inline],
            ranges_of(sorted(view.hidden)),
            view.erased,
            list(packs),
            [*view.bases, *([view.base] if view.base else [])][-_BASES:],
        )
        bodies = {seq: view.bodies[seq] for seq in inline}
        return self._logs.write(view, entry, bodies)

    def _merged(self, view: LogView, packs: list[PackRef]) -> tuple[list[PackRef], list[PackRef]]:
        """The packs, the newest of one size merged if there are many; and those merged."""
        merged: list[PackRef] = []
        for level in range(8):
            sized = (pack for pack in reversed(packs) if pack.level == level)
            tail = [*takewhile(lambda pack: pack.size <= _MOST_PACK // _FAN, sized)][::-1]
            if len(tail) < _FAN:
                continue
            whole = self.join(view, tail, level + 1)
            at = packs.index(tail[0])
            packs = [pack for pack in packs if pack not in tail]
            packs[at:at] = [whole] if whole else []
            merged += tail
        packs.sort(key=lambda pack: pack.last)
        return packs, merged

    def join(
        self, view: LogView, packs: Sequence[PackRef], level: int, erased: Collection[int] = ()
    ) -> PackRef | None:
        """Write the records of some packs as one pack; None if no record is left."""
        rows: dict[int, LogRow] = {}
        bodies: dict[int, bytes] = {}
        zones: dict[int, Zone | None] = {}
        parts = self._bucket.together(self._bucket.get, [pack.key for pack in packs])
        for pack, data in zip(packs, parts, strict=True):
            if not data:
                raise StaleView
            for segment, part in objects_in(data):
                kept = [
                    row
                    for row in segment.entry.rows
                    if not view.is_erased(row.seq) and row.seq not in erased
                ]
                whole = len(kept) == len(segment.entry.rows)
                zone = part.zone if pack.blocks else pack.zone
                for row in kept:
                    rows[row.seq] = row
                    bodies[row.seq] = segment.bodies[row.seq]
                    zones[row.seq] = zone if whole else None  # it tells of what is erased
        return self.store(view, [rows[seq] for seq in sorted(rows)], bodies, level, zones)

    def store(
        self,
        view: LogView,
        rows: Sequence[LogRow],
        bodies: Mapping[int, bytes],
        level: int,
        zones: Mapping[int, Zone | None] | None = None,
    ) -> PackRef | None:
        """Store a pack of these rows under a name of its own; None for no rows.

        *zones* holds the known zones of the parts that the rows come from.
        """
        if not rows:
            return None
        key = f"data/{view.name}/{os.urandom(12).hex()}"
        blocks = []
        for part, known in _in_blocks(rows, zones or {}):
            entry = LogEntry(view.run_id, 0, 0, b"", 0, 0, None, None, list(part), [], [])
            data, index = encode(entry, bodies)
            zone = _zone_of(view, part) if known is None else known
            blocks.append((ref_of(key, part, len(data), index, level, zone=zone), data))
        if len(blocks) == 1:
            self._bucket.put(key, blocks[0][1])
            return blocks[0][0]
        data, index = encode_pack(blocks)
        self._bucket.put(key, data)
        known_zones = [ref.zone for ref, _ in blocks if ref.zone is not None]
        return msgspec.structs.replace(
            ref_of(key, rows, len(data), index, level),
            blocks=len(blocks),
            zone=joined(known_zones) if len(known_zones) == len(blocks) else None,
        )

    def _scrubbed(
        self, view: LogView, packs: Sequence[PackRef], erased: Collection[int]
    ) -> tuple[list[PackRef], list[PackRef]]:
        """The packs without erased records, and those that were written anew for it."""
        kept: list[PackRef] = []
        gone: list[PackRef] = []
        for pack in packs:
            if not self._holds(pack, erased):
                kept.append(pack)
                continue
            gone.append(pack)
            anew = self.join(view, [pack], max(pack.level, 1), erased)
            if anew is not None:
                kept.append(anew)
        return kept, gone

    def _holds(self, pack: PackRef, seqs: Collection[int]) -> bool:
        parts = self._parts_with([pack], sorted(seqs))
        return any(row.seq in seqs for part in parts for row in self.rows_in(part))

    def scrub(self, view: LogView, places: Collection[int]) -> None:
        """Empty the objects at some positions of a log, and those of all former bases.

        They are emptied and not deleted: their names have to stay taken for a while.
        """
        left = {pos_of(one.key) for one in self._bucket.each(f"log/{view.name}")}
        named = {pack.key for pack in view.packs}
        keys = [
            entry_key(view.name, pos)
            for pos in left & {*places, *view.bases}
            if pos < view.base and entry_key(view.name, pos) not in named
        ]
        self._bucket.clear(keys)

    def sweep(self, view: LogView) -> None:
        """Delete the objects of a log that its base replaced, once they are old enough."""
        named = {pack.key for pack in view.packs}
        latest = None
        old: list[str] = []
        for one in self._bucket.each(f"log/{view.name}"):
            latest = latest or one.changed
            is_past = pos_of(one.key) < view.base and one.key not in named
            if is_past and latest - one.changed > GRACE:
                old.append(one.key)
            if len(old) >= _SWEEP:
                break
        self._bucket.delete(old)

    def sweep_data(self, view: LogView) -> None:
        """Delete packs that a crash left behind, and that no base names."""
        named = {pack.key for pack in view.packs}
        listed = list(self._bucket.each(f"data/{view.name}"))
        latest = max((one.changed for one in listed), default=None)
        if latest is not None:
            self._bucket.delete(
                one.key for one in listed if one.key not in named and latest - one.changed > GRACE
            )

    def drop(self, view: LogView) -> None:
        """Remove all that a deleted run has left, but for the end of its log."""
        self._bucket.delete([one.key for one in self._bucket.each(f"data/{view.name}")])
        self.drop_log(view)

    def drop_log(self, view: LogView) -> None:
        """Delete or empty all objects of a log before its base."""
        left = [one for one in self._bucket.each(f"log/{view.name}") if pos_of(one.key) < view.base]
        latest = max((one.changed for one in left), default=None)
        self._bucket.delete(one.key for one in left if latest and latest - one.changed > GRACE)
        young = [one.key for one in left if one.size and latest and latest - one.changed <= GRACE]
        self._bucket.clear(young)


def _needed(
    packs: Sequence[PackRef],
    inline: Sequence[int],
    first: int,
    last: int,
    wanted: Wanted | None = None,
) -> list[PackRef]:
    """The packs with wanted records from *first* to *last* that may not be *inline*."""
    needed = []
    for pack in packs:
        if wanted is not None and pack.zone is not None and not wanted(pack.zone):
            continue
        low, high = max(pack.first, first), min(pack.last, last)
        if high - low + 1 > bisect_right(inline, high) - bisect_left(inline, low):
            needed.append(pack)
    return needed


def _in_blocks(
    rows: Sequence[LogRow], zones: Mapping[int, Zone | None]
) -> Iterator[tuple[Sequence[LogRow], Zone | None]]:
    """The rows in parts fit to be a block each, cut where zones meet if that is near.

    With each comes its zone, None if it is not known: a cut inside of a zone leaves it too wide.
    """
    of = [zones.get(row.seq) for row in rows]
    start, clean = 0, True
    for at in range(1, len(rows) + 1):
        size, left = at - start, len(rows) - at
        meet = not left or of[at] is not of[at - 1]
        long = (size >= _BLOCK and meet) or size >= 2 * _BLOCK
        if not left or (long and left >= _BLOCK // 2):
            known = list({id(zone): zone for zone in of[start:at]}.values())
            whole = [zone for zone in known if zone is not None] if clean and meet else []
            yield rows[start:at], joined(whole) if len(whole) == len(known) else None
            start, clean = at, meet


def _zone_of(view: LogView, rows: Sequence[LogRow]) -> Zone | None:
    """The zone of these rows; None if a row is damaged: readers must not skip it."""
    try:
        return zone_of(header_of(view.run_id, row) for row in rows)
    except CorruptError:
        return None


def _between(rows: list[LogRow], first: int, last: int, view: LogView) -> list[LogRow]:
    """Those of the rows of a part from *first* to *last* that are not erased."""
    low = bisect_left(rows, first, key=_seq)
    some = rows[low : bisect_right(rows, last, lo=low, key=_seq)]
    return [row for row in some if not view.is_erased(row.seq)] if view.erased else some


_seq = attrgetter("seq")


def _spans(pack: PackRef, seqs: Sequence[int]) -> bool:
    """True if one of *seqs*, sorted, is between the first and last of a pack."""
    at = bisect_left(seqs, pack.first)
    return at < len(seqs) and seqs[at] <= pack.last


def _meets(pack: PackRef, ranges: Sequence[Range]) -> bool:
    """True if one of the ranges, sorted, is in part between first and last."""
    at = bisect_left(ranges, pack.first, key=lambda one: one[1])
    return at < len(ranges) and ranges[at][0] <= pack.last


def _is_own(pack: PackRef) -> bool:
    """True for an object that is not part of a log."""
    return pack.key.startswith("data/")
