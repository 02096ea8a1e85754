"""Applies retention after each save, or when asked."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import takewhile

import msgspec

from surehold.core import policy
from surehold.core.records import Header
from surehold.core.values import remember
from surehold.engine.journal import Journal, Outcome
from surehold.engine.retention.erase import Erasure, first_needed, plan_erasure
from surehold.engine.retention.marks import MARKING, Marks, is_of_group, marks_in, plan_marked
from surehold.errors import CorruptError, SureholdError
from surehold.storage.base import RecordQuery, RunInfo, is_live, newest_lease

logger = logging.getLogger("surehold.checkpoint")

_ERASE_AFTER = 64
"""The number of hidden records that are freed together, so that freeing costs little per save."""
_REMEMBERED = 1024
"""The number of groups and of runs that are remembered."""
_LOOK_EVERY = 1.0
"""Seconds after which the visible checkpoints of a run are counted again."""
_LIST_AGAIN = 100
"""Those of a name, or of all runs, are listed again after so many times the time it takes."""


class _Group(msgspec.Struct):
    """The visible checkpoints that are counted together, newest first."""

    visible: list[Header]
    looked: float
    took: float
    """Seconds that it took to list them."""


class RetentionManager:
    """Applies retention rules, if any, to runs as they are saved, or when asked."""

    def __init__(
        self, journal: Journal, rules: policy.Rules | None, clock: Callable[[], datetime]
    ) -> None:
        self._rules = rules
        self.active = rules is not None and not rules.empty
        self._only_last = rules.only_last if rules is not None else None
        self._storage = journal.storage
        self._reader = journal.reader
        self._clock = clock
        # Held for a moment only: what is called under it never reads the storage.
        self._lock = threading.Lock()
        self._groups: OrderedDict[tuple[str, str], _Group] = OrderedDict()
        self._marks: OrderedDict[str, Marks] = OrderedDict()
        self._hidden: dict[str, int] = {}

    def renew_lock(self) -> None:
        """Start with a free lock in the child of a fork."""
        self._lock = threading.Lock()

    @property
    def rules(self) -> policy.Rules:
        """The rules; without any, those that drop nothing."""
        if self._rules is None:
            self._rules = policy.Rules()
        return self._rules

    # While saving

    def hide(self, header: Header) -> Mapping[str, Sequence[int]]:
        """The seqs, by run, that the rules drop once *header* is stored.

        Where they cannot be told nothing is dropped: a failed prune is no failed save.
        """
        gone: dict[str, list[int]] = {}
        try:
            for one in self._dropped([header, *self._visible(header)], header):
                gone.setdefault(one.run_id, []).append(one.seq)
        except SureholdError as error:
            logger.warning("run %s: retention was not applied: %s", header.run_id, error)
            return {}
        return gone

    def saved(self, outcome: Outcome) -> None:
        """Take in a checkpoint that was stored, and what was hidden with it."""
        header = outcome.header
        if header is None or not self.active:
            return
        gone = {(run, seq) for run, seqs in outcome.hidden.items() for seq in seqs}
        with self._lock:
            group = self._groups.get(self._key(header))
            if group is not None:
                kept = [one for one in group.visible if (one.run_id, one.seq) not in gone]
                if not kept or kept[0].id != header.id:
                    kept.insert(0, header)
                group.visible = kept
            for run_id, seqs in outcome.hidden.items():
                self._hidden[run_id] = self._hidden.get(run_id, 0) + len(seqs)
            marks = self._marks.get(header.run_id)
            if marks is None and outcome.written[0].seq == 1:
                marks = Marks()
                remember(self._marks, header.run_id, marks, most=_REMEMBERED)
            if marks is not None and marks.seq + 1 == outcome.written[0].seq:
                for one in outcome.written:
                    if one.frame == "note" and one.kind in MARKING:
                        marks.add(one)
                marks.seq = outcome.written[-1].seq

    def runs_to_erase(self) -> list[str]:
        """The runs with hidden records, once there are enough to be worth freeing."""
        with self._lock:
            if sum(self._hidden.values()) < _ERASE_AFTER:
                return []
            runs = [*self._hidden]
            self._hidden.clear()
            if self._only_last is not None:
                self._groups.clear()  # other processes may have saved under the same name
            return runs

    def _dropped(self, visible: Sequence[Header], new: Header | None = None) -> list[Header]:
        """The part of *visible* that the rules drop; *new* is the one being stored."""
        visible = [one for one in visible if not is_of_group(one)]
        if self._only_last is not None:
            stay = set(policy.newest_keys(visible, self.rules.group_by))
            scopes: dict[str, dict[tuple[str, int], Header]] = {}
            for one in visible:
                scope = "" if self.rules.group_by == "all" else one.scope
                scopes.setdefault(scope, {})[one.run_id, one.seq] = one
            gone = [
                keys[key]
                for keys in scopes.values()
                for key in policy.drop_beyond_last([*keys], self._only_last, stay)
            ]
            marks = {run_id: self._marks_at(run_id, new) for run_id in _runs(gone)}
            gone = [one for one in gone if one.seq not in marks[one.run_id].pinned]
        else:
            marks = {run_id: self._marks_at(run_id, new) for run_id in _runs(visible)}
            plan = plan_marked(visible, marks, self.rules, self._clock())
            gone = [decision.header for decision in plan if not decision.keep]
        own = new.run_id if new is not None else None
        held = {run_id for run_id in _runs(gone) if run_id != own and self.is_held(run_id)}
        return [one for one in gone if one.run_id not in held]

    def is_held(self, run_id: str) -> bool:
        """Return whether someone holds a live lease of a run."""
        return is_live(newest_lease(self._storage, run_id), time.time())

    def _visible(self, header: Header) -> list[Header]:
        """The visible checkpoints that are counted together with one about to be stored."""
        key = self._key(header)
        now = time.monotonic()
        with self._lock:
            group = self._groups.get(key)
            if group is not None:
                self._groups.move_to_end(key)
        if group is not None and now - group.looked >= _LOOK_EVERY:
            # What someone else has deleted must not be counted.
            if key[0] != "run":
                group = group if now - group.looked < _LIST_AGAIN * group.took else None
            else:
                group.looked = now
                run = self._reader.run(header.run_id)
                if run is not None and run.checkpoints != len(group.visible):
                    group = None
        if group is None:
            page = self._storage.page(_query(key), notes=MARKING if key[0] == "run" else ())
            group = _Group([*page.headers], now, time.monotonic() - now)
            with self._lock:
                if key[0] == "run":  # of the time before its append, as those headers are
                    marks = marks_in(page.notes).get(header.run_id, Marks())
                    marks.seq = header.seq - 1
                    remember(self._marks, header.run_id, marks, most=_REMEMBERED)
                remember(self._groups, key, group, most=_REMEMBERED)
        return group.visible

    def _key(self, header: Header) -> tuple[str, str]:
        """The group that a checkpoint is counted in."""
        by = self.rules.group_by
        if by == "all":
            return "all", ""
        return ("name", header.name) if by == "name" and header.name else ("run", header.run_id)

    # When asked

    def hide_now(self, runs: Sequence[RunInfo]) -> dict[str, int]:
        """Apply the rules to these runs now; return the checkpoints gone and their runs."""
        if not self.active:
            return {}
        self.forget_all()
        everything = self.rules.group_by == "all"
        gone: dict[str, list[int]] = {}
        for group in grouped(self._storage.headers, None if everything else runs, self.rules):
            for header in self._dropped(group):
                gone.setdefault(header.run_id, []).append(header.seq)
        for run_id, seqs in gone.items():
            self._storage.delete(run_id, hide=seqs)
        return {run_id: len(seqs) for run_id, seqs in gone.items()}

    # Freeing

    def plan_erasure(self, run_id: str, hiding: Collection[int] = ()) -> Erasure | None:
        """Plan to free a run's records that no visible checkpoint needs; None if none.

        The checkpoints *hiding* count as hidden.
        """
        run = self._reader.run(run_id)
        if run is None:
            return None
        headers = self._storage.headers(RecordQuery(run_id=run_id))
        visible = [header for header in headers if header.seq not in hiding]
        old = self._storage.read(run_id, last=first_needed(visible, run.seq) - 1)
        return plan_erasure(visible, old, run.seq)

    def erase(self, run_id: str, plan: Erasure) -> int:
        """Carry the plan out, its note being stored."""
        return self._storage.delete(run_id, erase=plan.seqs)

    def is_empty(self, run_id: str) -> bool:
        """Return whether retention has left a run no checkpoint, so that it can go whole."""
        if any(True for _ in self._storage.headers(RecordQuery(run_id=run_id, limit=1))):
            return False
        # A listing may miss those of a process that saves and hides just now; the head does not.
        run = self._reader.run(run_id)
        return run is None or not run.checkpoints

    # Marks

    def marks(self, run_id: str) -> Marks:
        """The marks of a run's checkpoints. Anyone may add some at any time."""
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
        for note in self._marking(run, known.seq):
            marks.add(note)
        # Only now: half of them, if reading fails, would let go of what is pinned.
        with self._lock:
            remember(self._marks, run_id, marks, most=_REMEMBERED)
        return marks

    def readable_marks(self, run: RunInfo) -> Marks:
        """The marks of a run to show to people: damaged ones are left out."""
        try:
            return self.marks(run.run_id)
        except CorruptError:
            query = RecordQuery(run_id=run.run_id, notes=True)
            notes = self._reader.readable_headers(run, query)
        marks = Marks()
        for note in reversed(notes):
            if note.frame == "note" and note.kind in MARKING:
                marks.add(note)
        return marks

    def _marking(self, run: RunInfo, after: int) -> list[Header]:
        """The notes that mark checkpoints of a run after that record, oldest first."""
        if run.checkpoints == run.seq:  # each record is a checkpoint
            return []
        if not after:
            queries = (RecordQuery(run_id=run.run_id, kind=k, notes=True) for k in MARKING)
            found = [header for query in queries for header in self._storage.headers(query)]
        else:
            query = RecordQuery(run_id=run.run_id, notes=True, limit=run.seq - after)
            found = list(takewhile(lambda header: header.seq > after, self._storage.headers(query)))
        marking = [one for one in found if one.frame == "note" and one.kind in MARKING]
        return sorted(marking, key=lambda header: header.seq)

    def _marks_at(self, run_id: str, new: Header | None) -> Marks:
        """The marks of a run when *new* is stored.

        In the run of *new* those read up to the record before it will do: a note that came since
        makes its append a conflict, and before it is tried again this is asked again.
        """
        known = self._marks.get(run_id)
        if new is not None and run_id == new.run_id:
            if new.seq == 1:
                return Marks()
            if known is not None and known.seq + 1 == new.seq:
                return known
        return self.marks(run_id)

    def with_tags(self, header: Header) -> Header:
        """The header with the tags that it has now."""
        return self.marks(header.run_id).tagged(header)

    def listed(self, query: RecordQuery, about: str | None = None) -> list[Header]:
        """The headers that *query* wants, with tags that were added or removed later.

        *about* narrows to the run with that id or, if there is none, to the runs of that name.
        """
        if query.tag is None:
            page = self._storage.page(query, about=about, notes=MARKING)
            marks = marks_in(page.notes)
            return [marks.get(one.run_id, Marks()).tagged(one) for one in page.headers]
        only_tag = RecordQuery(run_id=query.run_id, name=query.name, tag=query.tag, notes=True)
        found: dict[tuple[str, int], Header] = {}
        for header in self._storage.page(only_tag, about=about).headers:
            for target in self._targets(header):
                found[target.run_id, target.seq] = self.with_tags(target)
        wanted = [one for one in found.values() if query.matches(one)]
        return _page(_newest_first(wanted), query)

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


def grouped(
    headers: Callable[[RecordQuery], Iterable[Header]],
    runs: Sequence[RunInfo] | None,
    rules: policy.Rules,
) -> Iterator[list[Header]]:
    """The visible checkpoints that rules count together, newest first.

    Of all runs for None.
    """
    chosen = None if runs is None else {run.run_id for run in runs}
    if rules.group_by == "all" or runs is None or chosen is None:
        found = headers(RecordQuery())
        yield [one for one in found if chosen is None or one.run_id in chosen]
        return
    by_name = rules.group_by == "name"
    for name in sorted({run.name for run in runs} - {""}) if by_name else ():
        yield [one for one in headers(RecordQuery(name=name)) if one.run_id in chosen]
    for run in runs:
        if not by_name or not run.name:
            yield list(headers(RecordQuery(run_id=run.run_id)))


def _query(key: tuple[str, str]) -> RecordQuery:
    by, value = key
    if by == "all":
        return RecordQuery()
    return RecordQuery(name=value) if by == "name" else RecordQuery(run_id=value)


def _runs(headers: Iterable[Header]) -> set[str]:
    return {header.run_id for header in headers}


def _newest_first(headers: Iterable[Header]) -> list[Header]:
    """Sort by seq within a run and, as well as possible, by time between runs."""
    latest: dict[str, datetime] = {}
    order: list[tuple[datetime, Header]] = []
    for header in sorted(headers, key=lambda header: header.seq):
        moment = max(header.saved_at, latest.get(header.run_id, header.saved_at))
        latest[header.run_id] = moment
        order.append((moment, header))
    order.sort(key=lambda pair: (pair[0], pair[1].run_id, pair[1].seq), reverse=True)
    return [header for _, header in order]


def _page(headers: list[Header], query: RecordQuery) -> list[Header]:
    if query.before is not None:
        places = [n for n, header in enumerate(headers) if header.id == query.before]
        headers = headers[places[0] + 1 :] if places else []
    return headers if query.limit is None else headers[: query.limit]
