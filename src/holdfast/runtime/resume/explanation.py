"""What a resume would do, found out without doing it."""

from __future__ import annotations

from collections import Counter

import msgspec

from holdfast.checkpoint.effects import (
    BRANCH,
    Effect,
    Waiting,
    check_not_held,
    place_name,
    read_notes,
    spans_to,
    waiting_inside,
    waiting_of,
)
from holdfast.checkpoint.journal import Reader
from holdfast.core.records import Header
from holdfast.errors import HoldfastError, LeaseHeldError, NotFoundError
from holdfast.runtime.graph import Plan, Progress, difference, read_progress
from holdfast.storage.base import RunInfo

__all__ = ["ResumePlan", "Saved", "explain"]


class Saved(msgspec.Struct, frozen=True):
    """What need not be spent again."""

    seconds: float = 0.0
    tokens: int = 0
    dollars: float = 0.0


class ResumePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What `resume` would do. `str` tells it to people."""

    run_id: str
    status: str
    step: int
    """The newest checkpoint's."""
    checkpoint_id: str
    next: str | None
    """The node that would be executed first; None if nothing would be, or it is to be decided."""
    again: tuple[str, ...] = ()
    """Nodes that were executed after that checkpoint, as far as their effects tell, and would be
    executed again."""
    skipped: tuple[str, ...] = ()
    """The path that would not be walked again."""
    inside: tuple[str, ...] = ()
    """How far the node is that was being executed, where it keeps progress of its own."""
    reused: tuple[str, ...] = ()
    """Effects whose recorded outcome would be returned."""
    in_doubt: tuple[Waiting, ...] = ()
    """Effects that began and whose outcome is not known, each with its policy."""
    questions: tuple[Waiting, ...] = ()
    saves: Saved = Saved()
    """Time, tokens and dollars of all that would not be done again."""
    error: str = ""
    """What it failed with."""
    problem: str = ""
    """Why it could not be resumed now."""

    def __str__(self) -> str:
        return self.tell()

    def tell(self, *, now: bool = False) -> str:
        """The plan in words: what would happen or, if it is carried out *now*, what happens."""
        if self.status == "completed":
            none = "nothing runs" if now else "nothing would run"
            return f"run {self.run_id} is completed at step {self.step}: {none}"
        where = f"node {self.next!r}" if self.next else "the decision that was not taken"
        goes = "goes on" if now else "would go on"
        lines = [f"run {self.run_id} {goes} after step {self.step} with {where}"]
        if now and self.questions:
            lines = [f"run {self.run_id} waits after step {self.step} at {where}"]
        if self.error:
            lines.append(f"it had failed: {self.error}")
        if self.skipped:
            counts = Counter(self.skipped)
            lines.append("skipped: " + ", ".join(_times(*one) for one in counts.items()))
        for word, what in (("again", self.again), ("inside", self.inside), ("reused", self.reused)):
            if what:
                lines.append(f"{word}: {', '.join(what)}")
        for one in self.in_doubt:
            lines.append(f"in doubt: {one.id}, and {_DO[one.policy][now]}")
        for one in self.questions:
            lines.append(f"waits for an answer: {one.id}: {one.question}")
        spent = self.saves
        lines.append(f"saves {spent.seconds:.1f} s, {spent.tokens:,} tokens, ${spent.dollars:.2f}")
        if self.problem:
            lines.append(f"but not now: {self.problem}")
        return "\n".join(lines)


_DO = {
    "retry": (
        "would be called again with the same key",
        "is called again with the same key",
    ),
    "probe": ("would be looked up outside", "is looked up outside"),
    "ask": (
        "the run would be parked until someone says what happened",
        "the run is parked until someone says what happened",
    ),
    "fail": ("the run would fail", "the run fails"),
}
"""What is done about an effect in doubt: what would be, and what is."""


def explain(reader: Reader, plan: Plan | None, run_id: str) -> ResumePlan:
    """See `StateGraph.explain_resume`. Without the graph's *plan*, whether it still fits is not
    looked at."""
    run = reader.to_resume(run_id)
    newest = reader.newest(run) if run is not None else None
    if run is None or newest is None:
        raise NotFoundError(f"no run {run_id!r} to resume", hint="check the run id", run_id=run_id)
    progress = read_progress(reader.load(newest))
    notes = read_notes(reader, newest, run.seq)
    effects = {note.content.id: note for note in notes if note.kind == "effect"}
    answered = {note.content.id for note in notes if note.kind == "answer"}
    asked = {note.content.id: note for note in notes if note.kind == "question"}
    completed = newest.status == "completed"
    steps = {(note.step, note.node or "") for note in notes if not note.scope}
    inside = [] if completed else waiting_inside(reader, run.run_id)
    return ResumePlan(
        run_id=run.run_id,
        status=newest.status,
        step=newest.step,
        checkpoint_id=newest.id,
        next=progress.next,
        again=tuple(node for step, node in sorted(steps) if not completed),
        skipped=tuple(progress.path),
        inside=() if completed else tuple(_inside(reader, run, newest, progress)),
        reused=tuple(id for id, note in effects.items() if note.content.done),
        in_doubt=(
            *(
                waiting_of(run.run_id, note)
                for note in effects.values()
                if not note.content.done and not note.content.repeat
            ),
            *(one for one in inside if one.kind == "effect"),
        ),
        questions=(
            *(waiting_of(run.run_id, note) for id, note in asked.items() if id not in answered),
            *(one for one in inside if one.kind == "question"),
        ),
        saves=_saved(reader, run, progress),
        error=progress.error,
        problem=_problem(reader, plan, newest, progress),
    )


def _saved(reader: Reader, run: RunInfo, progress: Progress) -> Saved:
    recorded: list[tuple[Header, Effect]] = []
    branches: list[Header] = []
    for record in reader.records(run.run_id, 1, run.seq):
        header = record.header
        if header.frame == "note" and header.kind == BRANCH:
            branches.append(header)
        elif header.frame == "note" and header.kind == "effect":
            entry = msgspec.json.decode(reader.sealer.open(record), type=Effect)
            if entry.done and entry.error is None:
                recorded.append((header, entry))
    spans = spans_to(branches, run.seq)
    done: dict[str, Effect] = {}
    inside = 0.0
    step = len(progress.path)
    for header, entry in recorded:
        if not any(header.seq in span for span in spans):
            continue  # given up, and done anew
        if entry.id not in done and header.step > step and not header.scope:
            inside += entry.seconds
        done[entry.id] = entry
    return Saved(
        progress.elapsed + inside,
        sum(entry.tokens for entry in done.values()),
        sum(entry.dollars for entry in done.values()),
    )


def _inside(reader: Reader, run: RunInfo, newest: Header, progress: Progress) -> list[str]:
    """How far what is nested in the open step is."""
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


def _problem(reader: Reader, plan: Plan | None, newest: Header, progress: Progress) -> str:
    if newest.status == "completed":
        return ""
    try:
        if plan and newest.fingerprint != plan.fingerprint and newest.schema == plan.version:
            raise difference(progress.shape, plan.shape, newest.run_id)
        check_not_held(reader, newest.run_id)
    except LeaseHeldError as error:
        return error.message
    except HoldfastError as error:
        return str(error)
    return ""


def _times(node: str, count: int) -> str:
    return node if count == 1 else f"{node} x{count}"
