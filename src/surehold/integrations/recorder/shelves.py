"""Shelves of recorded calls: the journal of a run, or a file that people can read."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from surehold.core.policy import Ending
from surehold.core.records import OPEN_FROM, Door, Effect, Header
from surehold.core.state import Place, read_metadata
from surehold.core.values import decode, encode
from surehold.engine.hooks import HookManager, redacted, redacting_hooks
from surehold.engine.journal import Note, Tail, line_in
from surehold.engine.managers import CheckpointManager, manager_for
from surehold.engine.runs import OpenRun, draft_at, in_doubt, taken_over
from surehold.engine.runs.effects import failure_facts
from surehold.errors import DataError, Interrupted, NotFoundError, UsageError
from surehold.integrations.recorder.calls import RecordedCall, facts_of, label
from surehold.integrations.recorder.inside import Asked
from surehold.storage.base import RecordQuery, Storage

SAVED = "saved"
"""The metadata of a record that says what the replays of a start saved so far."""

_INPUTS = 400
"""Letters of a request's body that a person is shown."""

Where = CheckpointManager | Storage | str | None


class RunShelf:
    """The calls of a run that this process holds: each is a step, and one append."""

    def __init__(
        self,
        run_id: str,
        storage: Where,
        name: str = "",
        origin: Mapping[str, Any] | None = None,
        **facts: Any,
    ) -> None:
        """*facts* become the values of a new run, which is a fork if it has an *origin*."""
        self._opened = OpenRun(run_id, Door("program"), storage)
        self._opened.open()
        try:
            state = self._opened.load()
            self.resumed = state is not None
            self.values: dict[str, Any] = dict(state.to_dict()) if state is not None else {}
            self.name = (state.name if state is not None else "") or name
            self._first = 0
            if state is None:
                self.values = facts
                if origin is None:
                    self.save("routine", "running", 0)
                else:
                    self.save("fork", "running", 0, forked_from=dict(origin))
            newest = self._opened.newest
            if newest is None:
                raise UsageError(
                    f"run {run_id!r} could not be saved", hint="see the log for why it failed"
                )
            self.completed = newest.status == "completed"
            self._first = newest.metadata.get(OPEN_FROM, newest.seq)
            effects = self._opened.ledger.effects()
            done = (note for note in effects if note.content.done)
            self._calls = {call.id: call for call in map(_call_of, done)}
            self._intents = {note.content.id: note for note in effects if not note.content.done}
            self._doubts = self._doubtful()
        except BaseException:
            self._opened.close()
            raise

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._opened.run_id

    @property
    def start(self) -> int:
        """The number of this start of the run."""
        return max(self._opened.epoch, 1)

    def calls(self) -> Iterable[RecordedCall]:
        """The recorded calls, in the order of their numbers."""
        return sorted(self._calls.values(), key=lambda call: call.number)

    def append(self, call: RecordedCall, saved: Mapping[str, Any]) -> None:
        """Keep *call* as a step of the run."""
        told = {**saved, "start": self.start} if saved["calls"] else {}
        self._opened.record([note_of(call, self._opened.hook_manager, told)])
        self._calls[call.id] = call
        self._intents.pop(call.id, None)

    def intend(self, asked: Asked, id: str, key: str, number: int) -> None:
        """Keep durably that the request will be sent."""
        request, model = facts_of(asked)
        hooks = self._opened.hook_manager
        inputs = encode(redacted(request["body"], hooks)).decode()
        entry = Effect(
            id=id,
            name=label(request, model),
            key=key,
            args=key,
            inputs=inputs if len(inputs) <= _INPUTS else inputs[:_INPUTS] + "…",
            policy="ask",
            began=_now(),
        )
        self._write_intent(Note(kind="effect", content=entry, step=number, node=model or None))

    def refused(self, id: str) -> None:
        """The server refused the request: it may be sent again."""
        note = self._intents.get(id)
        if note is not None:
            entry = msgspec.structs.replace(note.content, repeat=True)
            self._write_intent(msgspec.structs.replace(note, content=entry))

    def _write_intent(self, note: Note) -> None:
        self._opened.record([note])
        self._intents[note.content.id] = note

    def _doubtful(self) -> list[str]:
        return [note.content.name for note in self._intents.values() if in_doubt(note)]

    def asks(self, in_doubt: str | None) -> bool:
        """True if a person decides on requests that may have happened."""
        return (in_doubt or self.values.get("in_doubt")) == "ask"

    def left_doubt(self) -> bool:
        """True if this start of the program ended within a request that is asked about."""
        self._doubts = self._doubtful()
        return bool(self._doubts)

    def check_doubt(self) -> None:
        """Raise `Interrupted` if a request of an earlier start may have happened."""
        if self._doubts and not self.completed:
            raise Interrupted(
                f"run {self.run_id!r} waits: it is not known whether the request to"
                f" {self._doubts[0]} happened (surehold pending {self.run_id}, and"
                f" surehold answer {self.run_id} with its answer or --repeat)",
                run_id=self.run_id,
            )

    def copy(self, calls: Iterable[RecordedCall]) -> None:
        """Keep the calls of another run as the beginning of this one."""
        hooks, copied = self._opened.hook_manager, list(calls)
        notes = [note_of(call, hooks, {}, paid=False) for call in copied]
        if notes:
            self._opened.record(notes)
        self._calls |= {call.id: call for call in copied}

    def save(self, kind: str, status: str, step: int, extra: Any = None, **metadata: Any) -> None:
        """Save a checkpoint; the recorded calls before it stay open for replay."""
        opened = self._opened
        facts = {**metadata, **({OPEN_FROM: self._first} if self._first else {})}
        place = Place(
            run_id=opened.run_id,
            name=self.name,
            step=step,
            kind=kind,
            status=status,
            metadata=read_metadata(facts),
        )
        opened.save(
            draft_at(place, self.values, opened.lineage, door=opened.door, extra=extra, schema=0),
            force=True,
        )

    def end(
        self, ending: Ending, error: BaseException | None, step: int, saved: Mapping[str, Any]
    ) -> None:
        """Save how this start of the program ended."""
        if ending.gives == "lost":
            raise taken_over(self.run_id, self._opened.lost) from error
        failed = ending.kind == "recovery" and error is not None
        extra = failure_facts(error, self._opened.hook_manager) if failed and error else None
        told = {SAVED: {**saved, "start": self.start}} if saved["calls"] else {}
        self.save(ending.kind, ending.status, step, extra, **told)

    def check(self) -> None:
        """Raise a `ConflictError` if this process holds the run no longer."""
        self._opened.check_lease()

    def lost(self) -> bool:
        """True if another process has the run now."""
        return self._opened.lost is not None

    def close(self) -> None:
        """Let others have the run."""
        self._opened.close()


def note_of(
    call: RecordedCall, hooks: HookManager | None, saved: Mapping[str, Any], *, paid: bool = True
) -> Note:
    """The note of a recorded call; calls copied from another run were paid there."""
    tree = _stored(call.tree(), hooks)
    cost = call.usage.cost_usd or 0.0
    spent = {"tokens": call.usage.tokens, "dollars": cost}
    entry = Effect(
        id=call.id,
        name=call.label,
        key=call.key,
        args=call.key,
        policy="retry",
        began=_now(),
        done=True,
        value=msgspec.Raw(encode(tree)),
        seconds=round(call.answer.seconds, 6),
        tokens=call.usage.tokens if paid else 0,
        dollars=cost if paid else 0.0,
    )
    metadata: dict[str, Any] = {"spent": spent} if paid and (spent["tokens"] or cost) else {}
    if saved:
        metadata[SAVED] = dict(saved)
    return Note(
        kind="effect", content=entry, step=call.number, node=call.model or None, metadata=metadata
    )


def _stored(tree: dict[str, Any], hooks: HookManager | None) -> dict[str, Any]:
    """A redacted call; as plain text if it was compressed and held a secret."""
    made: dict[str, Any] = redacted(tree, hooks)
    response = made["response"]
    if "reads" in response and response["reads"] != tree["response"]["reads"]:
        headers = [one for one in response["headers"] if one[0].lower() != "content-encoding"]
        left = {
            key: one for key, one in response.items() if key not in ("base64", "sizes", "reads")
        }
        made = {**made, "response": {**left, "headers": headers, "text": response["reads"]}}
    return made


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _call_of(note: Note) -> RecordedCall:
    entry: Effect = note.content
    told: Any = None if entry.error is not None else decode(bytes(entry.value))
    is_recorded = isinstance(told, dict) and {"request", "response", "loose"} <= told.keys()
    tree = told if is_recorded else _answered(entry, told)
    call = RecordedCall.read(note.step, entry.id, tree)
    return msgspec.structs.replace(call, answer=call.answer._replace(seconds=entry.seconds))


def _answered(entry: Effect, told: Any) -> dict[str, Any]:
    """The call whose answer a person gave: what it returned, or why it failed."""
    status, reason = 200, "OK"
    if entry.error is not None:  # a status that clients do not try again
        status, reason, told = 422, "Unprocessable Content", {"error": entry.error[1]}
    body = {"text": encode(told).decode(), "headers": [["Content-Type", "application/json"]]}
    return {
        "request": {"method": "", "url": entry.name, "body": None},
        "loose": "",
        "response": {"status": status, "reason": reason, **body},
    }


class StoredCalls:
    """The calls of a stored run, which is only read."""

    def __init__(
        self,
        calls: list[RecordedCall],
        run_id: str = "",
        values: Mapping[str, Any] | None = None,
        checkpoints: Sequence[Header] = (),
    ) -> None:
        self._calls, self.run_id, self._checkpoints = calls, run_id, checkpoints
        self.values = dict(values or {})
        """The values of a recorded program's run: its command, its seed and when it began."""

    @classmethod
    def in_file(cls, path: Path) -> StoredCalls:
        """Those of the run in an exported file, which stays as it is."""
        with CheckpointManager("memory://") as manager:
            return cls.of(manager.import_run(path), manager)

    @classmethod
    def of(cls, run_id: str, storage: Where) -> StoredCalls:
        """The recorded calls of a run; a `NotFoundError` without run or recording."""
        manager = manager_for(storage)
        try:
            tail = manager.reader.tail_of(run_id)
            if tail is None:
                raise NotFoundError(
                    f"there is no run {run_id!r}", hint="surehold runs lists them", run_id=run_id
                )
            tail.loaded.door.check("program", run_id, tail.loaded.header.name)
            notes = _notes_of(manager, tail)
            values = tail.loaded.graph_state().to_dict()
            headers = manager.storage.headers(RecordQuery(run_id=run_id, scope=""))
            checkpoints = [header for header in headers if header.frame != "note"]
        finally:
            if manager is not storage:
                manager.close()
        calls = sorted(map(_call_of, notes), key=lambda call: call.number)
        return cls(calls, run_id, values, checkpoints)

    def origin(self, until: int) -> dict[str, Any]:
        """The origin of a fork that begins before that call."""
        earlier = (header for header in self._checkpoints if header.step < until)
        begin = next(earlier, self._checkpoints[-1])
        return {"run_id": self.run_id, "checkpoint_id": begin.id, "step": until - 1}

    def calls(self) -> list[RecordedCall]:
        """The recorded calls, in the order of their numbers."""
        return self._calls

    def append(self, call: RecordedCall, saved: Mapping[str, Any]) -> None:
        """Nothing is added to a run that is replayed."""
        raise UsageError("a replayed run records nothing", hint="surehold.record(...) records")


def _notes_of(manager: CheckpointManager, tail: Tail) -> list[Note]:
    line = line_in(manager.reader.sealer, tail.notes, tail.loaded.header, tail.run.seq)
    return [note for note in line.notes if note.kind == "effect" and note.content.done]


FILE_FORMAT = "surehold recording 1"


class FileShelf:
    """The calls of a file: a line of JSON each, in a stable order, without secrets.

    New calls are kept when the file is saved, so that a failing test leaves it as it was.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hooks = redacting_hooks()
        self._new: list[RecordedCall] = []
        self.exists = path.exists()
        self._kept = self._read() if self.exists else []

    def _read(self) -> list[RecordedCall]:
        if self.path.read_bytes()[:16] == b"SQLite format 3\0":
            return StoredCalls.in_file(self.path).calls()
        first, *lines = self.path.read_text(encoding="utf-8").split("\n")
        try:
            if json.loads(first).get("format") != FILE_FORMAT:
                raise ValueError
            trees = [json.loads(line) for line in lines if line]
        except (ValueError, AttributeError, UnicodeDecodeError):
            raise DataError(
                f"{self.path} is not a recording",
                hint="give the file that --surehold-record=new wrote, or one of surehold export",
            ) from None
        return [
            RecordedCall.read(number, str(tree.pop("id", "")), tree)
            for number, tree in enumerate(trees, 1)
        ]

    def calls(self) -> list[RecordedCall]:
        """The recorded calls, in the order of their numbers."""
        return self._kept

    def clear(self) -> None:
        """Record everything anew."""
        self._kept = []

    def append(self, call: RecordedCall, saved: Mapping[str, Any]) -> None:
        """Keep *call* until the file is saved."""
        self._new = [one for one in self._new if one.id != call.id] + [call]

    def save(self, unused: Iterable[RecordedCall] = ()) -> bool:
        """Write the file with new calls and without *unused* ones; False if none is new."""
        if not self._new:
            return False
        left = {call.id for call in unused}
        calls = [call for call in self._kept if call.id not in left] + self._new
        lines = [json.dumps({"format": FILE_FORMAT, "calls": len(calls)})]
        for call in calls:
            tree = _stored({"id": call.id, **call.tree()}, self._hooks)
            tree["response"].pop("seconds", None)
            lines.append(json.dumps(tree, ensure_ascii=False))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
            os.chmod(name, 0o644)
            os.replace(name, self.path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
        return True
