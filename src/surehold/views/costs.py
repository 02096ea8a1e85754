"""Costs of recorded effects, by day, name, node, model and run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from surehold.core.records import Header
from surehold.engine.managers import CheckpointManager
from surehold.storage.base import RecordQuery, Storage
from surehold.views.documents import Document, Rows

_MOST = 5000
"""Newest effects that a report over runs reads."""
_LISTED = 10


class EffectCost(msgspec.Struct, frozen=True):
    """The cost of a run's recorded effects."""

    tokens: int = 0
    dollars: float = 0.0


class Payment(EffectCost, frozen=True, kw_only=True):
    """The cost of one effect, as the header of its record tells it."""

    seq: int
    run_id: str
    node: str
    name: str = ""
    """The effect's."""
    model: str = ""
    output: int = 0
    """How many of the tokens the model wrote."""
    at: datetime
    epoch: int = 0


class Spending(EffectCost, frozen=True, kw_only=True):
    """The cost of the effects of one node, name, model, day or run."""

    node: str
    calls: int = 0
    output: int = 0


def spent_in(header: Header) -> Payment | None:
    """The cost that a record tells of, if it does."""
    told: Any = header.metadata.get("spent")
    if header.kind != "effect" or not isinstance(told, dict):
        return None
    return Payment(
        seq=header.seq,
        run_id=header.run_id,
        node=header.node or "",
        name=str(told.get("name", "")),
        model=str(told.get("model", "")),
        tokens=int(told.get("tokens", 0)),
        output=int(told.get("output", 0)),
        dollars=float(told.get("dollars", 0.0)),
        at=header.saved_at,
        epoch=header.epoch,
    )


def spent(storage: Storage, run_id: str, up_to: int | None = None) -> EffectCost:
    """The cost of a run's effects, of all or of those up to a record.

    Pruned effects are not counted.
    """
    total = EffectCost()
    for one in _recorded(storage, RecordQuery(run_id=run_id, kind="effect", notes=True)):
        if up_to is None or one.seq <= up_to:
            total = EffectCost(total.tokens + one.tokens, total.dollars + one.dollars)
    return total


def _recorded(storage: Storage, query: RecordQuery) -> Iterator[Payment]:
    return filter(None, map(spent_in, storage.headers(query)))


def by(found: Iterable[Payment], key: Callable[[Payment], str]) -> list[Spending]:
    """The costs by what *key* says of each, the most expensive first."""
    made: dict[str, Spending] = {}
    for one in found:
        name = key(one)
        old = made.get(name, Spending(node=name))
        made[name] = Spending(
            node=name,
            calls=old.calls + 1,
            tokens=old.tokens + one.tokens,
            output=old.output + one.output,
            dollars=old.dollars + one.dollars,
        )
    return sorted(made.values(), key=lambda one: (-one.dollars, -one.tokens, one.node))


class CostRow(msgspec.Struct, kw_only=True):
    """The cost of one day, name, node, model or run."""

    by: str
    """``day``, ``name``, ``node``, ``model`` or ``run``."""
    key: str
    calls: int
    tokens: int
    output_tokens: int
    dollars: float


class CostReport(Document, kw_only=True, tag="costs"):
    calls: int
    tokens: int
    output_tokens: int
    dollars: float
    today: float
    """Dollars since midnight, UTC."""
    resumes: int
    """The number of resumes that did not repeat calls which had cost something."""
    saved: float
    """Dollars of those calls: a resume does not pay for them again."""
    rows: Annotated[list[CostRow], Rows("cost")]
    since: datetime | None
    """The oldest effect that was read, if older ones were not."""


def read_costs(manager: CheckpointManager, limit: int = _MOST) -> CostReport:
    """Add up the newest *limit* effects that cost something, over all runs."""
    query = RecordQuery(kind="effect", notes=True, limit=2 * limit)  # intents, and outcomes
    read = [*manager.storage.headers(query)]
    every = [one for one in map(spent_in, read) if one is not None]
    found = every[:limit]
    names: dict[str, str] = {}
    epochs: dict[str, set[int]] = {}
    for header in read:
        epochs.setdefault(header.run_id, set()).add(header.epoch)
    for run_id in dict.fromkeys(one.run_id for one in found):
        run = manager.reader.run(run_id)
        names[run_id] = (run.name if run is not None else "") or run_id
        newest = manager.reader.newest(run) if run is not None else None
        epochs[run_id].add(newest.epoch if newest is not None else 0)
    keys: dict[str, Callable[[Payment], str]] = {
        "day": lambda one: f"{one.at.astimezone(UTC):%Y-%m-%d}",
        "name": lambda one: names[one.run_id],
        "node": lambda one: one.node or one.name or "the run itself",
        "model": lambda one: one.model or "not named",
        "run": lambda one: one.run_id,
    }
    rows = []
    for kind, key in keys.items():
        made = by(found, key)
        if kind == "day":
            made = sorted(made, key=lambda one: one.node, reverse=True)[:31]
        elif kind == "run":
            made = made[:_LISTED]
        rows += [
            CostRow(
                by=kind,
                key=one.node,
                calls=one.calls,
                tokens=one.tokens,
                output_tokens=one.output,
                dollars=one.dollars,
            )
            for one in made
        ]
    resumes, saved = _saved_by_resumes(found, epochs)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    is_cut = len(every) > limit or len(read) == 2 * limit
    whole = Counter[str]()
    for one in found:
        whole.update(tokens=one.tokens, output=one.output)
    return CostReport(
        calls=len(found),
        tokens=whole["tokens"],
        output_tokens=whole["output"],
        dollars=sum(one.dollars for one in found),
        today=sum(row.dollars for row in rows if row.by == "day" and row.key == today),
        resumes=resumes,
        saved=saved,
        rows=rows,
        since=found[-1].at if found and is_cut else None,
    )


def _saved_by_resumes(
    found: Iterable[Payment], epochs: Mapping[str, set[int]]
) -> tuple[int, float]:
    """Count resumes of runs whose calls had cost something, and what they saved.

    *epochs* are those in which each run recorded a call or its newest checkpoint: what a resume
    that died before did not pay again is not counted.
    """
    later, saved = set(), 0.0
    for one in found:
        after = {epoch for epoch in epochs[one.run_id] if epoch > one.epoch > 0}
        later |= {(one.run_id, epoch) for epoch in after}
        saved += one.dollars * len(after)
    return len(later), saved


def spent_today(storage: Storage) -> float:
    """The dollars of effects recorded since midnight, UTC; of the newest 5,000."""
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    query = RecordQuery(kind="effect", notes=True, since=midnight, limit=_MOST)
    return sum(one.dollars for one in _recorded(storage, query))
