"""Two checkpoints side by side: state, first divergence, messages, effects, cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import zip_longest
from typing import Annotated, Any

import msgspec

from surehold.core.records import Header
from surehold.core.values import decode
from surehold.engine.journal import Loaded, changes_between
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs import NoteView
from surehold.errors import SureholdError
from surehold.views.costs import Costs, Spending, spent
from surehold.views.documents import ChangeRow, CheckpointInfo, Document, Rows, change_rows, raw
from surehold.views.forks import Origin, fork_origins
from surehold.views.timeline import TimelineEntry, entries_from
from surehold.views.values import ChatTurn, read_turns, state_at
from surehold.views.words import keys_of

_MOST_RECORDS = 600
"""Records of each side that are read to find where the two diverge."""
_MOST_TURNS = 40
_MOST_EFFECTS = 200


class Diff(Document, kw_only=True, tag="diff"):
    """``diff``"""

    a: CheckpointInfo
    b: CheckpointInfo
    changes: Annotated[list[ChangeRow], Rows("change")]
    keys: list[str]
    """The keys of the state that differ."""
    appended: dict[str, int]
    """By how many items lists of the state grew."""
    tokens: int
    dollars: float
    """The cost of the effects between the two; less than 0 if *a* cost more."""


def read_diff(manager: CheckpointManager, a: Header, b: Header) -> Diff:
    """The changes that turn the state of *a* into that of *b*."""
    reader = manager.reader
    before, after = reader.load_visible(a), reader.load_visible(b)
    changes = change_rows(changes_between(before, after))
    for row in changes:
        if row.op != "add":
            row.old = raw(_old(before, row.path))
    ends = [row.path for row in changes if row.path.endswith("/-")]
    costs = [spent(manager.storage, header.run_id, header.seq) for header in (a, b)]
    return Diff(
        a=CheckpointInfo.of(a),
        b=CheckpointInfo.of(b),
        changes=changes,
        keys=list(dict.fromkeys(keys_of(row.path)[0] for row in changes)),
        appended=dict(Counter(path.removesuffix("/-") for path in ends)),
        tokens=costs[1].tokens - costs[0].tokens,
        dollars=costs[1].dollars - costs[0].dollars,
    )


def _old(before: Loaded, path: str) -> Any:
    """The value at a JSON Pointer before the change."""
    first, *rest = keys_of(path)
    value: Any = decode(before.texts[first])
    for key in rest:
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


class EffectPair(msgspec.Struct, frozen=True, kw_only=True):
    """One effect as each side recorded it."""

    id: str
    a: NoteView | None
    b: NoteView | None
    relation: str
    """``same``, ``different``, or ``only in`` one of them."""


class CostPair(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a node on each side."""

    node: str
    a: Spending
    b: Spending


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The common part of two checkpoints, and their differences."""

    diff: Diff
    divergence: str
    """The first difference in words."""
    places: tuple[int | None, int | None] = (None, None)
    """The records at which it is, in each run."""
    common_turns: int = 0
    turns: tuple[list[ChatTurn], list[ChatTurn]] = ([], [])
    """The messages after the common ones."""
    hidden_turns: int = 0
    effects: list[EffectPair] = []
    hidden_effects: int = 0
    costs: list[CostPair] = []
    is_partial: bool = False
    """True if only the first records of each were compared."""


class _Side(msgspec.Struct, frozen=True, kw_only=True):
    entries: list[TimelineEntry]
    effects: dict[str, NoteView]
    is_partial: bool


def compare(manager: CheckpointManager, costs: Costs, one: Header, two: Header) -> Comparison:
    """Compare two checkpoints of one run, of a fork and its origin, or of any runs."""
    first, words = _begin(manager, one, two)
    a = _side(manager, one, first[0])
    b = _side(manager, two, first[1])
    if one.run_id == two.run_id:
        low = min(one.seq, two.seq)
        between = _side(manager, max(one, two, key=lambda each: each.seq), low + 1)
        nodes = [entry.header.node or entry.header.kind for entry in between.entries]
        words = _words_between(nodes, is_partial=between.is_partial)
        places: tuple[int | None, int | None] = (None, None)
        nothing = _Side(entries=[], effects={}, is_partial=False)
        a, b = (nothing, between) if one.seq == low else (between, nothing)
    else:
        said, places = _divergence(one, two, a, b)
        words = f"{words} {said}".strip()
    common, turns, hidden = _turns(manager, one, two)
    effects = _effects(a.effects, b.effects)
    return Comparison(
        diff=read_diff(manager, one, two),
        divergence=words,
        places=places,
        common_turns=common,
        turns=turns,
        hidden_turns=hidden,
        effects=effects[:_MOST_EFFECTS],
        hidden_effects=max(0, len(effects) - _MOST_EFFECTS),
        costs=_costs(manager, costs, one, two),
        is_partial=a.is_partial or b.is_partial,
    )


def _words_between(nodes: list[str], *, is_partial: bool) -> str:
    if not nodes:
        return ""
    count = f"More than {len(nodes):,}" if is_partial else f"{len(nodes):,}"
    more = " and more" if is_partial else f" and {len(nodes) - 12:,} more"
    told = f"{', '.join(nodes[:12])}{more if len(nodes) > 12 else ''}"
    return f"{count} {'checkpoint lies' if len(nodes) == 1 else 'checkpoints lie'} between: {told}."


def _begin(manager: CheckpointManager, one: Header, two: Header) -> tuple[tuple[int, int], str]:
    """The records after which the two are compared, and how they are related."""
    if one.run_id == two.run_id:
        return (1, 1), ""
    origins = fork_origins(manager.storage)
    for a, b, turned in ((one, two, False), (two, one, True)):
        origin = origins.get(a.run_id)
        if origin is not None and origin.run_id == b.run_id:
            words = f"{a.run_id} was forked from {b.run_id} at step {origin.step}."
            start = _after(manager, origin)
            return ((start, 1), words) if turned else ((1, start), words)
    return (1, 1), ""


def _after(manager: CheckpointManager, origin: Origin) -> int:
    try:
        return manager.reader.resolve(origin.checkpoint_id, run_id=origin.run_id).seq + 1
    except SureholdError:  # it was dropped
        return 1


def _side(manager: CheckpointManager, header: Header, first: int) -> _Side:
    """The checkpoints from the record *first* up to *header*, oldest first."""
    run = manager.reader.run(header.run_id)
    assert run is not None
    last = min(header.seq, first + _MOST_RECORDS - 1)
    shown = [
        record.header
        for record in manager.reader.records(header.run_id, first, last)
        if record.header.frame != "note" and not record.header.scope
    ]
    upto = msgspec.structs.replace(run, seq=last)
    entries, after = entries_from(manager.reader, manager.retention, upto, first, shown)
    notes: Iterable[NoteView] = (note for entry in entries for note in entry.notes)
    effects = {note.id: note for note in (*notes, *after) if note.kind == "effect"}
    return _Side(entries=entries, effects=effects, is_partial=last < header.seq)


def _divergence(
    one: Header, two: Header, a: _Side, b: _Side
) -> tuple[str, tuple[int | None, int | None]]:
    """The first step at which two runs differ, in words and as records."""
    ours = [entry for entry in a.entries if entry.header.kind != "fork"]
    theirs = [entry for entry in b.entries if entry.header.kind != "fork"]
    for left, right in zip_longest(ours, theirs):
        if left is None or right is None:
            longer, there = (one, left) if right is None else (two, right)
            entry = there.header
            places = (entry.seq, None) if right is None else (None, entry.seq)
            where = f"step {entry.step} {entry.node or ''}".strip()
            return f"They agree until {longer.run_id} alone continues with {where}.", places
        if left.header.node != right.header.node:
            said = f"{one.run_id} ran {_node(left)} and {two.run_id} ran {_node(right)}"
            return f"They diverge at step {left.header.step}: {said}.", _places(left, right)
        if _changed(left) != _changed(right):
            keys = sorted({path for path, _ in {*_changed(left)} ^ {*_changed(right)}})
            said = f"both ran {_node(left)} and left other values: {', '.join(keys[:6])}"
            return f"They diverge at step {left.header.step}: {said}.", _places(left, right)
    return "The recorded steps of both are the same.", (None, None)


def _places(left: TimelineEntry, right: TimelineEntry) -> tuple[int, int]:
    return left.header.seq, right.header.seq


def _node(entry: TimelineEntry) -> str:
    return entry.header.node or entry.header.kind


def _changed(entry: TimelineEntry) -> list[tuple[str, str]]:
    return [
        (change.path, f"{change.op} {msgspec.json.encode(change.value, enc_hook=repr)!r}")
        for change in entry.changes
    ]


def _turns(
    manager: CheckpointManager, one: Header, two: Header
) -> tuple[int, tuple[list[ChatTurn], list[ChatTurn]], int]:
    """The number of common messages, and the newest of those that follow on each side."""
    states = (msgspec.json.decode(state_at(manager, header)) for header in (one, two))
    a, b = map(read_turns, states)
    common = 0
    while common < min(len(a), len(b)) and a[common] == b[common]:
        common += 1
    rest = a[common:], b[common:]
    hidden = sum(max(0, len(one) - _MOST_TURNS) for one in rest)
    return common, (rest[0][:_MOST_TURNS], rest[1][:_MOST_TURNS]), hidden


def _effects(a: dict[str, NoteView], b: dict[str, NoteView]) -> list[EffectPair]:
    pairs: list[EffectPair] = []
    for id in dict.fromkeys((*a, *b)):
        left, right = a.get(id), b.get(id)
        if left is None or right is None:
            relation = "only in To" if left is None else "only in From"
        elif (left.state, left.value, left.error) == (right.state, right.value, right.error):
            relation = "same"
        else:
            relation = "different"
        pairs.append(EffectPair(id=id, a=left, b=right, relation=relation))
    return sorted(pairs, key=lambda pair: pair.relation == "same")


def _costs(manager: CheckpointManager, costs: Costs, one: Header, two: Header) -> list[CostPair]:
    found: list[dict[str, Spending]] = []
    for header in (one, two):
        run = manager.reader.run(header.run_id)
        assert run is not None
        found.append({spent.node: spent for spent in costs.up_to(run, header.seq)})
    a, b = found
    none = {node: Spending(node=node) for node in (*a, *b)}
    return [
        CostPair(node=node, a=a.get(node, none[node]), b=b.get(node, none[node])) for node in none
    ]
