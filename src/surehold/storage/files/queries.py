"""Answers to queries from the journals that were read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import deepcopy
from heapq import merge
from operator import attrgetter, itemgetter

import msgspec

from surehold.core.records import Header
from surehold.errors import CorruptError
from surehold.storage.base import RecordQuery, RunInfo, RunQuery
from surehold.storage.files.run_index import JournalIndex, Key
from surehold.storage.shared import bound_of, passed_over


def newest_first(
    journals: Iterable[JournalIndex], query: RecordQuery, below: Key
) -> Iterator[tuple[Key, Header]]:
    """The headers that *query* wants, each with its key, from the first below *below*.

    A damaged run that *query* does not name is left out: what was deleted or tagged in it may be
    just what cannot be read.
    """
    whole: list[JournalIndex] = []
    for journal in journals:
        if query.run_id is not None:
            journal.check()
        elif journal.damages:
            passed_over(journal.run_id, journal.corrupt(journal.damages[0]))
            continue
        whole.append(journal)
    lists = (journal.newest_first(below, query.tag) for journal in whole)
    merged = merge(*lists, key=itemgetter(0), reverse=True)
    return ((key, header) for key, header in merged if query.matches(header))


def key_before(journals: Iterable[JournalIndex], query: RecordQuery) -> Key:
    """The place of the record that *query* calls `before`."""
    found = (
        (journal.key_of(entry), entry.header)
        for journal in journals
        for seq in journal.ids.get(query.before or "", ())
        for entry in [journal.entries[seq]]
    )
    return bound_of(query, found)


def find(journals: Sequence[JournalIndex], id_prefix: str) -> list[Header]:
    """The visible checkpoints of this id or, without any, those whose id starts so.

    A run that is damaged might have held another, which matters unless the very id is found.
    """
    sound = [journal for journal in journals if journal.is_certain]
    found = _newest_of(sound, id_prefix, exact=True)
    if not found:
        for journal in journals:
            journal.check()
        found = _newest_of(journals, id_prefix, exact=False)
    return found


def _newest_of(journals: Iterable[JournalIndex], id_: str, *, exact: bool) -> list[Header]:
    found: dict[tuple[str, str, str], tuple[Key, Header]] = {}
    for journal in journals:
        for known in [id_] if exact else [one for one in journal.ids if one.startswith(id_)]:
            for seq in journal.ids.get(known, ()):
                entry = journal.entries[seq]
                header = entry.header
                if header.frame != "note" and not entry.hidden:
                    found[known, header.run_id, header.scope] = journal.key_of(entry), header
    return [header for _, header in sorted(found.values(), key=itemgetter(0), reverse=True)]


def notes_of(journals: Iterable[JournalIndex], kinds: Collection[str]) -> Iterator[Header]:
    """The visible notes of these kinds, oldest first within a run."""
    for journal in journals:
        for seq in journal.seqs:
            entry = journal.entries[seq]
            if entry.header.frame == "note" and entry.header.kind in kinds and not entry.hidden:
                yield copy_of(entry.header)


def heads(journals: Iterable[JournalIndex], query: RunQuery) -> Iterator[RunInfo | CorruptError]:
    """The runs that *query* wants, the one that began last first.

    If *query* names a damaged run or its name, a `CorruptError` ends the list. A listing of all
    runs shows the part of a damaged run that can be read.
    """
    narrow = query.run_id is not None or query.name is not None
    for journal in sorted(journals, key=attrgetter("ordinal"), reverse=True):
        if query.before is not None and journal.ordinal >= query.before:
            continue
        try:
            journal.check_newest("")
        except CorruptError as error:
            if narrow:
                yield error
                return
            passed_over(journal.run_id, error)
        info = journal.info()
        if query.matches(info):
            yield info


def copy_of(header: Header) -> Header:
    """A header that shares nothing that can be changed with *header*."""
    if not header.metadata:
        return header
    return msgspec.structs.replace(header, metadata=deepcopy(header.metadata))
