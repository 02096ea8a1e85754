"""Recorded calls of programs and workflows: their steps, and the conversation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from surehold.core.records import Header
from surehold.core.values import encode
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs import NoteView
from surehold.storage.base import RecordQuery, RunInfo
from surehold.views.timeline import TimelineEntry
from surehold.views.values import ChatTurn, read_turn
from surehold.views.words import cut, value_text

CALL_DOORS = ("program", "function")
"""Doors whose steps are recorded calls; they save a checkpoint only where they begin and end."""
_OPEN = ("begun", "repeat")
_ASKED = ("messages", "input", "contents", "prompt")


def with_calls(
    manager: CheckpointManager,
    run: RunInfo,
    shown: Sequence[TimelineEntry],
    after: Sequence[NoteView],
) -> tuple[list[TimelineEntry], tuple[NoteView, ...]]:
    """The entries with one for each call, newest first, and the notes that are left."""
    query = RecordQuery(run_id=run.run_id, scope="", notes=True)
    headers = {one.seq: one for one in manager.reader.readable_headers(run, query)}
    rows, left = _of_notes(after, headers)
    for entry in shown:
        calls, rest = _of_notes(entry.notes, headers)
        rows += [msgspec.structs.replace(entry, notes=rest), *calls]
    return rows, left


def _of_notes(
    notes: Sequence[NoteView], headers: Mapping[int, Header]
) -> tuple[list[TimelineEntry], tuple[NoteView, ...]]:
    """The calls of notes, newest first, and the other notes."""
    rows, left = [], []
    for note in notes:
        if note.kind != "effect" or note.seq not in headers:
            left.append(note)
        elif note.state not in _OPEN:
            node = note.node or note.name
            header = msgspec.structs.replace(headers[note.seq], node=node)
            rows.append(
                TimelineEntry(
                    header=header, pinned=False, changes=(), notes=(note,), error=note.error
                )
            )
    return rows[::-1], tuple(left)


def window(
    rows: list[TimelineEntry], at: int | None, most: int, newer: int
) -> tuple[list[TimelineEntry], int | None, int | None]:
    """At most so many rows around the record *at*, and the records of both neighbours."""
    chosen = next((place for place, one in enumerate(rows) if one.header.seq <= (at or 0)), 0)
    start = max(0, chosen - newer) if at is not None and chosen >= most else 0
    end = start + most
    return (
        rows[start:end],
        rows[max(0, start - most + newer)].header.seq if start else None,
        rows[end].header.seq if end < len(rows) else None,
    )


def calls_of(notes: Iterable[NoteView]) -> list[NoteView]:
    """The calls among notes: each once, with its outcome if it has one."""
    return [note for note in without_begins(notes) if note.kind == "effect"]


def without_begins(notes: Iterable[NoteView]) -> list[NoteView]:
    """The notes without the begins of calls whose outcome is among them."""
    every = list(notes)
    ended = {note.id for note in every if note.kind == "effect" and note.state != "begun"}
    return [note for note in every if note.state != "begun" or note.id not in ended]


def call_words(note: NoteView, width: int) -> str:
    """The outcome of a call in a line; of a recorded model call the answer."""
    if note.error:
        return note.error
    said = answer_of(note.value)
    if said is None:
        return "" if note.value is None else value_text(note.value, width)
    return cut(" ".join([*said.text.split(), *said.calls]), width)


def turns_of_calls(notes: Iterable[NoteView]) -> list[tuple[ChatTurn, NoteView]]:
    """The conversation of recorded model calls: each message once, with its call."""
    turns: list[tuple[ChatTurn, NoteView]] = []
    before: list[Any] = []
    for note in notes:
        answer = answer_of(note.value)
        if note.kind != "effect" or answer is None:
            continue
        asked = asked_in(note.value)
        same = next(
            (at for at, pair in enumerate(zip(asked, before, strict=False)) if pair[0] != pair[1]),
            min(len(asked), len(before)),
        )
        fresh = asked[same:]
        if same and fresh and _is_answer(fresh[0]):
            fresh = fresh[1:]  # the answer to the call before, as the program gives it back
        turns += [(turn, note) for one in fresh if (turn := read_turn(one))]
        turns.append((answer, note))
        before = asked
    return turns


def _is_answer(message: Mapping[str, Any]) -> bool:
    return message.get("role") in ("assistant", "model")


def asked_in(value: Any) -> list[dict[str, Any]]:
    """The messages of a recorded request."""
    body = value["request"].get("body")
    if not isinstance(body, dict):
        return []
    system = body.get("system") or body.get("instructions")
    made: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    told: Any = next((body[key] for key in _ASKED if body.get(key)), [])
    for one in told if isinstance(told, list) else [told]:
        made += _message(one)
    return made


def _message(one: Any) -> list[dict[str, Any]]:
    if isinstance(one, str):
        return [{"role": "user", "content": one}]
    if not isinstance(one, dict):
        return []
    if one.get("type") == "function_call":
        return [{"role": "assistant", "content": "", "tool_calls": [one]}]
    if one.get("type") == "function_call_output":
        return [{"role": "tool", "content": one.get("output")}]
    if not isinstance(one.get("content"), list):
        return [{"role": "user", **one}]
    uses = [part for part in one["content"] if _kind(part) == "tool_use"]
    rest = [part for part in one["content"] if _kind(part) != "tool_use"]
    results = bool(rest) and all(_kind(part) == "tool_result" for part in rest)
    role = "tool" if results else one.get("role", "user")
    return [{**one, "role": role, "content": rest, **({"tool_calls": uses} if uses else {})}]


def _kind(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else None


def answer_of(value: Any) -> ChatTurn | None:
    """The answer of a recorded model call, streamed or not; None for any other value.

    >>> text = '{"choices": [{"message": {"content": "Brown algae."}}]}'
    >>> answer_of({"request": {}, "response": {"text": text}}).text
    'Brown algae.'
    """
    if not isinstance(value, dict) or not {"request", "response"} <= value.keys():
        return None
    plain = msgspec.json.decode(encode(value["response"]))
    text, calls = "", dict[Any, list[str]]()
    for document in _documents(str(plain.get("text") or plain.get("reads", ""))):
        for part in _parts(document):
            text += _text_of(part)
            for call in part.get("tool_calls") or ():
                _add_call(calls, call.get("index", call.get("id")), call.get("function") or call)
            if part.get("type") in ("tool_use", "function_call"):
                _add_call(calls, part.get("id"), part)
            if isinstance(part.get("partial_json"), str) and calls:
                [*calls.values()][-1][1] += part["partial_json"]
    return ChatTurn("assistant", text, tuple(f"{name}({given})" for name, given in calls.values()))


def _documents(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a response: one, a list, or those of its events."""
    try:
        found = json.loads(text)
    except ValueError:
        lines = (line.removeprefix("data:").strip() for line in text.splitlines())
        for line in lines:
            with suppress(ValueError):
                yield from filter(_is_dict, [json.loads(line)])
        return
    yield from filter(_is_dict, found if isinstance(found, list) else [found])


def _is_dict(one: Any) -> bool:
    return isinstance(one, dict)


def _parts(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parts that a document adds to the answer, in the shapes of the providers."""
    choices = document.get("choices") or ()
    parts = [one.get("message") or one.get("delta") or one for one in choices]
    response = document.get("response") if document.get("type") == "response.completed" else None
    for item in (response or document).get("output") or ():
        if _is_dict(item):
            parts += item.get("content") or () if item.get("type") == "message" else [item]
    parts += [document.get(key) for key in ("message", "delta", "content_block")]
    parts += document.get("content") or () if document.get("role") == "assistant" else ()
    for candidate in document.get("candidates") or ():
        parts += (candidate.get("content") or {}).get("parts") or ()
    return (part for part in parts if isinstance(part, dict))


def _text_of(part: dict[str, Any]) -> str:
    told = part.get("content") or part.get("text")
    if isinstance(told, list):
        return "".join(_text_of(one) for one in told if _is_dict(one))
    return told if isinstance(told, str) else ""


def _add_call(calls: dict[Any, list[str]], key: Any, call: Mapping[str, Any]) -> None:
    given = call.get("arguments", call.get("input") or "")
    made = calls.setdefault(key, ["", ""])
    made[0] += call.get("name") or ""
    made[1] += given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
