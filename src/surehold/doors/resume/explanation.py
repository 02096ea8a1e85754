"""Explanation of a resume, without doing it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from surehold.core.records import Header
from surehold.doors.result import Spent, spent_on
from surehold.doors.resume.progress import Progress, Shape, difference, read_progress
from surehold.doors.resume.target import find_run, find_target
from surehold.engine.journal import BRANCH, Loaded, Note, Reader, read_notes, spans_to
from surehold.engine.runs import (
    Waiting,
    check_not_held,
    in_doubt,
    open_notes,
    waiting_inside,
    waiting_of,
)
from surehold.engine.runs.effects import failure_in
from surehold.engine.runs.positions import place_name
from surehold.errors import LeaseHeldError, SureholdError
from surehold.storage.base import RecordQuery, RunInfo


def _tell_saved(spent: Spent) -> str:
    """
    >>> _tell_saved(Spent(seconds=61, tokens=1200, dollars=0.0412))
    'saves 61.0 s, 1,200 tokens, $0.041'
    >>> _tell_saved(Spent(seconds=2.5))
    'saves 2.5 s'
    """
    tokens = f", {spent.tokens:,} tokens" if spent.tokens else ""
    dollars = f", ${spent.dollars:.3f}" if spent.dollars else ""
    return f"saves {spent.seconds:.1f} s{tokens}{dollars}"


class ResumePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a resume. `str` gives it in words."""

    run_id: str
    status: str
    step: int
    """Step of the newest checkpoint."""
    checkpoint_id: str
    next: str | None
    """The first node to execute, or the workflow; None if there is none, or it is undecided."""
    is_workflow: bool = False
    """True if the run is of a durable function, which is called again from its beginning."""
    again: tuple[str, ...] = ()
    """Nodes executed after that checkpoint, as far as effects show, and executed again."""
    skipped: tuple[str, ...] = ()
    """Nodes that are not executed again."""
    inside: tuple[str, ...] = ()
    """Progress inside the node that was being executed."""
    reused: tuple[str, ...] = ()
    """Effects whose recorded outcome is returned."""
    in_doubt: tuple[Waiting, ...] = ()
    """Effects that began and whose outcome is unknown, each with its policy."""
    questions: tuple[Waiting, ...] = ()
    saves: Spent = Spent()
    """Time, tokens and dollars of everything that is not repeated."""
    error: str = ""
    """Text of the failure that ended the run."""
    problem: str = ""
    """Reason why it cannot be resumed now."""

    def __str__(self) -> str:
        return self.tell()

    def tell(self, *, now: bool = False) -> str:
        """The plan in words; *now*: in the present tense, for a resume that is being done."""
        if self.status == "completed":
            none = "nothing runs" if now else "nothing would run"
            return f"run {self.run_id} is completed at step {self.step}: {none}"
        lines = [self._tell_place(waits=now and bool(self.questions), now=now)]
        if self.error:
            lines.append(f"it had failed: {self.error}")
        if self.skipped:
            counts = Counter(self.skipped)
            lines.append(
                "skipped: "
                + ", ".join(
                    node if count == 1 else f"{node} x{count}" for node, count in counts.items()
                )
            )
        hidden = len(self.reused) - _LISTED
        earlier = [f"{hidden} earlier ones"] if hidden > 0 else []
        reused = [*earlier, *self.reused[-_LISTED:]]
        for word, what in (("again", self.again), ("inside", self.inside), ("reused", reused)):
            if what:
                lines.append(f"{word}: {', '.join(what)}")
        for one in self.in_doubt:
            lines.append(f"in doubt: {one.id}, and {IN_DOUBT[one.policy][now]}")
        lines += [_tell_waiting(one) for one in self.questions]
        lines.append(_tell_saved(self.saves))
        if self.problem:
            lines.append(f"but not now: {self.problem}")
        return "\n".join(lines)

    def _tell_place(self, *, waits: bool, now: bool) -> str:
        """The place in the graph or in the workflow at which the run continues or waits."""
        if self.is_workflow:
            count = len(self.reused)
            after = f"after {count} recorded call{'' if count == 1 else 's'}"
            goes = "would call {} again and continue {}"
            if now:
                goes = "waits in {} {}" if waits else "calls {} again and continues {}"
            return f"run {self.run_id} {goes.format(self.next, after)}"
        where = f"node {self.next!r}" if self.next else "an undecided edge"
        if waits:
            return f"run {self.run_id} waits after step {self.step} at {where}"
        goes = "continues" if now else "would continue"
        return f"run {self.run_id} {goes} after step {self.step} with {where}"


_LISTED = 8
"""Recorded calls that are listed by their ids, at most."""


IN_DOUBT = {
    "retry": ("would be called again with the same key", "is called again with the same key"),
    "probe": ("would be looked up outside", "is looked up outside"),
    "ask": (
        "the run would wait until someone says what happened",
        "the run waits until someone says what happened",
    ),
    "fail": ("the run would fail", "the run fails"),
}
"""Handling of an effect in doubt, by policy: in the conditional and the present tense."""


class Shaped(Protocol):
    """A graph's plan, as far as it must fit the run."""

    @property
    def shape(self) -> Shape: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def version(self) -> int: ...


def explain(reader: Reader, plan: Shaped | None, run_id: str) -> ResumePlan:
    """Explain the resume of a run; see `StateGraph.explain_resume`.

    Without *plan* the shape of the graph is not compared.
    """
    target = find_target(reader, find_run(reader, run_id))
    run, newest = target.run, target.newest
    loaded = reader.load(newest)
    if plan is None and loaded.door.kind == "function":
        return _explain_workflow(reader, run, loaded)
    progress = read_progress(loaded)
    notes = read_notes(reader, newest, run.seq)
    effects = {note.content.id: note for note in notes if note.kind == "effect"}
    answered = {note.content.id for note in notes if note.kind == "answer"}
    asked = [note for note in notes if note.kind == "question" and not note.content.expired]
    unsettled = [
        *(one for one in effects.values() if not one.content.done and not one.content.repeat),
        *({one.content.id: one for one in asked if one.content.id not in answered}.values()),
    ]
    completed = newest.status == "completed"
    steps = {(note.step, note.node or "") for note in notes if not note.scope}
    waiting = [waiting_of(run.run_id, note) for note in unsettled]
    waiting += [] if completed else waiting_inside(reader, run.run_id)
    return _plan(
        newest,
        next=progress.next,
        again=tuple(node for step, node in sorted(steps) if not completed),
        skipped=tuple(progress.path),
        inside=() if completed else tuple(_inside(reader, run, newest, progress)),
        reused=tuple(id for id, note in effects.items() if note.content.done),
        in_doubt=tuple(one for one in waiting if one.kind == "effect"),
        questions=_not_over([one for one in waiting if one.kind == "question"]),
        saves=_saved(reader, run, progress, notes),
        error=progress.error,
        problem=_problem(reader, plan, newest, progress),
    )


def _plan(newest: Header, **facts: Any) -> ResumePlan:
    place: dict[str, Any] = {"run_id": newest.run_id, "status": newest.status, "step": newest.step}
    return ResumePlan(checkpoint_id=newest.id, **place, **facts)


def _explain_workflow(reader: Reader, run: RunInfo, loaded: Loaded) -> ResumePlan:
    """Say which recorded calls of a workflow are returned, and its waits."""
    newest = loaded.header
    completed = newest.status == "completed"
    ledger = open_notes(reader, run)
    notes = [] if completed else ledger.notes()
    waiting = [] if completed else [waiting_of(run.run_id, note) for note in ledger.waiting()]
    done = [note.content for note in notes if note.kind == "effect" and note.content.done]
    return _plan(
        newest,
        next=newest.name,
        is_workflow=True,
        reused=tuple(one.id for one in done),
        in_doubt=tuple(waiting_of(run.run_id, note) for note in notes if in_doubt(note)),
        questions=_not_over([one for one in waiting if one.kind != "effect"]),
        saves=spent_on(done),
        error=failure_in(newest, loaded.extras[-1]),
        problem="" if completed else _held(reader, run.run_id),
    )


def _not_over(waiting: list[Waiting]) -> tuple[Waiting, ...]:
    """Those whose time has not come: a resume waits for them."""
    now = datetime.now(UTC)
    return tuple(one for one in waiting if one.until is None or one.until > now)


def _saved(reader: Reader, run: RunInfo, progress: Progress, notes: Sequence[Note]) -> Spent:
    """Sum up the recorded effects by their headers, and *notes* of the open step."""
    find = functools.partial(RecordQuery, run_id=run.run_id, notes=True)
    branches = [*reader.storage.headers(find(kind=BRANCH))][::-1]
    spans = spans_to(branches, run.seq)
    tokens, dollars = 0, 0.0
    for header in reader.storage.headers(find(kind="effect")):
        spent = header.metadata.get("spent")
        if isinstance(spent, dict) and any(header.seq in span for span in spans):
            tokens += spent.get("tokens", 0)
            dollars += spent.get("dollars", 0.0)
    done = {note.content.id: note for note in notes if note.kind == "effect"}
    inside = sum(
        note.content.seconds
        for note in done.values()
        if note.content.done and note.content.error is None and not note.scope
    )
    return Spent(seconds=progress.elapsed + inside, tokens=tokens, dollars=dollars)


def _inside(reader: Reader, run: RunInfo, newest: Header, progress: Progress) -> list[str]:
    """Progress of what is nested in the open step."""
    place = place_name(progress.next or "", newest.step + 1)
    scopes: dict[str, Header] = {}
    items: Counter[str] = Counter()
    for record in reader.records(run.run_id, progress.floor + 1, run.seq):
        header = record.header
        if header.scope == place or header.scope.startswith((f"{place}.", f"{place}/")):
            if header.frame != "note":
                scopes[header.scope] = header
            elif header.kind == "item":
                items[header.scope] += 1
    told = [f"{scope}: {count} items done" for scope, count in items.items()]
    for scope, header in scopes.items():
        told.append(f"{scope}: {header.status}, step {header.step} done")
    return told


def _problem(reader: Reader, plan: Shaped | None, newest: Header, progress: Progress) -> str:
    if newest.status == "completed":
        return ""
    try:
        if plan and newest.fingerprint != plan.fingerprint and newest.schema == plan.version:
            raise difference(progress.shape, plan.shape, newest.run_id)
    except SureholdError as error:
        return str(error)
    return _held(reader, newest.run_id)


def _held(reader: Reader, run_id: str) -> str:
    try:
        check_not_held(reader, run_id)
    except LeaseHeldError as error:
        return error.message
    except SureholdError as error:
        return str(error)
    return ""


def _tell_waiting(one: Waiting) -> str:
    until = f" until {one.until:%Y-%m-%d %H:%M:%S} UTC" if one.until is not None else ""
    if one.kind == "timer":
        return f"waits{until}: {one.id}"
    if one.kind == "message":
        return f"waits for a message of topic {one.name}{until}: {one.id}"
    if one.kind == "event":
        return f"waits for the event {one.name}{until}: {one.id}"
    return f"waits for an answer{until}: {one.id}: {one.question}"
