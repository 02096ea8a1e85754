"""A run in one look: input and outcome, who holds it, what helps."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from surehold.core.records import Lease
from surehold.core.values import encode
from surehold.engine.groups import GroupMember, MemberStatus, member_status
from surehold.engine.journal import Change, Loaded
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs import NoteView, Waiting, waiting_inside, waiting_now
from surehold.errors import SureholdError
from surehold.storage.base import RunInfo, is_live, newest_lease
from surehold.storage.queueing import EntryQuery, queues_in
from surehold.views.run.window import RunView
from surehold.views.values import (
    MESSAGE_KEYS,
    ChatTurn,
    read_turn,
    read_turns,
    value_before,
)
from surehold.views.waiting import how_to_resume
from surehold.views.words import change_words, counted, cut, keys_of, value_text

_RESULTS = ("result", "answer", "report", "output", "final_answer", "final", "summary", "response")
_INPUTS = ("arguments", "task", "question", "query", "topic", "prompt", "input", "goal")
_MOST_OLD = 1_000_000
"""Bytes of a state from which old values are read for a comparison."""
_MOST_MARKED = 4000
_MOST_VALUES = 12
_MOST_QUEUED = 1000
_MOST_SAID = 3
"""Messages of one step that its line names."""


class Named(msgspec.Struct, frozen=True):
    """A value of the state under its key."""

    key: str
    value: Any


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """A run in one look."""

    result: Named | None
    input: Named | None
    holder: Lease | None
    """The live lease, if a process executes the run."""
    waiting: list[Waiting]
    help: str
    """What continues a run that has not ended; empty if nothing does or needs to."""
    seconds: float
    """Of the steps, without the pauses between two processes."""
    values: list[tuple[str, str]]
    """The first keys of the state, each with its value in short."""
    queued: tuple[str, str]
    """Why a queued or dead run is not executed, and the command that changes it."""
    members: list[tuple[MemberStatus, GroupMember]]
    """Of a group: each member beside its part of the chosen checkpoint."""


def read_overview(
    manager: CheckpointManager,
    view: RunView,
    state: Any,
    turns: Sequence[ChatTurn],
    graphs: Mapping[str, str],
    seconds: float,
) -> Overview:
    """Read the first look at a run."""
    run, values = view.run, state if isinstance(state, dict) else {}
    status = view.summary.status
    result = _first(values, _RESULTS) if status == "completed" else None
    said = [turn for turn in turns if turn.text]
    if result is None and status == "completed" and said and said[-1].role.startswith("assistant"):
        result = Named("the last message", said[-1].text)
    given = _first(values, _INPUTS)
    if given is None and said and said[0].role.startswith("user"):
        given = Named("the first message", said[0].text)
    return Overview(
        result=result,
        input=given,
        holder=holder_of(manager, run),
        waiting=_waiting(manager, run) if status != "completed" else [],
        help=_help(manager, run, status, graphs),
        seconds=seconds,
        values=[(key, value_text(value, 160)) for key, value in [*values.items()][:_MOST_VALUES]],
        queued=_why_queued(manager, run, status),
        members=_members(manager, values) if view.chosen.header.kind == "group" else [],
    )


def _members(
    manager: CheckpointManager, values: dict[str, Any]
) -> list[tuple[MemberStatus, GroupMember]]:
    taken = [GroupMember(run_id=run_id, **part) for run_id, part in values["members"].items()]
    return [(member_status(manager, one.run_id, one), one) for one in taken]


def _first(values: dict[str, Any], keys: Sequence[str]) -> Named | None:
    for key in keys:
        if values.get(key) not in (None, "", [], {}):
            return Named(key, values[key])
    return None


def holder_of(manager: CheckpointManager, run: RunInfo) -> Lease | None:
    """The live lease of a run, if a process executes it."""
    lease = newest_lease(manager.storage, run.run_id)
    return lease if is_live(lease, time.time()) else None


def _waiting(manager: CheckpointManager, run: RunInfo) -> list[Waiting]:
    try:
        return [*waiting_now(manager.reader, run), *waiting_inside(manager.reader, run.run_id)]
    except SureholdError:
        return []


def _help(manager: CheckpointManager, run: RunInfo, status: str, graphs: Mapping[str, str]) -> str:
    if status in ("completed", "running", "queued", "saved", "waiting", "cancelled"):
        return ""
    return how_to_resume(manager, run, graphs)


def _why_queued(manager: CheckpointManager, run: RunInfo, status: str) -> tuple[str, str]:
    """Why a queued or dead run is not executed, and the command that changes it."""
    queues = queues_in(manager.storage)
    entry = queues.entry_of(run.run_id) if queues is not None else None
    if queues is None or entry is None or status not in ("queued", "dead"):
        return "", ""
    if status == "dead":
        reason = f" The last one: {entry.reason}" if entry.reason else ""
        return f"{counted(entry.failures, 'attempt')} of {entry.target} failed.{reason}", ""
    query = EntryQuery(queue=entry.queue, state="ready", limit=_MOST_QUEUED)
    ready = [one.run_id for one in queues.entries(query)]
    place = f"number {ready.index(run.run_id) + 1}" if run.run_id in ready else "far back"
    key = f", with the key {entry.key}" if entry.key else ""
    said = f"It is {place} of {len(ready)} in the queue {entry.queue}{key}."
    if queues.settings_of(entry.queue).paused:
        return f"{said} The queue is paused.", f"surehold queue resume {entry.queue}"
    serving = [
        one
        for one in queues.workers(now=time.time())
        if entry.queue in one.queues and entry.target in one.targets
    ]
    if serving:
        return f"{said} {counted(len(serving), 'worker')} can take it.", ""
    target = entry.target.partition("@")[0]
    return (
        f"{said} No worker serves {entry.target}: start one.",
        f"surehold worker {target} --queues {entry.queue}",
    )


class ShownChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change with the value before it, where that is known."""

    op: str
    path: str
    value: Any = None
    old: Any = msgspec.UNSET
    is_short: bool = False
    """True if both values fit into one line."""

    @property
    def has_old(self) -> bool:
        """True if the value before is known."""
        return self.old is not msgspec.UNSET


def with_old(manager: CheckpointManager, view: RunView) -> list[ShownChange]:
    """The changes of the chosen step, with old values if its state is not too large."""
    before = None
    header = view.chosen.header
    replaced = any(change.op != "add" for change in view.chosen.changes)
    if replaced and header.parent and header.size <= _MOST_OLD:
        try:
            parent = manager.reader.resolve(header.parent, run_id=header.run_id)
            before = manager.reader.load_visible(parent)
        except SureholdError:
            before = None
    return [shown_change(change, _old(before, change)) for change in view.chosen.changes]


def shown_change(change: Change, old: Any = msgspec.UNSET) -> ShownChange:
    """A change with the value before it, if that is known."""
    short = max(len(f"{value!r:.200}") for value in (change.value, old)) <= 60
    return ShownChange(op=change.op, path=change.path, value=change.value, old=old, is_short=short)


def _old(before: Loaded | None, change: Change) -> Any:
    if before is None or change.op == "add":
        return msgspec.UNSET
    try:
        return value_before(before, change.path)
    except (LookupError, ValueError, TypeError, SureholdError):
        return msgspec.UNSET


def by_list(changes: Sequence[ShownChange]) -> list[tuple[str, list[ShownChange]]]:
    """The changes by the key of the state they are in, in their order."""
    found: dict[str, list[ShownChange]] = {}
    for change in changes:
        found.setdefault(keys_of(change.path)[0], []).append(change)
    return [*found.items()]


Part = tuple[Literal["same", "old", "new"], str]


def marked(old: str, new: str) -> list[Part] | None:
    """The words of two texts, marked; None if they are too long.

    >>> marked("a red fox", "a blue fox")
    [('same', 'a '), ('old', 'red'), ('new', 'blue'), ('same', ' fox')]
    """
    if max(len(old), len(new)) > _MOST_MARKED:
        return None
    a, b = (re.findall(r"\w+|\s+|[^\w\s]", text) for text in (old, new))
    parts: list[Part] = []
    for kind, i, j, k, m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind == "equal":
            parts.append(("same", "".join(a[i:j])))
            continue
        if i < j:
            parts.append(("old", "".join(a[i:j])))
        if k < m:
            parts.append(("new", "".join(b[k:m])))
    return parts


def step_words(changes: Sequence[Change], width: int = 60, *, whole: bool = False) -> str:
    """A step in a line: the messages of it, else the changed keys; both if *whole*.

    A framework's own keys are left out if there is anything else.
    """
    said, others = [], []
    for change in changes:
        turns = _turns_of(change)
        if not turns:
            others.append(change)
        for turn in turns:
            text = " ".join(turn.text.split())
            words = f"{turn.role}: {cut(text, width)}" if text else turn.role
            said.append(f"{words} {', '.join(turn.calls)}".strip())
    own = ("branch:", "__", "-branch:")
    kept = [one for one in others if not keys_of(one.path)[0].startswith(own)]
    if said and not (whole and kept):
        return "; ".join(said)
    return "; ".join([*said, change_words(kept or changes, width)])


def _turns_of(change: Change) -> list[ChatTurn]:
    """The messages that a change appends, or those of a list or of LangGraph's input."""
    key, *rest = keys_of(change.path)
    if key in MESSAGE_KEYS and rest == ["-"]:
        turn = _turn_of(change)
        return [turn] if turn else []
    if rest or change.op == "remove" or key not in (*MESSAGE_KEYS, "__start__"):
        return []
    value = msgspec.json.decode(encode(change.value))
    return read_turns(value if key == "__start__" else {key: value})[-_MOST_SAID:]


def _turn_of(change: Change) -> ChatTurn | None:
    """The message that a change appends, in the form in which the journal writes it."""
    return read_turn(msgspec.json.decode(encode(change.value)))


class MessagePlace(msgspec.Struct, frozen=True):
    """The step that wrote a message, and what the step cost."""

    seq: int
    step: int
    dollars: float
    tokens: int
    at: Any


def places_of_calls(said: Sequence[tuple[ChatTurn, NoteView]]) -> dict[int, MessagePlace]:
    """The recorded call of each message; an answer has its cost."""
    return {
        number: MessagePlace(
            note.seq,
            note.step,
            note.dollars if turn.role == "assistant" else 0.0,
            note.tokens if turn.role == "assistant" else 0,
            None,
        )
        for number, (turn, note) in enumerate(said)
    }


def places_of(view: RunView, turns: Sequence[ChatTurn]) -> dict[int, MessagePlace]:
    """The steps that wrote the newest messages, by the number of the message.

    Only of the steps that are listed, back to one that did not only append.
    """
    found: dict[int, MessagePlace] = {}
    left = len(turns)
    for entry in view.entries:
        if entry.header.seq > view.chosen.header.seq:
            continue
        appended = 0
        for change in entry.changes:
            key, *rest = keys_of(change.path)
            if key in MESSAGE_KEYS:
                if rest != ["-"]:
                    return found
                appended += _turn_of(change) is not None
        dollars = sum(note.dollars for note in entry.notes)
        tokens = sum(note.tokens for note in entry.notes)
        for number in range(left - 1, max(-1, left - 1 - appended), -1):
            last = number == left - 1
            found[number] = MessagePlace(
                entry.header.seq,
                entry.header.step,
                dollars if last else 0.0,
                tokens if last else 0,
                entry.header.saved_at,
            )
        left -= appended
    return found
