"""Two checkpoints side by side: state, first divergence, messages, effects, cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import zip_longest
from typing import Annotated, NamedTuple

import msgspec

from surehold.core.records import Header
from surehold.engine.journal import Change, Loaded, changes_between
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs import NoteView
from surehold.errors import SureholdError
from surehold.views.costs import Payment, Spending, by, spent
from surehold.views.documents import ChangeRow, CheckpointInfo, Document, Rows, change_rows, raw
from surehold.views.forks import Origin, fork_origins
from surehold.views.run import Pasts, nodes_of, step_words
from surehold.views.timeline import TimelineEntry, entries_from
from surehold.views.values import ChatTurn, read_turns, state_at, value_before
from surehold.views.words import keys_of, step_name

_MOST_RECORDS = 600
"""Records of each side that are read to find where the two diverge."""
_MOST_TURNS = 40
_MOST_RUNGS = 60
_MOST_FORKS = 50
"""Forks of forks that a line is followed through."""
_MOST_EFFECTS = 200


class Diff(Document, kw_only=True, tag="diff"):
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
    changes = rows_from(before, changes_between(before, after))
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


def rows_from(before: Loaded, changes: Iterable[Change]) -> list[ChangeRow]:
    """Changes of the state *before*, with the values that it had."""
    rows = change_rows(changes)
    for row in rows:
        if row.op != "add":
            row.old = raw(value_before(before, row.path))
    return rows


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


Places = tuple[tuple[str, int] | None, tuple[str, int] | None]


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """A step of one side."""

    run_id: str
    seq: int
    step: int
    node: str
    words: str
    dollars: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The common part of two checkpoints, and their differences."""

    diff: Diff
    divergence: str
    """The first difference in words."""
    places: Places = (None, None)
    """The runs and records at which it is."""
    parting: CommonPast | None = None
    """What both have in common, if one is a fork of the other or both are forks."""
    ladder: list[tuple[Rung | None, Rung | None]] = []
    """The steps of both beside each other, from the first that differs on."""
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


class Stretch(NamedTuple):
    """The records of a run that belong to a side, after what both have in common."""

    run_id: str
    first: int
    last: int


class CommonPast(msgspec.Struct, frozen=True, kw_only=True):
    """The newest checkpoint that two checkpoints have in common."""

    run_id: str
    step: int
    seq: int
    tokens: int
    dollars: float
    """The cost of what both share."""


def compare(manager: CheckpointManager, pasts: Pasts, one: Header, two: Header) -> Comparison:
    """Compare two checkpoints of one run, of forks of one origin, or of any runs."""
    parts, shared = _parted(manager, one, two)
    sides = [_side(manager, segments) for segments in parts]
    a, b = sides
    places: Places = (None, None)
    parting = None
    if shared is not None:
        parting = _parting(manager, pasts, shared)
    if one.run_id == two.run_id:
        between = a if one.seq > two.seq else b
        nodes = [step_name(entry.header) for entry in between.entries]
        words = _words_between(nodes, is_partial=between.is_partial)
    else:
        words, places = _divergence(one, two, a, b)
        if parting is not None:
            words = f"They parted at step {parting.step} of {parting.run_id}. {words}"
    common, turns, hidden = _turns(manager, one, two)
    effects = _effects(a.effects, b.effects)
    return Comparison(
        diff=read_diff(manager, one, two),
        divergence=words,
        places=places,
        parting=parting,
        ladder=_ladder(a, b),
        common_turns=common,
        turns=turns,
        hidden_turns=hidden,
        effects=effects[:_MOST_EFFECTS],
        hidden_effects=max(0, len(effects) - _MOST_EFFECTS),
        costs=_costs(manager, pasts, parts),
        is_partial=a.is_partial or b.is_partial,
    )


def _ladder(a: _Side, b: _Side) -> list[tuple[Rung | None, Rung | None]]:
    """The steps of both sides beside each other, from the first that differs on."""
    told = ([one for one in _own(side) if one.changes or one.notes] for side in (a, b))
    pairs = [(_rung(left), _rung(right)) for left, right in zip_longest(*told)]
    same = 0
    while same < len(pairs) and (pair := pairs[same])[0] and pair[1]:
        if (pair[0].node, pair[0].words) != (pair[1].node, pair[1].words):
            break
        same += 1
    return pairs[same : same + _MOST_RUNGS]


def _rung(entry: TimelineEntry | None) -> Rung | None:
    if entry is None:
        return None
    header = entry.header
    return Rung(
        run_id=header.run_id,
        seq=header.seq,
        step=header.step,
        node=step_name(header),
        words=step_words(entry.changes),
        dollars=sum(note.dollars for note in entry.notes),
    )


def _own(side: _Side) -> list[TimelineEntry]:
    return [one for one in side.entries if (one.header.kind, one.header.seq) != ("fork", 1)]


def _words_between(nodes: list[str], *, is_partial: bool) -> str:
    if not nodes:
        return ""
    count = f"More than {len(nodes):,}" if is_partial else f"{len(nodes):,}"
    more = " and more" if is_partial else f" and {len(nodes) - 12:,} more"
    told = f"{', '.join(nodes[:12])}{more if len(nodes) > 12 else ''}"
    return f"{count} {'checkpoint lies' if len(nodes) == 1 else 'checkpoints lie'} between: {told}."


def _parted(
    manager: CheckpointManager, one: Header, two: Header
) -> tuple[tuple[list[Stretch], list[Stretch]], list[Stretch] | None]:
    """Each side's own records, and those that both share; None if there are none."""
    origins = fork_origins(manager.storage)
    a, b = (_line(manager, origins, header) for header in (one, two))
    ends = {segment.run_id: segment.last for segment in b}
    common = next((segment for segment in a if segment.run_id in ends), None)
    if common is None:
        return (a[::-1], b[::-1]), None
    point = min(common.last, ends[common.run_id])
    at = a.index(common)
    shared = [common._replace(last=point), *a[at + 1 :]]
    return (_from(a, common.run_id, point), _from(b, common.run_id, point)), shared


def _line(manager: CheckpointManager, origins: dict[str, Origin], header: Header) -> list[Stretch]:
    """The records that led to a checkpoint, its own run's first."""
    line = [Stretch(header.run_id, 1, header.seq)]
    while (origin := origins.get(line[-1].run_id)) is not None and len(line) < _MOST_FORKS:
        if any(segment.run_id == origin.run_id for segment in line):
            break
        try:
            last = manager.reader.resolve(origin.checkpoint_id, run_id=origin.run_id).seq
        except SureholdError:  # it was dropped, or its run is gone
            break
        line.append(Stretch(origin.run_id, 1, last))
    return line


def _from(line: list[Stretch], run_id: str, point: int) -> list[Stretch]:
    """The part of a line after a record of one of its runs, oldest first."""
    at = next(at for at, segment in enumerate(line) if segment.run_id == run_id)
    cut = line[at]._replace(first=point + 1)
    return [one for one in (cut, *line[:at][::-1]) if one.first <= one.last]


def _parting(manager: CheckpointManager, pasts: Pasts, shared: list[Stretch]) -> CommonPast:
    newest = shared[0]
    found = [_spent(manager, pasts, segment) for segment in shared]
    run = manager.reader.run(newest.run_id)
    moments = pasts.of(run).moments if run is not None else []
    step = max((one.step for one in moments if one.seq <= newest.last), default=0)
    return CommonPast(
        run_id=newest.run_id,
        step=step,
        seq=newest.last,
        tokens=sum(one.tokens for part in found for one in part),
        dollars=sum(one.dollars for part in found for one in part),
    )


def _spent(manager: CheckpointManager, pasts: Pasts, segment: Stretch) -> list[Payment]:
    """The costs of a segment, each under its node."""
    run = manager.reader.run(segment.run_id)
    if run is None:
        return []
    past = pasts.of(run)
    named = nodes_of(past)
    return [
        msgspec.structs.replace(one, node=named[one.seq])
        for one in past.spent
        if segment.first <= one.seq <= segment.last
    ]


def _side(manager: CheckpointManager, segments: list[Stretch]) -> _Side:
    """The checkpoints of some segments, oldest first."""
    entries: list[TimelineEntry] = []
    effects: dict[str, NoteView] = {}
    left, is_partial = _MOST_RECORDS, False
    for segment in segments:
        run = manager.reader.run(segment.run_id)
        if run is None:
            continue
        last = min(segment.last, segment.first + left - 1)
        is_partial = is_partial or last < segment.last
        if last < segment.first:
            break
        left -= last - segment.first + 1
        shown = [
            record.header
            for record in manager.reader.records(segment.run_id, segment.first, last)
            if record.header.frame != "note" and not record.header.scope
        ]
        upto = msgspec.structs.replace(run, seq=last)
        found, after = entries_from(manager.reader, manager.retention, upto, segment.first, shown)
        entries += found
        notes: Iterable[NoteView] = (note for entry in found for note in entry.notes)
        effects |= {note.id: note for note in (*notes, *after) if note.kind == "effect"}
    return _Side(entries=entries, effects=effects, is_partial=is_partial)


def _divergence(one: Header, two: Header, a: _Side, b: _Side) -> tuple[str, Places]:
    """The first step at which two runs differ, in words and as records."""
    for left, right in zip_longest(_own(a), _own(b)):
        if left is None or right is None:
            longer, there = (one, left) if right is None else (two, right)
            entry = there.header
            place = (entry.run_id, entry.seq)
            places: Places = (place, None) if right is None else (None, place)
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


def _places(left: TimelineEntry, right: TimelineEntry) -> Places:
    a, b = left.header, right.header
    return (a.run_id, a.seq), (b.run_id, b.seq)


def _node(entry: TimelineEntry) -> str:
    return step_name(entry.header)


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


def _costs(
    manager: CheckpointManager, pasts: Pasts, parts: tuple[list[Stretch], list[Stretch]]
) -> list[CostPair]:
    """The cost by node since the two parted."""
    found: list[dict[str, Spending]] = []
    for segments in parts:
        spent = [one for segment in segments for one in _spent(manager, pasts, segment)]
        found.append({one.node: one for one in by(spent, lambda one: one.node)})
    a, b = found
    none = {node: Spending(node=node) for node in (*a, *b)}
    return [
        CostPair(node=node, a=a.get(node, none[node]), b=b.get(node, none[node])) for node in none
    ]
