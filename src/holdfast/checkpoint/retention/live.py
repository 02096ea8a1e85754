"""Retention in motion: what is visible, what is marked, what goes and how its space is freed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any

import msgspec

from holdfast.checkpoint.journal import Journal, Note, Outcome, Request
from holdfast.core.policy import Rules, drop_beyond_last, newest_keys, plan_prune
from holdfast.core.records import Header
from holdfast.storage.base import RecordQuery, RunInfo, matches

__all__ = ["Erasure", "Marks", "RetentionManager"]

_ERASE_AFTER = 64
"""So many hidden records are freed together, so that freeing costs little per save."""
_MARKING = ("pin", "release", "tag")
"""The kinds of the notes that say something about a checkpoint."""


class Marks(msgspec.Struct):
    """What notes say about a run's checkpoints, by seq."""

    ordinal: int = 0
    seq: int = 0
    """Which run it is of, and up to which record it was read."""
    pinned: set[int] = msgspec.field(default_factory=set)
    released: set[int] = msgspec.field(default_factory=set)
    tags: dict[int, tuple[tuple[str, ...], frozenset[str]]] = msgspec.field(default_factory=dict)
    """What was added and what was taken away."""

    def copy(self) -> Marks:
        return Marks(self.ordinal, self.seq, set(self.pinned), set(self.released), dict(self.tags))

    def tagged(self, header: Header) -> Header:
        """The header with the tags that it has now."""
        if header.seq not in self.tags:
            return header
        added, removed = self.tags[header.seq]
        tags = dict.fromkeys((*header.tags, *added))
        return msgspec.structs.replace(header, tags=tuple(t for t in tags if t not in removed))


class Erasure(msgspec.Struct, frozen=True):
    """Which records of a run go for good, and the note that says so beforehand."""

    note: Note
    seqs: tuple[int, ...]
    stored: int
    """Bytes of their bodies."""
    head: int
    """The newest record when this was planned."""

    def request(self, run_id: str) -> Request:
        """What stores the note, unless the run went on from what is to go."""
        seqs = frozenset(self.seqs)
        return Request(run_id=run_id, notes=(self.note,), head=self.head, erases=seqs)


class _Group(msgspec.Struct):
    """The visible checkpoints that are counted together, newest first."""

    visible: list[Header]


class RetentionManager:
    """Applies retention rules to runs as they are saved, or when asked."""

    def __init__(self, journal: Journal, rules: Rules, clock: Callable[[], datetime]) -> None:
        self.rules = rules
        self.active = not rules.empty
        self._only_last = rules.only_last
        self._storage = journal.storage
        self._reader = journal.reader
        self._clock = clock
        self._lock = threading.Lock()
        self._groups: dict[tuple[str, str], _Group] = {}
        self._marks: dict[str, Marks] = {}
        self._hidden: dict[str, int] = {}

    # While saving

    def hide(self, header: Header) -> Mapping[str, Sequence[int]]:
        """The seqs, by run, that the rules drop once *header* is stored."""
        with self._lock:
            visible = [header, *self._group_now(header).visible]
            gone: dict[str, list[int]] = {}
            for one in self._dropped(visible, header):
                gone.setdefault(one.run_id, []).append(one.seq)
            return gone

    def saved(self, outcome: Outcome) -> None:
        """Take note of a checkpoint that was stored, and of what was hidden with it."""
        header = outcome.header
        if header is None or not self.active:
            return
        with self._lock:
            group = self._group(header)
            gone = {(run, seq) for run, seqs in outcome.hidden.items() for seq in seqs}
            kept = [one for one in group.visible if (one.run_id, one.seq) not in gone]
            if not kept or kept[0].id != header.id:
                kept.insert(0, header)
            group.visible = kept
            for run_id, seqs in outcome.hidden.items():
                self._hidden[run_id] = self._hidden.get(run_id, 0) + len(seqs)
            marks = self._marks.get(header.run_id)
            if marks is not None and marks.seq + 1 == outcome.written[0].seq:
                marks.seq = outcome.written[-1].seq

    def runs_to_erase(self) -> list[str]:
        """The runs of which records were hidden, once there are enough to be worth freeing."""
        with self._lock:
            if sum(self._hidden.values()) < _ERASE_AFTER:
                return []
            runs = [*self._hidden]
            self._hidden.clear()
            if self._only_last is not None:
                self._groups.clear()  # other processes may have saved under the same name
            return runs

    def _dropped(self, visible: Sequence[Header], new: Header | None = None) -> list[Header]:
        """Which of *visible* the rules drop; *new* is the one of them that is being stored."""
        count = self._only_last
        if count is not None:
            stay = set(newest_keys(visible, self.rules.group_by))
            keys = {(header.run_id, header.seq): header for header in visible}
            gone = [keys[key] for key in drop_beyond_last([*keys], count, stay)]
            marks = {run_id: self._marks_at(run_id, new) for run_id in {one.run_id for one in gone}}
            return [one for one in gone if one.seq not in marks[one.run_id].pinned]
        marks = {run_id: self._marks_at(run_id, new) for run_id in {one.run_id for one in visible}}
        pinned = {(run, seq) for run, mark in marks.items() for seq in mark.pinned}
        released = {(run, seq) for run, mark in marks.items() for seq in mark.released}
        headers = [marks[header.run_id].tagged(header) for header in visible]
        plan = plan_prune(headers, self.rules, self._clock(), pinned=pinned, released=released)
        return [decision.header for decision in plan if not decision.keep]

    def _group_now(self, header: Header) -> _Group:
        """The group that a checkpoint which is about to be stored will belong to."""
        group = self._group(header)
        if self.rules.group_by == "run":
            run = self._reader.run(header.run_id)
            if run is not None and run.checkpoints != len(group.visible):
                # Someone else has deleted some: they must not be counted.
                del self._groups["run", header.run_id]
                group = self._group(header)
        return group

    def _group(self, header: Header) -> _Group:
        by = self.rules.group_by
        key = ("run", header.run_id)
        query = RecordQuery(run_id=header.run_id)
        if by == "name" and header.name:
            key, query = ("name", header.name), RecordQuery(name=header.name)
        elif by == "all":
            key, query = ("all", ""), RecordQuery()
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(list(self._storage.headers(query)))
        return group

    # When asked

    def hide_now(self, runs: Sequence[RunInfo]) -> dict[str, int]:
        """Apply the rules to these runs now; gives how many checkpoints of which runs went."""
        if not self.active:
            return {}
        self.forget_all()
        with self._lock:
            gone: dict[str, list[int]] = {}
            for header in self._dropped_of_groups(self._headers_of(runs)):
                gone.setdefault(header.run_id, []).append(header.seq)
            for run_id, seqs in gone.items():
                self._storage.delete(run_id, hide=seqs)
            return {run_id: len(seqs) for run_id, seqs in gone.items()}

    def _headers_of(self, runs: Sequence[RunInfo]) -> list[Header]:
        """The visible checkpoints of these runs, newest first where they are counted together."""
        by = self.rules.group_by
        if by == "all":
            return list(self._storage.headers(RecordQuery()))
        chosen = {run.run_id for run in runs}
        headers: list[Header] = []
        for name in {run.name for run in runs} - {""} if by == "name" else ():
            of_name = self._storage.headers(RecordQuery(name=name))
            headers += (header for header in of_name if header.run_id in chosen)
        for run in runs:
            if by == "run" or not run.name:
                headers += self._storage.headers(RecordQuery(run_id=run.run_id))
        return headers

    def _dropped_of_groups(self, headers: Sequence[Header]) -> list[Header]:
        groups: dict[tuple[str, str], list[Header]] = {}
        for header in headers:
            by_name = self.rules.group_by == "name" and header.name
            key = ("name", header.name) if by_name else ("run", header.run_id)
            groups.setdefault(("", "") if self.rules.group_by == "all" else key, []).append(header)
        return [header for group in groups.values() for header in self._dropped(group)]

    # Freeing

    def plan_erasure(self, run_id: str, hiding: Collection[int] = ()) -> Erasure | None:
        """All records before the oldest keyframe that a visible checkpoint needs.

        Keys stay, and so do writes to a visible checkpoint, which may have come before it. The
        checkpoints *hiding* count as hidden.
        """
        run = self._reader.run(run_id)
        if run is None:
            return None
        headers = self._storage.headers(RecordQuery(run_id=run_id))
        visible = [header for header in headers if header.seq not in hiding]
        needed = min((_needs(header) for header in visible), default=run.seq + 1)
        targets = {(header.scope, header.id) for header in visible}
        seqs: list[int] = []
        stored = 0
        edges: dict[int, tuple[int, str]] = {}
        for record in self._storage.read(run_id, last=needed - 1):
            header = record.header
            if header.frame == "note" and header.kind == "key":
                continue
            if header.kind == "writes" and (header.scope, header.parent) in targets:
                continue
            if header.frame == "note" and header.kind == "prune":
                for hole in msgspec.json.decode(record.body)["erased"]:
                    edges[hole["first"]] = (hole["last"], hole["digest"])
            seqs.append(header.seq)
            stored += header.stored
            edges[header.seq] = (header.seq, header.digest)
        if not seqs:
            return None
        content = {"erased": _joined(edges)}
        return Erasure(Note(kind="prune", content=content), tuple(seqs), stored, run.seq)

    def erase(self, run_id: str, plan: Erasure) -> int:
        """Carry the plan out, its note being stored."""
        return self._storage.delete(run_id, erase=plan.seqs)

    def is_empty(self, run_id: str) -> bool:
        """Whether retention has left a run no checkpoint at all, so that it can go whole."""
        return next(iter(self._storage.headers(RecordQuery(run_id=run_id, limit=1))), None) is None

    # Marks

    def marks(self, run_id: str) -> Marks:
        """What notes say of a run's checkpoints. They may come from anywhere at any time."""
        run = self._reader.run(run_id)
        if run is None:
            return Marks()
        known = self._marks.get(run_id)
        if known is not None and (known.ordinal, known.seq) == (run.ordinal, run.seq):
            return known
        if known is None or known.ordinal != run.ordinal or known.seq > run.seq:
            known = Marks()
        marks = known.copy()
        marks.ordinal, marks.seq = run.ordinal, run.seq
        for header in self._marking(run, known.seq):
            _mark(marks, header)
        # Only now: half of them, if reading fails, would let go of what is pinned.
        self._marks[run_id] = marks
        return marks

    def _marking(self, run: RunInfo, after: int) -> list[Header]:
        """The notes that mark checkpoints of a run after that record, oldest first."""
        if not after:
            queries = (RecordQuery(run_id=run.run_id, kind=k, notes=True) for k in _MARKING)
            found = [header for query in queries for header in self._storage.headers(query)]
        else:
            query = RecordQuery(run_id=run.run_id, notes=True, limit=run.seq - after)
            new = takewhile(lambda header: header.seq > after, self._storage.headers(query))
            found = [header for header in new if header.frame == "note" and header.kind in _MARKING]
        return sorted(found, key=lambda header: header.seq)

    def _marks_at(self, run_id: str, new: Header | None) -> Marks:
        """The marks of a run when *new* is stored.

        In the run of *new* those read up to the record before it will do: a note that came since
        makes its append a conflict, and before it is tried again this is asked again.
        """
        known = self._marks.get(run_id)
        if new is None or known is None or (run_id, known.seq + 1) != (new.run_id, new.seq):
            return self.marks(run_id)
        return known

    def with_tags(self, header: Header) -> Header:
        """The header with the tags that it has now."""
        return self.marks(header.run_id).tagged(header)

    def listed(self, query: RecordQuery) -> list[Header]:
        """The headers that *query* wants, tags given or taken later considered."""
        if query.tag is None:
            return self._all_tagged(self._storage.headers(query))
        only_tag = RecordQuery(run_id=query.run_id, name=query.name, tag=query.tag, notes=True)
        found: dict[tuple[str, int], Header] = {}
        for header in self._storage.headers(only_tag):
            for target in self._targets(header):
                found[target.run_id, target.seq] = target
        wanted = [one for one in self._all_tagged(found.values()) if matches(one, query)]
        return _page(_newest_first(wanted), query)

    def _all_tagged(self, headers: Iterable[Header]) -> list[Header]:
        headers = list(headers)
        marks = {run_id: self.marks(run_id) for run_id in {one.run_id for one in headers}}
        return [marks[header.run_id].tagged(header) for header in headers]

    def _targets(self, header: Header) -> Iterable[Header]:
        if header.frame != "note":
            return [header]
        found = self._storage.find(header.parent or "")
        return [one for one in found if one.run_id == header.run_id]

    def forget(self, run_id: str, name: str) -> None:
        """Look the run up again."""
        with self._lock:
            for key in (("run", run_id), ("name", name), ("all", "")):
                self._groups.pop(key, None)
            self._marks.pop(run_id, None)

    def forget_all(self) -> None:
        """Look every run up again."""
        with self._lock:
            self._groups.clear()
            self._marks.clear()


def _mark(marks: Marks, header: Header) -> None:
    fact: dict[str, Any] = header.metadata
    target = fact["target"]
    if header.kind == "tag":
        added, removed = marks.tags.get(target, ((), frozenset()))
        new = tuple(dict.fromkeys((*added, *fact["add"])))
        old = removed.difference(fact["add"]).union(fact["remove"])
        marks.tags[target] = tuple(tag for tag in new if tag not in old), old
    else:
        place = marks.pinned if header.kind == "pin" else marks.released
        (place.add if fact["on"] else place.discard)(target)


def _joined(edges: Mapping[int, tuple[int, str]]) -> list[dict[str, Any]]:
    """Neighbouring ranges as one, each with the digest of its last record."""
    joined: list[dict[str, Any]] = []
    for first, (last, digest) in sorted(edges.items()):
        if joined and joined[-1]["last"] + 1 >= first:
            if last > joined[-1]["last"]:
                joined[-1].update(last=last, digest=digest)
        else:
            joined.append({"first": first, "last": last, "digest": digest})
    return joined


def _newest_first(headers: Iterable[Header]) -> list[Header]:
    """In the order of their seqs within a run and, as well as can be told, of time between runs."""
    latest: dict[str, datetime] = {}
    order: list[tuple[datetime, Header]] = []
    for header in sorted(headers, key=lambda header: header.seq):
        time = max(header.saved_at, latest.get(header.run_id, header.saved_at))
        latest[header.run_id] = time
        order.append((time, header))
    order.sort(key=lambda pair: (pair[0], pair[1].run_id, pair[1].seq), reverse=True)
    return [header for _, header in order]


def _page(headers: list[Header], query: RecordQuery) -> list[Header]:
    if query.before is not None:
        places = [n for n, header in enumerate(headers) if header.id == query.before]
        headers = headers[places[0] + 1 :] if places else []
    return headers if query.limit is None else headers[: query.limit]


def _needs(header: Header) -> int:
    """The first record that a checkpoint needs: its keyframe, or notes of its open step."""
    first = header.key_seq or header.seq
    open_from: int = header.metadata.get("open_from", first)
    return min(first, open_from)
